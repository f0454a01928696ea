"""The changes of where replicas lie, who leads, and which brokers there are: proposals, as those of topics.

The records are in the engine that all brokers share. So a partition has other replicas as soon as the image
says so, and nothing is copied; its leader gives it to one of them then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from coterie.base.codes import Code
from coterie.broker.cluster.changes import (
    Change,
    Changed,
    ElectLeaders,
    NotChanged,
    PartitionKey,
    RaiseLevel,
    Reassignment,
    ReassignPartitions,
    UnregisterBroker,
    Why,
)
from coterie.broker.refusal import Refusal
from coterie.broker.topics.proposals import NOT_KNOWN, answers_of, refusal_of

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.broker.cluster.image import Image, PartitionRow
    from coterie.broker.placement.model import Replicas
    from coterie.broker.runtime.pieces import Pieces, Until
    from coterie.broker.topics.cluster_topics import ClusterTopics
    from coterie.broker.topics.proposals import Propose

TRIES = 5
Planned: TypeAlias = Change | Refusal | None
"""What to propose by an image; why that cannot be, or None where all is as it should be."""


class ReplicaProposals:
    """The changes of a broker that is one of several over an engine which has the records."""

    def __init__(self, *, topics: ClusterTopics, propose: Propose, software_level: int = 0) -> None:
        self.software_level = software_level
        """The highest that the cluster's can be raised to by this broker."""
        self._topics = topics
        self._propose = propose

    def partition(self, name: TopicPartition) -> PartitionRow | None:
        """Return a partition as the image has it."""
        image = self._topics.image
        topic = image.topic(name.topic)
        return None if topic is None else image.partition(topic.topic_id, name.partition)

    def is_live(self, broker_id: int) -> bool:
        """Return whether a broker may be given something to lead."""
        return broker_id in self._topics.image.live

    def until_news(self) -> Until:
        """Return the wait for the next image."""
        return self._topics.until_after(self._topics.image)

    def reassign(self, wanted: Mapping[TopicPartition, Replicas]) -> Pieces[Refusal | None]:
        """Give partitions other replicas, together; those that are gone by then are left out."""

        def plan(_: Image) -> Planned:
            rows = ((self.partition(name), replicas) for name, replicas in wanted.items())
            found = [
                Reassignment(row.topic_id, row.number, row.version, tuple(replicas))
                for row, replicas in rows
                if row is not None and row.replicas != tuple(replicas)
            ]
            return ReassignPartitions(tuple(found)) if found else None

        return (yield from self._carry_out(plan))

    def elect(self, names: Iterable[TopicPartition]) -> Pieces[Refusal | None]:
        """Have the leaders of partitions give them to their preferred leaders, of those that live."""

        def plan(image: Image) -> Planned:
            rows = (self.partition(name) for name in names)
            keys = [
                PartitionKey(row.topic_id, row.number, row.leader_epoch)
                for row in rows
                if row is not None and row.replicas[0] in image.live
                if row.replicas[0] not in (row.leader, row.next_leader)
            ]
            return ElectLeaders(tuple(keys)) if keys else None

        return (yield from self._carry_out(plan))

    def unregister(self, broker_id: int) -> Pieces[Refusal | None]:
        """Have a broker be none of the cluster's any more. If it runs, others lead what it led, and its
        process ends.
        """
        proposed = False

        def plan(image: Image) -> Planned:
            nonlocal proposed
            row = image.brokers.get(broker_id)
            if row is None or not row.is_registered:
                return None if proposed else _not_registered(broker_id)
            proposed = True
            return UnregisterBroker(broker_id, row.broker_epoch)

        return (yield from self._carry_out(plan))

    @property
    def level(self) -> int:
        """The cluster's level: what brokers rely on of each other."""
        return self._topics.image.level

    def raise_level(self, level: int) -> Pieces[Refusal | None]:
        """Have brokers rely on what software of a level does, where the software of all has it."""

        def plan(image: Image) -> Planned:
            older = [one for one in image.unfenced if image.brokers[one].level < level]
            if level > self.software_level or older:
                who = f"broker {older[0]}" if older else "the broker that was asked"
                return Refusal(Code.INVALID_UPDATE_VERSION, f"the software of {who} is of a lower level")
            if level < image.level:
                return Refusal(Code.INVALID_UPDATE_VERSION, f"the cluster is at level {image.level} already")
            return RaiseLevel(level) if level > image.level else None

        return (yield from self._carry_out(plan))

    def _carry_out(self, plan: Callable[[Image], Planned]) -> Pieces[Refusal | None]:
        """Propose what is planned by the image, and plan anew by the next where others were faster."""
        for _ in range(TRIES):
            image = self._topics.image
            planned = plan(image)
            if planned is None or isinstance(planned, Refusal):
                return planned
            [answer] = yield from answers_of(self._propose, [planned])
            if isinstance(answer, Changed):
                return None
            if not isinstance(answer, NotChanged) or answer.why in (Why.REFUSED, Why.LOCKED):
                return refusal_of(answer)
            yield self._topics.until_after(image)
        return NOT_KNOWN


def _not_registered(broker_id: int) -> Refusal:
    return Refusal(Code.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
