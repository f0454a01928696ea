"""The changes of metadata, as values: each from the image before it to the rows that it writes. Pure.

An engine makes them one after another, each whole: it takes the lock of the cluster's version, brings the
image up to it, asks a change for its `rows`, and writes them at the next version. A change that was overtaken
is refused, with the reason; whoever proposed it looks at the image and proposes another. One that is not
answered may happen later, even after the same one has been sent again: each names what it goes by, so that it
does nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from coterie.base.ids import ZERO_UUID
from coterie.broker.cluster.image import (
    BrokerRow,
    BrokerState,
    Delta,
    Endpoint,
    Image,
    PartitionRow,
    SettingRow,
    TopicRow,
)
from coterie.broker.cluster.leaders import (
    after_departure,
    after_registration,
    first_leader,
    moved_to,
    reassigned,
    to_be_led_by,
)


class Why(StrEnum):
    """Why a change was not made."""

    OTHER_EPOCH = "the broker is registered in another epoch"
    FENCED = "the broker is fenced"
    NOT_LIVE = "the broker that is to lead is not live"
    NOT_REGISTERED = "no such broker is registered"
    OLDER_SOFTWARE = "the software of a broker is of a lower level"
    BEATS_ON = "the broker has sent a heartbeat meanwhile"
    NAME_TAKEN = "there is a topic of the name"
    NAME_COLLIDES = "there is a topic whose name differs only in dots and underscores"
    ID_TAKEN = "there is or was a topic of the id"
    NO_TOPIC = "there is no such topic"
    CHANGED = "it has changed meanwhile"
    REFUSED = "the engine refuses it"
    LOCKED = "somebody keeps the engine from it, by a lock"


class Changed(NamedTuple):
    """A change was made, at this version. Of a registration it is the broker epoch."""

    version: int


class NotChanged(NamedTuple):
    """A change was refused: nothing of it was made. `broker_epoch` is the one that the engine has for the
    broker, 0 for none, and `incarnation` the process that it was given to; `names` are the topics or the
    brokers at fault, or where that process is reached, and `reason` is the engine's own, for people.
    """

    why: Why
    broker_epoch: int = 0
    incarnation: UUID = ZERO_UUID
    names: tuple[str, ...] = ()
    reason: str = ""


ChangeOutcome: TypeAlias = Changed | NotChanged | None
"""What came of a change: None where that is not known in time."""
Proposed: TypeAlias = Callable[[ChangeOutcome], None]
"""Takes what came of a change."""


class PartitionKey(NamedTuple):
    """One partition, and the leader epoch that a change of its leader goes by."""

    topic_id: UUID
    number: int
    leader_epoch: int


class MetadataChange(Protocol):
    """What an engine carries out under the lock of the cluster's version."""

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the rows at the next version; new partitions get their ids from the given one on."""
        ...


def _delta(
    image: Image,
    *,
    brokers: Sequence[BrokerRow] = (),
    topics: Sequence[TopicRow] = (),
    partitions: Sequence[PartitionRow] = (),
    settings: Sequence[SettingRow] = (),
    level: int | None = None,
) -> Delta:
    return Delta(
        above=image.version,
        version=image.version + 1,
        level=image.level if level is None else level,
        brokers=brokers,
        topics=topics,
        partitions=partitions,
        settings=settings,
    )


def _problem(image: Image, broker_id: int, broker_epoch: int) -> NotChanged | None:
    """Return why a broker has no say in this epoch."""
    row = image.brokers.get(broker_id)
    if row is None:
        return NotChanged(Why.OTHER_EPOCH)
    if row.broker_epoch != broker_epoch:
        return NotChanged(Why.OTHER_EPOCH, row.broker_epoch, row.incarnation)
    if row.state is BrokerState.FENCED:
        return NotChanged(Why.FENCED, row.broker_epoch, row.incarnation)
    return None


# -- brokers


class RegisterBroker(NamedTuple):
    """A broker begins, or begins anew: it may lead, in a broker epoch that no other registration has.

    It takes the place of the registration `replaces` (0: of none), and of no later one.
    """

    broker_id: int
    incarnation: UUID
    replaces: int
    listeners: tuple[Endpoint, ...] = ()
    rack: str | None = None
    level: int = 0
    software: str = ""

    def why_replaced(self, refused: NotChanged) -> str:
        """Return the sentence that another process has the id by now, or that the broker was removed; ""
        where neither is so.
        """
        if not self.is_anothers(refused):
            return ""
        if refused.incarnation == ZERO_UUID:
            return f"broker {self.broker_id} was removed from the cluster"
        where = f", and is at {', '.join(refused.names)}" if refused.names else ""
        return (
            f"another process has registered as broker {self.broker_id}{where}: give each its own node.id, or"
            " stop one of them; where both are started again they end each other for ever (broker epoch"
            f" {refused.broker_epoch}, this one's was {self.replaces})"
        )

    def is_anothers(self, refused: NotChanged) -> bool:
        """Return whether a later registration, which this one does not replace, is of another process."""
        return refused.broker_epoch > self.replaces and refused.incarnation != self.incarnation

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the broker, live, and what it leads from now on."""
        there = image.brokers.get(self.broker_id)
        if there is None and self.replaces:
            return NotChanged(Why.OTHER_EPOCH)
        if there is not None and there.broker_epoch != self.replaces:
            return NotChanged(Why.OTHER_EPOCH, there.broker_epoch, there.incarnation, there.addresses)
        if self.level < image.level:
            return NotChanged(Why.OLDER_SOFTWARE, self.replaces)
        version = image.version + 1
        row = BrokerRow.registered(
            version, self.broker_id, self.incarnation, self.listeners, self.rack, self.level, self.software
        )
        partitions = after_registration(image, self.broker_id, version=version)
        return _delta(image, brokers=[row], partitions=partitions)


