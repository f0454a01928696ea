"""A ledger's Parquet files, which tasks write: one a task, in partitioned tables one for each value."""

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from coterie.base.ids import TopicPartition
from coterie.base.plain import counted
from coterie.spark.ledger.layout import Layout, column_of, folder_of, grouped, statistics_of, text_of
from coterie.spark.ledger.location import TableLocation
from coterie.spark.ledger.tables import RECORD_COLUMNS, LedgerError

Offsets = np.ndarray[Any, np.dtype[np.int64]]
ByPartition = dict[TopicPartition, Offsets]

WRITTEN = "file string"
WRITTEN_SCHEMA = pa.schema([("file", pa.string())])
LOOKS_AT_ONCE = 16
NAMED_MOST = 3
DEAD_LETTER = "deadLetter"
KEPT_OF_LETTERS = (*RECORD_COLUMNS, "key", "timestamp", "timestampType", "headers", "source")
"""What a table of dead letters has besides the letters, of what the query has."""


class FileSpan(NamedTuple):
    """The rows of one Kafka partition in a file: the first and last of their offsets."""

    topic: str
    partition: int
    first: int
    last: int

    @property
    def at(self) -> TopicPartition:
        """The Kafka partition."""
        return TopicPartition(self.topic, self.partition)


class WrittenFile(NamedTuple):
    """A file that a task has written: which rows it has, and what the table's log is to say of it."""

    path: str
    size: int
    rows: int
    spans: tuple[FileSpan, ...]
    values: dict[str, str | None]
    """Of the columns by which the table is partitioned."""
    statistics: dict[str, Any]
    dead: bool = False
    """Whether these are dead letters, for a table of their own."""

    @classmethod
    def read(cls, text: str) -> "WrittenFile":
        """Return the file that a task has told of."""
        path, size, rows, spans, *more = json.loads(text)
        return cls(path, size, rows, tuple(FileSpan(*one) for one in spans), *more)


def tag_of(group: str) -> str:
    """Return the prefix of the names of a group's files."""
    return f"part-{hashlib.sha256(group.encode()).hexdigest()[:12]}-"


def refuse_without_place(names: Sequence[str]) -> None:
    """Raise LedgerError for rows that do not say where they came from."""
    missing = [name for name in RECORD_COLUMNS if name not in names]
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


def action(library: Any, one: WrittenFile, now_ms: int) -> Any:
    """Return the action of the table's log that adds a file."""
    return library.transaction.AddAction(
        path=one.path,
        size=one.size,
        partition_values=one.values,
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps(one.statistics),
    )


def writer_to(
    place: TableLocation, tag: str, layout: Layout
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that writes batches to files, and yields which."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with TableFiles(place, tag, layout) as files:
            for batch in batches:
                files.add(batch)
        yield from files.reports()

    return write


def writer_to_both(
    place: TableLocation, layout: Layout, dead: TableLocation, dead_layout: Layout, tag: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that writes batches to files of two tables, dead letters to those of the second."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with (
            TableFiles(place, tag, layout) as files,
            TableFiles(dead, tag, dead_layout, dead=True) as letters,
        ):
            for batch in batches:
                are_dead = batch.column(DEAD_LETTER).is_valid()
                files.add(batch.filter(pc.invert(are_dead)).drop_columns([DEAD_LETTER]))
                letters.add(letters_of(batch.filter(are_dead), dead_layout.schema))
        yield from files.reports()
        yield from letters.reports()

    return write


def letters_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of dead letters: where a record was, what it had besides, and what its value was."""
    beside = [one for one in schema if one.name in KEPT_OF_LETTERS]
    return pa.schema([*beside, *schema.field(DEAD_LETTER).type])


def letters_of(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return dead letters in their own columns."""
    letter = batch.column(DEAD_LETTER)
    inner = {one.name: place for place, one in enumerate(letter.type)}
    made = [
        batch.column(name) if name in KEPT_OF_LETTERS else letter.field(inner[name]) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(made, names=schema.names)


class TableFiles:
    """The files of a task in one table: one, or one for each value of the table's partition columns."""

    def __init__(self, place: TableLocation, tag: str, layout: Layout, *, dead: bool = False) -> None:
        self._place, self._tag, self._layout, self._dead = place, tag, layout, dead
        self._store: fs.PyFileSystem | None = None
        self._undo = ExitStack()
        self._files: dict[tuple[Any, ...], ParquetFile] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        if not batch.num_rows:
            return
        if any(batch.column(name).null_count for name in RECORD_COLUMNS):
            raise LedgerError("a row has no topic, partition or offset: it cannot be accounted for")
        rows, by = batch.cast(self._layout.schema), self._layout.partition_by
        if not by:
            self._file(()).add(rows)
            return
        for values, places in grouped(rows, by):
            self._file(values).add(rows if places is None else rows.take(places))

    def _file(self, values: tuple[Any, ...]) -> "ParquetFile":
        """Return the file of these values; opened where it is the first row's."""
        if values not in self._files:
            self._store = self._store or self._place.store()
            named = dict(zip(self._layout.partition_by, map(text_of, values), strict=True))
            file = ParquetFile(self._store, self._tag, self._layout, named)
            self._files[values] = self._undo.enter_context(file)
        return self._files[values]

    def __enter__(self) -> "TableFiles":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._undo.__exit__(*raised)

    def written(self) -> list[WrittenFile]:
        """Return the files that were written, once they are closed."""
        return [file.written()._replace(dead=self._dead) for file in self._files.values()]

    def reports(self) -> Iterator[pa.RecordBatch]:
        """Yield the same, for whoever has had them written."""
        if self._files:
            yield pa.RecordBatch.from_pydict({"file": [*map(json.dumps, self.written())]}, WRITTEN_SCHEMA)


class ParquetFile:
    """A Parquet file under way. If its task fails it is in no commit: a leftover."""

    def __init__(
        self, store: fs.PyFileSystem, tag: str, layout: Layout, values: dict[str, str | None]
    ) -> None:
        self.name = f"{folder_of(values)}{tag}{uuid.uuid4()}.zstd.parquet"
        self._layout, self._values = layout, values
        self._sink = store.open_output_stream(self.name)
        self._footer: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._sink, layout.in_files, compression="zstd", metadata_collector=self._footer
        )
        self._spans: dict[TopicPartition, tuple[int, int]] = {}
        self._floats = [one.name for one in layout.in_files if pa.types.is_floating(one.type)]
        self._without_order: set[str] = set()
        self._rows, self._size = 0, 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._writer.write_batch(rows.drop_columns([*self._values]))
        self._rows += rows.num_rows
        for at, offsets in offsets_by_partition(rows):
            first, last = int(offsets.min()), int(offsets.max())
            known = self._spans.get(at, (first, last))
            self._spans[at] = min(first, known[0]), max(last, known[1])
        for name in self._floats:
            if pc.any(pc.is_nan(rows.column(name))).as_py():
                self._without_order.add(name)  # Parquet leaves it out of what it notes; Spark has it last

    def __enter__(self) -> "ParquetFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._size = self._sink.tell()
        self._sink.close()

    def written(self) -> WrittenFile:
        """Return the file as it is once it is closed."""
        statistics = statistics_of(self._footer[0], self._layout, self._without_order)
        spans = tuple(FileSpan(*at, *span) for at, span in self._spans.items())
        return WrittenFile(self.name, self._size, self._rows, spans, self._values, statistics)


def offsets_by_partition(rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Offsets]]:
    """Yield the offsets of the rows of each Kafka partition."""
    for at, offsets, _ in placed_by_partition(rows):
        yield at, offsets


