"""Topics are created, grown and deleted by each client's administrator, and refusals carry Kafka's codes."""

from __future__ import annotations

import uuid

import pytest

from .adapters import Admin, Client, Denied, Message
from .soon import soon_is

UNKNOWN_TOPIC = 3
INVALID_TOPIC = 17
TOPIC_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40


def a_name() -> str:
    return f"topic-{uuid.uuid4()}"


def settles(admin: Admin, topic: str, count: int | None) -> None:
    """Wait until the topic has that many partitions: Apache Kafka's brokers hear of it a moment later."""
    soon_is(lambda: admin.partition_count(topic), count)


def test_a_topic_is_created_grown_and_deleted(client: Client, bootstrap: str) -> None:
    name = a_name()
    with client.admin(bootstrap) as admin:
        admin.create(name, partitions=3, config={"retention.ms": "600000"})
        settles(admin, name, 3)

        admin.grow(name, partitions=5)
        settles(admin, name, 5)

        admin.delete(name)
        settles(admin, name, None)


def test_a_topic_that_was_deleted_starts_anew_when_created_again(client: Client, bootstrap: str) -> None:
    name = a_name()
    with client.admin(bootstrap) as admin:
        admin.create(name)
        client.produce(bootstrap, [Message(topic=name, partition=0, value=b"old")])
        admin.delete(name)
        settles(admin, name, None)

        admin.create(name)
        client.produce(bootstrap, [Message(topic=name, partition=0, value=b"new")])

    with client.reader(bootstrap, (name, 0)) as consumer:
        [got] = consumer.take(1)
    assert (got.value, got.offset) == (b"new", 0)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"name": "there is a blank in it"}, INVALID_TOPIC),
        ({"name": "x" * 250}, INVALID_TOPIC),
        ({"partitions": 0}, INVALID_PARTITIONS),
        ({"config": {"retention.ms": "soon"}}, INVALID_CONFIG),
        ({"config": {"no.such.setting": "1"}}, INVALID_CONFIG),
    ],
    ids=["blank", "too long", "no partitions", "bad value", "unknown setting"],
)
def test_a_topic_that_cannot_be_is_refused(
    client: Client, bootstrap: str, wanted: dict[str, object], code: int
) -> None:
    name = str(wanted.get("name", a_name()))
    options = {key: value for key, value in wanted.items() if key != "name"}

    with client.admin(bootstrap) as admin, pytest.raises(Denied) as denied:
        admin.create(name, **options)  # type: ignore[arg-type]

    assert denied.value.code == code


def test_a_second_topic_of_the_same_name_is_refused(client: Client, bootstrap: str) -> None:
    name = a_name()
    with client.admin(bootstrap) as admin:
        admin.create(name)

        with pytest.raises(Denied) as denied:
            admin.create(name)

    assert denied.value.code == TOPIC_EXISTS


def test_deleting_what_is_not_there_is_refused(client: Client, bootstrap: str) -> None:
    with client.admin(bootstrap) as admin, pytest.raises(Denied) as denied:
        admin.delete(a_name())

    assert denied.value.code == UNKNOWN_TOPIC


def test_a_topic_does_not_shrink(client: Client, bootstrap: str) -> None:
    name = a_name()
    with client.admin(bootstrap) as admin:
        admin.create(name, partitions=3)

        with pytest.raises(Denied) as denied:
            admin.grow(name, partitions=2)

    assert denied.value.code == INVALID_PARTITIONS
