"""Claim: the broker answers its first Metadata request at most 0.35 s after it was started."""

from __future__ import annotations

from dataclasses import replace

from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

LEAST_REPEATS = 5  # a start is short, and more of them cost little


def measure(plan: Plan) -> list[Figure]:
    """Return the seconds from the start of the process to the first answered Metadata request.

    Each start is on a fresh directory; Kafka's is formatted beforehand, which is not counted.
    """
    figure = Figure("startup", "start to the first answered Metadata", "s", Goal(0.35, "own", at_most=True))
    often = plan if plan.quick else replace(plan, repeats=max(plan.repeats, LEAST_REPEATS))
    for name, broker in often.rounds("startup"):
        with broker:
            figure.add(name, broker.started_in_s)
    return [figure]