class TakeOver(NamedTuple):
    """A broker is dead, that has shown the same count for too long: others lead what it led.

    An engine compares `beats` with what it has counted, too.
    """

    broker_id: int
    broker_epoch: int
    beats: int

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the broker, fenced, and what it has led."""
        return _problem(image, self.broker_id, self.broker_epoch) or _departed(image, self.broker_id)


class StartLeaving(NamedTuple):
    """A broker is about to stop: it is given nothing more to lead."""

    broker_id: int
    broker_epoch: int

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the broker, leaving."""
        problem = _problem(image, self.broker_id, self.broker_epoch)
        row = image.brokers.get(self.broker_id)
        if problem is not None or row is None:
            return problem or NotChanged(Why.OTHER_EPOCH)
        return _delta(image, brokers=[row._replace(state=BrokerState.LEAVING, version=image.version + 1)])


class LeaveCluster(NamedTuple):
    """A broker has stopped deciding, and all that it decided has landed: others lead what it led."""

    broker_id: int
    broker_epoch: int

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the broker, fenced, and what it has led."""
        return _problem(image, self.broker_id, self.broker_epoch) or _departed(image, self.broker_id)


def _departed(image: Image, broker_id: int) -> Delta:
    version = image.version + 1
    fenced = image.brokers[broker_id]._replace(state=BrokerState.FENCED, version=version)
    return _delta(image, brokers=[fenced], partitions=after_departure(image, broker_id, version=version))


class UnregisterBroker(NamedTuple):
    """A broker is none of the cluster's any more, whether it runs or not: others lead what it led.

    Its epoch is over, and the process that had it does not register again. One that is started later
    registers as any other. As Apache Kafka's ReplicationControlManager does.
    """

    broker_id: int
    broker_epoch: int

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the broker, without a registration and in an epoch that nobody has, and what it has led."""
        row = image.brokers.get(self.broker_id)
        if row is None or not row.is_registered:
            return NotChanged(Why.NOT_REGISTERED)
        if row.broker_epoch != self.broker_epoch:
            return NotChanged(Why.OTHER_EPOCH, row.broker_epoch, row.incarnation)
        version = image.version + 1
        gone = row._replace(
            broker_epoch=version,
            incarnation=ZERO_UUID,
            state=BrokerState.FENCED,
            listeners=(),
            rack=None,
            version=version,
        )
        return _delta(
            image, brokers=[gone], partitions=after_departure(image, self.broker_id, version=version)
        )


