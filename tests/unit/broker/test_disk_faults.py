"""Disks that refuse and fill up beneath a whole broker: clear errors, no half state, service when it is
well again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.pieces import at_once
from coterie.coordinator.group.model import State
from coterie.storage.memory import OPERATIONS
from coterie.wire.api.entities import (
    build,
    entity,
)
from coterie.wire.records.batches import Record, build_batch
from unit.broker.disk_rig import DiskRig
from unit.broker.story_rig import GROUP, Reader, a_stable_group, given, together

PRODUCE, COMMIT, FETCH, FIND, CREATE, DELETE, INIT_PRODUCER = 0, 8, 9, 10, 19, 20, 22
METADATA, JOIN_OFFSETS = 3, 25
DELETE_RECORDS, GROW, DELETE_GROUPS, DELETE_OFFSETS = 21, 37, 42, 47
ORDERS = TopicPartition("orders", 0)

REFUSALS = {  # what a client may be told: as Kafka maps a disk that fails (P-10), and nothing else
    Code.NONE,
    Code.KAFKA_STORAGE_ERROR,
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.COORDINATOR_LOAD_IN_PROGRESS,  # no producer id can be reserved
    Code.INVALID_PRODUCER_ID_MAPPING,  # a transaction that could not begin
    Code.UNKNOWN_TOPIC_OR_PARTITION,  # its creation was refused before
    Code.GROUP_ID_NOT_FOUND,
}
Ask = Callable[["Asker"], Any]


class Asker:
    """Asks a node all kinds of things that change something; a hang-up fails the test."""

    def __init__(self, rig: DiskRig) -> None:
        self.rig = rig

    def ask(self, api_key: int, version: int, **values: Any) -> set[Code]:
        """Send a request; return all the codes of its answer, which must come."""
        client = self.rig.client()
        client.send(api_key, version, **values)
        answers = client.answers()
        assert not client.line.closed, f"the connection was closed on API {api_key}"
        assert len(answers) == 1, f"API {api_key} was not answered"
        return codes_of(answers[0])

    def create(self, name: str) -> set[Code]:
        kind = entity("create_topics", 5, "CreatableTopic")
        topic = build(kind, name=name, num_partitions=2, replication_factor=1)
        return self.ask(CREATE, 5, topics=(topic,), timeout=1_000)

    def delete(self, name: str) -> set[Code]:
        return self.ask(DELETE, 4, topic_names=(name,), timeout=1_000)

    def grow(self, name: str, count: int) -> set[Code]:
        topic = build(entity("create_partitions", 3, "CreatePartitionsTopic"), name=name, count=count)
        return self.ask(GROW, 3, topics=(topic,), timeout=1_000, validate_only=False)

    def produce(self, value: bytes = b"v") -> set[Code]:
        batch = build_batch([Record(0, self.rig.now_ms, None, value)])
        data = build(entity("produce", 9, "PartitionProduceData"), index=0, records=batch)
        topic = build(entity("produce", 9, "TopicProduceData"), name="orders", partition_data=(data,))
        return self.ask(PRODUCE, 9, acks=-1, timeout=1_000, topic_data=(topic,))

    def commit(self, group: str, offset: int, **of_a_member: Any) -> set[Code]:
        part = entity("offset_commit", 8, "OffsetCommitRequestPartition")
        whole = entity("offset_commit", 8, "OffsetCommitRequestTopic")
        topic = build(
            whole, name="orders", partitions=(build(part, partition_index=0, committed_offset=offset),)
        )
        who = {"generation_id_or_member_epoch": -1, "member_id": ""} | of_a_member
        return self.ask(COMMIT, 8, group_id=group, topics=(topic,), **who)

    def delete_records(self, *names: str, before: int = -1) -> set[Code]:
        part = build(entity("delete_records", 2, "DeleteRecordsPartition"), partition_index=0, offset=before)
        cls = entity("delete_records", 2, "DeleteRecordsTopic")
        topics = tuple(build(cls, name=name, partitions=(part,)) for name in names)
        return self.ask(DELETE_RECORDS, 2, topics=topics, timeout=1_000)

    def look_for(self, *names: str) -> set[Code]:
        topic = entity("metadata", 9, "MetadataRequestTopic")
        return self.ask(METADATA, 9, topics=tuple(build(topic, name=name) for name in names))

    def join_offsets(self) -> set[Code]:
        who = {"transactional_id": "payments", "producer_id": 0, "producer_epoch": 0}
        return self.ask(JOIN_OFFSETS, 3, group_id="g", **who)

    def find(self, kind: int) -> set[Code]:
        return self.ask(FIND, 4, key_type=kind, coordinator_keys=("key",))

    def fetch_offsets(self, group: str) -> set[Code]:
        return self.ask(FETCH, 7, group_id=group, topics=None)

    def new_producer(self, transactional_id: str | None = None) -> set[Code]:
        return self.ask(INIT_PRODUCER, 4, transactional_id=transactional_id, transaction_timeout=1_000)

    def delete_group(self, group: str) -> set[Code]:
        return self.ask(DELETE_GROUPS, 2, groups_names=(group,))

    def delete_offset(self, group: str) -> set[Code]:
        part = build(entity("offset_delete", 0, "OffsetDeleteRequestPartition"), partition_index=0)
        topic = build(
            entity("offset_delete", 0, "OffsetDeleteRequestTopic"), name="orders", partitions=(part,)
        )
        return self.ask(DELETE_OFFSETS, 0, group_id=group, topics=(topic,))


def codes_of(answer: Any) -> set[Code]:
    """Return every error code in an answer."""
    if isinstance(answer, tuple):
        return set().union(*map(codes_of, answer))
    if not dataclasses.is_dataclass(answer):
        return set()
    found = set()
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        found |= {Code(value)} if field.name == "error_code" else codes_of(value)
    return found


EVERYTHING: dict[str, Ask] = {
    "find a group's coordinator": lambda asker: asker.find(0),
    "find a transaction's coordinator": lambda asker: asker.find(1),
    "produce": lambda asker: asker.produce(),
    "commit": lambda asker: asker.commit("alone", 7),
    "fetch offsets": lambda asker: asker.fetch_offsets("alone"),
    "delete an offset": lambda asker: asker.delete_offset("alone"),
    "delete a group": lambda asker: asker.delete_group("other"),
    "look for topics": lambda asker: asker.look_for("orders", "fresh", "__consumer_offsets"),
    "join a group's offsets to a transaction": lambda asker: asker.join_offsets(),
    "create a topic": lambda asker: asker.create("new"),
    "add partitions": lambda asker: asker.grow("orders", 5),
    "reserve a producer id": lambda asker: asker.new_producer(),
    "begin with transactions": lambda asker: asker.new_producer("payments"),
    "delete records": lambda asker: asker.delete_records("orders"),
    "delete a topic": lambda asker: asker.delete("old"),
}


@pytest.fixture
def rig() -> Iterator[DiskRig]:
    """A node with topics orders and old; whatever a test does to its disk, it ends well."""
    running = DiskRig()
    asker = Asker(running)
    assert asker.create("orders") | asker.create("old") == {Code.NONE}
    yield running
    running.disk.faults.refuse, running.disk.faults.capacity, running.disk.faults.chance = set(), None, {}
    running.settle()


def a_used_node(rig: DiskRig) -> Reader:
    """Have everything there that is made on first use, a Stable group among it; return its member."""
    asker, member = Asker(rig), Reader(rig, "member")
    a_stable_group(rig, member)
    assert asker.commit("other", 1) | asker.produce() | asker.new_producer("first") == {Code.NONE}
    return member


def spoil(rig: DiskRig, how: str) -> None:
    if how == "full":
        rig.disk.faults.capacity = 0
    else:
        rig.disk.faults.refuse = {how}


def mend(rig: DiskRig) -> None:
    rig.disk.faults.refuse, rig.disk.faults.capacity = set(), None


def lasting(rig: DiskRig) -> dict[str, Any]:
    """Return what must be the same after a crash: topics, logs, offsets, and the groups at rest."""
    rig.settle()
    shards = [host.shard for host in rig.node.coordinator.hosts.values()]
    groups = {
        name: (
            group.generation,
            group.protocol,
            sorted((m.member_id, m.assignment) for m in group.in_order()),
        )
        for shard in shards
        for name, group in shard.groups.items()
        if group.state in (State.STABLE, State.EMPTY)
    }
    return {
        "topics": {topic.name: (topic.topic_id, topic.partitions) for topic in rig.node.topics.all()},
        "logs": {name: log.end_offset for name, log in rig.store.logs.items()},
        "offsets": [shard.offsets for shard in shards if shard.offsets],
        "groups": groups,
    }


# -- each kind of failure, beneath every request


@pytest.mark.parametrize("used", [False, True], ids=["at first use", "in use"])
@pytest.mark.parametrize("how", [*sorted(OPERATIONS), "full"])
def test_every_request_is_answered_with_an_error_that_kafka_has_for_it(rig: DiskRig, how: str, used: bool):
    if used:
        a_used_node(rig)
    asker = Asker(rig)
    spoil(rig, how)

    told = {what: ask(asker) for what, ask in EVERYTHING.items()}

    assert {what: codes for what, codes in told.items() if not codes <= REFUSALS} == {}
    mend(rig)
    assert asker.commit("alone", 8) | asker.produce() | asker.create("later") == {Code.NONE}


@pytest.mark.parametrize("how", [*sorted(OPERATIONS - {"read"}), "full"])
def test_what_is_in_memory_is_what_is_in_the_log(rig: DiskRig, how: str):
    a_used_node(rig)
    asker = Asker(rig)
    spoil(rig, how)
    for ask in EVERYTHING.values():
        ask(asker)
    mend(rig)
    assert asker.create("later") == {Code.NONE}  # what could not be written down about topics is now
    before = lasting(rig)

    rig.crash()

    assert lasting(rig) == before


# -- groups


@pytest.mark.parametrize("how", ["write", "full"])
def test_an_assignment_that_cannot_be_stored_is_told_to_all_and_the_group_goes_on_when_it_can(
    rig: DiskRig, how: str
):
    first, second = a_used_node(rig), Reader(rig, "second")
    second.join()
    first.join()
    rig.settle()
    first.joined()
    second.joined()
    second.sync()
    spoil(rig, how)

    first.sync({first.member_id: given(0), second.member_id: given(1)})

    assert first.answer().error_code == second.answer().error_code == Code.NOT_COORDINATOR
    assert first.beat() == second.beat() == Code.REBALANCE_IN_PROGRESS
    mend(rig)
    first.join()
    second.join()
    rig.settle()
    together(first, second)
    assert first.beat() == second.beat() == Code.NONE
    before = lasting(rig)
    rig.crash()
    assert lasting(rig) == before


def test_a_commit_that_cannot_be_stored_changes_nothing_and_can_be_sent_again(rig: DiskRig):
    member = a_used_node(rig)
    asker = Asker(rig)
    who = {"generation_id_or_member_epoch": member.generation, "member_id": member.member_id}
    assert asker.commit(GROUP, 5, **who) == {Code.NONE}
    before = lasting(rig)["offsets"]
    spoil(rig, "full")

    told = [asker.commit(GROUP, offset, **who) for offset in (6, 7, 8)]

    assert told == [{Code.NOT_COORDINATOR}] * 3
    assert lasting(rig)["offsets"] == before
    assert member.beat() == Code.NONE
    mend(rig)
    assert asker.commit(GROUP, 9, **who) == {Code.NONE}
    rig.crash()
    assert [offsets[GROUP]["orders"][0].offset for offsets in lasting(rig)["offsets"]] == [9]


def test_the_log_says_once_that_commits_fail_and_once_that_they_last_again(
    rig: DiskRig, caplog: pytest.LogCaptureFixture
):
    a_used_node(rig)
    asker = Asker(rig)
    rig.node.coordinator.stories.topic.flush()  # which has a line of its own
    caplog.clear()
    for _ in range(2):
        spoil(rig, "full")
        for offset in range(20):
            asker.commit("alone", offset)
        mend(rig)
        asker.commit("alone", 20)
    spoil(rig, "full")
    asker.commit("alone", 21)
    mend(rig)
    asker.commit("alone", 22)

    where = "__consumer_offsets-0"
    failed = f"{where}: append failed with KAFKA_STORAGE_ERROR"
    again = f"{where}: appends last again; 20 had failed"
    said = [line for line in caplog.messages if line.startswith(where)]  # the disk says more of itself
    assert said == [failed, again, failed, again, failed]


def test_a_member_that_leaves_while_nothing_can_be_stored_is_told_so_and_stays(rig: DiskRig):
    """Kafka's way: the removal of the last member is a record (LG-13)."""
    member = a_used_node(rig)
    spoil(rig, "full")

    refused = member.leave()

    assert refused.error_code == Code.NOT_COORDINATOR
    assert member.beat() == Code.NONE
    mend(rig)
    assert member.leave().error_code == Code.NONE


