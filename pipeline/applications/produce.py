"""A process that produces the flights with confluent-kafka and remembers where each record landed.

It produces one part of them at each `next` on its standard input, and ends when that input does.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.applications.events import emit
from pipeline.applications.flights import Flight, as_record, flights

SETTINGS = {
    "client.id": "producer",
    "partitioner": "murmur2_random",  # Kafka's own; librdkafka's default puts a key elsewhere
    "enable.idempotence": True,
    "compression.type": "lz4",
    "linger.ms": 20,
    "message.timeout.ms": 60_000,
}
SAY_EVERY_S = 0.2
NICENESS = 5  # Spark starts meanwhile and has more to do


class Landed:
    """Where the broker put each record, as its delivery reports tell."""

    def __init__(self) -> None:
        self.partitions, self.offsets = array("i"), array("q")
        self.failures: list[str] = []

    def __len__(self) -> int:
        return len(self.offsets)

    def report(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.partitions.append(message.partition())
        self.offsets.append(message.offset())

    def write(self, path: Path, *, topic: str) -> None:
        """Write topic, partition and offset of every record: what the rows of the group are compared with."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        topics = pa.array([topic]).take(pa.array([0] * len(self), pa.int32()))
        columns = {
            "topic": topics,
            "partition": pa.array(self.partitions, pa.int32()),
            "offset": pa.array(self.offsets, pa.int64()),
        }
        pq.write_table(pa.table(columns), path)


def send(producer: Any, topic: str, batch: Iterable[Flight], landed: Landed) -> None:
    """Produce flights and wait until each has been acknowledged or refused."""
    said_at = time.monotonic()
    for flight in batch:
        key, value = as_record(flight)
        offer(producer, topic, key, value, landed)
        if time.monotonic() - said_at > SAY_EVERY_S:
            said_at = time.monotonic()
            producer.poll(0)
            emit("progress", delivered=len(landed))
    while producer.flush(SAY_EVERY_S):
        emit("progress", delivered=len(landed))
    if landed.failures:
        raise SystemExit(f"{len(landed.failures)} records were not accepted, the first: {landed.failures[0]}")


def offer(producer: Any, topic: str, key: bytes | None, value: bytes, landed: Landed) -> None:
    """Queue one record; while the queue is full, wait for reports."""
    while True:
        try:
            producer.produce(topic, value=value, key=key, on_delivery=landed.report)
            return
        except BufferError:
            producer.poll(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--parts", type=int, nargs="+", required=True, help="how many to produce at a time")
    parser.add_argument("--landed", type=Path, required=True, help="Parquet file for the offsets produced")
    args = parser.parse_args()
    from confluent_kafka import Producer

    os.nice(NICENESS)
    producer, landed = Producer({"bootstrap.servers": args.bootstrap, **SETTINGS}), Landed()
    source = flights(sum(args.parts))
    for part in args.parts:
        if sys.stdin.readline().strip() != "next":
            raise SystemExit("told to stop before everything was produced")
        send(producer, args.topic, itertools.islice(source, part), landed)
    landed.write(args.landed, topic=args.topic)
    emit("done", delivered=len(landed))


if __name__ == "__main__":
    main()
