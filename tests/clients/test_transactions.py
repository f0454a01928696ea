"""Transactions with real clients: what commits is seen whole, what does not is never seen."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import confluent_kafka
import pytest

from .adapters.model import CALL_S, Denied, Place
from .adapters.writers import WRITERS, ConfluentWriter, Writer
from .brokers import Broker, broker
from .soon import soon, soon_is

NewTopic = Callable[..., str]
MakeWriter = type[Writer]

writers = pytest.mark.parametrize("writer", WRITERS, ids=lambda one: one.__name__)


BEGINNING = {
    confluent_kafka.KafkaError.NOT_COORDINATOR,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


def a_name(kind: str = "tx") -> str:
    return f"{kind}-{uuid.uuid4()}"


def committed_values(bootstrap: str, topic: str, *, partitions: int = 1, count: int = 0) -> list[bytes]:
    """Return what a reader of committed records sees, in the partitions' order, once there are `count`.

    Who commits is answered before its markers are in every partition.
    """
    end = time.monotonic() + CALL_S
    while True:
        found = read(bootstrap, topic, partitions=partitions, isolation="read_committed")
        if len(found) >= count:
            return found
        assert time.monotonic() < end, f"{len(found)} of {count} records are seen: {found}"


def read(bootstrap: str, topic: str, *, partitions: int, isolation: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": a_name("reader"),
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    values: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + CALL_S
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in values])
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"partitions {set(values) - ended} do not end"
            message = consumer.poll(0.2)
            if message is None:
                continue
            number, error = message.partition(), message.error()
            assert number is not None
            if error is None:
                values[number].append(message.value() or b"")
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended.add(number)
    finally:
        consumer.close()
    return [value for found in values.values() for value in found]


def committed_offset(bootstrap: str, group: str, place: Place) -> int:
    """Return what a group has committed, below 0 if nothing."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    end = time.monotonic() + CALL_S
    try:
        while True:
            try:
                (found,) = consumer.committed([confluent_kafka.TopicPartition(*place)], timeout=CALL_S)
            except confluent_kafka.KafkaException as error:  # a coordinator that has just begun, perhaps
                if error.args[0].code() not in BEGINNING or time.monotonic() > end:
                    raise
            else:
                return int(found.offset)
    finally:
        consumer.close()


@writers
def test_what_commits_is_seen_and_what_aborts_is_not(
    writer: MakeWriter, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=2)
    with writer(bootstrap, a_name()) as producer:
        for number in range(4):
            producer.begin()
            producer.write((topic, 0), b"a%d" % number)
            producer.write((topic, 1), b"b%d" % number)
            if number % 2:
                producer.abort()
            else:
                producer.commit()

    assert committed_values(bootstrap, topic, partitions=2, count=4) == [b"a0", b"a2", b"b0", b"b2"]
    everything = read(bootstrap, topic, partitions=2, isolation="read_uncommitted")
    assert everything == [b"a0", b"a1", b"a2", b"a3", b"b0", b"b1", b"b2", b"b3"]