class RaiseLevel(NamedTuple):
    """Brokers rely on each other from now on for what software of a level does: each that is not fenced has
    it, and none of a lower one registers any more.
    """

    level: int

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return no rows: the level is the cluster's."""
        older = tuple(str(one) for one in image.unfenced if image.brokers[one].level < self.level)
        if older:
            return NotChanged(Why.OLDER_SOFTWARE, names=older)
        if self.level <= image.level:
            return NotChanged(Why.CHANGED)
        return _delta(image, level=self.level)


# -- who leads


class GiveLeadership(NamedTuple):
    """A leader gives some of its partitions to a live broker, having stopped to decide anything there.

    Whoever does not hear whether it has happened leads none of them, until another of the kind was answered:
    if to nobody else, the partitions are given `to` the leader itself, in their next leader epochs. Then the
    first can happen no more.
    """

    broker_id: int
    broker_epoch: int
    partitions: tuple[PartitionKey, ...]
    to: int

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the partitions."""
        found = _led(image, self.broker_id, self.broker_epoch, self.partitions)
        if isinstance(found, NotChanged):
            return found
        if self.to not in image.live and self.to != self.broker_id:
            return NotChanged(Why.NOT_LIVE)
        rows = [moved_to(row, self.to, version=image.version + 1) for row in found]
        return _delta(image, partitions=rows)


def _led(
    image: Image, broker_id: int, broker_epoch: int, partitions: tuple[PartitionKey, ...]
) -> list[PartitionRow] | NotChanged:
    """Return the partitions that are there, which a broker leads in these leader epochs, or why not."""
    problem = _problem(image, broker_id, broker_epoch)
    if problem is not None:
        return problem
    found = []
    for topic_id, number, leader_epoch in partitions:
        row = image.partition(topic_id, number)
        if row is None:
            continue  # the topic was deleted
        if row.leader != broker_id or row.leader_epoch != leader_epoch:
            return NotChanged(Why.CHANGED)
        found.append(row)
    return found


class Reassignment(NamedTuple):
    """One partition, the version of its row that a change goes by, and the replicas that it is to have."""

    topic_id: UUID
    number: int
    made_from: int
    replicas: tuple[int, ...]


class ReassignPartitions(NamedTuple):
    """Give partitions other replicas, all of them or none. The records are the engine's: nothing is copied.

    Where the leader is none of them any more it is to give the partition to the first of them that lives.
    """

    reassignments: tuple[Reassignment, ...]

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the partitions."""
        rows = []
        for topic_id, number, made_from, replicas in self.reassignments:
            row = image.partition(topic_id, number)
            if row is None:
                return NotChanged(Why.NO_TOPIC)
            if row.version != made_from:
                return NotChanged(Why.CHANGED)
            rows.append(reassigned(image, row, replicas, version=image.version + 1))
        return _delta(image, partitions=rows)


class ElectLeaders(NamedTuple):
    """Have partitions be led by the first of their replicas, all of them or none; leaders give theirs."""

    partitions: tuple[PartitionKey, ...]

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the partitions that are led by another."""
        rows = []
        for topic_id, number, leader_epoch in self.partitions:
            row = image.partition(topic_id, number)
            if row is None:
                return NotChanged(Why.NO_TOPIC)
            preferred = row.replicas[0]
            if row.leader_epoch != leader_epoch:
                return NotChanged(Why.CHANGED)
            if preferred not in image.live:
                return NotChanged(Why.NOT_LIVE)
            if row.leader != preferred:
                rows.append(to_be_led_by(row, preferred, version=image.version + 1))
        return _delta(image, partitions=rows)


# -- topics


class NewTopic(NamedTuple):
    """A topic that is to be made, and the replicas of each of its partitions."""

    topic_id: UUID
    name: str
    replicas: tuple[tuple[int, ...], ...]
    configs: Mapping[str, str] = {}
    created_ms: int = 0


class CreateTopics(NamedTuple):
    """Make topics, all or none. Their names are valid and do not collide with each other. The ids are fresh:
    an engine also refuses those that deleted topics had.
    """

    topics: tuple[NewTopic, ...]

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the topics and their partitions."""
        problem = self._problem(image)
        if problem is not None:
            return problem
        version = image.version + 1
        topics: list[TopicRow] = []
        partitions: list[PartitionRow] = []
        for new in self.topics:
            count = len(new.replicas)
            topics.append(
                TopicRow(new.topic_id, new.name, count, new.configs, new.created_ms, False, version)
            )
            first_id = new_partition_id + len(partitions)
            partitions += _new_partitions(image, new.topic_id, range(count), new.replicas, first_id)
        return _delta(image, topics=topics, partitions=partitions)

    def _problem(self, image: Image) -> NotChanged | None:
        """Return why not all can be made: a name that was free at another broker may be taken here."""
        taken = [new.name for new in self.topics if image.topic(new.name) is not None]
        if taken:
            return NotChanged(Why.NAME_TAKEN, names=tuple(taken))
        colliding = [new.name for new in self.topics if image.name_like(new.name) is not None]
        if colliding:
            return NotChanged(Why.NAME_COLLIDES, names=tuple(colliding))
        same_id = [new.name for new in self.topics if image.topic_by_id(new.topic_id) is not None]
        return NotChanged(Why.ID_TAKEN, names=tuple(same_id)) if same_id else None


