"""What an application implements to hear of its partitions coming and going."""

from collections.abc import Awaitable, Sequence

from coterie.base.ids import TopicPartition


class RebalanceListener:
    """Is told what the group gives to a member and takes from it; each method may be a coroutine.

    The member heartbeats while a method runs, so it may take as long as `max.poll.interval.ms`. Partitions
    are sorted by topic, then number. What a method raises is raised again from the application's next call;
    the rebalance goes on.
    """

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Give these up: they are still this member's, so what was done can be committed."""

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Begin with these; with a cooperative assignor only what is new.

        No records are handed out until this has returned, so positions can be sought here.
        """

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """Drop these: they may be others' already, and nothing can be committed."""
        # CB-11
        return self.on_partitions_revoked(partitions)
