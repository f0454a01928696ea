"""What an application may hear of its partitions coming and going."""

from collections.abc import Awaitable, Iterable
from typing import Protocol

from coterie.base.ids import TopicPartition

__all__ = ["RebalanceListener"]


class RebalanceListener(Protocol):
    """Methods may be plain or async; partitions come sorted (CB-12)."""

    def on_partitions_revoked(self, partitions: Iterable[TopicPartition]) -> Awaitable[None] | None:
        """These go to somebody else; what is committed here still counts."""

    def on_partitions_assigned(self, partitions: Iterable[TopicPartition]) -> Awaitable[None] | None:
        """These were added."""

    def on_partitions_lost(self, partitions: Iterable[TopicPartition]) -> Awaitable[None] | None:
        """Somebody else may have these already."""
