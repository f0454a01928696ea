"""Topic to topic: what is read and what is written are one transaction of each task.

Rows carry where they came from (`includeSource`). A task takes of each partition all that its batch reads
there. It commits the end of that range in the transaction of its rows, so the group's committed offset is the
ledger: whoever reads next, this query or another, begins after what is written. The coordinator takes the
commit only from the member of the generation in which the rows were read.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from coterie.base.errors import CoterieError
from coterie.base.ids import GroupMetadata, OffsetAndMetadata, TopicPartition
from coterie.client.net.cluster import Cluster
from coterie.client.producer.errors import TransactionFailed
from coterie.client.producer.producer import Producer
from coterie.spark.sink.options import SinkOptions
from coterie.spark.sink.rows import Outbox, buffered, columns_by_name, read_ahead
from coterie.spark.source.columns import SOURCE_FIELDS

Notes = Mapping[TopicPartition, OffsetAndMetadata | None]
COLUMN = "source"


class NotOurs(CoterieError):
    """Rows whose offsets this task cannot commit: others may have the rest of a partition. Says why."""


class PartitionsLost(CoterieError):
    """The group has taken away what a task's rows were read from: nothing of the task is written."""


class RowOrigin(NamedTuple):
    """Where rows say that they came from."""

    group: str | None
    member: str | None
    instance: str | None
    generation: int
    topic: str
    partition: int
    first: int
    until: int
    whole: bool
    task: int

    @property
    def at(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def reader(self) -> GroupMetadata:
        """The member that read it."""
        assert self.group is not None
        return GroupMetadata(self.group, self.generation, self.member or "", self.instance)


async def write_with_offsets(
    options: SinkOptions, batches: Iterable[pa.RecordBatch], *, name: str, attempt: int
) -> int:
    """Write rows and the offsets up to which they were read in one transaction; return how many rows.

    `name` is the task's, in every batch of its query: to begin with it fences who had it before.
    """
    settings = {**options.settings, "transactional_id": f"coterie-{name}"}
    async with Producer(**settings) as producer:
        cluster = Cluster.of(options.producer())
        try:
            account = WrittenOffsets(name=name, attempt=attempt, ask=cluster.committed_notes)
            outbox = Outbox(producer, options)
            async with aclosing(read_ahead(batches)) as coming:
                held = await buffered(coming, producer.settings.buffer_memory)
                async with producer.transaction():
                    while held:
                        await outbox.send(await account.left(held.popleft()))
                    async for batch in coming:
                        await outbox.send(await account.left(batch))
                    for reader, offsets in account.due().items():
                        await commit(producer, reader, offsets)
        finally:
            await cluster.close()
    return outbox.rows


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
        stamps = stamps_of(columns, attempt=self._attempt)
        await self._learn([one for one in stamps if one not in self._stored])
        written = [one for one in stamps if self._stored[one] > one.first]
        if written:
            gone = [
                reduce(
                    pc.and_,
                    (
                        pc.equal(columns["topic"], one.topic),
                        pc.equal(columns["partition"], one.partition),
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
            if stored < one.until:
                due[one.reader][one.at] = OffsetAndMetadata(one.until, metadata=self._name)
        return dict(due)

    async def _learn(self, fresh: Iterable[RowOrigin]) -> None:
        """Ask up to where partitions are written that were not seen before."""
        by_group: dict[str, list[RowOrigin]] = defaultdict(list)
        for one in fresh:
            by_group[one.reader.group_id].append(one)
        for group, stamps in by_group.items():
            noted = await self._ask(group, [one.at for one in stamps])
            for one in stamps:
                self._stored[one] = self._judged(one, noted[one.at])

    def _judged(self, one: RowOrigin, noted: OffsetAndMetadata | None) -> int:
        """Return the committed offset of a partition, or raise why it cannot be gone on from."""
        if any(other.at == one.at and other.group == one.group for other in self._stored):
            raise NotOurs(f"{one.at} was read twice into one task; commitSourceOffsets needs it once")
        where = f"group {one.group}, {one.at}"
        if noted is None:
            raise NotOurs(
                f"{where}: the group has no committed offset here. This is another cluster than the source's,"
                " or the offset has expired (offsets.retention.minutes): what is written cannot be known"
            )
        if noted.offset < one.first:
            raise NotOurs(
                f"{where}: the committed offset is {noted.offset}, below {one.first}, where this batch"
                " begins: somebody set it back. Start the query with a new checkpoint to read from there"
            )
        if noted.offset > one.first and noted.metadata != self._name:
            raise NotOurs(
                f"{where}: offsets {one.first} to {noted.offset - 1} of this batch were committed by"
                f" {noted.metadata or 'a member'} and not by this task, {self._name}: another one has read"
                " the partition, too"
            )
        return noted.offset


def sources_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the fields of a batch's source, or raise NotOurs for rows without."""
    column = columns_by_name(batch)[COLUMN]
    if column.null_count:
        raise NotOurs("a row's source is null: each row must keep that of the record that it was made of")
    return {name: column.field(name) for name, _ in SOURCE_FIELDS}


def stamps_of(columns: Mapping[str, pa.Array], *, attempt: int) -> list[RowOrigin]:
    """Return the origins of rows, each once; raise NotOurs where their offsets are not this task's."""
    found = (
        pa.table(dict(columns))
        .group_by(list(RowOrigin._fields))
        .aggregate([("offset", "min"), ("offset", "max")])
    )
    stamps = []
    for one in found.to_pylist():
        stamp = RowOrigin(*(one[name] for name in RowOrigin._fields))
        refuse(stamp, attempt=attempt)
        if not stamp.first <= one["offset_min"] <= one["offset_max"] < stamp.until:
            raise NotOurs(
                f"{stamp.at}: a row's offset lies outside of what its task has read; the column {COLUMN} must"
                " stay as it was read"
            )
        stamps.append(stamp)
    return stamps


def refuse(stamp: RowOrigin, *, attempt: int) -> None:
    """Raise NotOurs for rows of which other tasks may have some."""
    if stamp.group is None:
        raise NotOurs(
            "the source was read without group.id: there is no group to commit its offsets for. Set group.id"
            " where the stream is read"
        )
    if stamp.task != attempt:
        raise NotOurs(
            "a shuffle lies between the source and this sink (a join, an aggregation, dropDuplicates,"
            " repartition): a partition's rows may have gone to several tasks. commitSourceOffsets needs a"
            " plan without one"
        )
    if not stamp.whole:
        raise NotOurs(
            f"{stamp.at} is read by more than one task: by minPartitions or maxRecordsPerPartition, or as the"
            " plan reads the stream twice (a union with itself). commitSourceOffsets needs partitions whole"
        )
