"""Claim: Spark writes a topic through our sink at least as fast as through its own.

One Spark application (local[2]) writes 4.5 million rows of values, 4.0 million of 100 bytes and the rest of
1,000, to four partitions, by either sink in turn. What is compared is the sink: both columns of the table are
our rate divided by the other's, against either broker.
"""

from __future__ import annotations

from bench import tools
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

RECORDS = 4_500_000
GOAL = 1.0
OURS = "coterie"
WHAT = "Spark writes 4.5 million records, ours / its Kafka sink"
OTHERS = {"kafka": WHAT, "kafka, tuned": f"{WHAT} with batch.size=262144, linger.ms=20"}


def measure(plan: Plan) -> list[Figure]:
    """Return our rate divided by that of Spark's own sink, as it is and tuned."""
    goal = Goal(GOAL, "own", at_most=False)
    figures = {other: Figure("spark-write", what, "x", goal) for other, what in OTHERS.items()}
    for name, broker in plan.rounds("spark-write", repeats=1):
        with broker:
            rates = tools.spark_write(broker.address, plan.scaled(RECORDS), plan.repeats)
        plan.say(", ".join(f"{sink}: {max(each):,.0f}/s at best" for sink, each in rates.items()))
        for other, figure in figures.items():
            for own, theirs in zip(rates[OURS], rates[other], strict=True):
                figure.add(name, own / theirs)
    return list(figures.values())
