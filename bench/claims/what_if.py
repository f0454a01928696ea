"""Claim: 1,000 groups x 8 settings x one recorded day, replayed on Spark, and the time is linear in groups.

The groups come from `bench.history_log`, a rebalance an hour each. Every group is replayed with its own
settings, too, once or more. Our code alone, on Spark's local[2]; its start and first tasks are not counted.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bench.figures import Figure, Goal, Plan
from bench.history_log import Shape, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["measure"]

GROUPS, GENERATIONS, COMMITS_A_GENERATION = 1_000, 24, 24
WARM_GROUPS = 8
SETTINGS = (
    "session.timeout.ms=10000|30000|120000",
    "group.instance.id=on",
    "group.instance.id=on,session.timeout.ms=120000",
    "assignor=cooperative-sticky|sticky",
    "max.poll.interval.ms=60000",
)
"""Eight settings."""
LIMIT_S, LINEAR = 900, 1.25


def measure(plan: Plan) -> list[Figure]:
    """Return the seconds for all groups, how much more a group costs among many, and how true replays are."""
    from coterie.spark.history import a_session

    many = plan.scaled(GROUPS)
    what = f"{many:,} groups x 8 settings x one recorded day ({GENERATIONS} rebalances)"
    seconds = Figure("what-if", what, "s", Goal(LIMIT_S, "own", at_most=True))
    linear = Figure(
        "what-if",
        f"time a group, {many:,} groups against {many // 4:,}",
        "x",
        Goal(LINEAR, "own", at_most=True),
    )
    fidelity = Figure(
        "what-if", "mean fidelity of these groups' replays", "", Goal(0.95, "own", at_most=False)
    )
    with a_session("local[2]") as spark:
        answered(spark, WARM_GROUPS)
        for repetition in range(plan.repeats):
            plan.say(f"what-if: {repetition + 1} of {plan.repeats}")
            few_s, _ = answered(spark, many // 4)
            many_s, true = answered(spark, many)
            seconds.add("coterie", many_s)
            linear.add("coterie", (many_s / many) / (few_s / (many // 4)))
            fidelity.add("coterie", true)
    return [seconds, linear, fidelity]


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
