"""The markers that end transactions: one in each partition that a transaction has written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.runtime.leadership import why_absent
from coterie.storage.log.contract import AppendRefused
from coterie.wire.records.batches import build_marker

if TYPE_CHECKING:
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.groups import Coordinator
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.replica_manager import ReplicaManager
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.storage.kind import Log


class TransactionEnd(NamedTuple):
    """Whose transaction ends and how, as coordinators tell partitions (WriteTxnMarkers).

    The coordinator's epoch is that in which it leads its partition: one that was overtaken is refused. The
    `transaction_version` says how strictly the producer's epoch is looked at.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0

    def marker(self, timestamp: int) -> bytes:
        """Return the control batch that says so."""
        return build_marker(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            commit=self.commit,
            timestamp=timestamp,
        )


class WritesMarkers(Protocol):
    """Who has the markers of a coordinator written, here or elsewhere."""

    def write(self, watched: TopicPartition, end: TransactionEnd, deliver: Callable[[Code], None]) -> None:
        """End a producer's transaction in one partition; `deliver` is called once, at once or later."""
        ...


class MarkerParts(NamedTuple):
    """The parts of the broker that markers are written with."""

    topics: TopicCatalog
    leadership: Leadership
    led_log: Callable[[TopicPartition], Log | None]
    replica_manager: ReplicaManager
    clock: Clock
    load_coordinator: Callable[[], Coordinator]


class MarkerWriter:
    """Writes markers into the partitions that this broker leads, for any coordinator."""

    def __init__(self, parts: MarkerParts) -> None:
        self._parts = parts

    def write(self, watched: TopicPartition, end: TransactionEnd, deliver: Callable[[Code], None]) -> None:
        """End a producer's transaction in one partition; `deliver` is called once, at once or later.

        It gets NOT_LEADER_OR_FOLLOWER for a partition that another broker leads, and
        UNKNOWN_TOPIC_OR_PARTITION for one that is not there. Offsets of groups are ended by their
        coordinator.
        """
        parts = self._parts
        if parts.led_log(watched) is None:
            deliver(why_absent(parts.topics, parts.leadership, *watched))
            return
        if watched.topic == OFFSETS_TOPIC:
            parts.load_coordinator().end_transaction(watched.partition, end, deliver)
            return
        try:
            appended = parts.replica_manager.append(
                *watched,
                end.marker(parts.clock.wall_ms()),
                now_ms=parts.clock.now_ms(),
                origin="coordinator",
                transaction_version=end.transaction_version,
            )
        except AppendRefused as refused:
            deliver(refused.code)
            return
        parts.replica_manager.when_landed(
            watched, appended, lambda refused: deliver(Code.NONE if refused is None else refused.code)
        )