def test_the_story_is_lost_while_nothing_can_be_written_and_says_so(
    rig: DiskRig, caplog: pytest.LogCaptureFixture
):
    a_used_node(rig)
    rig.node.coordinator.stories.topic.flush()
    spoil(rig, "full")
    Reader(rig, "second").join()
    rig.node.coordinator.stories.topic.flush()
    mend(rig)

    Reader(rig, "third").join()
    rig.node.coordinator.stories.topic.flush()

    assert "the story of the groups is not written for now" in caplog.text
    assert "the story of the groups is written again; 1 record lost" in caplog.text


# -- topics


@pytest.mark.parametrize("room", range(0, 2_000, 100))
def test_a_topic_is_made_whole_or_not_at_all_however_much_room_there_is(rig: DiskRig, room: int):
    asker = Asker(rig)
    used = sum(info.size for info in files_of(rig))
    rig.disk.faults.capacity = used + room

    created, grown = asker.create("new"), asker.grow("orders", 4)

    for name, codes, partitions in (("new", created, {0, 2}), ("orders", grown, {2, 4})):
        topic = rig.node.topics.get(name)
        count = 0 if topic is None else topic.partitions
        assert count == (max(partitions) if codes == {Code.NONE} else min(partitions))
        assert sum(place.topic == name for place in rig.store.logs) == count
    mend(rig)
    assert created == {Code.NONE} or asker.create("new") == {Code.NONE}


