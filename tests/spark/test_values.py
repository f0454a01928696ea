"""What a task reads, value by value, is what confluent-kafka reads, of any topic.

Tasks are run here as a Spark worker would run them; Spark's own part is in `test_batch`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import coterie.testing
from coterie.spark.source.batch import plan_batch
from coterie.spark.source.filters import Pushed
from coterie.spark.source.options import parse
from coterie.spark.source.tasks import read_task

from .kafka import create_topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STAMP_MS = int(time.time() * 1000)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADERS = [("h", b"1"), ("h", None), ("ünï", b""), ("", b"x")]
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "20000",
    "max.compaction.lag.ms": "1",
}


@pytest.fixture(scope="module")
def cleaning():
    """A broker that compacts soon."""
    with coterie.testing.broker({"log.cleaner.backoff.ms": 50}) as running:
        yield running.bootstrap


def read_by_us(bootstrap, topic, **options):
    """All rows of the topic, as tasks give them to Spark."""
    given = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        **options,
    }
    tasks = asyncio.run(plan_batch(parse(given, streaming=False), Pushed()))
    rows = [row for task in tasks for batch in read_task(task) for row in batch.to_pylist()]
    return sorted(map(as_told, rows))


def as_told(row):
    """A row as confluent-kafka tells it."""
    headers = row["headers"]
    return (
        row["topic"],
        row["partition"],
        row["offset"],
        1 + row["timestampType"],
        (row["timestamp"] - EPOCH) // timedelta(milliseconds=1),
        row["key"],
        row["value"],
        None if headers is None else [(one["key"], one["value"]) for one in headers],
    )


def read_by_confluent(bootstrap, topic, partitions, *, isolation="read_uncommitted"):
    """The same by confluent-kafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": str(uuid.uuid4()),
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    told: list[Any] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        for message in consumer.consume(1000, timeout=0.1):
            if message.error() is not None:
                ended.add(message.partition())
                continue
            told.append((message.topic(), message.partition(), message.offset(), *message.timestamp(),
                         message.key(), message.value(), message.headers()))  # fmt: skip
    consumer.close()
    return sorted(told, key=lambda one: one[:3])


def produce(bootstrap, topic, codec, *, count, **config):
    """Records of every kind by this codec: nulls, headers, empty and large ones, with time running back."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5, **config})
    for number in range(count):
        producer.produce(
            topic,
            key=[None, b"", b"key-%d" % (number % 7)][number % 3],
            value=None if number % 11 == 0 else codec.encode() * (number % 90),
            headers=HEADERS[: number % 5] or None,
            timestamp=STAMP_MS - number * 1000,
            partition=number % 2,
        )
    assert producer.flush(30) == 0


@pytest.mark.parametrize("stamped", ["CreateTime", "LogAppendTime"])
def test_every_value_is_the_one_that_confluent_kafka_reads(cleaning, stamped):
    name = f"values-{uuid.uuid4()}"
    create_topic(cleaning, name, partitions=2, config={"message.timestamp.type": stamped})
    for codec in CODECS:
        produce(cleaning, name, codec, count=200)

    rows = read_by_us(cleaning, name)
    cut = read_by_us(cleaning, name, **{"kafka.max.partition.fetch.bytes": "3000"})

    assert rows == read_by_confluent(cleaning, name, 2)
    assert cut == rows


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_are_seen_as_confluent_kafka_sees_them(cleaning, isolation):
    """Markers are nobody's rows, aborted records are those of read_uncommitted only."""
    name = f"values-{uuid.uuid4()}"
    create_topic(cleaning, name, partitions=2, config={})
    producers = [Producer({"bootstrap.servers": cleaning, "transactional.id": f"{name}-{n}"}) for n in (0, 1)]
    for producer in producers:
        producer.init_transactions(30)
    for turn in range(6):
        for producer in producers:
            producer.begin_transaction()
        for number in range(30):
            producers[number % 2].produce(name, b"%d-%d" % (turn, number), partition=number // 2 % 2)
        for number, producer in enumerate(producers):
            producer.flush(30)
            (producer.abort_transaction if (turn + number) % 3 == 0 else producer.commit_transaction)(30)
        produce(cleaning, name, "lz4", count=20)

    rows = read_by_us(cleaning, name, **{"kafka.isolation.level": isolation})

    assert rows == read_by_confluent(cleaning, name, 2, isolation=isolation)
    assert len(rows) == 6 * 20 + 6 * 30 - (4 * 15 if isolation == "read_committed" else 0)


def test_what_compaction_has_left_is_what_confluent_kafka_reads(compacted):
    bootstrap, name = compacted

    before, after = None, read_by_confluent(bootstrap, name, 1)
    while before != after:  # a compaction has come between: there is nothing more to compact soon
        before = after
        rows = read_by_us(bootstrap, name)
        cut = read_by_us(bootstrap, name, **{"kafka.max.partition.fetch.bytes": "500"})
        after = read_by_confluent(bootstrap, name, 1)

    assert rows == cut == after
    offsets = [row[2] for row in rows]
    assert len(offsets) < offsets[-1] - offsets[0]


@pytest.fixture(scope="module")
def compacted(cleaning):
    """A topic of one partition that has been compacted: gaps within batches and between them."""
    name = f"compacted-{uuid.uuid4()}"
    create_topic(cleaning, name, partitions=1, config=COMPACTED)
    producer = Producer({"bootstrap.servers": cleaning, "linger.ms": 5})
    until = time.monotonic() + 120
    end = 0
    while end == 0 or len(read_by_confluent(cleaning, name, 1)) * 2 > end:
        assert time.monotonic() < until, "nothing was compacted"
        for number in range(300):
            producer.produce(name, key=b"%d" % (number % 7 if number % 10 else number), value=b"v" * 20)
        assert producer.flush(30) == 0
        end = ends_at(cleaning, name)
    return cleaning, name


def ends_at(bootstrap, topic):
    """Where its only partition ends."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": str(uuid.uuid4())})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    consumer.close()
    return end
