"""The batch reader: ranges by offset or timestamp, planned on the driver, read by tasks."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from coterie.base.ids import TopicPartition
from coterie.client.addresses import Address
from coterie.spark.offsets import Range, packed, split
from coterie.spark.options import EARLIEST, SourceOptions
from coterie.spark.protocol import DataLoss
from coterie.spark.tasks import FetchSettings, TaskPartition, read_task
from coterie.spark.topics import cluster_for, ends, resolved, selected

__all__ = ["BatchReader", "tasks_for"]


class BatchReader(DataSourceReader):
    """Reads what the options name, once."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs in a process of its own, on the driver's machine."""
        return asyncio.run(plan_batch(self.options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's records. Runs on an executor."""
        return read_task(partition)


async def plan_batch(options: SourceOptions) -> list[InputPartition]:
    """Return the tasks of a batch query."""
    cluster = cluster_for(options)
    try:
        partitions = await selected(cluster, options.selection)
        first = await resolved(cluster, options.starting, partitions, isolation=options.isolation)
        until = await resolved(cluster, options.ending, partitions, isolation=options.isolation)
        earliest = await ends(cluster, partitions, isolation=options.isolation, which=EARLIEST)
        latest = await ends(cluster, partitions, isolation=options.isolation)
        there = {one: (earliest[one], latest[one]) for one in partitions}
        ranges = [range_of(one, first[one], until[one], there[one], options) for one in partitions]
        leaders = await cluster.leaders(partitions)
    finally:
        await cluster.close()
    return tasks_for([one for one in ranges if one.size], leaders, options)


def range_of(
    at: TopicPartition, first: int, until: int, there: tuple[int, int], options: SourceOptions
) -> Range:
    """Return what is to be read of a partition, which must be there if data loss is to fail the query."""
    earliest, latest = there
    if options.fail_on_data_loss and (first < earliest or until > latest):
        raise DataLoss(
            f"{at}: offsets {first} to {until} are asked for, and there are {earliest} to {latest};"
            " with failOnDataLoss=false the query reads what is there"
        )
    first = max(first, earliest)
    return Range(at.topic, at.partition, first, max(first, min(until, latest)))


def tasks_for(
    ranges: Sequence[Range], leaders: Mapping[TopicPartition, Address], options: SourceOptions
) -> list[InputPartition]:
    """Return the tasks for these ranges: split as the options want, else packed into few."""
    settings = FetchSettings.of(options)
    return [TaskPartition(group, leaders, settings) for group in groups_of(ranges, options)]


def groups_of(ranges: Sequence[Range], options: SourceOptions) -> list[tuple[Range, ...]]:
    """Return which ranges share a task; the same ranges and options give the same tasks."""
    most = options.max_records_per_partition
    if options.min_partitions is None and most is None:
        return packed(ranges)
    return [(one,) for one in split(ranges, at_least=options.min_partitions, most_records=most)]
