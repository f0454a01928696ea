"""`python -m bench.python_load produce CLIENT ADDRESS TOPIC RECORDS SIZE`: one Python client at work, timed.

Every client gets the same settings, and does what its documentation shows: `send` for each record, then
`flush`. Prints records a second as JSON, from the first record handed over to the last acknowledgement.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["PRODUCERS"]

BATCH_BYTES = 131_072
LINGER_MS = 5
WARM_UP = 2_000


def produce_coterie(address: str, topic: str, records: int, value: bytes) -> float:
    """Produce with ours; returns seconds."""
    producer_type = importlib.import_module("coterie.client.producer").Producer

    async def work() -> float:
        settings = {"batch_size": BATCH_BYTES, "linger_ms": LINGER_MS}
        async with producer_type(address, **settings) as producer:
            for _ in range(WARM_UP):
                await producer.send(topic, value)
            await producer.flush()
            begun = time.perf_counter()
            for _ in range(records):
                await producer.send(topic, value)
            await producer.flush()
            return time.perf_counter() - begun

    return on_uvloop(work)


def produce_aiokafka(address: str, topic: str, records: int, value: bytes) -> float:
    """Produce with aiokafka; returns seconds."""
    producer_type = importlib.import_module("aiokafka").AIOKafkaProducer

    async def work() -> float:
        settings = {"max_batch_size": BATCH_BYTES, "linger_ms": LINGER_MS, "enable_idempotence": True}
        async with producer_type(bootstrap_servers=address, acks="all", **settings) as producer:
            for _ in range(WARM_UP):
                await producer.send(topic, value)
            await producer.flush()
            begun = time.perf_counter()
            for _ in range(records):
                await producer.send(topic, value)
            await producer.flush()
            return time.perf_counter() - begun

    return on_uvloop(work)


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


def on_uvloop(work: Callable[[], Any]) -> float:
    """Run on the loop that both asyncio clients are fastest on."""
    make_loop = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return float(runner.run(work()))


PRODUCERS: dict[str, Callable[[str, str, int, bytes], float]] = {
    "coterie": produce_coterie,
    "aiokafka": produce_aiokafka,
    "kafka-python": produce_kafka_python,
    "confluent-kafka": produce_confluent,
}


def main() -> None:
    """Do what the command line says."""
    mode, client, address, topic, records, size = sys.argv[1:]
    assert mode == "produce"
    seconds = PRODUCERS[client](address, topic, int(records), bytes(int(size)))
    print(json.dumps({"records_per_second": int(records) / seconds}))


if __name__ == "__main__":
    main()
