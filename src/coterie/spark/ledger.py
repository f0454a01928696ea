"""Exactly once into a Delta Lake table that is its own ledger: rows, and how far they go, are one commit.

    ledger = Ledger("/tables/delays", group="delays")
    flights.writeStream.foreachBatch(ledger.write).option("checkpointLocation", …).start()

The tasks write Parquet files, each of one Kafka partition. One commit adds them, and holds for each partition
an application transaction `group/topic/partition` whose version is the offset after the last in the table.
Whoever writes looks there first: what the table has is cut away, so that a batch that another member,
or the same one before a crash, has written in whole or in part is not there twice.
"""

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from coterie.base.ids import TopicPartition
from coterie.client.chance import jitter
from coterie.client.errors import MissingLibrary
from coterie.spark.ledger_tables import PLACE, LedgerError, refuse_table

__all__ = ["Ledger", "LedgerError", "Written"]

WRITTEN = "topic string, partition int, first long, last long, rows long, path string, size long"
# Each failed commit is another writer's success: so many in a row mean that something else is wrong.
MOST_TRIES = 50
LONGEST_PAUSE_S = 1.0
MARK = "coterie.commit"
"""What the log says of a commit of ours: which it is."""


class Written(NamedTuple):
    """A file with rows of one Kafka partition: the first and last of their offsets, and how many rows."""

    topic: str
    partition: int
    first: int
    last: int
    rows: int
    path: str
    size: int

    @property
    def at(self) -> TopicPartition:
        """The Kafka partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a table is. It travels to the tasks, so it holds no connection."""

    uri: str
    storage_options: tuple[tuple[str, str], ...] = ()

    def open(self) -> tuple[fs.FileSystem, str]:
        """Return the file system, and the table's folder in it."""
        if "://" in self.uri:
            found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(self.uri)
            return found
        return fs.LocalFileSystem(), self.uri


