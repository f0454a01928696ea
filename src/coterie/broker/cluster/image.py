"""The cluster's metadata at one version, and the rows by which it gets to a later one. Pure.

Every row bears the version of the change that wrote it, so whatever has changed since a version is the rows
above it. Rows are never removed from the engine's tables: a topic that is gone is marked as deleted, a
setting that is gone has no value, a broker that is gone is fenced, and of no incarnation once it was removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from coterie.base.errors import CoterieError
from coterie.base.topic_names import metric_name


class BrokerState(StrEnum):
    """What the engine knows of a broker's life."""

    LIVE = "live"
    LEAVING = "leaving"
    """It leads what it led, and is given nothing more."""
    FENCED = "fenced"


class Endpoint(NamedTuple):
    """A name and an address by which a broker is reached."""

    name: str
    host: str
    port: int


class BrokerRow(NamedTuple):
    """One broker, as it has registered. What changes with each heartbeat is no part of it."""

    broker_id: int
    broker_epoch: int
    incarnation: UUID
    """Of the process that has registered: each has one of its own."""
    state: BrokerState
    listeners: tuple[Endpoint, ...]
    rack: str | None
    level: int
    software: str
    version: int

    @classmethod
    def registered(
        cls,
        version: int,
        broker_id: int,
        incarnation: UUID,
        listeners: tuple[Endpoint, ...],
        rack: str | None,
        level: int,
        software: str,
    ) -> BrokerRow:
        """Return the row of a broker that registers by the change of a version, which is its broker epoch."""
        return cls(
            broker_id, version, incarnation, BrokerState.LIVE, listeners, rack, level, software, version
        )

    @property
    def is_registered(self) -> bool:
        """Whether a process has registered as the broker since it was removed from the cluster, if it was."""
        return self.incarnation.int != 0

    def ends(self, broker_epoch: int, incarnation: UUID) -> bool:
        """Return whether a registration of a process is over, as the row has it; an older row says nothing.
        An engine that has gone back may have given another process the same epoch.
        """
        if self.broker_epoch != broker_epoch:
            return self.broker_epoch > broker_epoch
        return self.state is BrokerState.FENCED or self.incarnation != incarnation

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it is reached, for people: HOST:PORT of each listener."""
        return tuple(f"{one.host}:{one.port}" for one in self.listeners)


class TopicRow(NamedTuple):
    """One topic."""

    topic_id: UUID
    name: str
    partitions: int
    configs: Mapping[str, str]
    created_ms: int
    deleted: bool
    version: int


class PartitionRow(NamedTuple):
    """One partition: who may lead it, and who does. The first of the replicas is the preferred leader.

    The leader is to give it to the `next_leader` as soon as that lives.
    """

    partition_id: int
    topic_id: UUID
    number: int
    replicas: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    next_leader: int | None
    version: int


class SettingRow(NamedTuple):
    """One dynamic setting, of a broker's or of all; without a value it is gone."""

    scope: str
    name: str
    value: str | None
    version: int


class LeaderAndEpoch(NamedTuple):
    """The broker that leads a partition, None while none does, and in which leader epoch."""

    leader: int | None
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The rows above a version, read in one snapshot: the image there becomes the one at `version` by them.

    Above 0 it is all rows there are. `level` is what the brokers may rely on of each other.
    """

    above: int
    version: int
    level: int = 0
    brokers: Sequence[BrokerRow] = ()
    topics: Sequence[TopicRow] = ()
    partitions: Sequence[PartitionRow] = ()
    settings: Sequence[SettingRow] = ()

    def versions(self) -> Iterator[int]:
        """Yield the version of each row."""
        for rows in (self.brokers, self.topics, self.partitions, self.settings):
            for row in rows:
                yield row.version

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody may wait until all have seen it: whoever makes a topic, or has come."""
        return bool(self.topics) or any(row.state is BrokerState.LIVE for row in self.brokers)


class DoesNotFollow(CoterieError):
    """A delta does not lead on from an image: all rows are to be read anew."""