def files_of(rig: DiskRig) -> list[Any]:
    folders = ["data", *(f"data/{name}" for name in rig.disk.directories("data"))]
    return [info for folder in folders for info in rig.disk.files(folder).values()]


def test_a_topic_whose_deletion_failed_half_way_is_gone_and_can_be_made_anew(rig: DiskRig):
    asker = Asker(rig)
    assert asker.produce() == {Code.NONE}
    spoil(rig, "rename")

    assert asker.delete("orders") == {Code.KAFKA_STORAGE_ERROR}

    mend(rig)
    assert rig.node.topics.get("orders") is None
    assert asker.create("orders") == {Code.NONE}
    assert [log.end_offset for name, log in rig.store.logs.items() if name.topic == "orders"] == [0, 0]
    before = lasting(rig)
    rig.crash()
    assert lasting(rig) == before


# -- by chance


@pytest.mark.parametrize("seed", range(10))
def test_faults_by_chance_lose_nothing_that_was_acknowledged(rig: DiskRig, seed: int):
    chance = Random(seed)
    a_used_node(rig)
    asker = Asker(rig)
    acknowledged: dict[str, int] = {}
    tried: dict[str, set[int]] = {}
    rig.disk.faults.chance = {"write": 0.3, "save": 0.3, "sync": 0.2, "truncate": 0.2}

    for offset in range(60):
        group = f"group-{chance.randrange(5)}"
        tried.setdefault(group, set()).add(offset)
        if asker.commit(group, offset) == {Code.NONE}:
            acknowledged[group] = offset
        if chance.random() < 0.1:
            asker.create(f"topic-{offset}")
    rig.disk.faults.chance = {}
    before = lasting(rig)
    rig.crash()

    found = {
        group: table["orders"][0].offset
        for offsets in lasting(rig)["offsets"]
        for group, table in offsets.items()
        if group in tried
    }
    assert found == acknowledged
    assert lasting(rig)["offsets"] == before["offsets"]


