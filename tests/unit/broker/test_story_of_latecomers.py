"""The story of groups whose coordinator came after the story's topic, or leads no partition of it for now."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC
from coterie.broker.cluster.changes import (
    AddPartitions,
    Reassignment,
    ReassignPartitions,
    RegisterBroker,
    StartLeaving,
    TakeOver,
)
from coterie.broker.cluster.image import PartitionRow
from coterie.broker.runtime.leadership import Led
from coterie.story import topic as story_topic
from coterie.story.model import Move, OpenRebalance, Person
from coterie.story.topic import PAUSE_MS, EndedRebalance, StoryParts, StoryTopic
from coterie.wire.records.batches import records_of, scan
from unit.broker.cluster_rig import PROCESS, ClusterRig

PROMPT_MS = 2 * PAUSE_MS


class Latecomer(ClusterRig):
    """The last broker, over what those before, or one alone, have made. It coordinates groups unless it is
    not to.
    """

    def __init__(self, *, coordinates: bool = True, others: int = 1) -> None:
        first = ClusterRig(*[None] * others)
        for topic in (OFFSETS_TOPIC, STORY_TOPIC):
            first.node.topic_manager.ensure_internal(topic)
        me = others + 1
        super().__init__(node_id=me, engine=first.engine)
        self.epochs = {me: self.change(RegisterBroker(me, PROCESS, 0)), **first.epochs}
        self.hear()
        if coordinates:
            leader = self.rows(OFFSETS_TOPIC)[0].leader
            self.reassign(OFFSETS_TOPIC, (me,))
            self.lose_broker(leader)
            self.change(RegisterBroker(leader, PROCESS, self.epochs[leader]))
            self.hear()
        self.told = StoryTopic(self.node.parts(StoryParts))

    def lose_broker(self, broker_id: int) -> None:
        self.change(TakeOver(broker_id, self.engine.image.brokers[broker_id].broker_epoch, 0))
        self.hear()

    def rows(self, topic: str) -> list[PartitionRow]:
        row = self.engine.image.topic(topic)
        assert row is not None
        return [*self.engine.image.partitions(row.topic_id)]

    def reassign(self, topic: str, replicas: tuple[int, ...]) -> None:
        """Give the first partition of a topic other replicas."""
        row = self.rows(topic)[0]
        self.change(ReassignPartitions((Reassignment(row.topic_id, row.number, row.version, replicas),)))
        self.hear()

    @property
    def placed(self) -> list[tuple[int, ...]]:
        return [row.replicas for row in self.rows(STORY_TOPIC)]

    def gets_one(self) -> bool:
        return self.node.topic_manager.ensure_own_partition(STORY_TOPIC)

    def tell(self, group: str, people: int = 0) -> None:
        """Have something happen to a group, and to so many of its members."""
        known: dict[str, Any] = {"state_before": "Empty", "state": "Stable", "generation": 1, "size": 1}
        why = "member-joined"
        who = tuple(Person(f"m-{number}", "app", "/10.0.0.1", None) for number in range(people))
        self.told.add(
            Move(at_ms=self.now_ms, group=group, why=why, decision=why, steps=(), who=who, reason="", **known)
        )

    def end_rebalance(self, group: str) -> None:
        """Have a rebalance of a group end."""
        opened = OpenRebalance(self.now_ms, state_before="Stable", had={})
        opened.add_cause("member-left")
        opened.formed_at_ms = self.now_ms
        known: dict[str, Any] = {"leader": None, "protocol_type": "consumer", "protocol": None}
        known |= {"state": "Empty", "settled": True, "snapshots": ()}
        self.told.add(
            EndedRebalance(opened=opened, group=group, over_at_ms=self.now_ms, generation=2, **known)
        )

    def pass_ms(self, span_ms: int) -> None:
        self.now_ms += span_ms
        self.node.purgatory.expire(self.now_ms)

    def records(self, number: int) -> list[dict[str, Any]]:
        """Return the records of a partition of the story."""
        written = self.node.store.logs[TopicPartition(STORY_TOPIC, number)].read(0, max_bytes=1 << 20)
        return [json.loads(one.value or b"") for at, _ in scan(written) for one in records_of(written, at)]

    def groups_told(self, number: int) -> list[str]:
        """Return the groups that a partition of the story tells of, in the order in which it does."""
        return [one["group"] for one in self.records(number)]

    def lead(self, number: int, leader: int) -> None:
        """Have the broker hear who leads a partition of the story, and have its log."""
        name = TopicPartition(STORY_TOPIC, number)
        if name not in self.node.store.logs:
            self.node.store.create_log(*name, PROCESS, self.settings.log_base)
        self.leaders.elect(name, Led(leader, 1))


def test_a_coordinator_that_came_after_the_topic_gets_a_partition_of_it():
    rig = Latecomer()
    before = rig.placed

    assert rig.gets_one()
    assert rig.gets_one()

    assert before == [(1,)]
    assert rig.placed == [(1,), (2,)]
    assert len(rig.proposed) == 1


def test_a_broker_without_groups_gets_none():
    """One that was drained is to be taken out."""
    rig = Latecomer(coordinates=False)

    assert not rig.gets_one()
    assert not rig.proposed


def test_who_was_overtaken_gets_the_next_one():
    rig = Latecomer()
    topic_id = rig.rows(STORY_TOPIC)[0].topic_id
    rig.meanwhile = lambda: rig.change(AddPartitions(topic_id, 1, ((1,),)))

    assert rig.gets_one()
    rig.hear()
    assert rig.gets_one()

    assert rig.placed == [(1,), (1,), (2,)]


@pytest.mark.parametrize("fate", [ClusterRig.lose, ClusterRig.lose_answer, ClusterRig.refuse])
def test_what_came_to_nothing_is_proposed_again_and_made_once(fate: Any):
    rig = Latecomer()
    rig.fate = lambda change, answered: fate(rig, change, answered)

    for _ in range(3):
        assert rig.gets_one()
        rig.hear()

    assert rig.placed == [(1,), (2,)]


def test_one_is_asked_for_once_while_the_database_is_silent():
    rig = Latecomer()
    rig.fate = lambda change, answered: None

    assert [rig.gets_one() for _ in range(3)] == [True] * 3

    assert len(rig.proposed) == 1


def test_what_waits_is_written_once_the_partition_is_there():
    rig = Latecomer()
    rig.tell("first")
    rig.pass_ms(PROMPT_MS)
    rig.tell("second")
    rig.pass_ms(PROMPT_MS)
    rig.lead(1, 2)
    rig.pass_ms(PROMPT_MS)

    assert rig.placed == [(1,), (2,)]
    assert rig.groups_told(1) == ["first", "second"]


def test_what_happens_while_the_partition_has_yet_to_come_back_is_not_lost():
    """As of a broker that has come back: the others lead what it is preferred for, for ten seconds."""
    rig = Latecomer()
    rig.gets_one()
    rig.lead(1, 1)
    rig.tell("meanwhile")
    for _ in range(20):
        rig.pass_ms(PAUSE_MS)
    rig.lead(1, 2)
    rig.pass_ms(PROMPT_MS)

    assert rig.groups_told(1) == ["meanwhile"]


def test_what_happens_while_the_broker_is_suspended_is_not_lost():
    rig = Latecomer()
    rig.gets_one()
    rig.lead(1, 2)
    rig.tell("meanwhile")
    rig.leaders.suspended = True
    for _ in range(20):
        rig.pass_ms(PAUSE_MS)
    rig.leaders.suspended = False
    rig.pass_ms(PROMPT_MS)

    assert rig.groups_told(1) == ["meanwhile"]


# -- how many replicas


def test_the_partition_has_as_many_replicas_as_the_others_and_its_broker_as_the_first():
    rig = Latecomer(others=3)

    assert rig.gets_one()

    *others, own = rig.placed
    assert {len(replicas) for replicas in (*others, own)} == {3}
    assert own[0] == 4
    assert len({*own}) == 3


def test_where_fewer_live_than_the_others_have_replicas_it_has_as_many_as_live():
    """Found by a reviewer: it was not proposed at all, and what happened waited for ever, without a word."""
    rig = Latecomer(others=3)
    rig.lose_broker(1)
    rig.lose_broker(3)

    rig.tell("g")
    rig.pass_ms(PROMPT_MS)

    *_, own = rig.placed
    assert own == (4, 2)
    assert len(rig.proposed) == 1


def test_a_broker_that_is_about_to_stop_and_alone_does_not_wait_for_what_nobody_proposes(
    caplog: pytest.LogCaptureFixture,
):
    rig = Latecomer()
    rig.change(StartLeaving(2, rig.epochs[2]))
    rig.lose_broker(1)

    assert not rig.gets_one()
    rig.tell("g")
    rig.pass_ms(PROMPT_MS)

    assert not rig.proposed
    assert "not written for now: this broker leads no partition of __group_story" in caplog.text


# -- what is said while it waits


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "coterie.story")
    return caplog


LINE = "group g: generation 2 ended because member-left; nobody is left"


@pytest.mark.parametrize("suspended", [True, False])
def test_a_rebalance_is_logged_when_it_ends_and_once_though_its_record_has_to_wait(
    said: pytest.LogCaptureFixture, suspended: bool
):
    """Found by a reviewer: the log had no line of it, as long as the topic could not be written to."""
    rig = Latecomer()
    rig.gets_one()
    rig.lead(1, 2 if suspended else 1)  # else another leads what has yet to come back
    rig.leaders.suspended = suspended

    rig.end_rebalance("g")
    rig.pass_ms(PROMPT_MS)
    before = [*said.messages]
    rig.leaders.suspended = False
    rig.lead(1, 2)
    rig.pass_ms(PROMPT_MS)

    assert before == said.messages == [LINE]
    assert rig.groups_told(1) == ["g"]


@pytest.mark.parametrize(("bound", "most"), [("READY_MAX", 2), ("READY_BYTES_MAX", 700)])
def test_the_first_record_for_which_there_is_no_room_is_told_of_and_rebalances_are_logged_all_the_same(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
):
    """Found by a reviewer: the loss was counted, and said when the partition had come, if ever."""
    monkeypatch.setattr(story_topic, bound, most)
    rig = Latecomer()
    rig.gets_one()
    rig.lead(1, 1)
    for group in ("first", "second", "third"):
        rig.tell(group)
    rig.pass_ms(PROMPT_MS)
    warned = [*said.messages]
    rig.end_rebalance("g")
    rig.pass_ms(PROMPT_MS)
    logged = said.messages[len(warned) :]
    rig.lead(1, 2)
    rig.pass_ms(PROMPT_MS)

    [warning] = warned
    assert "not written for now: more has waited than is kept until this broker leads a part" in warning
    assert logged == [LINE]
    assert said.messages[-1] == "the story of the groups is written again; 2 records lost"
    assert rig.groups_told(1) == ["first", "second"]


def test_more_than_can_be_read_is_told_of_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(story_topic, "QUEUE_MAX", 2)
    rig = Latecomer()
    for _ in range(4):
        rig.tell("g")

    assert caplog.messages == [
        "the story of the groups is not written for now: more happens than can be read"
    ]


# -- what has waited


def test_what_has_waited_is_written_in_rounds_that_nobody_notices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(story_topic, "RECORDS_OF_A_ROUND", 3)
    rig = Latecomer()
    rig.gets_one()
    rig.lead(1, 1)
    groups = [f"g{number}" for number in range(8)]
    for group in groups:
        rig.tell(group)
    rig.pass_ms(PROMPT_MS)
    rig.lead(1, 2)
    written = []
    for _ in range(3):
        rig.pass_ms(PAUSE_MS)
        written.append(len(rig.groups_told(1)))

    assert written == [3, 6, 8]
    assert rig.groups_told(1) == groups


def test_what_has_waited_and_is_larger_than_the_topic_takes_by_now_is_written_without_its_lists():
    rig = Latecomer()
    rig.gets_one()
    rig.lead(1, 1)
    rig.tell("g", people=100)
    rig.pass_ms(PROMPT_MS)
    small = replace(rig.settings.log_base, max_message_bytes=2_000)
    rig.node.store.create_log(STORY_TOPIC, 0, PROCESS, small)
    rig.lead(0, 1)
    rig.lead(1, 2)
    rig.pass_ms(PROMPT_MS)

    [record] = rig.records(1)
    assert (record["who"], record["abridged"]) == ([], True)
