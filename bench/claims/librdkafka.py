"""Claim: librdkafka produces and consumes at least as fast as with Kafka, small records and large."""

from __future__ import annotations

from bench import tools
from bench.brokers import Broker
from bench.claims.throughput import PARTITIONS, SIZES, Cells, produced_then_consumed, warmed_up
from bench.figures import Figure, Plan

__all__ = ["measure", "produce", "warm_up"]

RECORDS = {100: 4_000_000, 1_000: 1_000_000}


def measure(plan: Plan) -> list[Figure]:
    """Return records a second, from the first record handed over to the last acknowledgement or record."""
    cells = Cells("librdkafka")
    for name, broker in plan.rounds("librdkafka"):
        with broker:
            warm_up(broker, plan.scaled(RECORDS[100]))
            for size in SIZES:
                produced_then_consumed(
                    cells, name, broker, plan.scaled(RECORDS[size]), size, produce, consume
                )
    return cells.figures


def warm_up(broker: Broker, records: int) -> None:
    """Let the broker take and give so many records that do not count."""
    warmed_up(broker, records, produce, consume)


def produce(broker: Broker, topic: str, records: int, size: int, acks: str) -> float:
    """Return records a second that librdkafka produced."""
    return float(
        tools.librdkafka("produce", broker.address, topic, records, size, acks)["records_per_second"]
    )


def consume(broker: Broker, topic: str, records: int) -> float:
    """Return records a second that librdkafka consumed."""
    return float(
        tools.librdkafka("consume", broker.address, topic, records, PARTITIONS)["records_per_second"]
    )
