"""`python -m bench.spark.ledger_tables [--commits N]`: what a ledger's table costs as it grows.

Files and bytes of a batch of many Kafka partitions, against one file with the same rows. The time of commits
of one row that follow each other, checkpoints and the cleaning of the log included, in tables of few and of
many files, the first of a process and those after it. And how many files a query of one day of a year reads,
after a catch-up that came in any order and `optimize(sort_by=…)`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

FEW, MANY = 100, 100_000
KAFKA_PARTITIONS, TASKS, ROWS = 50, 4, 200_000
WARM = 3
"""Commits that are not counted where a process goes on."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.ledger_tables", description=__doc__)
    parser.add_argument("--commits", type=int, default=1_000, help="how many are timed in each table")
    parser.add_argument("--only", help="internal: time commits to this table, and print them")
    asked = parser.parse_args()
    if asked.only:
        print(json.dumps(spent_on(Path(asked.only), asked.commits)))
        return
    with tempfile.TemporaryDirectory() as folder:
        told: dict[str, Any] = {"one batch": one_batch(Path(folder, "batch"))}
        told["one day of a year"] = one_day(Path(folder, "year"))
        for files in (FEW, MANY):
            table = Path(folder, str(files))
            fill(table, files)
            told[f"commits with {files:,} files, ms"] = commits(table, asked.commits)
    print(json.dumps(told, indent=2))


def rows(places: list[tuple[int, int]], **more: Any) -> pa.Table:
    """Return rows of Kafka partitions, with a value of 100 bytes that does not compress to nothing."""
    chance = random.Random(len(places))
    return pa.table(
        {
            "topic": pa.array(["flights"] * len(places)),
            "partition": pa.array([partition for partition, _ in places], pa.int32()),
            "offset": pa.array([offset for _, offset in places], pa.int64()),
            "value": pa.array([chance.randbytes(100) for _ in places]),
            **more,
        }
    )


def one_batch(table: Path) -> dict[str, float]:
    """Return the files of a batch of Spark's, and their bytes against those of one file."""
    from bench.spark.local import session
    from coterie.spark.ledger.ledger import Ledger

    each = ROWS // KAFKA_PARTITIONS
    places = [(partition, offset) for partition in range(KAFKA_PARTITIONS) for offset in range(each)]
    Ledger(str(table / "one"), group="bench").append(rows(places))
    spark = session("bench", {})
    source = str(table / "source.parquet")
    import pyarrow.parquet as pq

    pq.write_table(rows(places), source)
    frame = spark.read.parquet(source).repartition(TASKS)
    Ledger(str(table / "several"), group="bench").write(frame, 0)
    spark.stop()
    one, several = ([*table.joinpath(name).glob("*.parquet")] for name in ("one", "several"))
    size, whole = (sum(path.stat().st_size for path in some) for some in (several, one))
    return {
        "kafka partitions": KAFKA_PARTITIONS,
        "tasks": TASKS,
        "files": len(several),
        "bytes": size / whole,
    }


def one_day(table: Path) -> dict[str, float]:
    """Return how many files a query of one day may read, by the log's statistics."""
    from deltalake import DeltaTable

    from coterie.spark.ledger.ledger import Ledger

    ledger, chance, begun = (
        Ledger(str(table), group="bench"),
        random.Random(1),
        datetime(2026, 1, 1, tzinfo=UTC),
    )
    for number in range(40):
        places = [(0, offset) for offset in range(number * 5_000, (number + 1) * 5_000)]
        at = [begun + timedelta(seconds=chance.randrange(365 * 86_400)) for _ in places]
        ledger.append(rows(places, at=pa.array(at)))

    def read() -> dict[str, int]:
        added = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True)).to_pylist()
        first, until = begun + timedelta(days=180), begun + timedelta(days=181)
        found = [one for one in added if one["min.at"] < until and one["max.at"] >= first]
        return {"files": len(added), "read": len(found)}

    before = read()
    ledger.optimize(sort_by=["at"], target_size=300_000)
    return {"before": before, "after": read()}  # type: ignore[dict-item]


def fill(table: Path, files: int) -> None:
    """Make a table whose log has so many files; they are not there, as no commit reads them."""
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    from coterie.spark.ledger.ledger import Ledger

    Ledger(str(table), group="bench").append(rows([(0, 0)]))
    there, each = DeltaTable(str(table)), 10
    actions: list[Any] = []
    for number in range(files):
        bounds = {"topic": "flights", "partition": 1, "offset": number * each}
        last = {**bounds, "offset": number * each + each - 1}
        noted = {
            "numRecords": each,
            "minValues": bounds,
            "maxValues": last,
            "nullCount": dict.fromkeys(bounds, 0),
        }
        actions.append(AddAction(f"part-{number:040}.parquet", 1_000, {}, 0, True, json.dumps(noted)))
    there.create_write_transaction(actions, "append", there.schema())
    DeltaTable(str(table)).create_checkpoint()


def commits(table: Path, count: int) -> dict[str, float]:
    """Return what commits take that a process of their own makes, one after the other."""
    command = [
        sys.executable,
        "-m",
        "bench.spark.ledger_tables",
        "--commits",
        str(count),
        "--only",
        str(table),
    ]
    spent = json.loads(subprocess.check_output(command))
    warm = sorted(spent[WARM:])
    return {
        "first of a process": round(spent[0], 1),
        "p50": round(statistics.median(warm), 1),
        "p95": round(warm[int(len(warm) * 0.95)], 1),
        "slowest": round(warm[-1], 1),
    }


def spent_on(table: Path, count: int) -> list[float]:
    """Return the milliseconds of each of so many batches of one row."""
    from coterie.spark.ledger.ledger import Ledger

    spent = []
    ledger = Ledger(str(table), group="bench")
    for number in range(1, count + 1):
        batch = rows([(0, number)])
        began = time.perf_counter()
        ledger.append(batch)
        spent.append((time.perf_counter() - began) * 1000)
    return spent


if __name__ == "__main__":
    main()
