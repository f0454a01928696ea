"""The changes of metadata where leadership is static: each partition is led by the one broker that has its
directory, whether that runs or not. Pure.

Brokers are fenced while their process does not run, and lead what they led: clients are answered that there
is no leader meanwhile. What changes leaders is the number of processes alone, while none runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from coterie.base.ids import ZERO_UUID
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.cluster.changes import MetadataChange, NotChanged, Why
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

SCOPE, NAME = "processes", "broker.ids"


def broker_ids_of(image: Image) -> tuple[int, ...]:
    """Return the ids of the brokers that a cluster is arranged for; none at first."""
    text = image.setting(SCOPE, NAME)
    return tuple(map(int, text.split(","))) if text else ()


def arranged_at(image: Image) -> int:
    """Return the version at which a cluster was arranged last, 0 at first."""
    row = image.settings.get((SCOPE, NAME))
    return 0 if row is None else row.version


class ArrangeBrokers(NamedTuple):
    """The cluster has these brokers from now on, none of which runs. If they are others than before the
    partitions of each topic are spread over them. Those that have `lost` their directories begin anew.
    """

    broker_ids: tuple[int, ...]
    lost: tuple[int, ...] = ()

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the brokers, fenced until they register, and the partitions that are moved."""
        version = image.version + 1
        brokers = [self._broker(image, broker_id, version) for broker_id in self.broker_ids]
        gone = [row for one, row in image.brokers.items() if one not in self.broker_ids]
        brokers += [row._replace(state=BrokerState.FENCED, listeners=(), version=version) for row in gone]
        topics: list[TopicRow] = []
        partitions = [
            led_by(row, row.leader, version=version)
            for row in image.all_partitions()
            if row.leader in self.lost
        ]
        if {*broker_ids_of(image)} != {*self.broker_ids}:
            moved = [*self._moved(image, version)]
            ids = {row.partition_id for row in moved}
            partitions = [*moved, *(row for row in partitions if row.partition_id not in ids)]
            topics, added = self._with_story_for_all(image, partitions, new_partition_id)
            partitions += added
        return Delta(
            above=image.version,
            version=version,
            level=image.level,
            brokers=brokers,
            topics=topics,
            partitions=partitions,
            settings=[SettingRow(SCOPE, NAME, ",".join(map(str, self.broker_ids)), version)],
        )

    def _broker(self, image: Image, broker_id: int, version: int) -> BrokerRow:
        row = image.brokers.get(broker_id)
        if row is None or broker_id in self.lost or broker_id not in broker_ids_of(image):
            return BrokerRow(
                broker_id, version, ZERO_UUID, BrokerState.FENCED, (), None, image.level, "", version
            )
        return row._replace(state=BrokerState.FENCED, listeners=(), version=version)

    def _moved(self, image: Image, version: int) -> Iterator[PartitionRow]:
        given = dict.fromkeys(self.broker_ids, 0)
        for topic in sorted(image.topics(), key=lambda topic: topic.name):
            for row, broker_id in spread(image.partitions(topic.topic_id), given):
                yield led_by(row, broker_id, version=version)

    def _with_story_for_all(
        self, image: Image, moved: Sequence[PartitionRow], new_partition_id: int
    ) -> tuple[list[TopicRow], list[PartitionRow]]:
        """Return the topic of the groups' stories, grown so that each broker leads a partition of it, and its
        new partitions; nothing where that is so already.
        """
        topic = image.topic(STORY_TOPIC)
        if topic is None:
            return [], []
        now = {row.partition_id: row.leader for row in image.partitions(topic.topic_id)}
        now |= {row.partition_id: row.leader for row in moved if row.topic_id == topic.topic_id}
        without = [one for one in self.broker_ids if one not in now.values()]
        version = image.version + 1
        added = [
            PartitionRow(
                new_partition_id + at, topic.topic_id, topic.partitions + at, (one,), one, 0, None, version
            )
            for at, one in enumerate(without)
        ]
        if not added:
            return [], []
        return [topic._replace(partitions=topic.partitions + len(added), version=version)], added


