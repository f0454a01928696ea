"""Claims: a streaming query by our source keeps up with one by Spark's own, in large batches and in small.

Streams run to the end of what is there (AvailableNow) and into nothing, checkpoint and all; what counts is
the whole query, and of small micro-batches the median. Both columns are ratios, from either broker.
"""

from __future__ import annotations

from bench.figures import Figure, Plan
from bench.spark.running import DEFAULTS, TOPIC, TUNED, Contest, at_least, at_most, held
from bench.spark.topics import MIXED, Records

__all__ = ["micro", "stream"]

SMALL = Records(((16_000, 100),))
SMALL_BATCH = {"maxOffsetsPerTrigger": "400"}


def stream(plan: Plan) -> list[Figure]:
    """Return how much faster 4.5 million records are streamed than by Spark's connector, tuned."""
    some = {"maxOffsetsPerTrigger": str(plan.scaled(500_000))}
    contests = [
        Contest("spark-stream", "stream, one batch", "stream", {TUNED: at_least(1.0)}),
        Contest("spark-stream", "stream, batches of 500,000", "stream", {TUNED: at_least(0.95)}, some),
    ]
    return held(plan, {TOPIC: MIXED}, contests)


def micro(plan: Plan) -> list[Figure]:
    """Return how much longer 400 records take than with Spark's connector, by checkpoint manager."""
    goals = {DEFAULTS: at_most(1.2)}
    contests = [
        Contest(
            "spark-micro",
            "micro-batch of 4 partitions, Spark's checkpoint manager",
            "micro",
            goals,
            SMALL_BATCH,
        ),
        Contest(
            "spark-micro",
            "micro-batch of 4 partitions, the file system's checkpoint manager",
            "micro",
            goals,
            SMALL_BATCH,
            {"manager": True},
        ),
    ]
    return held(plan, {TOPIC: SMALL}, contests)
