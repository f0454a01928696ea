"""A live cluster: the records of `__consumer_offsets` as the source reads them, and where topics end now."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from threading import Lock
from typing import Any, TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from coterie.base.ids import TopicPartition
from coterie.client.blocking.loop import LoopThread
from coterie.history.log.layout import OFFSETS, STORY
from coterie.history.log.records import Entry, read_entry
from coterie.history.watch import Alarm, Watch
from coterie.spark.source.options import SourceOptions, parse
from coterie.spark.source.topics import cluster_for, end_offsets

T = TypeVar("T")
COLUMNS = ("key", "value", "partition", "offset", "timestamp")
LOOK_EVERY_S = 1
AT_ONCE = 200_000
"""Records that the driver takes in at a time: a long log is caught up with in pieces."""


def options_of(client: Mapping[str, Any], topic: str = OFFSETS) -> dict[str, str]:
    """Return the source's options for a client's settings, which are in snake case."""
    given = {f"kafka.{name.replace('_', '.')}": str(value) for name, value in client.items()}
    return {**given, "kafka.isolation.level": "read_committed", "subscribe": topic}


def live_records(spark: SparkSession, client: Mapping[str, Any], topic: str = OFFSETS) -> DataFrame:
    """Return all that the cluster's log of groups, or its story of them, holds now."""
    return spark.read.format("coterie").options(**options_of(client, topic)).load()


def has_story(client: Mapping[str, Any]) -> bool:
    """Return whether the cluster keeps a story of its groups that this client may see: Coterie's does."""
    return run_beside(asked_for_story(parse(options_of(client), streaming=False)))


def run_beside(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work, done in a thread of its own: in a notebook's a loop runs already."""
    thread = LoopThread("coterie")
    try:
        return thread.submit(work).result()
    finally:
        thread.stop()


async def asked_for_story(options: SourceOptions) -> bool:
    cluster = cluster_for(options)
    try:
        return STORY in (await cluster.metadata({STORY})).partition_counts()
    finally:
        await cluster.close()


def entries_in(records: DataFrame) -> list[Entry]:
    """Return records as they are told of in one process: of each partition in its order."""
    table = records.select(*COLUMNS).toArrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    columns = [table[name].to_pylist() for name in COLUMNS]
    return [
        read_entry(key or b"", value, place=offset, at_ms=int(at.timestamp() * 1000))
        for key, value, _, offset, at in zip(*columns, strict=True)
    ]


def live_ends(client: Mapping[str, Any], topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return the end offsets of the partitions of those of these topics that there are."""
    return run_beside(asked_ends(parse(options_of(client), streaming=False), set(topics)))


async def asked_ends(options: SourceOptions, topics: set[str]) -> dict[tuple[str, int], int]:
    cluster = cluster_for(options)
    try:
        counts = (await cluster.metadata(None)).partition_counts()
        there = [TopicPartition(topic, number) for topic in topics for number in range(counts.get(topic, 0))]
        found = await end_offsets(cluster, there, isolation=options.isolation)
        return {(one.topic, one.partition): end for one, end in found.items()}
    finally:
        await cluster.close()


def watch(
    spark: SparkSession,
    client: Mapping[str, Any],
    raised: Callable[[Alarm], None],
    *,
    stuck_after_ms: int,
    now_ms: Callable[[], int],
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Watch the groups of a cluster until the query ends, or `until` says so; an alarm is raised once."""
    seen = Watch(stuck_after_ms=stuck_after_ms)
    one_at_a_time = Lock()  # Spark hands over batches on a thread of its own

    def take(batch: DataFrame, _: int) -> None:
        entries = entries_in(batch)
        with one_at_a_time:
            for alarm in seen.take(entries):
                raised(alarm)

    options = options_of(client) | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(AT_ONCE)}
    stream = spark.readStream.format("coterie").options(**options).load()
    query = stream.writeStream.foreachBatch(take).start()
    try:
        while not query.awaitTermination(LOOK_EVERY_S) and not until():
            with one_at_a_time:
                topics = {topic for _, topic, _ in seen.silent(now_ms())}
            found = live_ends(client, topics) if topics else {}
            with one_at_a_time:
                for alarm in seen.stuck(found, now_ms()):
                    raised(alarm)
    except StreamingQueryException:
        if not until():  # what ends the watch may have ended the query as well: Ctrl-C reaches its processes
            raise
    finally:
        query.stop()
