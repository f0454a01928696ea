"""Claim: while 100 groups of 50 rebalance at once, heartbeats of others wait no longer than Kafka's."""

from __future__ import annotations

from bench import tools
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

GROUPS, GROUP = 100, 50
WARM_UP = 1  # storms before the counting starts
STORMS = 3


def measure(plan: Plan) -> list[Figure]:
    """Return the 99th percentile of what a heartbeat waits, from when it was due to its answer."""
    what = f"99th percentile of heartbeats while {GROUPS} groups of {GROUP} rebalance at once"
    figure = Figure("storm", what, "ms", Goal(1.0, "ratio", at_most=True))
    groups = plan.scaled(GROUPS)
    for name, broker in plan.rounds("storm"):
        with broker:
            for storm in range(WARM_UP + STORMS):
                said = tools.group_load(broker.address, "storm", groups=groups, group=GROUP)
                if storm >= WARM_UP:
                    figure.add(name, said["p99_ms"])
    return [figure]
