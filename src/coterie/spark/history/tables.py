"""The DataFrames of a history, from a directory of segments or from the records of a live cluster.

found = read_directory(spark, "/var/lib/kafka")
found.generations.where("array_contains(causes, 'session-expired')").show()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from coterie.base.ids import NOTES_NAMED
from coterie.history.log.layout import STORY
from coterie.history.tables import History
from coterie.spark.history import reading
from coterie.spark.history.commits import COMMITS, commits_of_records, commits_of_units
from coterie.spark.history.files import Unit, all_whole, ends_of, shared_out, units
from coterie.spark.history.histories import packed_histories
from coterie.spark.history.reduce import EVENTS
from coterie.spark.history.schemas import (
    TABLES,
    histories_in,
    packed_schema,
    spark_schema,
    unpacked,
)
from coterie.spark.history.session import cores

SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}


def spark_type(schema: pa.Schema) -> StructType:
    return StructType([StructField(one.name, SPARK_TYPES[one.type], True) for one in schema])


TASKS_A_CORE = 4
"""Enough for all cores to end together; each task takes some 30 ms to begin."""

Ends: TypeAlias = Callable[[Iterable[str]], dict[tuple[str, int], int]]
"""Says of these topics where their partitions end."""


class Histories:
    """What happened to all groups: a DataFrame a table. They are made once, when the first is asked for."""

    def __init__(
        self,
        events: DataFrame,
        commits: DataFrame,
        ends: Ends | None = None,
        *,
        packed: Callable[[], DataFrame] | None = None,
    ) -> None:
        self._events, self.commits, self._ends = events, commits, ends
        self._make = packed or self._packed_of_events

    @property
    def spark(self) -> SparkSession:
        """The session that all of it runs in."""
        return self._events.sparkSession

    def sorted_events(self, tasks: int | None = None) -> DataFrame:
        """Return the events of all groups, each group's in one of so many tasks (Spark's choice)."""
        numbers = () if tasks is None else (tasks,)
        return self._events.repartition(*numbers, "group_id").sortWithinPartitions("group_id", "place")

    @cached_property
    def packed(self) -> DataFrame:
        """A row for some groups, a column a table, packed: what all the others are taken from."""
        return self._make().persist()

    def _packed_of_events(self) -> DataFrame:
        return self.sorted_events().mapInArrow(packed_histories, packed_schema())

    def each(self) -> Iterator[History]:
        """Yield the history of each group, some groups at a time: never all of them are in the driver."""
        for row in self.packed.toLocalIterator():
            yield from histories_in(row.asDict())

    def table(self, name: str) -> DataFrame:
        """Return one table by its name; docs/history.md describes its columns."""
        if name == "commits":
            return self.commits
        if name == "lag":
            return self.lag
        few = self.packed.select(name).coalesce(cores(self.spark))
        return few.mapInArrow(unpacking, spark_schema(name))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables."""
        return (*TABLES, "commits", *(("lag",) if self._ends else ()))

    @property
    def generations(self) -> DataFrame:
        return self.table("generations")

    @property
    def assignments(self) -> DataFrame:
        return self.table("assignments")

    @property
    def ownership(self) -> DataFrame:
        return self.table("ownership")

    @property
    def stalls(self) -> DataFrame:
        return self.table("stalls")

    @property
    def moves(self) -> DataFrame:
        return self.table("moves")

    @property
    def replacements(self) -> DataFrame:
        return self.table("replacements")

    @property
    def waves(self) -> DataFrame:
        return self.table("waves")

    @property
    def subscriptions(self) -> DataFrame:
        return self.table("subscriptions")

    @property
    def lag(self) -> DataFrame:
        """How far each group was behind at last, of the topics whose ends are known: those in the same
        directory, or all of a live cluster. Null for groups that commit numbers of batches.
        """
        assert self._ends is not None, "where the topics end is not known of mere records"
        behind = (
            self._events.where("kind = -1")
            .groupBy("group_id", "topic", "partition")
            .agg(f.max_by("last", "place").alias("committed"), f.max("last_ms").alias("ms"))
        )
        topics = [row.topic for row in behind.select("topic").distinct().collect()]
        ends = [(topic, partition, end) for (topic, partition), end in self._ends(topics).items()]
        schema = "topic string, partition int, end_offset bigint"
        known = self._events.sparkSession.createDataFrame(ends, schema)
        left = f.greatest(f.col("end_offset") - f.col("committed"), f.lit(0))
        return behind.join(f.broadcast(known), ["topic", "partition"]).select(
            "group_id", "topic", "partition", "committed", "end_offset",
            f.when(~f.col("group_id").rlike(f"^{NOTES_NAMED}$"), left).alias("lag"),
            f.timestamp_millis("ms").alias("committed_at"),
        )  # fmt: skip

    def write_parquet(self, into: str, tables: Iterable[str] | None = None) -> None:
        """Write one folder a table, of all tables or of these."""
        for name in self.names if tables is None else tables:
            self.table(name).write.mode("overwrite").parquet(f"{into}/{name}")