@pytest.mark.parametrize("how", ["save", "sync", "full"])
def test_a_start_that_was_told_outlives_a_kill_whatever_the_disk_has_refused(rig: DiskRig, how: str):
    """Found by anyrequest, seed 61: records were deleted with nothing written, and came back."""
    asker = Asker(rig)
    for _ in range(3):
        assert asker.produce() == {Code.NONE}
    spoil(rig, how)
    assert asker.delete_records("orders", "orders", before=2) == {Code.KAFKA_STORAGE_ERROR}
    assert rig.store.logs[ORDERS].start_offset == 0
    mend(rig)

    assert asker.delete_records("orders", before=1) == {Code.NONE}
    rig.crash()

    assert rig.store.logs[ORDERS].start_offset in (1, 2), "which of them was written is not known"
    assert asker.delete_records("orders", before=2) == {Code.NONE}
    rig.crash()
    assert rig.store.logs[ORDERS].start_offset == 2


def test_before_a_topic_s_policy_changes_the_disk_knows_which_logs_may_have_gaps():
    """A start may have found no room to write it down; told to delete, the next one would cut those logs."""
    rig = DiskRig()
    rig.node.topic_manager.create_topic("t", partitions=1, configs={"cleanup.policy": "compact"})
    rig.disk.faults.refuse = {"save"}
    with pytest.raises(OSError):
        rig.store.checkpoints.expect_gaps([TopicPartition("t", 0)])
    rig.disk.faults.refuse = set()

    at_once(rig.node.topic_manager.configure_topics({"t": {"cleanup.policy": "delete"}}))

    assert b"\nt 0 0\n" in rig.disk.load("data/cleaner-offset-checkpoint")
