"""Claim: at least 1.1 times as many heartbeats a second as a warm Kafka, 50 and 1,000 connections."""

from __future__ import annotations

from bench import tools
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

CONNECTIONS = (50, 1_000)
GROUP = 10
WARM = 200_000
SECONDS, QUICK_SECONDS = 8, 2


def measure(plan: Plan) -> list[Figure]:
    """Return the heartbeats a second, counted after the first 200,000."""
    return [_beaten(plan, members) for members in CONNECTIONS]


def _beaten(plan: Plan, members: int) -> Figure:
    what = f"heartbeats, {members:,} connections in groups of {GROUP}"
    figure = Figure("heartbeats", what, "/s", Goal(1.1, "ratio", at_most=False))
    seconds = QUICK_SECONDS if plan.quick else SECONDS
    for name, broker in plan.rounds(f"heartbeats, {members:,} connections"):
        with broker:
            load = {"members": members, "group": GROUP, "warm": WARM, "seconds": seconds}
            said = tools.group_load(broker.address, "heartbeats", **load)
            figure.add(name, said["per_second"])
    return figure
