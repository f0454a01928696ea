"""The sink: rows to topics, from every task; with `semantics=exactly-once` each row once, task by task.

Task k of a query has the transactional id `coterie-<query>-<k>`: to begin with it fences whoever was task k
before, a zombie, a retried or a speculative twin. In the group `coterie-sink-<query>-<k>` it finds the last
batch that it has written; if that is this one or a later one, it writes nothing. Else the rows and the
batch's number are one transaction.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import GroupMetadata, OffsetAndMetadata, TopicPartition
from coterie.client import messages
from coterie.client.cluster import Cluster
from coterie.client.producer import Producer
from coterie.spark.names import BadOption
from coterie.spark.shape import SOURCE_FIELDS
from coterie.spark.sink_options import SinkOptions
from coterie.spark.sink_rows import Outbox, Tally, ahead
from coterie.spark.sink_sources import write_with_offsets
from coterie.wire.apis import ApiKey

__all__ = ["BatchSink", "LedgerExpired", "OtherRows", "StreamSink", "refuse_columns"]

COLUMNS = {
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "headers": (ArrayType,),
    "timestamp": (TimestampType,),
}
SOURCE = "source"
LEDGER = "coterie-sink"
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class LedgerExpired(CoterieError):
    """The broker has forgotten which batches a query has written: going on could repeat one."""


class OtherRows(CoterieError):
    """A batch was planned again and gave a task other rows than before: exactly once cannot be kept."""


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """What a task has done, and for which query."""

    rows: int
    query: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """Which task of which batch of which query this is."""

    query: str
    batch: int
    task: int
    attempt: int = -1

    @classmethod
    def now(cls) -> "Turn":
        """Return it, of the task that runs here."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            raise CoterieError("Spark does not tell its task which batch it writes; use at-least-once")
        return cls(query, int(batch), context.partitionId(), context.taskAttemptId())

    @property
    def name(self) -> str:
        """What this task of the query is called, in every batch."""
        return f"{self.query}-{self.task}"


def refuse_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise BadOption for rows that are no records."""
    kinds = {one.name.lower(): one.dataType for one in schema.fields}
    if "value" not in kinds:
        raise BadOption("rows for a topic need a column value")
    if options.topic is None and "topic" not in kinds:
        raise BadOption("rows for a topic need the option topic or a column topic")
    if options.commit_source_offsets:
        refuse_source(kinds.pop(SOURCE, None))
    for name, kind in kinds.items():
        if name not in COLUMNS:
            raise BadOption(f"column {name} has no place in a record; known are {', '.join(COLUMNS)}")
        if not isinstance(kind, COLUMNS[name]):
            wanted = " or ".join(one.__name__.removesuffix("Type").lower() for one in COLUMNS[name])
            raise BadOption(f"column {name} must be {wanted}, not {kind.simpleString()}")


def refuse_source(kind: DataType | None) -> None:
    """Raise BadOption unless rows say where they came from."""
    if not isinstance(kind, StructType) or {name for name, _ in SOURCE_FIELDS} - set(kind.names):
        raise BadOption(
            "commitSourceOffsets=true needs the column source as it was read: set includeSource=true where"
            " the stream is read, and keep the column up to the sink"
        )


class BatchSink(DataSourceArrowWriter):
    """Writes a batch query's rows, at least once: a task that is tried again writes them again."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows. Runs on an executor."""
        return Sent(asyncio.run(write_plainly(self.options, iterator)))