def rows_where(rows: pa.RecordBatch, holds: Callable[[TopicPartition, Offsets], Any]) -> Any:
    """Return for each row whether this holds of its Kafka partition and its offset."""
    found = np.zeros(rows.num_rows, bool)
    for at, offsets, places in placed_by_partition(rows):
        found[places] = holds(at, offsets)
    return found


def placed_by_partition(rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Offsets, Any]]:
    """Yield the offsets of the rows of each Kafka partition, and the places of these rows."""
    offsets = rows.column("offset").to_numpy()
    for (topic, number), found in grouped(rows, ("topic", "partition")):
        places = slice(None) if found is None else found.to_numpy()
        yield TopicPartition(topic, number), offsets[places], places


def batches_in(
    store: fs.PyFileSystem, path: str, values: Mapping[str, Any], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows with these columns; `values` are of those by which its table is partitioned.

    What the file lacks is null. This thread reads alone: one that Arrow leaves behind can end the process.
    """
    with store.open_input_file(path) as opened, pq.ParquetFile(opened, pre_buffer=False) as source:
        there = [name for name in schema.names if name in source.schema_arrow.names]
        for batch in source.iter_batches(columns=there, use_threads=False):
            columns = [
                batch.column(one.name)
                if one.name in there
                else column_of(values.get(one.name), one, batch.num_rows)
                for one in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, names=schema.names).cast(schema)


RECORDS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


def offsets_in(
    store: fs.PyFileSystem, path: str, values: Mapping[str, Any]
) -> Iterator[tuple[TopicPartition, Offsets]]:
    """Yield the offsets of a file's rows, some rows after the others, by Kafka partition."""
    for batch in batches_in(store, path, values, RECORDS):
        yield from offsets_by_partition(batch)


def together(found: Iterable[tuple[TopicPartition, Offsets]]) -> ByPartition:
    """Return the offsets of each partition that has some."""
    by_partition: dict[TopicPartition, list[Offsets]] = {}
    for at, offsets in found:
        if len(offsets):
            by_partition.setdefault(at, []).append(offsets)
    return {at: np.concatenate(offsets) for at, offsets in sorted(by_partition.items())}


def refuse_missing(place: TableLocation, written: Sequence[WrittenFile]) -> None:
    """Raise LedgerError unless each file is there for us, too, as its task has left it."""
    store, most = place.store(), 1 if place.local else LOOKS_AT_ONCE
    groups = [written[start::most] for start in range(min(most, len(written)))]
    with ThreadPoolExecutor(most) as pool:
        looks = pool.map(lambda group: store.get_file_info([one.path for one in group]), groups)
        found = {info.path: info.size for infos in looks for info in infos}
    missing = [one for one in written if found.get(one.path) != one.size]
    if missing:
        names = ", ".join(one.path for one in missing[:NAMED_MOST]) + ", …" * bool(missing[NAMED_MOST:])
        raise LedgerError(
            f"table {place.uri}: of {counted(len(written), 'file')} that the tasks have written,"
            f" {len(missing):,} cannot be found as they were written, seen from the driver ({names})."
            " Executors with disks of their own write to their own folders: give an object store's URL"
            " (s3a://…, abfss://…, gs://…), or a folder that is mounted everywhere. Or somebody has removed"
            " them while the batch ran, as a VACUUM does that is to keep nothing. Nothing is committed"
        )
