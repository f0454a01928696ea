"""Claim: 500 and 4,500 members become stable in at most Kafka's time, and again when one more joins.

Somewhat above, a group's record passes the default `message.max.bytes`, and SyncGroup fails in both brokers:
`interop/large` shows that.
"""

from __future__ import annotations

from bench import tools
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

SIZES = (500, 4_500)
WARM_UP = 2  # groups formed before the counting starts: a JVM's first ones are slow
GROUPS = 3  # groups measured a start


def measure(plan: Plan) -> list[Figure]:
    """Return the seconds from the first join to a stable group, and from one more join to a stable group."""
    return [figure for members in SIZES for figure in _formed(plan, members)]


def _formed(plan: Plan, members: int) -> list[Figure]:
    goal = Goal(1.0, "ratio", at_most=True)
    first = Figure("members", f"{members:,} members, first join to stable", "s", goal)
    again = Figure("members", f"{members:,} members, one more joins, to stable", "s", goal)
    for name, broker in plan.rounds(f"{members:,} members"):
        with broker:
            for group in range(WARM_UP + GROUPS):
                said = tools.group_load(broker.address, "members", members=members)
                if group >= WARM_UP:
                    first.add(name, said["first_s"])
                    again.add(name, said["one_more_s"])
    return [first, again]
