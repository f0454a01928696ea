"""Batches that would stop every consumer of a topic are refused, and librdkafka's and ours read on."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, Producer

import coterie.testing
from coterie.base.codes import Code
from coterie.client.net.addresses import addresses_of
from coterie.client.net.plain_socket import BlockingConnection
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from coterie.wire.records.batches import HEADER_SIZE, Record, build_batch, head_for
from coterie.wire.records.compression import compress

pytestmark = pytest.mark.ours("of what Apache Kafka answers, store/test_store_validate.py has the table")

NAMED = 9  # a version whose topics are named
NOW = 1_700_000_000_000
BODY = build_batch([Record(place, NOW, b"k", b"v") for place in range(2)])[HEADER_SIZE:]
"""The records of a batch of two."""
POISON = [
    (BODY, 500, "none"),
    (BODY, 1, "none"),
    (BODY[:-2], 2, "none"),
    (BODY + b"\0", 2, "none"),
    (b"\x7f" * 3 + b"\xff" * 60, 1, "none"),
    (b"\xff" * 60, 1, "none"),
    (b"", 1, "none"),
    (compress("lz4", BODY), 500, "lz4"),
    (b"\x13\x37" * 30, 2, "gzip"),
]


def test_consumers_read_on_after_batches_that_nobody_could_read():
    with coterie.testing.broker() as broker:
        (address,) = addresses_of(broker.bootstrap)
        connection = BlockingConnection(address, client_id="stranger", timeout_s=30)
        connection.agreed[ApiKey.PRODUCE] = NAMED
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"before", partition=0)
        producer.flush()
        answers = []
        for body, count, codec in POISON:
            batch = head_for(body, count=count, base_timestamp=NOW, max_timestamp=NOW, codec=codec) + body
            data = build(entity("produce", NAMED, "PartitionProduceData"), index=0, records=batch)
            topic = build(entity("produce", NAMED, "TopicProduceData"), name="t", partition_data=(data,))
            request = build(request_type(ApiKey.PRODUCE, NAMED), acks=-1, timeout=1_000, topic_data=(topic,))
            answer = connection.call(ApiKey.PRODUCE, lambda _, request=request: request)
            answers.append(answer.responses[0].partition_responses[0].error_code)
        connection.close()
        producer.produce("t", b"after", partition=0)
        producer.flush()

        assert set(answers) == {Code.INVALID_RECORD, Code.UNKNOWN_SERVER_ERROR}
        assert read(broker.bootstrap, 2) == [b"before", b"after"]


def read(bootstrap: str, count: int) -> list[bytes]:
    """Return the first values that a new group of librdkafka's reads."""
    terms = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest", "session.timeout.ms": 6_000}
    consumer = Consumer({"bootstrap.servers": bootstrap, **terms})
    consumer.subscribe(["t"])
    try:
        return [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()
