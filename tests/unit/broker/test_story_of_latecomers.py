"""The story of groups whose coordinator came after the story's topic, or leads no partition of it for now."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC
from coterie.broker.cluster.changes import (
    AddPartitions,
    Reassignment,
    ReassignPartitions,
    RegisterBroker,
    TakeOver,
)
from coterie.broker.cluster.image import PartitionRow
from coterie.broker.runtime.leadership import Led
from coterie.story.model import Move
from coterie.story.topic import PAUSE_MS, StoryParts, StoryTopic
from coterie.wire.records.batches import records_of, scan
from unit.broker.cluster_rig import PROCESS, ClusterRig

PROMPT_MS = 2 * PAUSE_MS


class Latecomer(ClusterRig):
    """Broker 2, over what a broker alone has made; it coordinates groups unless it is not to."""

    def __init__(self, *, coordinates: bool = True) -> None:
        first = ClusterRig(None)
        for topic in (OFFSETS_TOPIC, STORY_TOPIC):
            first.node.topic_manager.ensure_internal(topic)
        super().__init__(node_id=2, engine=first.engine)
        self.epochs = {2: self.change(RegisterBroker(2, PROCESS, 0)), **first.epochs}
        self.hear()
        if coordinates:
            self.reassign(OFFSETS_TOPIC, (2,))
            self.change(TakeOver(1, self.epochs[1], 0))
            self.change(RegisterBroker(1, PROCESS, self.epochs[1]))
            self.hear()
        self.told = StoryTopic(self.node.parts(StoryParts))

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

    def tell(self, group: str) -> None:
        """Have something happen to a group."""
        known: dict[str, Any] = {"state_before": "Empty", "state": "Stable", "generation": 1, "size": 1}
        why = "member-joined"
        self.told.add(
            Move(at_ms=self.now_ms, group=group, why=why, decision=why, steps=(), who=(), reason="", **known)
        )

    def pass_ms(self, span_ms: int) -> None:
        self.now_ms += span_ms
        self.node.purgatory.expire(self.now_ms)

    def groups_told(self, number: int) -> list[str]:
        """Return the groups that a partition of the story tells of, in the order in which it does."""
        written = self.node.store.logs[TopicPartition(STORY_TOPIC, number)].read(0, max_bytes=1 << 20)
        records = [one for at, _ in scan(written) for one in records_of(written, at)]
        return [json.loads(one.value or b"")["group"] for one in records]

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
