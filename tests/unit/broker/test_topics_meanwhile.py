"""What is done to topics in pieces, and what others do to the same topics between two of them."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from admin_rig import NOW_MS, Rig, part

from coterie.base.ids import TopicPartition
from coterie.broker.api import admin
from coterie.broker.runtime.pieces import Pieces, at_once
from coterie.broker.topics import manager
from coterie.broker.topics import registry as topics_module
from coterie.wire.records.batches import Record, build_batch

CREATE_TOPICS, METADATA = 19, 3


def a_part_of(pieces: Pieces[Any], steps: int) -> Pieces[Any]:
    """Return work of which so many pieces are done."""
    for _ in islice(pieces, steps):
        pass
    return pieces


def lives(rig: Rig, name: str) -> set[bool]:
    """Return whether the logs of a topic are of its present life."""
    topic = rig.topics.get(name)
    assert topic is not None
    return {rig.store.topic_id(name, one.partition) == topic.topic_id for one in rig.store.logs}


def creation(rig: Rig, *names: str) -> Any:
    topics = tuple(
        part(CREATE_TOPICS, 7, "CreatableTopic", name=name, num_partitions=1, replication_factor=1)
        for name in names
    )
    return rig.begin(CREATE_TOPICS, 7, topics=topics, timeout=1_000)


def codes(response: Any) -> dict[str, str]:
    return {one.name: one.error_code.name.lower() for one in response.topics}


def test_a_topic_that_is_deleted_while_it_grows_leaves_no_logs_to_the_next_of_its_name():
    rig = Rig()
    rig.node.topic_manager.create_topic("t", partitions=1)
    growth = a_part_of(rig.node.topic_manager.grow_topics({"t": 10}), 3)

    at_once(rig.node.topic_manager.delete_topics(["t"]))
    at_once(growth)
    assert not rig.store.logs

    rig.node.topic_manager.create_topic("t", partitions=10)
    assert lives(rig, "t") == {True}


def test_what_was_acknowledged_in_a_new_partition_stays_though_the_topic_could_not_grow_further():
    rig = Rig()
    rig.node.topic_manager.create_topic("t", partitions=1)
    growth = a_part_of(rig.node.topic_manager.grow_topics({"t": 10}), 4)
    batch = build_batch([Record(0, NOW_MS, None, b"v")])
    rig.node.replica_manager.append("t", 2, batch, now_ms=NOW_MS)

    rig.disk.faults.refuse |= {"make_directory", "save"}
    assert "t" in at_once(growth)

    topic, log = rig.topics.get("t"), rig.node.replica_manager.log_of("t", 2)
    assert topic is not None
    assert topic.partitions == 3
    assert log is not None
    assert log.end_offset == 1


def test_a_topic_made_anew_while_the_one_before_it_grew_is_left_alone():
    rig = Rig()
    rig.node.topic_manager.create_topic("t", partitions=1)
    growth = a_part_of(rig.node.topic_manager.grow_topics({"t": 10}), 3)

    at_once(rig.node.topic_manager.delete_topics(["t"]))
    rig.node.topic_manager.create_topic("t", partitions=2)
    at_once(growth)

    assert rig.store.logs.keys() == {TopicPartition("t", 0), TopicPartition("t", 1)}


def test_a_name_is_not_free_before_what_was_committed_for_its_topic_is_forgotten():
    rig = Rig(offsets_topic_num_partitions=8)
    rig.node.topic_manager.create_topic("t", partitions=1)
    for number in range(20):
        rig.node.coordinator.host_of(f"g{number}")

    taken = [rig.topics.is_taken("t") for _ in rig.node.topic_manager.delete_topics(["t"])]

    assert len(taken) > 1 + len(rig.node.coordinator.hosts) / 2
    assert all(taken)
    assert rig.topics.is_free("t")


def test_partitions_that_are_made_while_settings_change_go_by_the_new_ones():
    rig = Rig()
    rig.node.topic_manager.create_topic("t", partitions=1)
    growth = a_part_of(rig.node.topic_manager.grow_topics({"t": 4}), 2)

    at_once(rig.node.topic_manager.configure_topics({"t": {"retention.ms": "7"}}))
    at_once(growth)

    assert {log.config.retention_ms for log in rig.store.logs.values()} == {7}


def test_a_name_of_a_large_creation_is_not_to_be_had_before_its_turn_has_come(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(manager, "TOPICS_AT_ONCE", 2)
    rig = Rig()
    large = [rig.topics.new(name, replicas=[(1,)]) for name in ("a", "b", "c.d")]
    creating = a_part_of(rig.node.topic_manager.create_topics(large), 1)

    answer = at_once(creation(rig, "c.d", "c_d", "e"))
    at_once(creating)

    assert codes(answer) == {"c.d": "topic_already_exists", "c_d": "invalid_topic_exception", "e": "none"}
    assert rig.topics.get("c.d") is large[2]


def test_names_of_a_creation_that_fails_are_free_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manager, "TOPICS_AT_ONCE", 1)
    rig = Rig()
    rig.disk.faults.refuse.add("save")
    failed = at_once(
        rig.node.topic_manager.create_topics([rig.topics.new(name, replicas=[(1,)]) for name in "ab"])
    )
    rig.disk.faults.refuse.clear()

    assert failed.keys() == {"a", "b"}
    assert codes(at_once(creation(rig, "a", "b"))) == {"a": "none", "b": "none"}


def test_a_topic_that_was_planned_is_refused_once_another_of_a_name_alike_is_there():
    rig = Rig()
    slow = a_part_of(creation(rig, "a.b", "c"), 1)

    rig.node.topic_manager.create_topic("a_b", partitions=1)

    assert codes(at_once(slow)) == {"a.b": "invalid_topic_exception", "c": "none"}


def test_nobody_has_a_topic_made_by_asking_for_it_once_another_of_a_name_alike_is_there():
    rig = Rig()
    asked = tuple(part(METADATA, 12, "MetadataRequestTopic", name=name) for name in ("a.b", "c"))
    slow = a_part_of(rig.begin(METADATA, 12, topics=asked, allow_auto_topic_creation=True), 1)

    rig.node.topic_manager.create_topic("a_b", partitions=1)
    at_once(slow)

    assert [topic.name for topic in rig.topics.all()] == ["a_b", "c"]


def test_topics_that_are_deleted_together_are_deleted_after_a_crash_however_many(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(topics_module, "DELETED_REMEMBERED_MAX", 2)
    rig = Rig()
    names = [f"t{n}" for n in range(6)]
    at_once(rig.node.topic_manager.create_topics([rig.topics.new(name, replicas=[(1,)]) for name in names]))

    a_part_of(rig.node.topic_manager.delete_topics(names), 1)
    rig.crash()

    assert rig.topics.all() == []
    assert not rig.store.logs


def test_of_topics_that_are_gone_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(topics_module, "DELETED_REMEMBERED_MAX", 2)
    rig = Rig()
    gone = [rig.node.topic_manager.create_topic(name, partitions=1).topic_id for name in "abcd"]

    for name in "abcd":
        at_once(rig.node.topic_manager.delete_topics([name]))

    assert list(rig.topics._deleted) == gone[2:]


def deletion(rig: Rig, **named: Any) -> Any:
    return rig.begin(20, 6, topics=(part(20, 6, "DeleteTopicState", **named),), timeout=1_000)


def test_of_two_who_delete_a_topic_one_is_told_that_it_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admin, "ITEMS_AT_ONCE", 1)
    rig = Rig()
    rig.node.topic_manager.create_topic("t", partitions=1)
    slow = a_part_of(deletion(rig, name="t", topic_id=None), 1)

    assert codes_of_deletion(at_once(deletion(rig, name="t", topic_id=None))) == ["none"]
    assert codes_of_deletion(at_once(slow)) == ["unknown_topic_or_partition"]


def test_a_topic_that_is_deleted_by_its_id_is_not_the_next_one_of_its_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admin, "ITEMS_AT_ONCE", 1)
    rig = Rig()
    topic = rig.node.topic_manager.create_topic("t", partitions=1)
    slow = a_part_of(deletion(rig, name=None, topic_id=topic.topic_id), 1)

    at_once(rig.node.topic_manager.delete_topics(["t"]))
    anew = rig.node.topic_manager.create_topic("t", partitions=1)

    assert codes_of_deletion(at_once(slow)) == ["unknown_topic_id"]
    assert rig.topics.get("t") is anew


def codes_of_deletion(response: Any) -> list[str]:
    return [one.error_code.name.lower() for one in response.responses]


def test_a_name_that_is_claimed_stays_so_when_an_earlier_creation_of_it_ends():
    rig = Rig()
    first = rig.topics.new("t", replicas=[(1,)])
    ending = a_part_of(rig.node.topic_manager.create_topics([first]), 2)
    assert rig.topics.get("t") is first
    at_once(rig.node.topic_manager.delete_topics(["t"]))

    rig.topics.claim([rig.topics.new("t", replicas=[(1,)])])
    at_once(ending)

    assert rig.topics.is_taken("t")
