"""`coterie serve --store`: brokers of one cluster in processes of their own, with librdkafka's clients."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import asyncpg
import pytest
from bench.postgres import Server
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from .rigs.serving import ServedBroker, ServedCluster, soon

pytestmark = pytest.mark.interop

TOPIC, PARTITIONS = "orders", 6
CALL_S = 10.0
APPENDS_WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND query ~ 'INSERT INTO coterie.chunks_keep'
"""
SILENT = {"log_level": 0}


@pytest.fixture
def url(server: Server) -> str:
    """The address of a database without tables."""
    return server.url(server.new_database())


@pytest.fixture
def cluster(url: str) -> Iterator[ServedCluster]:
    """Three brokers that serve, and a topic with partitions at each."""
    with ServedCluster(url) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap, **SILENT})
        soon(lambda: len(admin.list_topics(timeout=CALL_S).brokers) == 3)
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
            made.result(CALL_S)
        yield running


def leaders(cluster: ServedCluster) -> set[int]:
    """Return who leads a partition of the topic, as one of the brokers says."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap, **SILENT}).list_topics(TOPIC, timeout=CALL_S)
    return {one.leader for one in found.topics[TOPIC].partitions.values()}


def coordinator(cluster: ServedCluster, group: str) -> int:
    """Return the broker that coordinates a group."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **SILENT})
    described = admin.describe_consumer_groups([group])[group].result(CALL_S)
    found: int = described.coordinator.id
    return found


def produce(cluster: ServedCluster, values: range) -> None:
    """Produce values, each acknowledged, by an idempotent producer."""
    failed: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **SILENT})
    for value in values:
        producer.produce(
            TOPIC,
            b"%d" % value,
            partition=value % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error),
        )
    assert producer.flush(CALL_S * 3) == 0
    assert set(failed) == {None}


class Member:
    """A member of a group that commits what it reads."""

    def __init__(self, cluster: ServedCluster, group: str) -> None:
        self.group = group
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 20_000,
                **SILENT,
            }
        )
        self.rebalances = 0
        self.consumer.subscribe([TOPIC], on_assign=self._assigned)
        self.read: list[int] = []
        self.committed: dict[int, int] = {}

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1

    def poll_until(self, count: int) -> None:
        """Read until so many values have come, and commit each time."""

        def has_all() -> bool:
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.read.append(int(message.value()))
                self._commit(message.partition(), message.offset() + 1)
            return len(self.read) >= count

        soon(has_all, within_s=60)

    def _commit(self, partition: int, offset: int) -> None:
        try:
            self.consumer.commit(offsets=[TopicPartition(TOPIC, partition, offset)], asynchronous=False)
        except KafkaException:
            return  # whoever commits next commits this
        self.committed[partition] = offset


def test_three_brokers_share_a_topic_and_each_knows_all(cluster: ServedCluster):
    produce(cluster, range(60))
    member = Member(cluster, "readers")
    member.poll_until(60)

    assert sorted(member.read) == [*range(60)]
    assert leaders(cluster) == {1, 2, 3}
    for broker in cluster.brokers.values():
        found = AdminClient({"bootstrap.servers": broker.address, **SILENT}).list_topics(timeout=CALL_S)
        assert set(found.brokers) == {1, 2, 3}
        assert len(found.topics[TOPIC].partitions) == PARTITIONS
    member.consumer.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_group_goes_on_when_its_coordinator_ends(cluster: ServedCluster, number: signal.Signals):
    produce(cluster, range(60))
    member = Member(cluster, "readers")
    member.poll_until(60)
    victim = coordinator(cluster, "readers")

    code = cluster.brokers[victim].end(number)
    produce(cluster, range(60, 120))
    member.poll_until(120)

    assert code == (0 if number == signal.SIGTERM else -number)
    assert sorted(member.read) == [*range(120)]
    assert member.rebalances == 1
    assert coordinator(cluster, "readers") != victim
    assert victim not in leaders(cluster)
    kept = member.consumer.committed([TopicPartition(TOPIC, one) for one in member.committed], timeout=CALL_S)
    assert {one.partition: one.offset for one in kept} == member.committed
    member.consumer.close()


def test_a_broker_that_comes_back_leads_again_what_it_is_first_for(cluster: ServedCluster, url: str):
    produce(cluster, range(60))
    cluster.brokers[2].end(signal.SIGKILL)
    soon(lambda: leaders(cluster) == {1, 3})

    cluster.brokers[2] = ServedBroker(url, 2)
    cluster.brokers[2].until_ready()
    soon(lambda: leaders(cluster) == {1, 2, 3}, within_s=60)

    member = Member(cluster, "readers")
    member.poll_until(60)
    assert sorted(member.read) == [*range(60)]
    member.consumer.close()


@contextmanager
def locked(url: str, tables: str) -> Iterator[None]:
    """Keep a lock on tables for as long as this lasts."""
    begun, over = threading.Event(), threading.Event()

    async def hold() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(f"BEGIN; LOCK TABLE {tables}")
        begun.set()
        await asyncio.to_thread(over.wait)
        connection.terminate()

    with ThreadPoolExecutor() as pool:
        holding = pool.submit(asyncio.run, hold())
        try:
            assert begun.wait(CALL_S)
            yield
        finally:
            over.set()
            holding.result()


def test_a_broker_that_gives_up_a_silent_database_says_why_and_nothing_behind_that(server: Server, url: str):
    with ServedCluster(url, count=1) as cluster:
        broker = cluster.brokers[1]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **SILENT})
        for made in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
            made.result(CALL_S)
        member = Member(cluster, "readers")
        member._commit(0, 0)
        assert member.committed
        with locked(url, "coterie.cluster, coterie.lanes"):
            member.consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=True)
            soon(lambda: server.sql(url.rpartition("/")[2].partition("?")[0], APPENDS_WAITING) == "1")
            broker.process.send_signal(signal.SIGTERM)
            _, said = broker.process.communicate(timeout=30)

    assert broker.process.returncode == 1
    *before, last = said.splitlines()
    assert "the database answered no heartbeat" in last
    assert not [line for line in before if " ERROR " in line or "Traceback" in line]


def test_all_brokers_die_and_what_they_had_is_there(url: str):
    with ServedCluster(url) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **SILENT})
        soon(lambda: len(admin.list_topics(timeout=CALL_S).brokers) == 3)
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
            made.result(CALL_S)
        produce(cluster, range(60))
        first = Member(cluster, "readers")
        first.poll_until(60)
        for broker in cluster.brokers.values():
            broker.end(signal.SIGKILL)
    with ServedCluster(url) as cluster:
        produce(cluster, range(60, 90))
        member = Member(cluster, "readers")
        member.poll_until(30)

        assert sorted(member.read) == [*range(60, 90)]
        member.consumer.close()
    first.consumer.close()
