"""Claim: 10,000 groups of 10 members with 100,000 offsets take at most half of Kafka's resident memory."""

from __future__ import annotations

import time

from bench import machine, tools
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

GROUPS, GROUP = 10_000, 10
SETTLE_S = 3
TOPIC = "bench"  # where the load generator's members commit


def measure(plan: Plan) -> list[Figure]:
    """Return the resident memory of a broker with all those groups."""
    groups = plan.scaled(GROUPS)
    what = f"resident memory with {groups:,} groups of {GROUP} members and {groups * GROUP:,} offsets"
    figure = Figure("crowd", what, "MB", Goal(0.5, "ratio", at_most=True))
    for name, broker in plan.rounds("crowd"):
        with broker:
            tools.create_topic(broker.address, TOPIC, partitions=GROUP)
            tools.group_load(broker.address, "crowd", groups=groups, group=GROUP)
            time.sleep(SETTLE_S)
            figure.add(name, machine.resident_mb(broker.pid))
    return [figure]
