"""The sink: rows to topics, from every task; with `semantics=exactly-once` each row once, task by task.

Task k of a query has the transactional id `coterie-<query>-<k>`: to begin with it fences whoever was task k
before, a zombie, a retried or a speculative twin. What is written already is told by a ledger: the number of
the batch (`exactly_once`), or the committed offsets of what was read (`copying`).
"""

from collections.abc import Coroutine, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
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

from coterie.spark.options import BadOption
from coterie.spark.sink.copying import write_with_offsets
from coterie.spark.sink.exactly_once import TaskAttempt, note_done, write_once
from coterie.spark.sink.options import SinkOptions
from coterie.spark.sink.rows import DEAD_LETTER, Outbox, cluster_of, producer_over, read_ahead
from coterie.spark.sink.worker_loop import WORKER_LOOP
from coterie.spark.source.datasource import SOURCE
from coterie.spark.worker_reuse import settle

COLUMNS = {
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "headers": (ArrayType,),
    "timestamp": (TimestampType,),
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """What a task has done, and for which query."""

    rows: int
    query: str = ""
    run: str = ""


def refuse_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise BadOption for rows that are no records."""
    kinds = {one.name.lower(): one.dataType for one in schema.fields}
    if "value" not in kinds:
        raise BadOption("rows for a topic need a column value")
    if options.topic is None and "topic" not in kinds:
        raise BadOption("rows for a topic need the option topic or a column topic")
    if options.commit_source_offsets:
        refuse_source(kinds.pop("source", None))
    if options.dead_letter_topic is not None:
        refuse_letters(kinds.pop(DEAD_LETTER, None))
    for name, kind in kinds.items():
        if name not in COLUMNS:
            hint = "; deadLetterTopic says where to" if name == DEAD_LETTER else ""
            raise BadOption(f"column {name} has no place in a record; known are {', '.join(COLUMNS)}{hint}")
        if not isinstance(kind, COLUMNS[name]):
            wanted = " or ".join(one.__name__.removesuffix("Type").lower() for one in COLUMNS[name])
            raise BadOption(f"column {name} must be {wanted}, not {kind.simpleString()}")


def refuse_letters(kind: DataType | None) -> None:
    """Raise BadOption unless rows say which of them are dead letters."""
    if not isinstance(kind, StructType) or {"reason", "value"} - set(kind.names):
        raise BadOption(
            "deadLetterTopic needs the column deadLetter as it was read: set deadLetterColumn=true where the"
            " records are read, and keep the column up to the sink"
        )


def refuse_source(kind: DataType | None) -> None:
    """Raise BadOption unless rows say where they came from."""
    if not isinstance(kind, StructType) or set(SOURCE.names) - set(kind.names):
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
        return Sent(run(write_plainly(self.options, iterator)))


class StreamSink(DataSourceStreamArrowWriter):
    """Writes a streaming query's rows."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows. Runs on an executor."""
        if not self.options.exactly_once:
            return Sent(run(write_plainly(self.options, iterator)))
        attempt = TaskAttempt.now()
        if self.options.commit_source_offsets:
            work = write_with_offsets(self.options, iterator, name=attempt.name, attempt=attempt.number)
            return Sent(run(work))
        return Sent(run(write_once(self.options, iterator, attempt)), attempt.query, attempt.run)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Note that the batch is done: as long as this is there, so is what the tasks have noted after it."""
        queries = {(one.query, one.run) for one in messages if isinstance(one, Sent) and one.query}
        for query, run_id in queries:
            WORKER_LOOP.run(note_done(self.options, query, batchId, tasks=len(messages), run=run_id))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: tasks that were done stay done, and write nothing when the batch is tried again."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a task's coroutine."""
    done = WORKER_LOOP.run(work)
    settle("writing")
    return done


async def write_plainly(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows by an idempotent producer; return how many."""
    async with (
        cluster_of(options) as cluster,
        producer_over(cluster, options) as producer,
        aclosing(read_ahead(batches)) as coming,
    ):
        outbox = Outbox(producer, options)
        async for batch in coming:
            await outbox.send(batch)
        await outbox.finish()
    return outbox.rows
