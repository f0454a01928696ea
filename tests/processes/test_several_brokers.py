"""Several brokers on one machine, with real clients: one cluster, wherever one asks, whoever dies."""

from __future__ import annotations

import sqlite3
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka.admin import NewTopic

from clients.adapters import CLIENTS, Client, Membership, Message
from clients.adapters.aio import end_loop
from clients.adapters.writers import ConfluentWriter
from clients.running import Member, wait_until
from clients.soon import soon, soon_is
from clients.test_transactions import committed_values, read
from coterie.base.hashes import coordinator_partition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.processes import METADATA
from coterie.broker.processes.changes import FenceProcess
from coterie.cli import main

from .several import NO_ROOM, Several

CONFLUENT = CLIENTS[0]
PARTITIONS = 4

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """Two brokers that no test harms."""
    with Several(tmp_path_factory.mktemp("several"), 2) as several:
        yield several
    end_loop()


def new_topic(brokers: Several, partitions: int = PARTITIONS) -> str:
    topic = f"topic-{uuid.uuid4()}"
    with CONFLUENT.admin(brokers.bootstrap) as admin:
        admin.create(topic, partitions=partitions)
    return topic


def some(topic: str, count: int, word: str = "v") -> list[Message]:
    return [
        Message(topic=topic, partition=number % PARTITIONS, value=f"{word}{number:03}".encode())
        for number in range(count)
    ]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_each_client_reaches_every_partition_by_the_address_of_any_broker(brokers: Several, client: Client):
    topic = new_topic(brokers)

    for at, address in enumerate(brokers.addresses):
        client.produce(address, some(topic, 2 * PARTITIONS, f"{at}-"))

    assert {*brokers.leaders(topic)} == {1, 2}
    for address in brokers.addresses:
        with client.reader(address, *((topic, number) for number in range(PARTITIONS))) as reader:
            got = {message.value for message in reader.take(4 * PARTITIONS)}
        assert got == {message.value for at in (0, 1) for message in some(topic, 2 * PARTITIONS, f"{at}-")}


@pytest.mark.parametrize(
    "words",
    [["drain", "2"], ["drain", "2", "--dry-run"], ["remove", "2"]],
    ids=["drain", "dry-run", "remove"],
)
def test_a_broker_of_several_is_not_drained_or_removed_and_that_says_why(
    brokers: Several, capsys: pytest.CaptureFixture[str], words: list[str]
):
    leaders = brokers.leaders(topic := new_topic(brokers))

    with pytest.raises(SystemExit) as ended:
        main(["cluster", *words, "--bootstrap", brokers.bootstrap])

    said = capsys.readouterr().err
    assert (ended.value.code, said.startswith("coterie: nothing is moved: ")) == (1, True)
    assert said.endswith(
        "; a broker over files keeps its partitions, and those of --processes share anew at another N\n"
    )
    assert brokers.leaders(topic) == leaders


def test_what_the_file_of_the_metadata_refuses_is_told_as_that_and_not_as_a_time_out(brokers: Several):
    name = f"topic-{uuid.uuid4()}"
    with closing(sqlite3.connect(brokers.data / METADATA, isolation_level=None)) as database:
        database.execute(NO_ROOM)
        try:
            with CONFLUENT.admin(brokers.addresses[1]) as admin:
                [refused] = admin.inner.create_topics([NewTopic(name, 1)]).values()  # type: ignore[attr-defined]
                error = refused.exception(20).args[0]
        finally:
            database.execute("DROP TRIGGER no_room")

    assert (error.name(), error.str()) == (
        "UNKNOWN",
        "The database of the cluster's metadata has refused the change: no room.",
    )
    new_topic(brokers)


def test_all_brokers_are_listed_and_the_first_is_the_controller(brokers: Several):
    for address in brokers.addresses:
        listed = confluent_kafka.admin.AdminClient({"bootstrap.servers": address}).list_topics(timeout=20)
        assert [f"{one.host}:{one.port}" for _, one in sorted(listed.brokers.items())] == brokers.addresses
        assert listed.controller_id == 1
        assert listed.cluster_id == brokers.cluster_id()


