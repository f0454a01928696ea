"""Committed offsets: where the next member goes on, and what is left of them after the broker has died."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from .adapters import CLIENTS, Client, Membership, Message
from .adapters.confluent import ConfluentAdmin
from .brokers import Broker
from .running import Member, wait_until

NewTopic = Callable[..., str]

CONFLUENT = CLIENTS[0]
TOPIC = "survivor"
ENDS = pytest.mark.parametrize("end", [Broker.stop, Broker.kill], ids=["SIGTERM", "SIGKILL"])


def numbered(topic: str, first: int, count: int) -> list[Message]:
    return [Message(topic=topic, partition=0, value=str(n).encode()) for n in range(first, first + count)]


def test_the_next_member_goes_on_where_the_last_one_committed(
    client: Client, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    membership = Membership(topics=(topic,))
    client.produce(bootstrap, numbered(topic, 0, 50))

    with client.member(bootstrap, membership) as consumer:
        consumer.take(50)
        assert consumer.committed((topic, 0)) is None
        consumer.commit()
        assert consumer.committed((topic, 0)) == 50
    client.produce(bootstrap, numbered(topic, 50, 5))

    for other in CLIENTS:  # whichever library it is; none of them commits
        with other.member(bootstrap, membership) as consumer:
            got = consumer.take(5)
        assert [m.offset for m in got] == [50, 51, 52, 53, 54], other.name


def test_what_was_not_committed_is_read_again(client: Client, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    membership = Membership(topics=(topic,))
    client.produce(bootstrap, numbered(topic, 0, 20))
    with client.member(bootstrap, membership) as consumer:
        consumer.take(20)

    with client.member(bootstrap, membership) as consumer:
        got = consumer.take(20)

    assert got[0].offset == 0


@ENDS
def test_commits_topics_and_records_survive_a_restart(
    client: Client, end: Callable[[Broker], None], restartable: Broker
) -> None:
    membership = Membership(topics=(TOPIC,))
    bootstrap = restartable.bootstrap
    with client.admin(bootstrap) as admin:
        admin.create(TOPIC, partitions=1)
    client.produce(bootstrap, numbered(TOPIC, 0, 30))
    with client.member(bootstrap, membership) as consumer:
        consumer.take(30)
        consumer.commit()
    client.produce(bootstrap, numbered(TOPIC, 30, 10))

    end(restartable)
    restartable.start()

    with client.member(bootstrap, membership) as consumer:
        got = consumer.take(10)
        assert consumer.committed((TOPIC, 0)) == 30
    assert [m.value for m in got] == [str(n).encode() for n in range(30, 40)]


# kafka-python does not close the sockets whose connection was refused; they are collected within this test
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_member_lives_through_the_death_of_the_broker(client: Client, restartable: Broker) -> None:
    bootstrap = restartable.bootstrap
    with ConfluentAdmin(bootstrap) as admin:
        admin.create(TOPIC, partitions=1)
    client.produce(bootstrap, numbered(TOPIC, 0, 10))
    member = Member(client, bootstrap, Membership(topics=(TOPIC,)), commits=True)
    try:
        wait_until(lambda: len(member.seen) == 10, of=[member])

        restartable.kill()
        restartable.start()
        client.produce(bootstrap, numbered(TOPIC, 10, 10))

        wait_until(lambda: {m.offset for m in member.seen} == set(range(20)), of=[member])
    finally:
        member.stop()
        gc.collect()


def test_an_idempotent_producer_goes_on_after_the_death_of_the_broker(restartable: Broker) -> None:
    import confluent_kafka

    with ConfluentAdmin(restartable.bootstrap) as admin:
        admin.create(TOPIC, partitions=1)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": restartable.bootstrap, "enable.idempotence": True, "log_level": 3}
    )
    for n in range(500):
        producer.produce(TOPIC, str(n).encode(), partition=0)
    assert producer.flush(40) == 0

    restartable.kill()
    for n in range(500, 1000):
        producer.produce(TOPIC, str(n).encode(), partition=0)
    restartable.start()

    assert producer.flush(60) == 0
    with CONFLUENT.reader(restartable.bootstrap, (TOPIC, 0)) as consumer:
        got = consumer.take(1000)
    assert [m.value for m in got] == [str(n).encode() for n in range(1000)]
