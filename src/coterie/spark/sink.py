"""The sink: rows to topics, from every task; with `semantics=exactly-once` each row once, task by task.

Task k of a query has the transactional id `coterie-<query>-<k>`: to begin with it fences whoever was task k
before, a zombie, a retried or a speculative twin. In the group `coterie-sink-<query>-<k>` it finds the last
batch that it has written; if that is this one or a later one, it writes nothing. Else the rows and the
batch's number are one transaction.
"""

import asyncio
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import GroupMetadata, OffsetAndMetadata, TopicPartition
from coterie.client import messages
from coterie.client.cluster import Cluster
from coterie.client.delivery import Delivery
from coterie.client.producer import Producer
from coterie.spark.names import BadOption
from coterie.spark.sink_options import SinkOptions
from coterie.wire.apis import ApiKey

__all__ = ["BatchSink", "LedgerExpired", "OtherRows", "StreamSink", "refuse_columns"]

COLUMNS = {
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "headers": (ArrayType,),
}
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

    @classmethod
    def now(cls) -> "Turn":
        """Return it, of the task that runs here."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            raise CoterieError("Spark does not tell its task which batch it writes; use at-least-once")
        return cls(query, int(batch), context.partitionId())

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
    for name, kind in kinds.items():
        if name not in COLUMNS:
            raise BadOption(f"column {name} has no place in a record; known are {', '.join(COLUMNS)}")
        if not isinstance(kind, COLUMNS[name]):
            wanted = " or ".join(one.__name__.removesuffix("Type").lower() for one in COLUMNS[name])
            raise BadOption(f"column {name} must be {wanted}, not {kind.simpleString()}")


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
    async with Producer(**producer_settings(options)) as producer:
        count, last = 0, list[Delivery]()
        for batch in batches:
            sent = [await send(producer, options, row) for row in rows_of(batch)]
            count += len(sent)
            # One batch is on its way while the next is read.
            await all_delivered(last)
            last = sent
        await producer.flush()
        await all_delivered(last)
    return count


async def all_delivered(deliveries: Iterable[Delivery]) -> None:
    """Return when all are, or raise why one is not."""
    for one in deliveries:
        await one


async def write_once(options: SinkOptions, batches: Iterable[pa.RecordBatch], turn: Turn) -> int:
    """Write rows and the batch's number in one transaction, unless that was done; return how many."""
    assert options.ledger_topic is not None
    place = TopicPartition(options.ledger_topic, 0)
    named = producer_settings(options, transactional_id=f"coterie-{turn.name}")
    async with Producer(**named) as producer:
        # Whoever was this task before can write no more, and what it left open is over.
        done = await noted(options, f"{LEDGER}-{turn.name}", place)
        if turn.batch > 0 and not options.start_ledger and done is None:
            await refuse_expired(options, turn, place)
        if done is not None and done.offset >= turn.batch:
            return compared(batches, done, turn)
        tally = Tally()
        async with producer.transaction():
            for batch in batches:
                for row in rows_of(batch):
                    tally.add(row)
                    await send(producer, options, row)
            note = OffsetAndMetadata(turn.batch, metadata=str(tally))
            await producer.send_offsets({place: note}, GroupMetadata(f"{LEDGER}-{turn.name}"))
    return tally.rows


def producer_settings(options: SinkOptions, **more: Any) -> dict[str, Any]:
    """Return the producer's settings as its constructor wants them."""
    return {**options.settings, **more}


# Rows


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield a batch's rows, keys and values as bytes."""
    names = [name.lower() for name in batch.schema.names]
    columns = [
        pc.cast(column, pa.binary()) if name in ("key", "value") else column
        for name, column in zip(names, batch.columns, strict=True)
    ]
    yield from pa.RecordBatch.from_arrays(columns, names=names).to_pylist()


async def send(producer: Producer, options: SinkOptions, row: dict[str, Any]) -> Delivery:
    """Hand a row to the producer."""
    topic = options.topic or row.get("topic")
    if topic is None:
        raise CoterieError("a row's topic is null, and the option topic is not set")
    headers = row.get("headers")
    return await producer.send(
        topic,
        row["value"],
        key=row.get("key"),
        partition=row.get("partition"),
        headers=None if headers is None else tuple((one["key"], one["value"]) for one in headers),
    )


class Tally:
    """How many rows a task had, and a checksum of their keys and values in order."""

    def __init__(self) -> None:
        self.rows, self._sum = 0, 0

    def add(self, row: dict[str, Any]) -> None:
        """Count a row."""
        self.rows += 1
        for part in (row.get("key"), row["value"]):
            self._sum = zlib.crc32(b"\0" if part is None else b"\1" + part, self._sum)

    def __str__(self) -> str:
        return f"{self.rows} rows {self._sum:08x}"


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
        for row in rows_of(batch):
            tally.add(row)
    if done.offset == turn.batch and done.metadata and done.metadata != str(tally):
        raise OtherRows(
            f"task {turn.task} of batch {turn.batch} wrote {done.metadata}, and a replay gave it {tally}: the"
            " query's plan is not deterministic, or has another number of tasks than before"
        )
    return 0
