"""Claim: 500 members become stable in at most Kafka's time, and again when one more joins."""

from __future__ import annotations

from bench import tools
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

MEMBERS = 500
WARM_UP = 2  # groups formed before the counting starts: a JVM's first ones are slow
GROUPS = 3  # groups measured a start


def measure(plan: Plan) -> list[Figure]:
    """Return the seconds from the first join to a stable group, and from one more join to a stable group."""
    first = Figure(
        "members", f"{MEMBERS} members, first join to stable", "s", Goal(1.0, "ratio", at_most=True)
    )
    again = Figure(
        "members", f"{MEMBERS} members, one more joins, to stable", "s", Goal(1.0, "ratio", at_most=True)
    )
    for name, broker in plan.rounds("members"):
        with broker:
            for group in range(WARM_UP + GROUPS):
                said = tools.group_load(broker.address, "members", members=MEMBERS)
                if group >= WARM_UP:
                    first.add(name, said["first_s"])
                    again.add(name, said["one_more_s"])
    return [first, again]
