"""`python -m interop.spark_brokers --into topic|ledger [--rounds N] [--seed S]`: each record once, whichever
broker dies.

Three applications of one group copy a topic that is written to all the time, into another topic by
transactions or into a ledger's table. Each of the three brokers is killed in turn, and started again. One
line a death.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.kafka import SetupError

from interop.places import SETTINGS, ThreeBrokers
from interop.spark.applications import wait_for
from interop.spark.topics import Feeder, Topic
from interop.spark_kills.copying import Copier, insist_on_each_once, numbers_in, show_failures

GROUP = "copy"
NAMES = ("one", "other", "third")
DOWN_S = (0.2, 4.0)
BETWEEN_S = (2.0, 6.0)
GROWS_WITHIN_S = 240.0
SOURCES, TARGETS = 6, 3


def main() -> int:
    """Run the deaths that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m interop.spark_brokers", description=__doc__)
    parser.add_argument("--into", choices=("topic", "ledger"), default="topic")
    parser.add_argument("--rounds", type=int, default=2, help="in each of which every broker dies once")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    asked = parser.parse_args()
    name = f"each-record-once-into-a-{asked.into}"
    print(f"{name}: seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="coterie-spark-brokers-") as folder:
        try:
            run(Path(folder), asked.into, rounds=asked.rounds, chance=random.Random(asked.seed))
        except (AssertionError, SetupError) as error:
            print(f"FAILED {name}: seed {asked.seed}: {str(error).strip()}", flush=True)
            return 1
    print(f"ok {name}", flush=True)
    return 0


def run(folder: Path, into: str, *, rounds: int, chance: random.Random) -> None:
    """Copy, kill, and account for every record."""
    with ExitStack() as undo:
        brokers = undo.enter_context(ThreeBrokers(folder / "brokers", SETTINGS))
        source = Topic(brokers.address, "from", partitions=SOURCES)
        target = Topic(brokers.address, "to", partitions=TARGETS)
        table = folder / "table"
        copiers = [
            Copier(folder, name, source, target, group=GROUP, ledger=table if into == "ledger" else None)
            for name in NAMES
        ]
        for copier in copiers:
            undo.callback(copier.end)
            copier.start()
        try:
            with Feeder(source, count=40, every_s=0.2):
                until_all_copy(source, copiers)
                for number in range(rounds * len(brokers.cluster.brokers)):
                    die(number, brokers, source, chance)
            into_table = table if into == "ledger" else None
            wait_for(lambda: is_copied(source, into_table), what="all is copied", within_s=GROWS_WITHIN_S)
        except AssertionError as error:
            last = [f"{one.name}:\n{one.last_words}" for one in copiers]
            raise AssertionError("\n".join([str(error), *last])) from None
        for copier in copiers:
            copier.stop()
        found = numbers_of(table) if into == "ledger" else numbers_in(target, isolation="read_committed")
        account(source, found, copiers)


def is_copied(source: Topic, table: Path | None) -> bool:
    """Return whether all that was written is committed, or is in the ledger's table."""
    if table is None:
        return source.committed(GROUP) == source.ends()
    return numbers_of(table).total() >= len(source.places)


def until_all_copy(source: Topic, copiers: Sequence[Copier]) -> None:
    """Return once all applications have tasks, and something of each partition is committed."""
    wait_for(
        lambda: all(one.works for one in copiers) and len(source.committed(GROUP)) == SOURCES,
        what="all applications copy",
        within_s=GROWS_WITHIN_S,
    )


def die(number: int, brokers: ThreeBrokers, source: Topic, chance: random.Random) -> None:
    """Kill the next broker, start it again, and wait until the group has gone on behind it."""
    time.sleep(chance.uniform(*BETWEEN_S))
    victim = [*brokers.cluster.brokers][number % len(brokers.cluster.brokers)]
    coordinates = brokers.cluster.leader_of("__consumer_offsets", GROUP) == victim
    before = source.committed(GROUP)
    began = time.monotonic()
    brokers.cluster[victim].kill()
    time.sleep(chance.uniform(*DOWN_S))
    brokers.start()
    wait_for(
        lambda: all(at > before[one] for one, at in source.committed(GROUP).items()),
        what=f"all partitions go on after the death of broker {victim}",
        within_s=GROWS_WITHIN_S,
    )
    role = "the group's coordinator" if coordinates else "another"
    print(f"  {number + 1}: broker {victim}, {role}, {time.monotonic() - began:.1f} s", flush=True)


def numbers_of(table: Path) -> Counter[int]:
    """How often each number is in the ledger's table."""
    from deltalake import DeltaTable

    values = DeltaTable(str(table)).to_pyarrow_table(columns=["number"]).column("number")
    return Counter(int(one) for one in values.to_pylist())


def account(source: Topic, found: Counter[int], copiers: Sequence[Copier]) -> None:
    """Raise AssertionError unless each record is there once."""
    insist_on_each_once(source, found)
    failed = show_failures(copiers)
    print(f"  {len(found)} records, each once; {failed} times a query began again", flush=True)


if __name__ == "__main__":
    sys.exit(main())
