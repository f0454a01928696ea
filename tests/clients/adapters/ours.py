"""Our consumer as a member of groups, behind the tests' common face."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.blocking.consumer import BlockingConsumer
from coterie.client.consumer.listener import RebalanceListener

from .model import FETCH_WAIT_MS, HEARTBEAT_MS, SESSION_MS, Consumer, Joins, Membership, Message, Place

__all__ = ["OURS", "Ours"]


class Listener(RebalanceListener):
    """Tells the adapter what was assigned and revoked; what is lost is given up as well."""

    def __init__(self, consumer: OurConsumer) -> None:
        self.consumer = consumer

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.consumer.hear("assigned", partitions)

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.consumer.hear("revoked", partitions)


class OurConsumer(Consumer):
    """A consumer of ours that blocks."""

    refusals = (CoterieError,)

    def __init__(self, bootstrap: str, membership: Membership) -> None:
        super().__init__()
        self.inner = BlockingConsumer(
            bootstrap_servers=bootstrap,
            group_id=membership.group,
            group_instance_id=membership.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=membership.assignor,
        )
        self.inner.start()
        self.inner.subscribe(membership.topics, listener=Listener(self))

    def poll(self, seconds: float) -> list[Message]:
        found = self.inner.getmany(timeout_ms=int(seconds * 1000))
        return [Message.of(record) for records in found.values() for record in records]

    def assignment(self) -> frozenset[Place]:
        return frozenset(map(tuple, self.inner.assignment()))

    def seek(self, place: Place, offset: int) -> None:
        self.inner.seek(place, offset)

    def commit(self) -> None:
        self.inner.commit()

    def committed(self, place: Place) -> int | None:
        return self.inner.committed([place])[TopicPartition(*place)]

    def offset_at_time(self, place: Place, at_ms: int) -> int | None:
        found = self.inner.offsets_for_times({place: at_ms})[TopicPartition(*place)]
        return None if found is None else found.offset

    def bounds(self, place: Place) -> tuple[int, int]:
        at = TopicPartition(*place)
        return self.inner.beginning_offsets([at])[at], self.inner.end_offsets([at])[at]

    def close(self) -> None:
        self.inner.close()


class Ours(Joins):
    """Coterie's own client."""

    name = "coterie"

    def member(self, bootstrap: str, membership: Membership) -> Consumer:
        return OurConsumer(bootstrap, membership)


OURS = Ours()