def read_directory(spark: SparkSession, directory: str | Path) -> Histories:
    """Return the histories of all groups whose segments lie in a broker's log directory.

    Spark's workers read the files: on a cluster the directory must be where all of them see it.
    """
    found = units(Path(directory))
    planned, tasks = planned_on(spark, found)
    events = planned.mapInArrow(partial(reading_units, tasks), spark_type(EVENTS))
    commits = planned.mapInArrow(partial(reading_commits, tasks), spark_type(COMMITS))
    packing = partial(planned.mapInArrow, partial(history_units, tasks), packed_schema())
    packed = packing if all_whole(found) else None
    return Histories(events, commits, partial(ends_of, Path(directory)), packed=packed)


def read_cluster(spark: SparkSession, **client: Any) -> Histories:
    """Return the histories of all groups of a live cluster, as its log holds them now.

    The client's settings are Kafka's in snake case: `read_cluster(spark, bootstrap_servers="broker:9092")`.
    """
    from coterie.spark.history.live import has_story, live_ends, live_records

    story = live_records(spark, client, STORY) if has_story(client) else None
    return read_records(live_records(spark, client), partial(live_ends, client), story=story)


def read_records(
    records: DataFrame, ends: Ends | None = None, *, story: DataFrame | None = None
) -> Histories:
    """Return the histories of all groups from records of `__consumer_offsets`, as the source reads them.

    The DataFrame has key, value, partition, offset and timestamp, and a partition's records in their order.
    With the records of `__group_story` what Coterie's broker tells of causes and times stands.
    """
    columns = records.select("key", "value", "partition", "offset", "timestamp")
    events = columns.mapInArrow(reading.events_of_records, spark_type(EVENTS))
    if story is not None:
        lines = story.select("key", "value", "partition", "offset")
        events = events.union(lines.mapInArrow(reading.events_of_story, spark_type(EVENTS)))
    return Histories(events, columns.mapInArrow(commits_of_records, spark_type(COMMITS)), ends)


def planned_on(spark: SparkSession, found: list[Unit]) -> tuple[DataFrame, list[list[Unit]]]:
    """Return a DataFrame of a row and partition a task, and the units that each task reads by its number."""
    tasks = shared_out(found, TASKS_A_CORE * cores(spark))
    return spark.range(0, len(tasks), 1, len(tasks)), tasks


def units_in(tasks: Sequence[Sequence[Unit]], batches: Iterable[pa.RecordBatch]) -> Iterator[Unit]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from tasks[number]


def reading_units(
    tasks: Sequence[Sequence[Unit]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return reading.events_of_units(units_in(tasks, batches))


def history_units(
    tasks: Sequence[Sequence[Unit]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return reading.histories_of_units(units_in(tasks, batches))


def unpacking(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table that was packed."""
    for batch in batches:
        for data in batch.column(0).to_pylist():
            yield from unpacked(data)


def reading_commits(
    tasks: Sequence[Sequence[Unit]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return commits_of_units(units_in(tasks, batches))
