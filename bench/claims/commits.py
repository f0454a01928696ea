"""Claim: at least as many durable offset commits a second as Kafka, 50 members in groups of 10."""

from __future__ import annotations

from bench import tools
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

MEMBERS, GROUP = 50, 10
WARM = 100_000
SECONDS, QUICK_SECONDS = 8, 2
TOPIC = "bench"  # where the load generator's members commit


def measure(plan: Plan) -> list[Figure]:
    """Return the offset commits a second, one partition each, counted after the warm-up."""
    what = f"offset commits, {MEMBERS} members in groups of {GROUP}"
    figure = Figure("commits", what, "/s", Goal(1.0, "ratio", at_most=False))
    seconds = QUICK_SECONDS if plan.quick else SECONDS
    for name, broker in plan.rounds("commits"):
        with broker:
            tools.create_topic(broker.address, TOPIC, partitions=GROUP)
            load = {"members": MEMBERS, "group": GROUP, "warm": plan.scaled(WARM), "seconds": seconds}
            figure.add(name, tools.group_load(broker.address, "commits", **load)["per_second"])
    return [figure]