def spread(rows: Sequence[PartitionRow], given: dict[int, int]) -> Iterator[tuple[PartitionRow, int]]:
    """Yield the partitions of a topic that are to go to another broker, and to which.

    Each gets the same number, and some of them one more: those that have fewest of all topics before this one
    (`given`, by the ids of the brokers, which is kept in step), of several those that have it already.
    """
    least, more = divmod(len(rows), len(given))
    has = Counter(row.leader for row in rows)
    order = sorted(given, key=lambda broker_id: (given[broker_id], has[broker_id] <= least, broker_id))
    first = {*order[:more]}
    left = {broker_id: least + (broker_id in first) for broker_id in given}
    for broker_id, count in left.items():
        given[broker_id] += count
    moving = []
    for row in rows:
        if row.leader in left and left[row.leader] > 0:
            left[row.leader] -= 1
        else:
            moving.append(row)
    targets = [broker_id for broker_id, count in left.items() for _ in range(count)]
    yield from zip(moving, targets, strict=True)


def led_by(row: PartitionRow, broker_id: int, *, version: int) -> PartitionRow:
    """Return a partition as it stands when it has become another broker's."""
    return row._replace(
        replicas=(broker_id,), leader=broker_id, leader_epoch=row.leader_epoch + 1, version=version
    )


class RegisterProcess(NamedTuple):
    """A broker's process has started, and leads what the broker has led.

    Its coordinators begin new epochs: a marker that an earlier process has sent, and that somebody is late to
    read, is refused. Others do not, as where a broker is alone (docs/decisions/0009-leader-epochs.md).
    """

    broker_id: int
    incarnation: UUID
    listeners: tuple[Endpoint, ...] = ()
    rack: str | None = None
    software: str = ""

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the broker, live, and its partitions."""
        if self.broker_id not in broker_ids_of(image):
            return NotChanged(Why.OTHER_EPOCH)
        version = image.version + 1
        row = BrokerRow.registered(
            version, self.broker_id, self.incarnation, self.listeners, self.rack, image.level, self.software
        )
        named = (image.topic(name) for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
        mine = [
            row
            for topic in named
            if topic is not None
            for row in image.partitions(topic.topic_id)
            if row.leader == self.broker_id
        ]
        return Delta(
            above=image.version,
            version=version,
            level=image.level,
            brokers=[row],
            partitions=[led_by(row, self.broker_id, version=version) for row in mine],
        )


class FenceProcess(NamedTuple):
    """A broker's process has ended. It leads on what it led, and answers nobody until it has registered."""

    broker_id: int

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the broker, fenced."""
        row = image.brokers.get(self.broker_id)
        if row is None or row.state is BrokerState.FENCED:
            return NotChanged(Why.FENCED)
        version = image.version + 1
        fenced = row._replace(state=BrokerState.FENCED, version=version)
        return Delta(above=image.version, version=version, level=image.level, brokers=[fenced])


class Static(NamedTuple):
    """A change of topics; each new partition is led by the first of its replicas, running or not."""

    change: MetadataChange

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the rows of the change, new partitions with the leaders that they have for good."""
        delta = self.change.rows(image, new_partition_id)
        if isinstance(delta, NotChanged):
            return delta
        return Delta(
            above=delta.above,
            version=delta.version,
            level=delta.level,
            brokers=delta.brokers,
            topics=delta.topics,
            partitions=[*_placed(delta.partitions, new_partition_id)],
            settings=delta.settings,
        )


def _placed(rows: Iterable[PartitionRow], new_partition_id: int) -> Iterator[PartitionRow]:
    for row in rows:
        new = row.partition_id >= new_partition_id
        yield row._replace(replicas=row.replicas[:1], leader=row.replicas[0]) if new else row