def test_groups_are_coordinated_by_whoever_leads_their_partition(brokers: Several):
    topic = new_topic(brokers)
    CONFLUENT.produce(brokers.bootstrap, some(topic, 8))
    with CONFLUENT.member(brokers.bootstrap, Membership(topics=(topic,))) as first:
        first.take(1)  # now there is a topic of the offsets
    leaders = brokers.leaders(OFFSETS_TOPIC)

    assert sorted(leaders) == [1, 1, 1, 2, 2, 2]
    assert brokers.logs(OFFSETS_TOPIC) == sorted(
        f"{leader}/{OFFSETS_TOPIC}-{at}" for at, leader in enumerate(leaders)
    )
    for broker_id, address in ((1, brokers.addresses[1]), (2, brokers.addresses[0])):
        group = name_at(leaders, broker_id, "group")
        with CONFLUENT.member(address, Membership(topics=(topic,), group=group)) as member:
            assert len(member.take(8)) == 8
            member.commit()
        with CONFLUENT.member(brokers.bootstrap, Membership(topics=(topic,), group=group)) as member:
            soon(lambda: member.poll(0.05) == [] and len(member.assignment()) == PARTITIONS)
            assert sum(member.committed((topic, number)) or 0 for number in range(PARTITIONS)) == 8
        soon(lambda group=group: "member-joined" in brokers.command("groups", "story", group))
    assert not [line for line in brokers.log if "lost" in line]


def test_a_partition_has_one_replica_and_may_be_put_on_a_broker_by_hand(brokers: Several):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": brokers.bootstrap})

    def create(**terms: Any) -> int:
        new = confluent_kafka.admin.NewTopic(f"topic-{uuid.uuid4()}", **terms)
        (future,) = admin.create_topics([new]).values()
        try:
            future.result()
        except confluent_kafka.KafkaException as refused:
            return refused.args[0].code()
        assert brokers.leaders(new.topic) == [2, 2]
        return 0

    error = confluent_kafka.KafkaError
    assert create(num_partitions=2, replication_factor=2) == error.INVALID_REPLICATION_FACTOR
    assert create(num_partitions=2, replica_assignment=[[1, 2], [2]]) == error.INVALID_REPLICA_ASSIGNMENT
    assert create(num_partitions=2, replica_assignment=[[2], [2]]) == 0


def test_a_topic_is_grown_configured_and_deleted_at_every_broker(brokers: Several):
    topic = new_topic(brokers, partitions=2)

    with CONFLUENT.admin(brokers.addresses[1]) as admin:
        admin.grow(topic, partitions=5)
        soon_is(lambda: len(brokers.logs(topic)), 5)
        brokers.command("configs", "alter", "--topic", topic, "--set", "segment.bytes=2000000")
        admin.delete(topic)
    soon_is(lambda: brokers.logs(topic), [])
    with CONFLUENT.admin(brokers.addresses[0]) as admin:
        soon(lambda: admin.partition_count(topic) is None)
        admin.create(topic, partitions=1)
        soon_is(lambda: len(brokers.logs(topic)), 1)


def test_a_topic_that_is_made_again_begins_without_what_groups_have_committed_for_the_last(brokers: Several):
    """Whoever coordinates them, and whoever is asked to delete it."""
    topic = new_topic(brokers)
    groups = [f"{topic}-{number}" for number in range(6)]
    for group_id in groups:
        with consumer_of(brokers, group_id) as consumer:
            place = confluent_kafka.TopicPartition(topic, 0, 7)
            consumer.commit(offsets=[place], asynchronous=False)

    with CONFLUENT.admin(brokers.addresses[1]) as admin:
        admin.delete(topic)
        admin.create(topic, partitions=1)

    for group_id in groups:
        with consumer_of(brokers, group_id) as consumer:
            [found] = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=30)
            assert found.offset == confluent_kafka.OFFSET_INVALID


@contextmanager
def consumer_of(brokers: Several, group_id: str) -> Iterator[confluent_kafka.Consumer]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": group_id})
    try:
        yield consumer
    finally:
        consumer.close()


def test_a_transaction_over_partitions_of_all_brokers_is_seen_whole_or_not_at_all(brokers: Several):
    topic = new_topic(brokers)
    with ConfluentWriter(brokers.bootstrap, "first"):
        pass
    leaders = brokers.leaders(TRANSACTIONS_TOPIC)
    assert sorted(leaders) == [1, 1, 2, 2]

    for broker_id in (1, 2):
        with ConfluentWriter(brokers.bootstrap, name_at(leaders, broker_id, "tx")) as writer:
            for end, word in ((writer.commit, b"kept"), (writer.abort, b"gone"), (writer.commit, b"kept")):
                writer.begin()
                for number in range(PARTITIONS):
                    writer.write((topic, number), word)
                end()

    kept = committed_values(brokers.bootstrap, topic, partitions=PARTITIONS, count=4 * PARTITIONS)
    assert kept == [b"kept"] * 4 * PARTITIONS
    everything = read(brokers.bootstrap, topic, partitions=PARTITIONS, isolation="read_uncommitted")
    assert everything.count(b"gone") == 2 * PARTITIONS


