"""How the broker looks topics up, and has them changed, wherever they are written down.

Of a broker alone that is its data directory (`registry`, `manager`), of one of several the metadata of the
cluster (`cluster_topics`, `proposals`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from coterie.base.codes import Code
from coterie.base.topic_names import INTERNAL_TOPICS, name_problem
from coterie.broker.refusal import Refusal, storage_failed
from coterie.broker.topics.topic import Topic
from coterie.storage.log.contract import StorageFailed

if TYPE_CHECKING:
    from uuid import UUID

    from coterie.broker.placement.model import Broker, Layout, Problem, Replicas
    from coterie.broker.runtime.pieces import Pieces

Failure: TypeAlias = OSError | StorageFailed | Refusal
"""Why a topic could not be changed: what the disk said, or what the cluster did."""


def refused(what: str, failure: Failure) -> Refusal:
    """Return why something is not done, as its user is told."""
    return failure if isinstance(failure, Refusal) else storage_failed(what, failure)


GONE = Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
"""Another has deleted the topic meanwhile."""
OVERTAKEN = Refusal(Code.REQUEST_TIMED_OUT, "It has changed meanwhile; try again.")
"""Another has changed the topic meanwhile: look at it anew, and try again. No user is told this."""


class TopicCatalog(ABC):
    """The topics there are. A topic is the same object until it has changed."""

    cluster_id: str

    @abstractmethod
    def get(self, name: str) -> Topic | None:
        """Return the topic of this name."""

    @abstractmethod
    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic of this id."""

    @abstractmethod
    def all(self) -> Sequence[Topic]:
        """Return every topic, sorted by name."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of topics."""

    @abstractmethod
    def is_taken(self, name: str) -> bool:
        """Return whether there is a topic of this name, or will be, or has just been."""

    @abstractmethod
    def name_like(self, name: str) -> str | None:
        """Return the name that a topic has, or will have, which is this one but for dots and underscores."""

    @abstractmethod
    def new_topic_id(self) -> UUID:
        """Return an id that no topic has had."""

    def new(
        self,
        name: str,
        *,
        replicas: Sequence[Replicas],
        configs: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
    ) -> Topic:
        """Return a topic that is to be made, of an id that none has had unless it is given."""
        assert replicas
        return Topic(
            name=name,
            topic_id=topic_id or self.new_topic_id(),
            replicas=tuple(replicas),
            configs=dict(configs or {}),
        )

    @abstractmethod
    def outdated_in(self, partition: int) -> Mapping[UUID, str]:
        """Return the topics, names by id, of which a partition of the groups' topic may hold commits for
        earlier ones, if any.
        """

    @abstractmethod
    def dropped_in(self, partition: int, topic_ids: Iterable[UUID]) -> None:
        """Take note that a partition holds no commits for earlier topics any more. Raises OSError."""

    def is_free(self, name: str) -> bool:
        """Return whether a topic can be made of this name."""
        return not self.is_taken(name) and self.name_problem(name) is None

    @staticmethod
    def is_internal(name: str) -> bool:
        """Return whether the broker makes a topic of this name for itself."""
        return name in INTERNAL_TOPICS

    def name_error(self, name: str) -> Code:
        """Return INVALID_TOPIC_EXCEPTION where no topic can be made of a name that is free, else NONE."""
        return Code.INVALID_TOPIC_EXCEPTION if self.name_problem(name) else Code.NONE

    def name_problem(self, name: str) -> str | None:
        """Return why no topic can be made of a name that is free, in Apache Kafka's words."""
        problem = name_problem(name)
        if problem is not None:
            return problem
        other = self.name_like(name)
        return None if other in (None, name) else f"Topic '{name}' collides with existing topic: {other}"


class TopicChanges(Protocol):
    """The changes of topics. Each returns the topics that could not be changed, by name, and why."""

    @property
    def default_factor(self) -> int:
        """How many replicas a partition has if nobody says."""
        ...

    def brokers(self) -> Sequence[Broker]:
        """Return the brokers that replicas can be on. One that is about to stop counts as fenced."""
        ...

    def placed(self, partitions: int, *, factor: int) -> Layout | Problem:
        """Return the replicas of so many new partitions, so many each, or why they cannot be."""
        ...

    def create_topics(self, wanted: Sequence[Topic]) -> Pieces[Mapping[str, Failure]]:
        """Create topics; their names are valid and free. Raises `StorageFailed` or OSError."""
        ...

    def grow_topics(
        self, totals: Mapping[str, int], assigned: Mapping[str, Layout]
    ) -> Pieces[Mapping[str, Failure]]:
        """Give topics that exist so many partitions in all. New ones are placed here, but for those of topics
        to which replicas are `assigned`. Raises `StorageFailed` or OSError.
        """
        ...

    def configure_topics(self, wanted: Mapping[str, Mapping[str, str]]) -> Pieces[Mapping[str, Failure]]:
        """Replace the settings of topics that exist, as they are known now. Raises `StorageFailed` or
        OSError; then none was changed.
        """
        ...

    def delete_topics(self, names: Sequence[str]) -> Pieces[Mapping[str, Failure]]:
        """Delete topics that exist. Raises `StorageFailed` or OSError."""
        ...

    def ensure_internal(self, name: str) -> Topic | None:
        """Return an internal topic, made on its first use as Apache Kafka makes it; None while it is being
        made. Raises `StorageFailed` or OSError.
        """
        ...

    def ensure_own_partition(self, name: str) -> bool:
        """Return whether an internal topic has or gets a partition that this broker is to lead, whoever leads
        that now. Raises `StorageFailed` or OSError.
        """
        ...