class StreamSink(DataSourceStreamArrowWriter):
    """Writes a streaming query's rows."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows. Runs on an executor."""
        if not self.options.exactly_once:
            return Sent(asyncio.run(write_plainly(self.options, iterator)))
        turn = Turn.now()
        if self.options.commit_source_offsets:
            work = write_with_offsets(self.options, iterator, name=turn.name, attempt=turn.attempt)
            return Sent(asyncio.run(work))
        return Sent(asyncio.run(write_once(self.options, iterator, turn)), turn.query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Note that the batch is done: as long as this is there, so is what the tasks have noted after it."""
        queries = {one.query for one in messages if isinstance(one, Sent) and one.query}
        for query in queries:
            asyncio.run(note_done(self.options, query, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: tasks that were done stay done, and write nothing when the batch is tried again."""


async def write_plainly(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows by an idempotent producer; return how many."""
    async with Producer(**options.settings) as producer, aclosing(ahead(batches)) as coming:
        outbox = Outbox(producer, options)
        async for batch in coming:
            await outbox.send(batch)
        await outbox.finish()
    return outbox.rows


async def write_once(options: SinkOptions, batches: Iterable[pa.RecordBatch], turn: Turn) -> int:
    """Write rows and the batch's number in one transaction, unless that was done; return how many."""
    assert options.ledger_topic is not None
    place = TopicPartition(options.ledger_topic, 0)
    settings = {**options.settings, "transactional_id": f"coterie-{turn.name}"}
    async with Producer(**settings) as producer:
        # Whoever was this task before can write no more, and what it left open is over.
        done = await noted(options, f"{LEDGER}-{turn.name}", place)
        if turn.batch > 0 and not options.start_ledger and done is None:
            await refuse_expired(options, turn, place)
        if done is not None and done.offset >= turn.batch:
            return compared(batches, done, turn)
        outbox, tally = Outbox(producer, options), Tally()
        async with producer.transaction(), aclosing(ahead(batches)) as coming:
            async for batch in coming:
                tally.add(batch)
                await outbox.send(batch)
            note = OffsetAndMetadata(turn.batch, metadata=str(tally))
            await producer.send_offsets({place: note}, GroupMetadata(f"{LEDGER}-{turn.name}"))
    return outbox.rows


# The ledger


async def noted(options: SinkOptions, group: str, place: TopicPartition) -> OffsetAndMetadata | None:
    """Return what a group has noted, once no transaction is in doubt."""
    cluster = Cluster.of(options.producer())

    async def ask() -> OffsetAndMetadata | None:
        broker = await cluster.connection(await cluster.coordinator(group))
        answer = await broker.call(
            ApiKey.OFFSET_FETCH,
            lambda version: messages.offset_fetch(version, group, [place]),
            cluster.request_timeout_s,
        )
        return messages.read_noted(answer, group)

    try:
        return await cluster.retrying(f"what group {group} has noted", ask)
    finally:
        await cluster.close()


async def note_done(options: SinkOptions, query: str, batch: int) -> None:
    """Note in the query's own group that a batch is written."""
    assert options.ledger_topic is not None
    cluster = Cluster.of(options.producer())
    try:
        group = f"{LEDGER}-{query}"
        code = await cluster.commit(group, {TopicPartition(options.ledger_topic, 0): batch})
        if code:
            raise RefusedBy(code, f"group {group} notes batch {batch}")
    finally:
        await cluster.close()


async def refuse_expired(options: SinkOptions, turn: Turn, place: TopicPartition) -> None:
    """Raise LedgerExpired unless the query's ledger is there: then this task had nothing to note so far."""
    if await noted(options, f"{LEDGER}-{turn.query}", place) is None:
        raise LedgerExpired(
            f"batch {turn.batch} of query {turn.query}: its ledger, groups {LEDGER}-{turn.query}…, is gone"
            " (offsets.retention.minutes after the last batch). If no batch is unfinished, or if repeated"
            " rows do no harm, start once with startLedger=true"
        )


def compared(batches: Iterable[pa.RecordBatch], done: OffsetAndMetadata, turn: Turn) -> int:
    """Return 0, for the batch is written; raise OtherRows if the task's rows are not those of then."""
    tally = Tally()
    for batch in batches:
        tally.add(batch)
    if done.offset == turn.batch and done.metadata and done.metadata != str(tally):
        raise OtherRows(
            f"task {turn.task} of batch {turn.batch} wrote {done.metadata}, and a replay gave it {tally}: the"
            " query's plan is not deterministic, or has another number of tasks than before"
        )
    return 0
