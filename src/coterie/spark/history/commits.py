"""All commits, one a row, in columns: what the histories are told from, for whoever wants to look closer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from coterie.history.log.layout import STORY
from coterie.spark.history.files import Unit
from coterie.spark.history.reduce import KeyBook, Values, offset_values, parts

COMMITS = pa.schema(
    [
        ("group_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("metadata", pa.string()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
    ]
)


def commits_of_units(units: Iterable[Unit]) -> Iterator[pa.RecordBatch]:
    """Yield the commits of some units."""
    from coterie.spark.history.reading import decoded

    for unit in units:
        if unit.topic == STORY:
            continue
        book = KeyBook()
        for columns in decoded(unit):
            rows = len(columns["key"])
            where = pa.repeat(pa.scalar(unit.partition, pa.int32()), rows)
            yield commits_in(book, columns["key"], columns["value"], where, columns["offset"])


def commits_of_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the commits among records as the source has them."""
    book = KeyBook()
    for batch in batches:
        if batch.num_rows:
            columns = [batch.column(name) for name in ("key", "value", "partition", "offset")]
            yield commits_in(book, *columns)


def commits_in(
    book: KeyBook, keys: pa.Array, values: pa.Array, partitions: pa.Array, places: pa.Array
) -> pa.RecordBatch:
    """Return the commits among some records; tombstones are none."""
    numbers = book.numbers(keys)
    is_commit = np.array([key is not None for key in book.keys], bool)[numbers]
    rows = np.flatnonzero(is_commit & values.is_valid().to_numpy(zero_copy_only=False))
    found = offset_values(values, rows)
    known = numbers[rows]
    named = pa.array(known)
    stamps = pa.array(found.at_ms * 1000).cast(COMMITS.field("committed_at").type)
    take = pa.array(rows)
    columns = [
        pa.array([key and key.group for key in book.keys], pa.string()).take(named),
        pa.array([key and key.topic for key in book.keys], pa.string()).take(named),
        pa.array([key and key.partition for key in book.keys], pa.int32()).take(named),
        pa.array(found.offset),
        pa.array(found.leader_epoch.astype(np.int32)),
        metadata_of(values, found),
        stamps,
        partitions.take(take),
        places.take(take),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=COMMITS)


def metadata_of(values: pa.Array, found: Values) -> pa.Array:
    """Return the metadata beside the offsets: mostly empty."""
    count = len(found.offset)
    some = np.flatnonzero(found.metadata_size)
    if not len(some):
        return pa.repeat(pa.scalar("", pa.string()), count)
    data = parts(values)[1]
    texts = [""] * count
    for row in some.tolist():
        at, size = int(found.metadata_at[row]), int(found.metadata_size[row])
        texts[row] = data[at : at + size].tobytes().decode(errors="replace")
    return pa.array(texts, pa.string())
