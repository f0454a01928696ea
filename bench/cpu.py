"""`python -m bench.cpu COMMIT`: what a request costs the broker in CPU, by this tree and by another commit.

Beside other work on a machine, rates say little; the CPU that a broker takes for a heartbeat says more. One
load at a time runs against a broker of either tree in turn, and what counts is the median of the pairs'
ratios. Loads, Python and its libraries are this tree's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bench import tools
from bench.brokers import Coterie, data_directory
from bench.claims.throughput import PARTITIONS as TOPIC_PARTITIONS
from bench.kafka import REPOSITORY, SetupError
from bench.pairs import PAIRS, Pair, checked_out, table

SECONDS = 3
WARM = 20_000
RECORDS = {100: 1_000_000, 1_000: 300_000}
MEMBERS = 500
TOPIC, PARTITIONS = "bench", 10  # where the load generator's members commit and its producers write

Load = Callable[[str], float]  # of HOST:PORT; returns how many operations it has asked for


def rated(mode: str, **options: int) -> Load:
    """Return a load of the Go generator that goes on for a time, warmed up by a number of operations."""

    def load(address: str) -> float:
        said = tools.group_load(address, mode, seconds=SECONDS, **options)
        return float(said["per_second"]) * SECONDS + options["warm"]

    return load


def joins(address: str) -> float:
    """Have groups of 500 members form, and one more join each."""
    groups = 3
    for _ in range(groups):
        tools.group_load(address, "members", members=MEMBERS)
    return float(groups * 2 * MEMBERS)


def produced(size: int) -> Load:
    """Return a load of librdkafka that produces records of a size and then consumes them."""

    def load(address: str) -> float:
        topic = f"records-{size}"
        tools.create_topic(address, topic, partitions=TOPIC_PARTITIONS)
        tools.librdkafka("produce", address, topic, RECORDS[size], size, "all")
        tools.librdkafka("consume", address, topic, RECORDS[size], TOPIC_PARTITIONS)
        return float(RECORDS[size])

    return load


LOADS: Mapping[str, Load] = {
    "heartbeat": rated("heartbeats", members=50, group=10, warm=WARM),
    "offset commit": rated("commits", members=50, group=10, warm=WARM),
    "transaction of 100 records": rated("transactions", members=10, warm=200),
    "member of a group of 500 that joins, twice": joins,
    "record of 100 B, produced and consumed": produced(100),
    "record of 1,000 B, produced and consumed": produced(1_000),
}


def main() -> int:
    """Measure what the command line asks for, and print a table of microseconds."""
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description="CPU of the broker per request.")
    parser.add_argument("commit", help="the commit to measure beside, as git names it")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"how many pairs (default: {PAIRS})")
    asked = parser.parse_args()
    pairs: dict[str, list[Pair]] = {}
    with checked_out(asked.commit) as other:
        for number in range(asked.pairs):
            for what, load in LOADS.items():
                trees = (other, REPOSITORY) if number % 2 == 0 else (REPOSITORY, other)
                taken = {tree: taken_us(tree, load) for tree in trees}
                pair = Pair(taken[other], taken[REPOSITORY])
                pairs.setdefault(f"us for a {what}", []).append(pair)
                print(f"pair {number + 1}: {what}: {pair.before:.3f} -> {pair.now:.3f} us", file=sys.stderr)
    print(table(pairs))
    return 0


def taken_us(tree: Path, load: Load) -> float:
    """Return the microseconds of CPU that a broker of a tree takes for an operation."""
    os.environ["PYTHONPATH"] = str(tree / "src")
    broker = Coterie(data_directory() / "cpu")
    try:
        with broker:
            tools.create_topic(broker.address, TOPIC, partitions=PARTITIONS)
            before_s = cpu_s(broker.pid)
            operations = load(broker.address)
            return (cpu_s(broker.pid) - before_s) / operations * 1e6
    finally:
        shutil.rmtree(data_directory(), ignore_errors=True)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has taken, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
