"""Claim: Spark writes a topic through our sink at least as fast as through its own.

One Spark application (local[2]) writes 4.5 million rows of values, 4.0 million of 100 bytes and the rest of
1,000, to four partitions, by either sink in turn. What is compared is the sink: both columns of the table are
our rate divided by the other's, against either broker.
"""

from __future__ import annotations

from bench import tools
from bench.figures import Figure, Goal, Plan
from bench.spark_write import SINKS

__all__ = ["measure"]

RECORDS = 4_500_000
GOAL = 1.0


def measure(plan: Plan) -> list[Figure]:
    """Return our rate divided by that of Spark's own sink."""
    goal = Goal(GOAL, "own", at_most=False)
    figure = Figure("spark-write", "Spark writes 4.5 million records, ours / its Kafka sink", "x", goal)
    for name, broker in plan.rounds("spark-write", repeats=1):
        with broker:
            rates = tools.spark_write(broker.address, plan.scaled(RECORDS), plan.repeats)
        theirs, ours = (rates[sink] for sink in SINKS)
        for own, other in zip(ours, theirs, strict=True):
            plan.say(f"ours {own:,.0f}/s, Spark's {other:,.0f}/s")
            figure.add(name, own / other)
    return [figure]
