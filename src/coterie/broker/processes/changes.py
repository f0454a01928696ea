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
from coterie.broker.cluster.changes import MetadataChange, NotChanged, Why
from coterie.broker.cluster.image import (
    BrokerRow,
    BrokerState,
    Delta,
    Endpoint,
    Image,
    PartitionRow,
    SettingRow,
)

SCOPE, NAME = "processes", "broker.ids"


def broker_ids_of(image: Image) -> tuple[int, ...]:
    """Return the ids of the brokers that a cluster is arranged for; none at first."""
    text = image.setting(SCOPE, NAME)
    return tuple(map(int, text.split(","))) if text else ()


class ArrangeBrokers(NamedTuple):
    """The cluster has these brokers from now on, none of which runs. If they are others than before each
    topic is spread over them: no broker has more of its partitions than it must.
    """

    broker_ids: tuple[int, ...]

    def rows(self, image: Image, new_partition_id: int) -> Delta | NotChanged:
        """Return the brokers, fenced until they register, and the partitions that are moved."""
        version = image.version + 1
        brokers = [self._broker(image, broker_id, version) for broker_id in self.broker_ids]
        gone = [row for one, row in image.brokers.items() if one not in self.broker_ids]
        brokers += [row._replace(state=BrokerState.FENCED, listeners=(), version=version) for row in gone]
        same = {*broker_ids_of(image)} == {*self.broker_ids}
        return Delta(
            above=image.version,
            version=version,
            level=image.level,
            brokers=brokers,
            partitions=[] if same else [*self._moved(image, version)],
            settings=[SettingRow(SCOPE, NAME, ",".join(map(str, self.broker_ids)), version)],
        )

    def _broker(self, image: Image, broker_id: int, version: int) -> BrokerRow:
        row = image.brokers.get(broker_id)
        if row is None:
            return BrokerRow(
                broker_id, version, ZERO_UUID, BrokerState.FENCED, (), None, image.level, "", version
            )
        return row._replace(state=BrokerState.FENCED, listeners=(), version=version)

    def _moved(self, image: Image, version: int) -> Iterator[PartitionRow]:
        total: Counter[int | None] = Counter(row.leader for row in image.all_partitions())
        for topic in sorted(image.topics(), key=lambda topic: topic.name):
            rows = image.partitions(topic.topic_id)
            for row, broker_id in spread(rows, self.broker_ids, total):
                yield led_by(row, broker_id, version=version)


def spread(
    rows: Sequence[PartitionRow], broker_ids: Sequence[int], total: Counter[int | None]
) -> Iterator[tuple[PartitionRow, int]]:
    """Yield the partitions of a topic that are to go to another broker, and to which: so few that no broker
    has more than its share, rounded up. Who has fewest of them gets the next; of several, who has fewest of
    all (`total`, which is kept in step).
    """
    share = -(-len(rows) // len(broker_ids))
    mine: Counter[int | None] = Counter()
    moving = []
    for row in rows:
        if row.leader in broker_ids and mine[row.leader] < share:
            mine[row.leader] += 1
        else:
            total[row.leader] -= 1
            moving.append(row)
    for row in moving:
        broker_id = min(broker_ids, key=lambda one: (mine[one], total[one], one))
        mine[broker_id] += 1
        total[broker_id] += 1
        yield row, broker_id


def led_by(row: PartitionRow, broker_id: int, *, version: int) -> PartitionRow:
    """Return a partition as it stands when it has become another broker's."""
    return row._replace(
        replicas=(broker_id,), leader=broker_id, leader_epoch=row.leader_epoch + 1, version=version
    )


class RegisterProcess(NamedTuple):
    """A broker's process has started, and leads what the broker has led, in the next leader epochs."""

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
        row = BrokerRow(
            broker_id=self.broker_id,
            broker_epoch=version,
            incarnation=self.incarnation,
            state=BrokerState.LIVE,
            listeners=self.listeners,
            rack=self.rack,
            level=image.level,
            software=self.software,
            version=version,
        )
        mine = [row for row in image.all_partitions() if row.leader == self.broker_id]
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
