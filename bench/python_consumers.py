"""The Python clients as consumers: each takes up to 500 records at a time and looks at every value.

All read the same partitions from their beginning, with their defaults, the consumer's checksums on. Seconds
count from the end of the first batch to the last record, so neither connecting nor a join is among them.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

from bench.python_loop import on_uvloop

__all__ = ["CONSUMERS", "Tally"]

AT_ONCE = 500
PATIENCE_MS = 1_000


class Rate(NamedTuple):
    """What a consumer took, and in how long."""

    records: int
    seconds: float


class Tally:
    """Counts what a consumer takes; the clock starts with the first records."""

    def __init__(self, records: int) -> None:
        self.left = records
        self.size = 0
        self._begun = 0.0
        self._counted = 0

    def add(self, sizes: list[int]) -> None:
        """Take note of some records, by the sizes of their values."""
        self.size += sum(sizes)
        self.left -= len(sizes)
        if self._begun:
            self._counted += len(sizes)
        elif sizes:
            self._begun = time.perf_counter()

    def rate(self) -> Rate:
        """Return what was counted up to now."""
        return Rate(self._counted, time.perf_counter() - self._begun)


def consume_coterie(address: str, topic: str, partitions: int, tally: Tally) -> Rate:
    """Consume with ours."""
    consumer_type = importlib.import_module("coterie.client.consumer.consumer").Consumer

    async def work() -> Rate:
        async with consumer_type(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, partition) for partition in range(partitions)])
            while tally.left > 0:
                found = await consumer.getmany(timeout_ms=PATIENCE_MS, max_records=AT_ONCE)
                for records in found.values():
                    tally.add([len(record.value) for record in records])
            return tally.rate()

    return on_uvloop(work)


def consume_aiokafka(address: str, topic: str, partitions: int, tally: Tally) -> Rate:
    """Consume with aiokafka."""
    aiokafka = importlib.import_module("aiokafka")

    async def work() -> Rate:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(topic, partition) for partition in range(partitions)])
            while tally.left > 0:
                found = await consumer.getmany(timeout_ms=PATIENCE_MS, max_records=AT_ONCE)
                for records in found.values():
                    tally.add([len(record.value) for record in records])
            return tally.rate()
        finally:
            await consumer.stop()

    return on_uvloop(work)


def consume_kafka_python(address: str, topic: str, partitions: int, tally: Tally) -> Rate:
    """Consume with kafka-python."""
    warnings.simplefilter("ignore")  # it reads its schemas by a function that Python 3.11 deprecates
    kafka = importlib.import_module("kafka")
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(topic, partition) for partition in range(partitions)])
    while tally.left > 0:
        for records in consumer.poll(timeout_ms=PATIENCE_MS, max_records=AT_ONCE).values():
            tally.add([len(record.value) for record in records])
    found = tally.rate()
    consumer.close()
    return found


def consume_confluent(address: str, topic: str, partitions: int, tally: Tally) -> Rate:
    """Consume with confluent-kafka, which is librdkafka in C."""
    confluent = importlib.import_module("confluent_kafka")
    consumer = confluent.Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False, "check.crcs": True}
    )
    beginning = confluent.OFFSET_BEGINNING
    consumer.assign([confluent.TopicPartition(topic, one, beginning) for one in range(partitions)])
    while tally.left > 0:
        tally.add([len(one.value()) for one in consumer.consume(AT_ONCE, PATIENCE_MS / 1_000)])
    found = tally.rate()
    consumer.close()
    return found


CONSUMERS: dict[str, Callable[[str, str, int, Tally], Rate]] = {
    "coterie": consume_coterie,
    "aiokafka": consume_aiokafka,
    "kafka-python": consume_kafka_python,
    "confluent-kafka": consume_confluent,
}