class AddPartitions(NamedTuple):
    """Give a topic more partitions than it has, the replicas of each; `existing` is how many it has."""

    topic_id: UUID
    existing: int
    replicas: tuple[tuple[int, ...], ...]

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the topic and its new partitions."""
        topic = image.topic_by_id(self.topic_id)
        if topic is None:
            return NotChanged(Why.NO_TOPIC)
        if topic.partitions != self.existing:
            return NotChanged(Why.CHANGED, names=(topic.name,))
        numbers = range(self.existing, self.existing + len(self.replicas))
        grown = topic._replace(partitions=numbers.stop, version=image.version + 1)
        partitions = _new_partitions(image, self.topic_id, numbers, self.replicas, new_partition_id)
        return _delta(image, topics=[grown], partitions=partitions)


def _new_partitions(
    image: Image, topic_id: UUID, numbers: range, replicas: tuple[tuple[int, ...], ...], first_id: int
) -> list[PartitionRow]:
    version, rows = image.version + 1, []
    for partition_id, (number, placed) in enumerate(zip(numbers, replicas, strict=True), first_id):
        leader = first_leader(image, partition_id, placed)
        rows.append(PartitionRow(partition_id, topic_id, number, placed, leader, 0, None, version))
    return rows


class DeleteTopics(NamedTuple):
    """Delete topics, all of them or none."""

    topic_ids: tuple[UUID, ...]

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the topics, deleted."""
        version, rows = image.version + 1, []
        for topic_id in self.topic_ids:
            topic = image.topic_by_id(topic_id)
            if topic is None:
                return NotChanged(Why.NO_TOPIC)
            rows.append(topic._replace(deleted=True, version=version))
        return _delta(image, topics=rows)


class SetConfigs(NamedTuple):
    """Replace the settings of a topic; `made_from` is the version of its row that they go by."""

    topic_id: UUID
    made_from: int
    configs: Mapping[str, str]

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the topic."""
        topic = image.topic_by_id(self.topic_id)
        if topic is None:
            return NotChanged(Why.NO_TOPIC)
        if topic.version != self.made_from:
            return NotChanged(Why.CHANGED, names=(topic.name,))
        return _delta(image, topics=[topic._replace(configs=self.configs, version=image.version + 1)])


# -- settings


class SetSetting(NamedTuple):
    """Set a dynamic setting of brokers, or remove it; `made_from` is the version of the row that it goes by,
    0 where there is none.
    """

    scope: str
    name: str
    value: str | None
    made_from: int

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the setting."""
        there = image.settings.get((self.scope, self.name))
        if (0 if there is None else there.version) != self.made_from:
            return NotChanged(Why.CHANGED)
        return _delta(image, settings=[SettingRow(self.scope, self.name, self.value, image.version + 1)])


Change: TypeAlias = (
    RegisterBroker
    | TakeOver
    | StartLeaving
    | LeaveCluster
    | UnregisterBroker
    | RaiseLevel
    | GiveLeadership
    | ReassignPartitions
    | ElectLeaders
    | CreateTopics
    | AddPartitions
    | DeleteTopics
    | SetConfigs
    | SetSetting
)
