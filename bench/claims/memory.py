"""Claim: resident memory is at most 80 MB idle, and at most 200 MB after 1 GB was produced and consumed."""

from __future__ import annotations

import time

from bench import machine, tools
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

SETTLE_S = 3
PARTITIONS = 4
RECORDS, SIZE = 1_000_000, 1_000  # 1 GB
GIGABYTE = f"{RECORDS * SIZE // 10**9} GB"


def measure(plan: Plan) -> list[Figure]:
    """Return the resident memory of the broker and its children, before and after the load of 1 GB."""
    idle = Figure("memory", "resident memory, idle", "MB", Goal(80, "own", at_most=True))
    what = f"resident memory after {GIGABYTE} produced and consumed"
    after = Figure("memory", what, "MB", Goal(200, "own", at_most=True))
    for name, broker in plan.rounds("memory"):
        with broker:
            time.sleep(SETTLE_S)
            idle.add(name, machine.resident_mb(broker.pid))
            tools.create_topic(broker.address, "memory", partitions=PARTITIONS)
            tools.librdkafka("produce", broker.address, "memory", RECORDS, SIZE, "1")
            tools.librdkafka("consume", broker.address, "memory", RECORDS, PARTITIONS)
            time.sleep(SETTLE_S)
            after.add(name, machine.resident_mb(broker.pid))
    return [idle, after]
