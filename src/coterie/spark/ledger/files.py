"""A ledger's Parquet files: each of one Kafka partition. Tasks write them, the driver looks and cuts."""

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from coterie.spark.ledger.location import TableLocation
from coterie.spark.ledger.tables import RECORD_COLUMNS, LedgerError

Offsets = np.ndarray[Any, np.dtype[np.int64]]

WRITTEN = (
    "topic string, partition int, first long, last long, rows long, path string, size long, dead boolean"
)
WRITTEN_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("first", "last", "rows")]
    + [("path", pa.string()), ("size", pa.int64()), ("dead", pa.bool_())]
)
LOOKS_AT_ONCE = 16
NAMED_MOST = 3
DEAD_LETTER = "deadLetter"
KEPT_OF_LETTERS = (*RECORD_COLUMNS, "key", "timestamp", "timestampType", "headers", "source")
"""What a table of dead letters has besides the letters, of what the query has."""


class WrittenFile(NamedTuple):
    """A file with rows of one Kafka partition: the first and last of their offsets, and how many rows."""

    topic: str
    partition: int
    first: int
    last: int
    rows: int
    path: str
    size: int
    dead: bool = False
    """Whether these are dead letters, for a table of their own."""

    @property
    def at(self) -> TopicPartition:
        """The Kafka partition."""
        return TopicPartition(self.topic, self.partition)


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
    stats = {
        "numRecords": one.rows,
        "minValues": {"topic": one.topic, "partition": one.partition, "offset": one.first},
        "maxValues": {"topic": one.topic, "partition": one.partition, "offset": one.last},
        "nullCount": dict.fromkeys(RECORD_COLUMNS, 0),
    }
    return library.transaction.AddAction(
        path=one.path,
        size=one.size,
        partition_values={},
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps(stats),
    )


def writer_to(
    place: TableLocation, tag: str, schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that writes batches to files, each of one Kafka partition, and yields which."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with TableFiles(place, tag, schema) as files:
            for batch in batches:
                files.add(batch)
        yield from files.written()

    return write


def writer_to_both(
    place: TableLocation, schema: pa.Schema, dead: TableLocation, dead_schema: pa.Schema, tag: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that writes batches to files of two tables, dead letters to those of the second."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with (
            TableFiles(place, tag, schema) as files,
            TableFiles(dead, tag, dead_schema, dead=True) as letters,
        ):
            for batch in batches:
                are_dead = batch.column(DEAD_LETTER).is_valid()
                files.add(batch.filter(pc.invert(are_dead)).drop_columns([DEAD_LETTER]))
                letters.add(letters_of(batch.filter(are_dead), dead_schema))
        yield from files.written()
        yield from letters.written()

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
    """The files of a task in one table, each of one Kafka partition; made where there is a row."""

    def __init__(self, place: TableLocation, tag: str, schema: pa.Schema, *, dead: bool = False) -> None:
        self._place, self._tag, self._schema, self._dead = place, tag, schema, dead
        self._store: fs.PyFileSystem | None = None
        self._undo = ExitStack()
        self._files: dict[TopicPartition, ParquetFile] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        if not batch.num_rows:
            return
        for at, rows in by_partition(batch.cast(self._schema)):
            if at not in self._files:
                self._store = self._store or self._place.store()
                file = ParquetFile(self._store, self._tag, at, self._schema)
                self._files[at] = self._undo.enter_context(file)
            self._files[at].add(rows)

    def __enter__(self) -> "TableFiles":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._undo.__exit__(*raised)

    def written(self) -> Iterator[pa.RecordBatch]:
        """Yield the files that were written, once they are closed."""
        if self._files:
            rows = [file.written()._replace(dead=self._dead)._asdict() for file in self._files.values()]
            yield pa.RecordBatch.from_pylist(rows, WRITTEN_SCHEMA)


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield a batch's rows partition by partition."""
    if any(batch.column(name).null_count for name in RECORD_COLUMNS):
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


class ParquetFile:
    """A Parquet file under way. If its task fails it is in no commit, and vacuum removes it."""

    def __init__(self, store: fs.PyFileSystem, tag: str, at: TopicPartition, schema: pa.Schema) -> None:
        self.at, self.name = at, f"{tag}{uuid.uuid4()}.zstd.parquet"
        self._sink = store.open_output_stream(self.name)
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd")
        self._first, self._last, self._rows, self._size = 1 << 62, -1, 0, 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._writer.write_batch(rows)
        bounds = pc.min_max(rows.column("offset")).as_py()
        self._first, self._last = min(self._first, bounds["min"]), max(self._last, bounds["max"])
        self._rows += rows.num_rows

    def __enter__(self) -> "ParquetFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._size = self._sink.tell()
        self._sink.close()

    def written(self) -> WrittenFile:
        """Return the file's name, size and first and last offset, once it is closed."""
        return WrittenFile(*self.at, self._first, self._last, self._rows, self.name, self._size)


def batches_in(
    store: fs.PyFileSystem, path: str, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows. This thread reads alone: one that Arrow leaves behind can end the interpreter."""
    with store.open_input_file(path) as opened, pq.ParquetFile(opened, pre_buffer=False) as source:
        yield from source.iter_batches(columns=columns, use_threads=False)


def offsets_in(store: fs.PyFileSystem, path: str) -> Offsets:
    """Return the offsets of a file's rows."""
    return np.concatenate([one["offset"].to_numpy() for one in batches_in(store, path, ["offset"])])


def cut(
    place: TableLocation, tag: str, one: WrittenFile, schema: pa.Schema, wanted: Callable[[Offsets], Any]
) -> WrittenFile | None:
    """Return a new file with the rows whose offsets are wanted; None if there are none. Holds few at once."""

    def left() -> Iterator[pa.RecordBatch]:
        for batch in batches_in(place.store(), one.path):
            kept = batch.filter(pa.array(wanted(batch.column("offset").to_numpy())))
            if kept.num_rows:
                yield kept

    made = [
        WrittenFile(**each) for batch in writer_to(place, tag, schema)(left()) for each in batch.to_pylist()
    ]
    return made[0] if made else None


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
            " (s3a://…, abfss://…, gs://…), or a folder that is mounted everywhere. Nothing is committed"
        )
