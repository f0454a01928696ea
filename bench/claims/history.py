"""Claim: the histories of all groups are told at a million records a second on two cores, and linearly.

Logs of `bench.history_log`: 2,000 groups, a generation to a hundred commits. Ours alone, there is no other;
Spark is started before, and the first reading is not counted.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from bench.brokers import data_directory
from bench.figures import Figure, Goal, Plan
from bench.history_log import Shape, write

__all__ = ["measure"]

SIZES = (1_000_000, 3_000_000, 10_000_000)
GROUPS = 2_000
GROWTH_MOST = 1.15
"""By how much more than the records the time may grow."""


def measure(plan: Plan) -> list[Figure]:
    """Return the rate with the most records, and by how much the time grows from size to size."""
    from coterie.spark.history import a_session

    sizes = [plan.scaled(size) for size in SIZES]
    logs = [written(size) for size in sizes]
    spent: list[list[float]] = [[] for _ in sizes]
    with a_session("local[2]") as spark:
        seconds_of(spark, logs[0][0])
        for repetition in range(plan.repeats):
            for place, (directory, count) in enumerate(logs):
                plan.say(f"history: {count:,} records, {repetition + 1} of {plan.repeats}")
                spent[place].append(seconds_of(spark, directory))
    counts = [count for _, count in logs]
    return [rate(counts[-1], spent[-1]), *map(growth, counts, counts[1:], spent, spent[1:])]


def written(commits: int) -> tuple[Path, int]:
    """Write a log; return where it is and how many records it has."""
    directory = data_directory() / f"history-{commits}"
    return directory, write(directory, Shape(groups=GROUPS, commits=commits))


def seconds_of(spark: Any, directory: Path) -> float:
    """Return how long it takes to tell all histories."""
    from coterie.spark.history import read_directory

    began = perf_counter()
    told = read_directory(spark, directory).told
    assert told.count() == GROUPS
    spent = perf_counter() - began
    told.unpersist()
    return spent


def rate(count: int, spent: list[float]) -> Figure:
    """Return how many records a second were read and told of."""
    goal = Goal(1.0, "own", at_most=False)
    figure = Figure("history", f"{count / 1e6:.1f} million records, two cores", "M records/s", goal)
    for seconds in spent:
        figure.add("coterie", count / seconds / 1e6)
    return figure


def growth(few: int, many: int, before: list[float], after: list[float]) -> Figure:
    """Return how the time grew beside the records; below one, as the start is shared by more of them."""
    what = f"time from {few / 1e6:.1f} to {many / 1e6:.1f} million records, beside their number"
    figure = Figure("history", what, "x", Goal(GROWTH_MOST, "own", at_most=True))
    for one, other in zip(before, after, strict=True):
        figure.add("coterie", (other / one) / (many / few))
    return figure
