"""The batch reader: ranges by offset, time or a group's commits, planned on the driver, read by tasks."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from coterie.base.ids import TopicPartition
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.spark.source.columns import NO_MEMBER, SourceMember
from coterie.spark.source.filters import Pushed, pushed
from coterie.spark.source.offsets import DataLoss, Range, packed, split
from coterie.spark.source.options import COMMITTED, EARLIEST, Bound, SourceOptions
from coterie.spark.source.tasks import FetchSettings, TaskPartition, read_task
from coterie.spark.source.topics import cluster_for, end_offsets, resolved_offsets, selected_partitions

log = logging.getLogger("coterie.spark")

Offsets = dict[TopicPartition, int]


class BatchReader(DataSourceReader):
    """Reads what the options name, once."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs in a process of its own, on the driver's machine."""
        return asyncio.run(plan_batch(self.options, self.pushed))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's records. Runs on an executor."""
        return read_task(partition)


class FilteringReader(BatchReader):
    """The same with filters taken over; Spark refuses such a reader unless filters are switched on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters, and return those that Spark must look at again."""
        self.pushed, again = pushed(filters)
        return again


async def plan_batch(options: SourceOptions, wanted: Pushed) -> list[InputPartition]:
    """Return the tasks of a batch query."""
    for warning in options.warnings:
        log.warning("%s", warning)
    cluster = cluster_for(options)
    try:
        partitions = await selected_partitions(cluster, options.selection)
        earliest = await end_offsets(cluster, partitions, isolation=options.isolation, which=EARLIEST)
        first = await placed(cluster, options.starting, earliest, options)
        until = await placed(cluster, options.ending, earliest, options)
        latest = await end_offsets(cluster, partitions, isolation=options.isolation)
        there = {one: (earliest[one], latest[one]) for one in partitions}
        ranges = [range_of(one, first[one], until[one], there[one], options) for one in partitions]
        ranges = await young(cluster, wanted.narrowed(ranges), wanted, options)
        leaders = await cluster.leaders(partitions)
    finally:
        await cluster.close()
    return tasks_for(ranges, leaders, options)


async def placed(cluster: Cluster, bound: Bound, earliest: Offsets, options: SourceOptions) -> Offsets:
    """Return the offset that the bound means in each partition. A group without a commit is at the start."""
    if bound.default != COMMITTED:
        return await resolved_offsets(cluster, bound, earliest, isolation=options.isolation)
    assert options.group is not None
    committed = await cluster.committed(options.group, earliest)
    return {one: earliest[one] if (held := committed[one]) is None else held for one in earliest}


async def young(cluster: Cluster, ranges: list[Range], wanted: Pushed, options: SourceOptions) -> list[Range]:
    """Return the ranges without the records before the first that is young enough."""
    if wanted.since_ms is None or not ranges:
        return ranges
    stamps = {one.at: wanted.since_ms for one in ranges}
    found = await cluster.list_offsets(stamps, isolation=options.isolation)
    begun = {one.at: found[one.at].offset for one in ranges}
    later = (one._replace(first=max(one.first, begun[one.at])) for one in ranges if begun[one.at] >= 0)
    return [one for one in later if one.size > 0]


def range_of(
    at: TopicPartition, first: int, until: int, there: tuple[int, int], options: SourceOptions
) -> Range:
    """Return the range to read of a partition; raise DataLoss if a part is gone and failOnDataLoss is set.

    With read_committed there may be records behind the end: a start there, which a group may have committed
    without, is no loss.
    """
    earliest, latest = there
    past_end = until > latest or (first > latest and not options.isolation)
    if options.fail_on_data_loss and (first < earliest or past_end):
        raise DataLoss(
            f"{at}: offsets {first} to {until} are asked for, and there are {earliest} to {latest};"
            " with failOnDataLoss=false the query reads what is there"
        )
    first = max(first, earliest)
    return Range(at.topic, at.partition, first, max(first, min(until, latest)))


def tasks_for(
    ranges: Sequence[Range],
    leaders: Mapping[TopicPartition, Address],
    options: SourceOptions,
    source: SourceMember = NO_MEMBER,
) -> list[InputPartition]:
    """Return the tasks for these ranges: split as the options want, else packed into few."""
    settings = FetchSettings.of(options, source)
    groups = groups_of(ranges, options)
    shared = shared_by(groups)
    return [TaskPartition(group, leaders, settings, shared=shared) for group in groups]


def shared_by(groups: Iterable[Iterable[Range]]) -> frozenset[TopicPartition]:
    """Return the partitions that more than one task reads."""
    times = Counter(one.at for group in groups for one in group)
    return frozenset(at for at, count in times.items() if count > 1)


def groups_of(ranges: Sequence[Range], options: SourceOptions) -> list[tuple[Range, ...]]:
    """Return the ranges of each task; the same ranges and options give the same tasks."""
    most = options.max_records_per_partition
    if options.min_partitions is None and most is None:
        return packed(ranges)
    return [(one,) for one in split(ranges, at_least=options.min_partitions, most_records=most)]
