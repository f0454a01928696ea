"""`coterie serve --store` compacts its topics, and whoever leads next has what is left."""

from __future__ import annotations

import json

import pytest
from bench.postgres import Server
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from ..rigs.serving import ServedBroker, soon

pytestmark = pytest.mark.interop

TOPIC, OFFSETS_TOPIC = "prices", "__consumer_offsets"
KEYS, ROUNDS = 5, 20
CALL_S = 10.0
SILENT = {"log_level": 0}
SIZES = """
SELECT json_object_agg(name, bytes) FROM (
  SELECT name, sum(size) AS bytes FROM coterie.chunks_keep JOIN coterie.partitions USING (partition_id)
  JOIN coterie.topics USING (topic_id) GROUP BY name) AS sizes
"""
SOON = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0.01", "cleanup.policy": "compact"}


def a_broker(url: str, node_id: int) -> ServedBroker:
    """Return a broker that serves."""
    settings = {"offsets.topic.num.partitions": 1, "log.cleaner.backoff.ms": 300}
    broker = ServedBroker(url, node_id, **settings)
    broker.until_ready()
    return broker


def written(broker: ServedBroker, admin: AdminClient) -> None:
    """Write some prices of each key, and commit offsets as often; then have both topics compacted."""
    for made in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        made.result(CALL_S)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0, **SILENT})
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "readers", **SILENT})
    for price in range(ROUNDS):
        for key in range(KEYS):
            producer.produce(TOPIC, b"%d" % price + b"." * 1_000, key=b"%d" % key)
        assert producer.flush(CALL_S) == 0
        offset = TopicPartition(TOPIC, 0, price * KEYS)
        soon(lambda offset=offset: _commits(consumer, offset))  # type: ignore[misc]
    consumer.close()
    entries = [ConfigEntry(*one, incremental_operation=AlterConfigOpType.SET) for one in SOON.items()]
    for name in (TOPIC, OFFSETS_TOPIC):
        wanted = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        for changed in admin.incremental_alter_configs([wanted]).values():
            changed.result(CALL_S)


def _commits(consumer: Consumer, offset: TopicPartition) -> bool:
    try:
        consumer.commit(offsets=[offset], asynchronous=False)
    except Exception:  # noqa: BLE001  its coordinator is not there yet
        return False
    return True


def prices(broker: ServedBroker) -> list[tuple[int, int]]:
    """Return (key, price) of all records."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "others", **SILENT})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: list[tuple[int, int]] = []

    def has_all() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            value = (message.value() or b"").partition(b".")[0]
            found.append((int(message.key() or b""), int(value)))
        return (KEYS - 1, ROUNDS - 1) in found

    soon(has_all)
    consumer.close()
    return found


def test_topics_are_compacted_and_the_next_broker_has_what_is_left(server: Server):
    database = server.new_database()

    def sizes() -> dict[str, int]:
        return dict(json.loads(server.sql(database, SIZES)))

    first = a_broker(server.url(database), 1)
    try:
        admin = AdminClient({"bootstrap.servers": first.address, **SILENT})
        written(first, admin)
        before = sizes()
        assert before[TOPIC] > KEYS * ROUNDS * 1_000
        soon(lambda: all(size < before[name] / 2 for name, size in sizes().items()), within_s=60)
    finally:
        said = first.said()
    assert "compacted" in said

    following = a_broker(server.url(database), 2)
    try:
        newest = [(key, ROUNDS - 1) for key in range(KEYS)]
        found = prices(following)
        assert found[-KEYS:] == newest
        assert len(found) < KEYS * ROUNDS / 2
        consumer = Consumer({"bootstrap.servers": following.address, "group.id": "readers", **SILENT})
        (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=CALL_S)
        assert committed.offset == (ROUNDS - 1) * KEYS
        consumer.close()
    finally:
        following.said()
