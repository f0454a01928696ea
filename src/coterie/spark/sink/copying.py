"""Topic to topic: what is read and what is written are one transaction of each task.

Rows carry where they came from (`includeSource`). A task takes of each partition all that its batch reads
there. It commits the end of that range in the transaction of its rows, so the group's committed offset is the
ledger: whoever reads next, this query or another, begins after what is written. The coordinator takes the
commit only from the member of the generation in which the rows were read.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from coterie.base.errors import CoterieError
from coterie.base.ids import GroupMetadata, OffsetAndMetadata, TopicPartition
from coterie.client.producer.errors import TransactionFailed
from coterie.client.producer.producer import Producer
from coterie.spark.sink.options import SinkOptions
from coterie.spark.sink.rows import cluster_of, columns_by_name, producer_over, send_in_transaction
from coterie.spark.source.columns import SourceMember, TaskRange
from coterie.spark.source.datasource import SOURCE

Notes = Mapping[TopicPartition, OffsetAndMetadata | None]
COLUMN = "source"


class NotOurs(CoterieError):
    """Rows whose offsets this task cannot commit: others may have the rest of a partition. Says why."""


class PartitionsLost(CoterieError):
    """The group has taken away what a task's rows were read from: nothing of the task is written."""


class RowOrigin(NamedTuple):
    """Where rows say that they came from, and who read them."""

    member: SourceMember
    at: TopicPartition
    range: TaskRange

    @property
    def reader(self) -> GroupMetadata:
        """The member that read it, as its offsets are committed."""
        one = self.member
        assert one.group is not None
        return GroupMetadata(one.group, one.generation, one.member or "", one.instance)


ORIGIN = (*SourceMember._fields, *TopicPartition._fields, *TaskRange._fields)
"""The fields of the column `source` that are the same in all rows that a task has read of a partition."""


async def write_with_offsets(
    options: SinkOptions, batches: Iterable[pa.RecordBatch], *, name: str, attempt: int
) -> int:
    """Write rows and the offsets up to which they were read in one transaction; return how many rows.

    `name` is the task's, in every batch of its query: to begin with it fences who had it before.
    """
    async with cluster_of(options) as cluster, producer_over(cluster, options, name) as producer:
        written = WrittenOffsets(name=name, attempt=attempt, ask=cluster.committed_notes)

        async def commit_all() -> None:
            for reader, offsets in written.due().items():
                await commit(producer, reader, offsets)

        return await send_in_transaction(producer, options, batches, written.left, commit_all)


