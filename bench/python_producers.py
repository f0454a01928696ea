"""The Python clients as producers: each does what its documentation shows.

That is `send` for each record, then `flush`. All get the same settings. Seconds count from the first record
handed over to the last acknowledgement.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

from bench.python_loop import on_uvloop

__all__ = ["PRODUCERS"]

BATCH_BYTES = 131_072
LINGER_MS = 5
WARM_UP = 2_000


def produce_coterie(address: str, topic: str, records: int, value: bytes) -> float:
    """Produce with ours; returns seconds."""
    producer_type = importlib.import_module("coterie.client.producer.producer").Producer

    async def work() -> float:
        settings = {"batch_size": BATCH_BYTES, "linger_ms": LINGER_MS}
        async with producer_type(address, **settings) as producer:
            return await sent(producer, topic, records, value)

    return on_uvloop(work)


def produce_aiokafka(address: str, topic: str, records: int, value: bytes) -> float:
    """Produce with aiokafka; returns seconds."""
    producer_type = importlib.import_module("aiokafka").AIOKafkaProducer

    async def work() -> float:
        settings = {"max_batch_size": BATCH_BYTES, "linger_ms": LINGER_MS, "enable_idempotence": True}
        async with producer_type(bootstrap_servers=address, acks="all", **settings) as producer:
            return await sent(producer, topic, records, value)

    return on_uvloop(work)


async def sent(producer: Any, topic: str, records: int, value: bytes) -> float:
    """Warm up; return the seconds that the records take from the first `send` to the end of `flush`."""
    for _ in range(WARM_UP):
        await producer.send(topic, value)
    await producer.flush()
    begun = time.perf_counter()
    for _ in range(records):
        await producer.send(topic, value)
    await producer.flush()
    return time.perf_counter() - begun


def produce_kafka_python(address: str, topic: str, records: int, value: bytes) -> float:
    """Produce with kafka-python; returns seconds."""
    warnings.simplefilter("ignore")  # it reads its schemas by a function that Python 3.11 deprecates
    settings = {"batch_size": BATCH_BYTES, "linger_ms": LINGER_MS, "enable_idempotence": True}
    producer = importlib.import_module("kafka").KafkaProducer(
        bootstrap_servers=address, acks="all", **settings
    )
    for _ in range(WARM_UP):
        producer.send(topic, value)
    producer.flush()
    begun = time.perf_counter()
    for _ in range(records):
        producer.send(topic, value)
    producer.flush()
    took = time.perf_counter() - begun
    producer.close()
    return took


def produce_confluent(address: str, topic: str, records: int, value: bytes) -> float:
    """Produce with confluent-kafka, which is librdkafka in C; returns seconds."""
    settings = {"batch.size": BATCH_BYTES, "linger.ms": LINGER_MS, "enable.idempotence": True, "acks": "all"}
    producer = importlib.import_module("confluent_kafka").Producer({"bootstrap.servers": address, **settings})

    def send(count: int) -> None:
        for _ in range(count):
            while True:
                try:
                    producer.produce(topic, value)
                except BufferError:  # its queue is full
                    producer.poll(0.005)
                else:
                    break
        producer.flush()

    send(WARM_UP)
    begun = time.perf_counter()
    send(records)
    return time.perf_counter() - begun


PRODUCERS: dict[str, Callable[[str, str, int, bytes], float]] = {
    "coterie": produce_coterie,
    "aiokafka": produce_aiokafka,
    "kafka-python": produce_kafka_python,
    "confluent-kafka": produce_confluent,
}
