"""A query without a group, on the loop: all partitions, as Spark's own source reads them. Knows no Spark."""

from collections.abc import Callable, Iterable

from coterie.base.ids import TopicPartition
from coterie.spark.source.offsets import DataLoss, Range
from coterie.spark.source.options import EARLIEST, SourceOptions
from coterie.spark.source.planner import Planner
from coterie.spark.source.topics import end_offsets, resolved_offsets, selected_partitions

Offsets = dict[TopicPartition, int]


class AllPartitions(Planner):
    """What one query knows of the partitions that its options select. Made and used on one loop."""

    def __init__(self, options: SourceOptions, *, alive: Callable[[], bool]) -> None:
        super().__init__(options, alive=alive)
        self._partitions: list[TopicPartition] = []
        self._fresh_until = 0.0

    async def partitions(self) -> list[TopicPartition]:
        """Return the selected partitions; asked for again when metadata.max.age.ms has passed."""
        now = self.clock.time()
        if now >= self._fresh_until:
            self._partitions = await selected_partitions(self.cluster, self.options.selection)
            self._fresh_until = now + self.options.client.metadata_max_age_ms / 1000
        return self._partitions

    async def initial(self) -> Offsets:
        """Return the offsets at which the options start."""
        return await resolved_offsets(
            self.cluster, self.options.starting, await self.partitions(), isolation=self.options.isolation
        )

    async def prepare(self) -> None:
        """Note where the partitions end now: AvailableNow reads no further."""
        self.targets = await self._ends_of(await self.partitions())

    async def latest(self, start: Offsets, most: int | None) -> Offsets:
        """Return the end of the next batch; `start` if nothing came within 250 ms, or less in company."""
        until = self.clock.time() + self.other_sources.longest_wait_s()
        while True:
            self.refuse_orphaned()
            end = await self._end(start, most)
            left_s = until - self.clock.time()
            if end != start:
                self.other_sources.has_rows()
            if end != start or self.targets is not None or left_s <= 0:
                return end
            await self._wait_for_records(left_s)

    async def _end(self, start: Offsets, most: int | None) -> Offsets:
        """Return the end of a batch that takes what there is now."""
        found = self.targets
        if found is None:
            found = await self._ends_of(await self.partitions())
        await self._refuse_lost(start, found)
        started = start | await self._earliest_of(found.keys() - start.keys())
        ranges = [Range(*one, started[one], max(started[one], end)) for one, end in sorted(found.items())]
        taken = self._taken(ranges, most)
        if taken is None:
            return start
        end = started | {one.at: one.until for one in taken}
        self._lag_at(end)
        return end

    async def _refuse_lost(self, start: Offsets, found: Offsets) -> None:
        """Raise DataLoss for partitions that are gone, or whose offsets went back.

        What is behind a transaction under way may have been read before without read_committed.
        """
        if not self.options.fail_on_data_loss:
            return
        gone = sorted(start.keys() - found.keys())
        if gone:
            raise DataLoss(f"partitions {', '.join(map(str, gone))} are gone; failOnDataLoss=false goes on")
        past = [one for one, offset in start.items() if offset > found[one]]
        if self.options.isolation:
            found = found | await end_offsets(self.cluster, past, isolation=0)
        for one in past:
            offset = start[one]
            if offset > found[one]:
                raise DataLoss(
                    f"{one}: the query has read up to {offset}, and the partition ends at {found[one]};"
                    " was the topic made anew? failOnDataLoss=false goes on"
                )

    async def between(self, start: Offsets, end: Offsets) -> list[Range]:
        """Return the ranges between two offsets; partitions that are new are read from their beginning."""
        earliest = await self._earliest_of(end.keys())
        ranges = []
        for one, until in sorted(end.items()):
            first = start.get(one, earliest[one])
            if first < earliest[one] and self.options.fail_on_data_loss and until > first:
                raise DataLoss(
                    f"{one}: offsets {first} to {earliest[one] - 1} were deleted before they were read;"
                    " with failOnDataLoss=false the query goes on without them"
                )
            if max(first, earliest[one]) < until:
                ranges.append(Range(*one, max(first, earliest[one]), until))
        return ranges

    async def _earliest_of(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return await end_offsets(self.cluster, partitions, isolation=self.options.isolation, which=EARLIEST)
