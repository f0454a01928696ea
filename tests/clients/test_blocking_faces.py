"""The faces for scripts that block: each does what its asyncio face does, and leaves no thread behind."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator

import pytest

from coterie.base.ids import GroupMetadata, TopicPartition
from coterie.client import (
    Admin,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    Producer,
    resets,
)
from coterie.client.errors import Closed, Disconnected
from coterie.client.groups import NoSuchGroup
from coterie.client.producer_errors import ProducerClosed

NewTopic = Callable[..., str]
WITHIN_MS = 10_000
INNER = {"send_packed"}  # Spark's sink hands over encoded columns, on the producer's own loop


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Each face ends its thread when it closes."""
    before = set(threading.enumerate())
    yield
    left = [one.name for one in set(threading.enumerate()) - before if one.name.startswith("coterie ")]
    assert left == []


@pytest.mark.parametrize(
    ("face", "blocking"), [(Admin, BlockingAdmin), (Producer, BlockingProducer), (Consumer, BlockingConsumer)]
)
def test_what_a_face_can_its_blocking_one_can(face: type, blocking: type) -> None:
    missing = {name for name, _ in inspect.getmembers(face, callable) if name[0] != "_"} - set(dir(blocking))

    assert missing - INNER == set()


def test_records_are_produced_and_told_where_they_are(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with BlockingProducer(bootstrap, linger_ms=50) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(100)]
        assert producer.partitions_for(topic) == 1
        producer.flush()
        assert all(delivery.done() for delivery in deliveries)
        late = producer.send(topic, b"100", key=b"k", headers={"h": b"1"})

        assert [delivery.result().offset for delivery in deliveries] == list(range(100))
        assert late.result().offset == 100
    with pytest.raises((Closed, ProducerClosed)):
        producer.send(topic, b"late")


def test_what_is_not_acknowledged_when_it_closes_fails(bootstrap: str, new_topic: NewTopic) -> None:
    producer = BlockingProducer(bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
    producer.start()
    delivery = producer.send(new_topic(), b"v")
    producer.close(timeout_ms=0)

    with pytest.raises(ProducerClosed):
        delivery.result()


def test_transactions_are_whole_or_nothing(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(), f"group-{new_topic()}"
    place = TopicPartition(topic, 0)
    with BlockingProducer(bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"kept")
            producer.send_offsets({place: 7}, GroupMetadata(group))
        try:
            with producer.transaction():
                producer.send(topic, b"taken back")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "group_id": group}
    with BlockingConsumer(isolation_level="read_committed", **settings) as consumer:
        consumer.assign([place])
        assert consumer.partitions_for(topic) == (place,)
        assert topic in consumer.topics()
        assert (consumer.subscription(), consumer.paused()) == (None, frozenset())
        assert consumer.committed([place]) == {place: 7}
        consumer.seek_to_beginning()
        found = consumer.getmany(timeout_ms=WITHIN_MS)
        assert [record.value for record in found[place]] == [b"kept"]
        consumer.commit({place: 1})
        noted = consumer.committed(metadata=True)[place]
        assert noted is not None
        assert noted.offset == 1


def test_an_administrator_asks_and_changes_a_cluster(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with BlockingAdmin(bootstrap) as admin:
        assert admin.partitions_named([topic]) == places
        assert topic in {one.name for one in admin.list_topics()}
        admin.alter_group_offsets(topic, dict.fromkeys(places, 0))
        moves = admin.reset_group_offsets(topic, resets.ToLatest())
        assert [(move.partition, move.after) for move in moves] == [(place, 0) for place in places]
        admin.delete_group(topic)
        with pytest.raises(NoSuchGroup):
            admin.describe_group(topic)
    with pytest.raises(Closed, match="this administrator does not run"):
        admin.list_topics()


@pytest.mark.parametrize("face", [BlockingAdmin, BlockingProducer, BlockingConsumer])
def test_nobody_at_the_address_is_told_at_once(face: Callable[..., BlockingAdmin]) -> None:
    with (
        pytest.raises(Disconnected, match=r"no connection to 127\.0\.0\.1:1"),
        face(bootstrap_servers=["127.0.0.1:1"]),
    ):
        pass
