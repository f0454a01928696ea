"""The records of a chunk, read by numpy: what `compiled` does, for where numba is missing.

Where records end is found one by one, as each says where the next begins; everything else goes by the column.
Records with headers, and bad bytes, are left to `plain`, which is slower and knows what to say.
"""

from collections.abc import Collection
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from coterie.arrow import plain
from coterie.arrow.headers import Places
from coterie.arrow.plan import ROWS, Chunk, Segment
from coterie.arrow.types import HEADERS, MOST_MS, TIMESTAMP
from coterie.base.errors import Corrupt
from coterie.wire.varints import read_varlong

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

# Ten digits of seven bits.
MOST_BITS = 70
NOWHERE = 1 << 40


class Blobs(NamedTuple):
    """Where the keys or the values lie; a null has a size below 0."""

    sizes: Places
    starts: Places
    ends: Places


class Rows(NamedTuple):
    """The records of a chunk by columns."""

    offsets: Places
    stamps: Places
    types: Places
    keys: Blobs
    values: Blobs


def columns_of(
    chunk: Chunk, *, first: int, until: int, headers: bool, left_out: Collection[str] = ()
) -> dict[str, pa.Array]:
    """Return the columns that come out of the records themselves: all but topic and partition."""
    rows = rows_of(chunk)
    if rows is None:
        return plain.columns_of(chunk, first=first, until=until, headers=headers, left_out=left_out)
    kept = np.flatnonzero((rows.offsets >= first) & (rows.offsets < until))
    columns = {
        "offset": pa.array(rows.offsets[kept]),
        "timestamp": pa.array(rows.stamps[kept]).cast(TIMESTAMP),
        "timestampType": pa.array(rows.types[kept].astype(np.int32)),
    }
    for name, found in (("key", rows.keys), ("value", rows.values)):
        if name not in left_out:
            columns[name] = binary(chunk.data, found, kept)
    if headers:
        columns["headers"] = pa.nulls(len(kept), HEADERS)
    return columns


def rows_of(chunk: Chunk) -> Rows | None:
    """Return the records, None where one has headers or is none."""
    found = bounds_of(chunk)
    if found is None or not len(found[0]):
        return None
    bodies, ends = found
    data = np.frombuffer(chunk.data, np.uint8)
    times, at = varints(data, bodies + 1)
    deltas, at = varints(data, at)
    keys = blobs(data, at)
    values = blobs(data, keys.ends)
    whole = (keys.sizes <= ends - keys.starts) & (values.sizes <= ends - values.starts)
    if not (whole.all() and (values.ends + 1 == ends).all()) or data[values.ends].any():
        return None
    segments = np.repeat(chunk.table, chunk.table[:, ROWS], axis=0)
    of = dict(zip(Segment._fields, segments.T, strict=True))
    if (deltas < 0).any() or (deltas > of["last_offset_delta"]).any():
        return None
    stamps = np.where(of["append_time"], of["max_timestamp"], of["base_timestamp"] + times)
    micros = np.clip(stamps, -MOST_MS, MOST_MS) * 1000
    return Rows(of["base_offset"] + deltas, micros, of["append_time"], keys, values)


def bounds_of(chunk: Chunk) -> tuple[Places, Places] | None:
    """Return where each record begins, after its size, and ends; None if they do not fill their segments."""
    bodies: list[int] = []
    ends: list[int] = []
    try:
        if not all(fill(chunk.data, segment, bodies, ends) for segment in chunk.segments):
            return None
    except (IndexError, Corrupt):
        return None
    return np.array(bodies, np.int64), np.array(ends, np.int64)


def fill(data: bytes, segment: Segment, bodies: list[int], ends: list[int]) -> bool:
    """Add where the segment's records begin and end; return whether they fill it."""
    at = segment.at
    begin, finish = bodies.append, ends.append
    for _ in range(segment.rows):
        low = data[at]
        if low < 128:
            size, at = low >> 1, at + 1
        elif (high := data[at + 1]) < 128:
            size, at = (low - 128 + (high << 7)) >> 1, at + 2
        else:
            size, at = read_varlong(data, at)
        if low & 1:  # below 0
            return False
        begin(at)
        at += size
        finish(at)
    return at == segment.end


def varints(data: Bytes, at: Places) -> tuple[Places, Places]:
    """Return the zig-zag numbers at these places, and where they end. Beyond the data nothing is right."""
    value = np.zeros(len(at), np.uint64)
    more = np.ones(len(at), np.bool_)
    for shift in range(0, MOST_BITS, 7):
        digit = np.where(more, data[np.clip(at, 0, len(data) - 1)], 0)
        value |= (digit & 127).astype(np.uint64) << np.uint64(shift)
        at = at + more
        more &= digit > 127
        if not more.any():
            break
    # What goes on beyond ten digits ends nowhere.
    at = np.where(more, NOWHERE, at)
    return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), at


def blobs(data: Bytes, at: Places) -> Blobs:
    """Return the bytes whose sizes are at these places."""
    sizes, starts = varints(data, at)
    return Blobs(sizes, starts, starts + np.maximum(sizes, 0))


def binary(data: bytes, found: Blobs, kept: Places) -> pa.Array:
    """Return these bytes as a column. Arrow copies them out of an array that has the gaps between as well."""
    if not len(kept):
        return pa.array([], pa.binary())
    bounds = np.column_stack((found.starts[kept], found.ends[kept])).astype(np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    with_gaps = pa.Array.from_buffers(pa.binary(), 2 * len(kept) - 1, buffers)
    nulls = found.sizes[kept] < 0
    return with_gaps.take(pa.array(np.arange(0, 2 * len(kept), 2), mask=nulls if nulls.any() else None))
