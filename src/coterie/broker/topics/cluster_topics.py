"""The topics of a cluster, as a broker looks them up: a view of the metadata as it has heard of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from coterie.broker.cluster.image import Image, PartitionRow, TopicRow
from coterie.broker.runtime.pieces import Until
from coterie.broker.topics.catalog import TopicCatalog
from coterie.broker.topics.registry import new_id
from coterie.broker.topics.topic import Topic

NONE_OUTDATED: Mapping[UUID, str] = MappingProxyType({})
FEW = 100


class Made(NamedTuple):
    """A topic, and the rows that it was made of."""

    row: TopicRow
    partitions: tuple[PartitionRow, ...]
    topic: Topic


class ClusterTopics(TopicCatalog):
    """The topics that an `Image` has. Each is made when it is first looked up, and stays the same until its
    partitions, their replicas or its settings change: who leads is no part of it.
    """

    def __init__(self, cluster_id: str, *, new_uuid: Callable[[], UUID] = uuid4) -> None:
        self.cluster_id = cluster_id
        self.image = Image()
        self.claimed: set[str] = set()
        """The names for which a topic is on its way, proposed by this broker."""
        self._new_uuid = new_uuid
        self._by_name: dict[str, Topic] = {}  # those looked up in this image, and by the numbers of their ids
        self._by_number: dict[int, Topic] = {}
        self._made: dict[int, Made] = {}
        self._all: list[Topic] | None = None
        self._waiting: list[Callable[[Any], None]] = []

    # -- the image

    def take(self, image: Image) -> None:
        """Go by another image from now on: what waits for news goes on, once it is in place."""
        before, self.image = self.image, image
        if not image.has_topics_of(before):
            self._by_name, self._by_number, self._all = {}, {}, None
            if len(self._made) > 2 * image.topic_count + FEW:
                there = {row.topic_id.int for row in image.topics()}
                self._made = {number: made for number, made in self._made.items() if number in there}
        waiting, self._waiting = self._waiting, []
        for take in waiting:
            take(None)

    def until_after(self, image: Image) -> Until:
        """Return the wait for an image other than this one."""

        def ask(take: Callable[[Any], None]) -> None:
            if self.image is image:
                self._waiting.append(take)
            else:
                take(None)

        return Until(ask)

    # -- lookups

    def get(self, name: str) -> Topic | None:
        """Return the topic of this name."""
        topic = self._by_name.get(name)
        if topic is None and (row := self.image.topic(name)) is not None:
            topic = self._of(row)
        return topic

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic of this id."""
        topic = self._by_number.get(topic_id.int)
        if topic is None and (row := self.image.topic_by_id(topic_id)) is not None:
            topic = self._of(row)
        return topic

    def _of(self, row: TopicRow) -> Topic:
        """Return the topic of a row: the one that was made of it before, if nothing of it has changed."""
        number, partitions = row.topic_id.int, self.image.partitions(row.topic_id)
        made = self._made.get(number)
        if made is None or made.row is not row or made.partitions is not partitions:
            topic = _made_of(row, partitions)
            if made is not None and made.topic == topic:
                topic = made.topic
            made = self._made[number] = Made(row, partitions, topic)
        self._by_name[row.name] = self._by_number[number] = made.topic
        return made.topic

    def all(self) -> Sequence[Topic]:
        """Return every topic, sorted by name."""
        if self._all is None:
            rows = sorted(self.image.topics(), key=lambda row: row.name)
            self._all = [self._by_name.get(row.name) or self._of(row) for row in rows]
        return self._all

    def __len__(self) -> int:
        return self.image.topic_count

    def is_taken(self, name: str) -> bool:
        """Return whether there is a topic of this name, or one that this broker has proposed."""
        return name in self.claimed or self.image.topic(name) is not None

    def name_like(self, name: str) -> str | None:
        """Return the name that a topic has which is this one but for dots and underscores, if one has."""
        return self.image.name_like(name)

    def new_topic_id(self) -> UUID:
        """Return the id of a topic that is to be proposed."""
        return new_id(self._new_uuid)

    def outdated_in(self, partition: int) -> Mapping[UUID, str]:
        """Return nothing: among several brokers a commit counts for the topic that it was made for."""
        return NONE_OUTDATED

    def dropped_in(self, partition: int, topic_ids: Iterable[UUID]) -> None:
        """Do nothing: nothing was to be dropped."""


def _made_of(row: TopicRow, partitions: Sequence[PartitionRow]) -> Topic:
    replicas = tuple([one.replicas for one in partitions])
    return Topic(name=row.name, topic_id=row.topic_id, replicas=replicas, configs=row.configs)