class Ledger:
    """A Delta Lake table that a group's members write. Made anew wherever it is needed: it holds nothing."""

    def __init__(self, table: str, *, group: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.group = group
        self._place = Place(uri=table, storage_options=tuple((storage_options or {}).items()))

    def write(self, batch: Any, batch_id: int) -> None:
        """Write a batch, for `foreachBatch`. Its rows must have the columns topic, partition and offset."""
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = deltas(to_arrow_schema(batch.schema, timezone="UTC"))
        refuse_without_place(schema.names)
        written = batch.mapInArrow(writer_to(self._place, schema), WRITTEN).collect()
        self.commit([Written(*row) for row in written], schema)

    def append(self, rows: pa.Table) -> None:
        """Write rows that come from elsewhere than Spark, by the same account."""
        schema = deltas(rows.schema)
        refuse_without_place(schema.names)
        found = writer_to(self._place, schema)(rows.to_batches())
        self.commit([Written(**one) for batch in found for one in batch.to_pylist()], schema)

    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return up to which offset the table has each partition's rows; 0 where it has none."""
        table = self._opened()
        return {one: self._version(table, one) for one in partitions}

    def commit(self, written: Sequence[Written], schema: pa.Schema) -> None:
        """Add the files to the table in one commit, without what the table has already."""
        mark, refused = uuid.uuid4().hex, None
        for tries in range(MOST_TRIES):
            table = self._opened(schema)
            refuse_table(self._place.uri, table, schema)
            stored = {one.at: self._version(table, one.at) for one in written}
            # What a commit has named is never deleted: it may be in the log, whatever was heard.
            left = [self._cut(one, stored[one.at], schema, keep=tries > 0) for one in written]
            written = [one for one in left if one is not None]
            if not written:
                return
            refused = self._refused(table, written, schema, mark)
            if refused is None:
                return
            time.sleep(min(LONGEST_PAUSE_S, 0.01 * 2**tries) * jitter())
        raise LedgerError(
            f"table {self._place.uri}: {MOST_TRIES} commits were refused one after the other, the last with:"
            f" {refused}"
        ) from refused

    def _refused(
        self, table: Any, written: Sequence[Written], schema: pa.Schema, mark: str
    ) -> Exception | None:
        """Commit; return the conflict if somebody else has meanwhile: what the table has must be asked again.

        A commit whose answer was lost is told apart from a conflict by what the log says, which has its mark.
        """
        library = deltalake()
        now_ms = int(time.time() * 1000)
        reached: dict[TopicPartition, int] = defaultdict(int)
        for one in written:
            reached[one.at] = max(reached[one.at], one.last + 1)
        try:
            table.create_write_transaction(
                [action(library, one, now_ms) for one in written],
                mode="append",
                schema=schema,
                commit_properties=library.CommitProperties(
                    # Retried by itself, a commit would not look at what the other one wrote.
                    max_commit_retries=0,
                    custom_metadata={MARK: mark},
                    app_transactions=[
                        library.Transaction(self._app_id(one), version, now_ms)
                        for one, version in reached.items()
                    ],
                ),
            )
        except (library.exceptions.DeltaError, OSError) as error:
            if self._took_effect(since=table.version(), mark=mark):
                return None
            if not isinstance(error, library.exceptions.CommitFailedError):
                raise
            conflict: Exception = error
            return conflict
        return None

    def _took_effect(self, *, since: int, mark: str) -> bool:
        """Return whether the log has a commit with this mark behind a version."""
        table = self._opened()
        later = table.version() - since
        return later > 0 and any(one.get(MARK) == mark for one in table.history(later))

    def _opened(self, schema: pa.Schema | None = None) -> Any:
        """Return the table as it is now; made first, if it is to be."""
        library = deltalake()
        options = dict(self._place.storage_options) or None
        try:
            return library.DeltaTable(self._place.uri, storage_options=options)
        except library.exceptions.TableNotFoundError:
            if schema is None:
                raise LedgerError(f"there is no Delta Lake table at {self._place.uri} yet") from None
        with suppress(library.exceptions.CommitFailedError):  # another writer makes it at the same time
            library.DeltaTable.create(self._place.uri, schema=schema, mode="ignore", storage_options=options)
        return library.DeltaTable(self._place.uri, storage_options=options)

    def _app_id(self, at: TopicPartition) -> str:
        return f"{self.group}/{at.topic}/{at.partition}"

    def _version(self, table: Any, at: TopicPartition) -> int:
        return table.transaction_version(self._app_id(at)) or 0

    def _cut(self, one: Written, stored: int, schema: pa.Schema, *, keep: bool) -> Written | None:
        """Return the file without the rows that the table has; None if that leaves nothing.

        `keep`: leave what is not needed any more to vacuum.
        """
        if stored <= one.first:
            return one
        system, folder = self._place.open()
        path = f"{folder}/{one.path}"
        left: list[Written] = []
        if stored <= one.last:
            rows = pq.read_table(path, filesystem=system, schema=schema)
            rows = rows.filter(pc.greater_equal(rows["offset"], stored))
            found = writer_to(self._place, schema)(rows.to_batches())
            left = [Written(**each) for batch in found for each in batch.to_pylist()]
        if not keep:
            system.delete_file(path)
        return left[0] if left else None


def deltalake() -> Any:
    """Return the library, or raise what to install."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise MissingLibrary("the ledger needs deltalake: pip install 'coterie[delta]'") from error
    return deltalake


def refuse_without_place(names: Sequence[str]) -> None:
    """Raise LedgerError for rows that do not say where they came from."""
    missing = [name for name in PLACE if name not in names]
    if missing:
        raise LedgerError(
            f"rows without {', '.join(missing)} cannot be accounted for: keep topic, partition and offset as"
            " columns (an aggregation drops them: write the records, and aggregate what is in the table)"
        )


def deltas(schema: pa.Schema) -> pa.Schema:
    """Return the schema as Delta Lake keeps it: times in microseconds of UTC, whatever the session's zone."""
    stamp = pa.timestamp("us", "UTC")
    fields = [
        one.with_type(stamp) if pa.types.is_timestamp(one.type) and one.type.tz else one for one in schema
    ]
    return pa.schema(one.with_nullable(True) for one in fields)


def action(library: Any, one: Written, now_ms: int) -> Any:
    """Return what adds a file to the table."""
    stats = {"numRecords": one.rows, "minValues": {"offset": one.first}, "maxValues": {"offset": one.last}}
    return library.transaction.AddAction(
        path=one.path,
        size=one.size,
        partition_values={},
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps(stats),
    )


def writer_to(
    place: Place, schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that writes batches to files, each of one Kafka partition, and yields which."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        system, folder = place.open()
        system.create_dir(folder, recursive=True)
        with ExitStack() as undo:
            files: dict[TopicPartition, File] = {}
            for batch in batches:
                for at, rows in by_partition(batch.cast(schema)):
                    if at not in files:
                        files[at] = undo.enter_context(File(system, folder, at, schema))
                    files[at].add(rows)
        if files:
            written = [file.written(system)._asdict() for file in files.values()]
            yield pa.RecordBatch.from_pylist(written, SHAPE)

    return write


SHAPE = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("first", "last", "rows")]
    + [("path", pa.string()), ("size", pa.int64())]
)


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield a batch's rows partition by partition."""
    if any(batch.column(name).null_count for name in PLACE):
        raise LedgerError("a row has no topic, partition or offset: it cannot be accounted for")
    topics, numbers = batch.column("topic"), batch.column("partition")
    places = pa.table({"topic": topics, "partition": numbers}).group_by(["topic", "partition"]).aggregate([])
    for place in places.to_pylist():
        at = TopicPartition(place["topic"], place["partition"])
        if places.num_rows == 1:
            yield at, batch
        else:
            ours = pc.and_(pc.equal(topics, at.topic), pc.equal(numbers, at.partition))
            yield at, batch.filter(ours)


class File:
    """A Parquet file under way. If its task fails it is in no commit, and vacuum removes it."""

    def __init__(self, system: fs.FileSystem, folder: str, at: TopicPartition, schema: pa.Schema) -> None:
        self.at, self.name = at, f"part-{uuid.uuid4()}.zstd.parquet"
        self.path = f"{folder}/{self.name}"
        self._writer = pq.ParquetWriter(self.path, schema, filesystem=system, compression="zstd")
        self._first, self._last, self._rows = 1 << 62, -1, 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._writer.write_batch(rows)
        bounds = pc.min_max(rows.column("offset")).as_py()
        self._first, self._last = min(self._first, bounds["min"]), max(self._last, bounds["max"])
        self._rows += rows.num_rows

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def written(self, system: fs.FileSystem) -> Written:
        """Return what it holds, once it is closed."""
        size = system.get_file_info(self.path).size
        return Written(*self.at, self._first, self._last, self._rows, self.name, size)