@writers
def test_an_open_transaction_holds_its_readers_back(
    writer: MakeWriter, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with writer(bootstrap, a_name()) as producer:
        producer.begin()
        producer.write((topic, 0), b"1")
        held_back = committed_values(bootstrap, topic)
        producer.commit()

    assert held_back == []
    assert committed_values(bootstrap, topic, count=1) == [b"1"]


@writers
def test_offsets_count_with_the_transaction_that_they_came_in(
    writer: MakeWriter, bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group = new_topic(), a_name("group")
    with writer(bootstrap, a_name()) as producer:
        producer.begin()
        producer.write((topic, 0), b"in vain")
        producer.offsets(group, {(topic, 0): 7})
        producer.abort()
        after_abort = committed_offset(bootstrap, group, (topic, 0))
        producer.begin()
        producer.offsets(group, {(topic, 0): 8})
        producer.write((topic, 0), b"for good")
        producer.commit()

    assert after_abort < 0
    soon_is(lambda: committed_offset(bootstrap, group, (topic, 0)), 8)
    assert committed_values(bootstrap, topic, count=1) == [b"for good"]


@writers
def test_the_owner_before_is_fenced(writer: MakeWriter, bootstrap: str, new_topic: NewTopic) -> None:
    topic, transactional_id = new_topic(), a_name()
    with writer(bootstrap, transactional_id) as zombie:
        zombie.begin()
        zombie.write((topic, 0), b"of the zombie")
        with ConfluentWriter(bootstrap, transactional_id) as owner:
            with pytest.raises(Denied):
                zombie.commit()
            owner.begin()
            owner.write((topic, 0), b"of the owner")
            owner.commit()

    assert committed_values(bootstrap, topic, count=1) == [b"of the owner"]


def test_a_copy_of_a_topic_is_exact_however_often_it_is_interrupted(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Consume, transform, produce: after an abort the copy goes on from the group's offsets."""
    source, copy = new_topic(partitions=2), new_topic(partitions=2)
    group, transactional_id = a_name("group"), a_name()
    with ConfluentWriter(bootstrap, a_name()) as producer:
        producer.begin()
        for number in range(100):
            producer.inner.produce(source, b"%d" % number, partition=number % 2)
        producer.commit()

    copied = 0
    for attempt in range(60):
        copied += copy_some(bootstrap, source, copy, group, transactional_id, fail=attempt % 3 == 0)
        if copied == 100:
            break

    found = committed_values(bootstrap, copy, partitions=2, count=100)
    assert sorted(map(int, found)) == list(range(100))
    offsets = {committed_offset(bootstrap, group, (source, number)) for number in (0, 1)}
    assert offsets <= {50, 51}  # the source's marker has an offset too, and may be passed over


def copy_some(
    bootstrap: str, source: str, copy: str, group: str, transactional_id: str, *, fail: bool
) -> int:
    """Copy what comes within a transaction, or abort it. Return how many records have been copied."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.subscribe([source])
    producer = ConfluentWriter(bootstrap, transactional_id)  # fences the one before, as a restart does
    try:
        messages = take(consumer, 30)
        producer.begin()
        for message in messages:
            producer.inner.produce(copy, message.value(), partition=message.partition() or 0)
        producer.send_offsets(consumer.position(consumer.assignment()), consumer.consumer_group_metadata())
        if fail:
            producer.abort()
            return 0
        producer.commit()
        return len(messages)
    finally:
        consumer.close()
        producer.close()


def take(consumer: confluent_kafka.Consumer, count: int) -> list[confluent_kafka.Message]:
    """Return up to `count` records as soon as there are some."""
    deadline = time.monotonic() + CALL_S
    while time.monotonic() < deadline:
        found: list[confluent_kafka.Message] = consumer.consume(count, 0.1)
        if found:
            assert all(message.error() is None for message in found)
            return found
    raise AssertionError("nothing is left to copy")


@writers
def test_a_transaction_that_hangs_is_aborted_and_lets_readers_go_on(writer: MakeWriter) -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with broker(often, auto_create_topics_enable=True) as running:
        bootstrap = running.bootstrap
        with (
            writer(bootstrap, "slow", timeout_ms=2_000) as slow,
            ConfluentWriter(bootstrap, "quick") as quick,
        ):
            slow.begin()
            slow.write(("flights", 0), b"of the slow one")
            quick.begin()
            quick.write(("flights", 0), b"of the quick one")
            quick.commit()
            found = committed_values(bootstrap, "flights", count=1)
            with pytest.raises(Denied):
                slow.commit()

    assert found == [b"of the quick one"]


@pytest.mark.ours(
    "no client of ours takes part, and a killed Kafka may take longer to end a transaction than a test waits"
)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_outlives_the_broker(commit: bool, restartable: Broker) -> None:
    bootstrap, group = restartable.bootstrap, "copiers"
    with ConfluentWriter(bootstrap, "tx") as producer:
        producer.begin()
        producer.write(("flights", 0), b"before")
        producer.offsets(group, {("flights", 0): 5})
        restartable.kill()
        restartable.start()
        producer.write(("flights", 0), b"after")
        if commit:
            producer.commit()
        else:
            producer.abort()
        restartable.kill()
        restartable.start()

        wanted = [b"before", b"after"] if commit else []
        assert committed_values(bootstrap, "flights", count=len(wanted)) == wanted
        soon(lambda: (committed_offset(bootstrap, group, ("flights", 0)) == 5) is commit)
        producer.begin()
        producer.write(("flights", 0), b"next")
        producer.commit()
    assert committed_values(bootstrap, "flights", count=len(wanted) + 1) == [*wanted, b"next"]
