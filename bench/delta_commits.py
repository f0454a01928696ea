"""`python -m bench.delta_commits [--jars JARS]`: what a commit to a Delta Lake table costs by two libraries.

A batch has rows of four Kafka partitions. PyPI's `deltalake` notes how far each is in one commit; delta-spark
takes one application transaction a write, so it needs a write for each partition. Without its jars
(delta-spark_2.13 and delta-storage, as Maven Central has them) only ours is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.spark.local import session

PARTITIONS, ROWS = 4, 1_000
COMMITS = 12
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Its defaults are for clusters: on two cores they would cost it seconds.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
}
IMPORT = "import time; began = time.perf_counter(); import deltalake; print(time.perf_counter() - began)"


def main() -> None:
    """Print the milliseconds of each way."""
    parser = argparse.ArgumentParser(prog="python -m bench.delta_commits", description=__doc__)
    parser.add_argument("--jars", help="of delta-spark, with commas between them")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = {"deltalake, import": float(subprocess.check_output([sys.executable, "-c", IMPORT])) * 1000}
        told["deltalake, a batch: one commit"] = by_ledger(Path(folder, "ledger"))
        if asked.jars:
            told |= by_spark(Path(folder), asked.jars)
    print(json.dumps({name: round(spent, 1) for name, spent in told.items()}, indent=2))


def rows_of(number: int) -> pa.Table:
    """Return a batch of the topic."""
    places = [(partition, number * ROWS + row) for partition in range(PARTITIONS) for row in range(ROWS)]
    return pa.table(
        {
            "topic": pa.array(["flights"] * len(places)),
            "partition": pa.array([partition for partition, _ in places], pa.int32()),
            "offset": pa.array([offset for _, offset in places], pa.int64()),
            "value": pa.array([b"a delayed flight"] * len(places)),
        }
    )


def by_ledger(table: Path) -> float:
    """Return the milliseconds of a batch through the ledger."""
    from coterie.spark.ledger.ledger import Ledger

    ledger = Ledger(str(table), group="bench")
    return median_ms(lambda number: ledger.append(rows_of(number)))


def by_spark(folder: Path, jars: str) -> dict[str, float]:
    """Return the milliseconds of a batch through delta-spark: by a write for each partition, and by one."""
    spark = session("bench", {**DELTA, "spark.jars": jars})

    def write(number: int, table: str, partitions: list[int]) -> None:
        rows = spark.createDataFrame(rows_of(number).to_pandas())
        for partition in partitions:
            some: Any = rows if len(partitions) == 1 else rows.where(f"partition = {partition}")
            noted = {"txnAppId": f"bench/flights/{partition}", "txnVersion": str(number)}
            some.write.format("delta").options(**noted).mode("append").save(str(folder / table))

    told = {
        "delta-spark, a batch: a write for each partition": median_ms(
            lambda number: write(number, "each", list(range(PARTITIONS)))
        ),
        "delta-spark, a batch: one write, one identifier for all": median_ms(
            lambda number: write(number, "all", [0])
        ),
    }
    spark.stop()
    return told


def median_ms(work: Any) -> float:
    """Return the median of what a batch takes; the first few are not counted."""
    spent = []
    for number in range(COMMITS):
        began = time.perf_counter()
        work(number)
        spent.append((time.perf_counter() - began) * 1000)
    return statistics.median(spent[COMMITS // 4 :])


if __name__ == "__main__":
    main()