# Topics go by the number that their id is: a UUID computes its hash in Python, for each look anew.
Topics = Mapping[int, TopicRow]
Partitions = Mapping[int, tuple[PartitionRow, ...]]


class Image:
    """The metadata at one version. It never changes: `after` makes another, which shares what stays."""

    __slots__ = (
        "_metric_names",
        "_names",
        "_partitions",
        "_topics",
        "brokers",
        "level",
        "live",
        "settings",
        "unfenced",
        "version",
    )

    def __init__(
        self,
        version: int = 0,
        level: int = 0,
        brokers: Mapping[int, BrokerRow] = MappingProxyType({}),
        topics: Topics = MappingProxyType({}),
        names: Mapping[str, int] = MappingProxyType({}),
        metric_names: Mapping[str, str] = MappingProxyType({}),
        partitions: Partitions = MappingProxyType({}),
        settings: Mapping[tuple[str, str], SettingRow] = MappingProxyType({}),
    ) -> None:
        self.version = version
        self.level = level
        self.brokers = brokers
        self.settings = settings  # those that are gone included
        self._topics = topics
        self._names = names
        self._metric_names = metric_names
        self._partitions = partitions
        # In the order of their ids. Who is leaving still leads, and is named to clients as all that are not
        # fenced; it is given nothing more to lead.
        ordered = [brokers[broker_id] for broker_id in sorted(brokers)]
        self.unfenced = tuple(row.broker_id for row in ordered if row.state is not BrokerState.FENCED)
        self.live = tuple(row.broker_id for row in ordered if row.state is BrokerState.LIVE)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Image):
            return NotImplemented
        mine, theirs = (
            (one.version, one.level, one.brokers, one.settings, one._topics, one._names, one._partitions)
            for one in (self, other)
        )
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]  # as of whatever holds mappings

    def __repr__(self) -> str:
        return f"Image({self.version}, {len(self.brokers)} brokers, {len(self._topics)} topics)"

    @property
    def topic_count(self) -> int:
        """How many topics there are."""
        return len(self._topics)

    def has_topics_of(self, other: Image) -> bool:
        """Return whether topics and partitions are known to be those of another: nothing is compared."""
        return self._topics is other._topics and self._partitions is other._partitions

    def topics_unlike(self, other: Image) -> Iterator[TopicRow]:
        """Yield the topics whose row or partitions are not the very ones of another image. Of the others it
        is known that they are alike, since what stays is shared: nothing is compared.
        """
        topics, theirs, their_partitions = self._topics, other._topics, other._partitions
        for number, partitions in self._partitions.items():
            topic = topics[number]
            if their_partitions.get(number) is not partitions or theirs.get(number) is not topic:
                yield topic

    # -- what Metadata asks

    def topic(self, name: str) -> TopicRow | None:
        """Return the topic of this name."""
        number = self._names.get(name)
        return None if number is None else self._topics[number]

    def name_like(self, name: str) -> str | None:
        """Return the name that a topic has which is this one but for dots and underscores, if one has."""
        return self._metric_names.get(metric_name(name))

    def topic_by_id(self, topic_id: UUID) -> TopicRow | None:
        """Return the topic of this id."""
        return self._topics.get(topic_id.int)

    def topics(self) -> Iterable[TopicRow]:
        """Return all topics, in no order."""
        return self._topics.values()

    def partitions(self, topic_id: UUID) -> tuple[PartitionRow, ...]:
        """Return the partitions of a topic by their numbers; of a topic that is not there, none."""
        return self._partitions.get(topic_id.int, ())

    def partition(self, topic_id: UUID, number: int) -> PartitionRow | None:
        """Return a partition of a topic."""
        rows = self._partitions.get(topic_id.int, ())
        return rows[number] if 0 <= number < len(rows) else None

    def all_partitions(self) -> Iterator[PartitionRow]:
        """Yield every partition, those of one topic in their order."""
        for rows in self._partitions.values():
            yield from rows

    def leader(self, topic_id: UUID, number: int) -> LeaderAndEpoch | None:
        """Return the leader of a partition; None if there is no such partition."""
        row = self.partition(topic_id, number)
        if row is None:
            return None
        return LeaderAndEpoch(row.leader if row.leader in self.unfenced else None, row.leader_epoch)

    def setting(self, scope: str, name: str) -> str | None:
        """Return the value of a dynamic setting."""
        row = self.settings.get((scope, name))
        return None if row is None else row.value

    # -- to a later version

    def after(self, delta: Delta) -> Image:
        """Return the image at the version of a delta. Raises `DoesNotFollow`."""
        self._insist_that_it_follows(delta)
        brokers, settings = self.brokers, self.settings
        if delta.brokers:
            brokers = {**brokers, **{row.broker_id: row for row in delta.brokers}}
        if delta.settings:
            settings = {**settings, **{(row.scope, row.name): row for row in delta.settings}}
        topics, names, metric_names = self._topics, self._names, self._metric_names
        partitions = self._partitions
        if delta.topics:
            topics, names, metric_names = self._with_topics(delta.topics)
        if delta.topics or delta.partitions:
            partitions = self._with_partitions(delta, topics)
        return Image(delta.version, delta.level, brokers, topics, names, metric_names, partitions, settings)

    def _insist_that_it_follows(self, delta: Delta) -> None:
        if delta.above != self.version or delta.version < self.version:
            raise DoesNotFollow(f"{delta.above} to {delta.version} does not follow {self.version}")
        if any(not delta.above < version <= delta.version for version in delta.versions()):
            raise DoesNotFollow(f"{delta.above} to {delta.version} has rows of other versions")

    def _with_topics(
        self, changed: Sequence[TopicRow]
    ) -> tuple[Topics, Mapping[str, int], Mapping[str, str]]:
        """Return the topics, the numbers that they have by name, and their names by what no two may share."""
        topics, names, metric_names = dict(self._topics), dict(self._names), dict(self._metric_names)
        for row in changed:  # before those that have the names now
            if row.deleted and topics.pop(row.topic_id.int, None) is not None:
                del names[row.name]
                if metric_names.get(metric_name(row.name)) == row.name:
                    del metric_names[metric_name(row.name)]
        for row in changed:
            if not row.deleted:
                number = row.topic_id.int
                topics[number] = row
                metric_names[metric_name(row.name)] = row.name
                if names.setdefault(row.name, number) != number:
                    raise DoesNotFollow(f"two topics have the name {row.name}")
        return topics, names, metric_names

    def _with_partitions(self, delta: Delta, topics: Topics) -> Partitions:
        partitions = dict(self._partitions)
        changed: dict[int, list[PartitionRow]] = {}
        gone = set()
        for row in delta.topics:
            if row.deleted:
                gone.add(row.topic_id.int)
                partitions.pop(row.topic_id.int, None)
            else:
                changed[row.topic_id.int] = []
        for partition in delta.partitions:
            number = partition.topic_id.int
            if number in changed:
                changed[number].append(partition)
            elif number not in gone:
                changed[number] = [partition]
        for number, rows in changed.items():
            topic, merged = topics.get(number), _merged(partitions.get(number, ()), rows)
            if topic is None or topic.partitions != len(merged):
                raise DoesNotFollow(f"the partitions of topic {UUID(int=number)} are not those that it has")
            partitions[number] = merged
        return partitions


def _merged(before: tuple[PartitionRow, ...], changed: list[PartitionRow]) -> tuple[PartitionRow, ...]:
    """Return the partitions of a topic, with those that have changed or are new in their places."""
    rows = list(before)
    if len(changed) > 1:
        changed.sort(key=_number)
    for row in changed:
        if row.number < len(rows):
            rows[row.number] = row
        elif row.number == len(rows):
            rows.append(row)
        else:
            raise DoesNotFollow(f"partition {len(rows)} of topic {row.topic_id} is missing")
    return tuple(rows)


def _number(row: PartitionRow) -> int:
    return row.number
