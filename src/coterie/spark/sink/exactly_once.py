"""Each batch once: a task's rows and the batch's number are one transaction, by which a replay is recognised.

The ledger is committed offsets of groups without members. `coterie-sink-<query>-<k>` holds the last batch
that task k has written, and a checksum of its rows; `coterie-sink-<query>` the last that all have written,
and how many tasks there were at most.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import NOTES, GroupMetadata, OffsetAndMetadata, TopicPartition
from coterie.client.net.cluster import Cluster
from coterie.spark.sink.checksum import RowsChecksum, read_note
from coterie.spark.sink.options import SinkOptions
from coterie.spark.sink.rows import cluster_of, producer_over, send_in_transaction

logger = logging.getLogger("coterie.spark")

QUERY, BATCH, RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"

last_noted: dict[str, tuple[str, int]] = {}
"""The last batch of each query that this process has noted, and in which of its runs."""


class LedgerExpired(CoterieError):
    """The broker has forgotten which batches a query has written: going on could repeat one."""


class OtherRows(CoterieError):
    """A batch was planned again and gave a task other rows than before: exactly once cannot be kept."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """Which task of which batch of which query this is, and Spark's number of the attempt at it."""

    query: str
    batch: int
    task: int
    number: int = -1
    run: str = ""
    """Spark's id of the time from the query's start to its end."""

    @classmethod
    def now(cls) -> "TaskAttempt":
        """Return the attempt that runs in this process."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            raise CoterieError("Spark does not tell its task which batch it writes; use at-least-once")
        run = context.getLocalProperty(RUN) or ""
        return cls(query, int(batch), context.partitionId(), context.taskAttemptId(), run)

    @property
    def name(self) -> str:
        """What this task of the query is called, in every batch."""
        return f"{self.query}-{self.task}"


async def write_once(options: SinkOptions, batches: Iterable[pa.RecordBatch], attempt: TaskAttempt) -> int:
    """Write rows and the batch's number in one transaction, unless that was done; return how many."""
    checksum = RowsChecksum()

    async def summed(batch: pa.RecordBatch) -> pa.RecordBatch:
        checksum.add(batch)
        return batch

    async with cluster_of(options) as cluster, producer_over(cluster, options, attempt.name) as producer:
        # Whoever was this task before can write no more, and what it left open is over.
        done = await done_before(cluster, options, attempt)
        if done is not None and done.offset >= attempt.batch:
            return check_replay(batches, done, attempt, anyway=options.start_ledger)

        async def note() -> None:
            written = OffsetAndMetadata(attempt.batch, metadata=checksum.note())
            await producer.send_offsets(
                {place_of(options): written}, GroupMetadata(f"{NOTES}-{attempt.name}")
            )

        return await send_in_transaction(producer, options, batches, summed, note)


async def done_before(
    cluster: Cluster, options: SinkOptions, attempt: TaskAttempt
) -> OffsetAndMetadata | None:
    """Return the task's last note, None before its first; raise LedgerExpired if it may have been forgotten.

    Where the query's own note is there, a task without one had nothing to note so far.
    """
    done = await noted(cluster, f"{NOTES}-{attempt.name}", options)
    if done is not None or attempt.batch == 0 or options.start_ledger:
        return done
    if await noted(cluster, f"{NOTES}-{attempt.query}", options) is not None:
        return None
    raise LedgerExpired(
        f"batch {attempt.batch} of query {attempt.query}: its ledger, groups {NOTES}-{attempt.query}…, is"
        " gone (offsets.retention.minutes after the last batch). If no batch is unfinished, or if repeated"
        " rows do no harm, start once with startLedger=true"
    )


def check_replay(
    batches: Iterable[pa.RecordBatch], done: OffsetAndMetadata, attempt: TaskAttempt, *, anyway: bool
) -> int:
    """Return 0, for the batch is written; raise OtherRows if the task's rows are not those of then.

    `anyway`: only say so. What the task wrote stays, and what it has now is not written.
    """
    if done.offset > attempt.batch:
        raise OtherRows(
            f"task {attempt.task} has written batch {done.offset}, and batch {attempt.batch} comes after it:"
            " this is a zombie's, or the query's checkpoint was set back. Start with a new checkpoint, or"
            " give it back the newest"
        )
    written, dead_then = read_note(done.metadata)
    checksum = RowsChecksum(dead_then)
    for batch in batches:
        checksum.add(batch)
    if written and written != str(checksum):
        why = (
            f"task {attempt.task} of batch {attempt.batch} wrote {written}, and a replay gave it"
            f" {checksum}: the group has given partitions to others meanwhile, the query's plan is not"
            " deterministic, it has another number of tasks than before, or its values are decoded otherwise"
            " (another value.check or value.schema; a schema that was deleted, or registered since where the"
            " query drops dead letters instead of having them written by deadLetterTopic)"
        )
        if not anyway:
            raise OtherRows(
                f"{why}. A source with group.id needs commitSourceOffsets=true. To go on with what was"
                " written then and without the rows of now, start once with startLedger=true"
            )
        logger.warning("%s; startLedger=true: the rows of now are left out", why)
    return 0


async def note_done(options: SinkOptions, query: str, batch: int, *, tasks: int, run: str = "") -> None:
    """Note in the query's own group that a batch is written, by so many tasks.

    As long as this note is there, so is what the tasks note after it. Only the first batch of a run can have
    been tried before with more tasks: after one that this run has noted, nobody else is asked.
    """
    first = not run or last_noted.get(query) != (run, batch - 1)
    group = f"{NOTES}-{query}"
    async with cluster_of(options) as cluster:
        before = await noted(cluster, group, options)
        most = max(tasks, int(before.metadata or 0) if before else 0)
        if first and not options.start_ledger:
            await refuse_other_tasks(cluster, options, query, batch, range(tasks, most))
        note = OffsetAndMetadata(batch, metadata=str(most))
        code = await cluster.commit(group, {place_of(options): note})
        if code:
            raise RefusedBy(code, f"group {group} notes batch {batch}")
        last_noted[query] = (run, batch)


async def refuse_other_tasks(
    cluster: Cluster, options: SinkOptions, query: str, batch: int, others: Iterable[int]
) -> None:
    """Raise OtherRows if tasks that the batch has no more have written it, too: it was planned otherwise."""
    groups = (f"{NOTES}-{query}-{task}" for task in others)
    found = await cluster.notes_of_groups(groups, place_of(options))
    wrote = [group for group, note in found.items() if note and note.offset == batch]
    if wrote:
        raise OtherRows(
            f"batch {batch} had more tasks when it was tried before ({', '.join(wrote)} have written it):"
            " their rows are there twice. A replay needs the same minPartitions, maxRecordsPerPartition and"
            " spark.sql.shuffle.partitions; to go on nevertheless, start once with startLedger=true"
        )


def place_of(options: SinkOptions) -> TopicPartition:
    """Return the partition under whose name batches are noted."""
    assert options.ledger_topic is not None
    return TopicPartition(options.ledger_topic, 0)


async def noted(cluster: Cluster, group: str, options: SinkOptions) -> OffsetAndMetadata | None:
    """Return a group's note, once no transaction is in doubt; None where it has none."""
    place = place_of(options)
    return (await cluster.committed_notes(group, [place]))[place]
