"""Claim: Kafka's own Java performance tools produce and consume at least as fast as with Kafka."""

from __future__ import annotations

from bench import tools
from bench.brokers import Broker
from bench.claims.throughput import SIZES, Cells, produced_then_consumed, warmed_up
from bench.figures import Figure, Plan

__all__ = ["measure"]

RECORDS = {100: 3_000_000, 1_000: 600_000}


def measure(plan: Plan) -> list[Figure]:
    """Return records a second as ProducerPerformance and ConsumerPerformance report them."""
    cells = Cells("Java")
    for name, broker in plan.rounds("java"):
        with broker:
            warmed_up(broker, plan.scaled(RECORDS[100]), produce, consume)
            for size in SIZES:
                produced_then_consumed(
                    cells, name, broker, plan.scaled(RECORDS[size]), size, produce, consume
                )
    return cells.figures


def produce(broker: Broker, topic: str, records: int, size: int, acks: str) -> float:
    """Return records a second that the Java producer sent."""
    return tools.java_produce(broker.address, topic, records=records, size=size, acks=acks)


def consume(broker: Broker, topic: str, records: int) -> float:
    """Return records a second that the Java consumer took."""
    return tools.java_consume(broker.address, topic, records=records)
