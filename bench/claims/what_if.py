"""Claim: 1,000 groups x 8 settings x one recorded day, replayed on Spark, and the time is linear in groups.

The groups come from `bench.history_log`, a rebalance an hour each. Every group is replayed with its own
settings, too, once or more. Our code alone, on Spark's local[2]; its start and first tasks are not counted.
All of it takes minutes and is lived through once, whatever `--repeats` says.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bench.figures import Figure, Goal, Plan, growth
from bench.history_log import Shape, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["measure"]

SIZES = (250, 500, 1_000)
GENERATIONS, COMMITS_A_GENERATION = 24, 24
WARM_GROUPS = 8
SETTINGS = (
    "session.timeout.ms=10000|30000|120000",
    "group.instance.id=on",
    "group.instance.id=on,session.timeout.ms=120000",
    "assignor=cooperative-sticky|sticky",
    "max.poll.interval.ms=60000",
)
"""Eight settings."""
LIMIT_S, FIDELITY = 300, 0.95


def measure(plan: Plan) -> list[Figure]:
    """Return the seconds for all groups, how they grow beside the groups, and how true replays are."""
    from coterie.spark.history import a_session

    sizes = [plan.scaled(size) for size in SIZES]
    spent: list[float] = []
    with a_session("local[2]") as spark:
        answered(spark, WARM_GROUPS)
        for size in sizes:
            plan.say(f"what-if: {size:,} groups")
            seconds, true = answered(spark, size)
            spent.append(seconds)
    what = f"{sizes[-1]:,} groups x 8 settings x one recorded day ({GENERATIONS} rebalances)"
    whole = Figure("what-if", what, "s", Goal(LIMIT_S, "own", at_most=True))
    whole.add("coterie", spent[-1])
    fidelity = Figure(
        "what-if", "mean fidelity of these groups' replays", "", Goal(FIDELITY, "own", at_most=False)
    )
    fidelity.add("coterie", true)
    return [whole, *map(grown, sizes, sizes[1:], spent, spent[1:]), fidelity]


def grown(few: int, many: int, few_s: float, many_s: float) -> Figure:
    """Return how the time grew beside the groups."""
    return growth("what-if", f"from {few:,} to {many:,} groups", (few, many), [(few_s, many_s)])


def answered(spark: SparkSession, groups: int) -> tuple[float, float]:
    """Return how long the answers for so many groups take, and the mean fidelity."""
    from coterie.spark.history import read_directory
    from coterie.spark.whatif import what_if

    commits = groups * GENERATIONS * COMMITS_A_GENERATION
    shape = Shape(groups, 1.0, commits, commits_a_generation=COMMITS_A_GENERATION)
    with TemporaryDirectory() as directory:
        write(Path(directory), shape)
        began = time.perf_counter()
        rows = what_if(read_directory(spark, directory), SETTINGS)
        count, fidelity = rows.selectExpr("count(*)", "avg(fidelity)").first() or (0, 0.0)
        took = time.perf_counter() - began
    assert count == groups * 9, f"{count} answers of {groups} groups"
    return took, float(fidelity)