def test_what_a_broker_leads_has_no_leader_while_its_process_does_not_run(tmp_path: Path):
    with Several(tmp_path, 2) as brokers:
        topic = new_topic(brokers)
        metadata = brokers.metadata()
        metadata.execute(FenceProcess(2))  # as its parent does
        ask = confluent_kafka.admin.AdminClient({"bootstrap.servers": brokers.addresses[0]}).list_topics

        soon(lambda: [*ask(timeout=20).brokers] == [1])
        partitions = ask(timeout=20).topics[topic].partitions
        expected = [(leader if leader == 1 else -1) for leader in brokers.leaders(topic)]
        assert [partitions[number].leader for number in range(PARTITIONS)] == expected
        with CONFLUENT.admin(brokers.addresses[0]) as admin:
            admin.create("made meanwhile".replace(" ", "-"), partitions=4)
        assert sorted(brokers.leaders("made-meanwhile"), key=str) == [1, 1, 2, 2]

        brokers.kill(2)
        brokers.wait_for(2)
        soon(lambda: [*ask(timeout=20).brokers] == [1, 2])
        CONFLUENT.produce(brokers.bootstrap, some("made-meanwhile", 4))
        metadata.close()


def test_brokers_that_die_come_back_and_nothing_acknowledged_is_lost(tmp_path: Path):
    with Several(tmp_path, 2) as brokers:
        topic = new_topic(brokers)
        members = [Member(CONFLUENT, brokers.bootstrap, Membership(topics=(topic,)), commits=True)]
        sent = 0
        for round_ in range(4):
            CONFLUENT.produce(brokers.bootstrap, some(topic, 20, f"{round_}-"))
            sent += 20
            if round_ < 3:
                broker_id = 1 + round_ % 2
                before = brokers.pid(broker_id)
                brokers.kill(broker_id)
                brokers.wait_for(broker_id, 1 + round_ // 2)
                assert brokers.pid(broker_id) != before
        wait_until(lambda: len({one.value for one in members[0].seen}) == sent, of=members)
        members[0].stop()
        with CONFLUENT.reader(brokers.bootstrap, *((topic, at) for at in range(PARTITIONS))) as reader:
            assert len({message.value for message in reader.take(sent)}) == sent


def test_a_transaction_outlives_its_coordinator_and_its_leaders(tmp_path: Path):
    with Several(tmp_path, 2) as brokers:
        topic = new_topic(brokers)
        with ConfluentWriter(brokers.bootstrap, "tx", timeout_ms=60_000) as writer:
            for broker_id in (1, 2):
                writer.begin()
                for number in range(PARTITIONS):
                    writer.write((topic, number), b"kept")
                brokers.kill(broker_id)
                brokers.wait_for(broker_id)
                for number in range(PARTITIONS):
                    writer.write((topic, number), b"kept")
                writer.commit()

        kept = committed_values(brokers.bootstrap, topic, partitions=PARTITIONS, count=4 * PARTITIONS)
        assert kept == [b"kept"] * 4 * PARTITIONS


def test_another_number_of_processes_moves_partitions_and_loses_none(tmp_path: Path):
    group, topic, sent = "workers", "", 0
    for processes in (2, 3, 1, 2):
        with Several(tmp_path, processes) as brokers:
            topic = topic or new_topic(brokers)
            CONFLUENT.produce(brokers.bootstrap, some(topic, 8, f"{sent}-"))
            with CONFLUENT.member(brokers.bootstrap, Membership(topics=(topic,), group=group)) as member:
                assert len(member.take(8)) == 8, "it goes on where it has committed"
                member.commit()
            sent += 8
            leaders = brokers.leaders(topic)
            assert {*leaders} == {*range(1, processes + 1)}
            assert brokers.logs(topic) == sorted(f"{one}/{topic}-{at}" for at, one in enumerate(leaders))
            with CONFLUENT.reader(brokers.bootstrap, *((topic, at) for at in range(PARTITIONS))) as reader:
                assert len({message.value for message in reader.take(sent)}) == sent


def name_at(leaders: list[int | None], broker_id: int, word: str) -> str:
    """Return a name of a group, or a transactional id, whose coordinator is this broker."""
    for number in range(1_000):
        name = f"{word}-{number}-{uuid.uuid4()}"
        if leaders[coordinator_partition(name, partition_count=len(leaders))] == broker_id:
            return name
    raise AssertionError("no name has that coordinator")