async def commit(
    producer: Producer, reader: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Commit offsets for a member within the transaction, or raise why that is not its to do any more."""
    try:
        await producer.send_offsets(offsets, reader)
    except TransactionFailed as error:
        raise PartitionsLost(
            f"group {reader.group_id} has taken {', '.join(map(str, sorted(offsets)))} away from member"
            f" {reader.member_id} of generation {reader.generation} while the batch was written"
            f" ({error.code.name}). Nothing of this task is written, and whoever owns them now reads them"
            " again. Start the query again; if batches outlast kafka.max.poll.interval.ms, make them smaller"
        ) from error


class WrittenOffsets:
    """Up to where each partition is written, by what the group has committed."""

    def __init__(
        self,
        *,
        name: str,
        attempt: int,
        ask: Callable[[str, Iterable[TopicPartition]], Awaitable[Notes]],
    ) -> None:
        self._name, self._attempt, self._ask = name, attempt, ask
        self._stored: dict[RowOrigin, int] = {}

    async def left(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not written yet, or raise why this task cannot account for them."""
        columns = sources_of(batch)
        origins = origins_of(columns, attempt=self._attempt)
        await self._learn([one for one in origins if one not in self._stored])
        written = [one for one in origins if self._stored[one] > one.range.first]
        if written:
            gone = [
                reduce(
                    pc.and_,
                    (
                        pc.equal(columns["topic"], one.at.topic),
                        pc.equal(columns["partition"], one.at.partition),
                        pc.less(columns["offset"], self._stored[one]),
                    ),
                )
                for one in written
            ]
            batch = batch.filter(pc.invert(reduce(pc.or_, gone)))
        return batch

    def due(self) -> dict[GroupMetadata, dict[TopicPartition, OffsetAndMetadata]]:
        """Return the offsets to commit with the rows, by the member that read them: none is lowered."""
        due: dict[GroupMetadata, dict[TopicPartition, OffsetAndMetadata]] = defaultdict(dict)
        for one, stored in self._stored.items():
            if stored < one.range.until:
                due[one.reader][one.at] = OffsetAndMetadata(one.range.until, metadata=self._name)
        return dict(due)

    async def _learn(self, fresh: Iterable[RowOrigin]) -> None:
        """Ask up to where partitions are written that were not seen before."""
        by_group: dict[str, list[RowOrigin]] = defaultdict(list)
        for one in fresh:
            by_group[one.reader.group_id].append(one)
        for group, origins in by_group.items():
            noted = await self._ask(group, [one.at for one in origins])
            for one in origins:
                self._stored[one] = self._judged(one, noted[one.at])

    def _judged(self, one: RowOrigin, noted: OffsetAndMetadata | None) -> int:
        """Return the committed offset of a partition, or raise why it cannot be gone on from."""
        if any(other.at == one.at and other.member.group == one.member.group for other in self._stored):
            raise NotOurs(f"{one.at} was read twice into one task; commitSourceOffsets needs it once")
        where = f"group {one.member.group}, {one.at}"
        if noted is None:
            raise NotOurs(
                f"{where}: the group has no committed offset here. This is another cluster than the source's,"
                " or the offset has expired (offsets.retention.minutes): what is written cannot be known"
            )
        if noted.offset < one.range.first:
            raise NotOurs(
                f"{where}: the committed offset is {noted.offset}, below {one.range.first}, where this batch"
                " begins: somebody set it back. Start the query with a new checkpoint to read from there"
            )
        if noted.offset > one.range.first and noted.metadata != self._name:
            raise NotOurs(
                f"{where}: offsets {one.range.first} to {noted.offset - 1} of this batch were committed by"
                f" {noted.metadata or 'a member'} and not by this task, {self._name}: another one has read"
                " the partition, too"
            )
        return noted.offset


def sources_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the fields of a batch's source, or raise NotOurs for rows without."""
    column = columns_by_name(batch)[COLUMN]
    if column.null_count:
        raise NotOurs("a row's source is null: each row must keep that of the record that it was made of")
    return {name: column.field(name) for name in SOURCE.names}


def origins_of(columns: Mapping[str, pa.Array], *, attempt: int) -> list[RowOrigin]:
    """Return the origins of rows, each once; raise NotOurs where their offsets are not this task's."""
    found = pa.table(dict(columns)).group_by(list(ORIGIN)).aggregate([("offset", "min"), ("offset", "max")])
    origins = []
    for one in found.to_pylist():
        origin = RowOrigin(
            SourceMember(*(one[name] for name in SourceMember._fields)),
            TopicPartition(one["topic"], one["partition"]),
            TaskRange(*(one[name] for name in TaskRange._fields)),
        )
        refuse(origin, attempt=attempt)
        if not origin.range.first <= one["offset_min"] <= one["offset_max"] < origin.range.until:
            raise NotOurs(
                f"{origin.at}: a row's offset lies outside of what its task has read; the column"
                f" {COLUMN} must stay as it was read"
            )
        origins.append(origin)
    return origins


def refuse(origin: RowOrigin, *, attempt: int) -> None:
    """Raise NotOurs for rows of which other tasks may have some."""
    if origin.member.group is None:
        raise NotOurs(
            "the source was read without group.id: there is no group to commit its offsets for. Set group.id"
            " where the stream is read"
        )
    if origin.range.task != attempt:
        raise NotOurs(
            "a shuffle lies between the source and this sink (a join, an aggregation, dropDuplicates,"
            " repartition): a partition's rows may have gone to several tasks. commitSourceOffsets needs a"
            " plan without one"
        )
    if not origin.range.whole:
        raise NotOurs(
            f"{origin.at} is read by more than one task: by minPartitions or maxRecordsPerPartition, or"
            " as the plan reads the stream twice (a union with itself). commitSourceOffsets needs partitions"
            " whole"
        )
