"""Claim: the histories of all groups are told at a million records a second on two cores, and linearly.

Logs of `bench.history_log`: 2,000 groups, a generation to a hundred commits. Ours alone, there is no other;
Spark is started before, the first reading is not counted, and the files are in memory, as it is not the disk
that is measured. Told is read, decoded and inferred, all tables; written is that and as Parquet, but for the
commits themselves, which nothing is inferred of.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench.brokers import data_directory
from bench.figures import Figure, Goal, Plan, growth
from bench.history_log import Shape, write

__all__ = ["measure"]

SIZES = (1_000_000, 3_000_000, 10_000_000)
GROUPS = 2_000


def measure(plan: Plan) -> list[Figure]:
    """Return the rate with the most records, and by how much the time grows from size to size."""
    from coterie.spark.history import a_session

    sizes = [plan.scaled(size) for size in SIZES]
    logs = [written(size) for size in sizes]
    spent: list[list[float]] = [[] for _ in sizes]
    written_too: list[float] = []
    with a_session("local[2]") as spark:
        seconds_of(spark, logs[0][0])
        for repetition in range(plan.repeats):
            for place, (directory, count) in enumerate(logs):
                plan.say(f"history: {count:,} records, {repetition + 1} of {plan.repeats}")
                made_s, written_s = seconds_of(spark, directory)
                spent[place].append(made_s)
            written_too.append(written_s)
    counts = [count for _, count in logs]
    rates = (
        rate("made into histories", counts[-1], spent[-1]),
        rate("made into histories and written", counts[-1], written_too),
    )
    return [*rates, *map(grown, counts, counts[1:], spent, spent[1:])]


def written(commits: int) -> tuple[Path, int]:
    """Write a log; return where it is and how many records it has."""
    directory = data_directory() / f"history-{commits}"
    return directory, write(directory, Shape(groups=GROUPS, commits=commits))


def seconds_of(spark: Any, directory: Path) -> tuple[float, float]:
    """Return the seconds it takes to make all histories, and to make and write them."""
    from coterie.spark.history import read_directory
    from coterie.spark.history.schemas import TABLES

    for path in directory.rglob("*.log"):
        path.read_bytes()
    began = perf_counter()
    found = read_directory(spark, directory)
    (packed,) = found.packed.selectExpr("sum(groups) as groups").collect()
    assert packed.groups == GROUPS
    made_s = perf_counter() - began
    with TemporaryDirectory() as into:
        found.write_parquet(into, tables=TABLES)
        written_s = perf_counter() - began
    found.packed.unpersist()
    return made_s, written_s


def rate(what: str, count: int, spent: list[float]) -> Figure:
    """Return the number of records a second that were read and made into histories."""
    goal = Goal(1.0, "own", at_most=False)
    figure = Figure("history", f"{count / 1e6:.1f} million records {what}, two cores", "M records/s", goal)
    for seconds in spent:
        figure.add("coterie", count / seconds / 1e6)
    return figure


def grown(few: int, many: int, before: list[float], after: list[float]) -> Figure:
    """Return how the time grew beside the records."""
    what = f"from {few / 1e6:.1f} to {many / 1e6:.1f} million records"
    return growth("history", what, (few, many), zip(before, after, strict=True))
