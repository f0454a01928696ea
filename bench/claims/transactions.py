"""Claim: at least as many transactions a second as Kafka: 100 records and one group's offset each."""

from __future__ import annotations

from bench import tools
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

PRODUCERS = 10
WARM = 2_000
SECONDS, QUICK_SECONDS = 8, 2
TOPIC, PARTITIONS = "bench", 4  # where the load generator's producers write


def measure(plan: Plan) -> list[Figure]:
    """Return the transactions a second that ten producers commit, as the Java client words them (KIP-890)."""
    what = f"transactions of 100 records and an offset, {PRODUCERS} producers"
    figure = Figure("transactions", what, "/s", Goal(1.0, "ratio", at_most=False))
    seconds = QUICK_SECONDS if plan.quick else SECONDS
    for name, broker in plan.rounds("transactions"):
        with broker:
            tools.create_topic(broker.address, TOPIC, partitions=PARTITIONS)
            load = {"members": PRODUCERS, "warm": plan.scaled(WARM), "seconds": seconds}
            figure.add(name, tools.group_load(broker.address, "transactions", **load)["per_second"])
    return [figure]
