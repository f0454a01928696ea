"""What the driver's sides of both kinds of streaming query have in common: a cluster, ends, and patience."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.spark.source.group.pacing import OtherSources
from coterie.spark.source.offsets import Gate, Range, limited
from coterie.spark.source.options import SourceOptions
from coterie.spark.source.topics import cluster_for, end_offsets
from coterie.spark.source.unread import OldestUnread

# How soon the ends are asked for again while nothing comes.
POLL_S, POLL_MOST_S = 0.002, 0.05


class ApplicationGone(CoterieError):
    """The application that this reader worked for is gone."""


class Planner:
    """Plans the batches of one query. Made and used on one loop."""

    def __init__(self, options: SourceOptions, *, alive: Callable[[], bool]) -> None:
        self.options, self.alive = options, alive
        self.cluster = cluster_for(options)
        self.clock = asyncio.get_running_loop()
        self.targets: dict[TopicPartition, int] | None = None
        """With AvailableNow: where each partition ended when it was first seen."""
        self.ends: dict[TopicPartition, int] = {}
        """Where partitions ended when that was last asked."""
        self.left: dict[TopicPartition, int] = {}
        """Where the query stands when the last planned batch is done, in each partition that has more."""
        self._unread = OldestUnread(self.cluster, isolation=options.isolation)
        self.other_sources = OtherSources()
        self._poll_s = POLL_S
        self._gate = Gate(options.min_offsets_per_trigger, delay_s=options.max_trigger_delay_ms / 1000)

    def refuse_orphaned(self) -> None:
        """Raise ApplicationGone once the application is gone."""
        if not self.alive():
            raise ApplicationGone("the application is gone")

    async def _ends_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the partitions' ends now; with AvailableNow the first answer is the target."""
        self.ends = await end_offsets(self.cluster, partitions, isolation=self.options.isolation)
        if self.targets is not None:
            self.targets = self.ends | self.targets
        return self.ends

    def _taken(self, there: Sequence[Range], most: int | None) -> tuple[Range, ...] | None:
        """Return the next batch of what is there; None where minOffsetsPerTrigger holds it back."""
        # Held back, AvailableNow would end with records left.
        if self.targets is None and not self._gate.opens(there, self.clock.time()):
            return None
        taken = limited(there, most)
        if taken:
            self.other_sources.has_rows()
            self._poll_s = POLL_S
        return taken

    def _lag_at(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the number of offsets behind each of these, where the query stands when a batch is done."""
        known = sorted(one for one in positions if one in self.ends)
        lag = {one: max(0, self.ends[one] - positions[one]) for one in known}
        self.left = {one: positions[one] for one in known if lag[one]}
        return lag

    async def unread_times(self) -> dict[TopicPartition, int]:
        """Return the time at which the first of what is left was written in each partition, as far as that is
        known in a moment.
        """
        return await self._unread.times(self.left)

    async def _wait_for_records(self, left_s: float) -> None:
        """Wait for records to come: a little, and ever longer while none does."""
        await asyncio.sleep(min(self._poll_s, left_s))
        self._poll_s = min(2 * self._poll_s, POLL_MOST_S)
