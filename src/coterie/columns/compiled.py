"""The records of a chunk, read by a kernel that numba compiles: one pass, values copied by memcpy.

Importing this module needs numba (`pip install coterie[fast]`); `records` falls back to `plain` without it.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from coterie.base.errors import Corrupt
from coterie.columns.kernel import compiled, varint
from coterie.columns.memory import get8, get64, move, put8, put32, put64
from coterie.columns.plan import Chunk, Segment
from coterie.columns.types import HEADERS, MOST_MS, TIMESTAMP

__all__ = ["columns_of"]


# Columns of the table of segments that the kernel is given.
AT, END, COUNT, OFFSET, LAST_DELTA, TIME, MAX_TIME, APPEND = range(8)
SEGMENT_BYTES = 8 * len(Segment._fields)
# What the kernel answers: the counts of what it wrote, and where it stumbled (-1: nowhere).
ROWS, KEY_BYTES, VALUE_BYTES, HEADERS_SEEN, NAME_BYTES, TAG_BYTES, FAULT = range(7)


class Out(NamedTuple):
    """Addresses of the Arrow buffers that the kernel fills, and of its tally."""

    tally: int
    offsets: int
    stamps: int
    types: int
    keys: int
    key_ends: int
    key_valid: int
    values: int
    value_ends: int
    value_valid: int
    header_ends: int
    headers_valid: int
    names: int
    name_ends: int
    tags: int
    tag_ends: int
    tag_valid: int


@compiled
def blob(at, end, target):  # type: ignore[no-untyped-def]
    """Copy length-prefixed bytes to `target`: their length (negative: null), and where they end, or 0.

    Without a target they are passed over, and as good as null.
    """
    length, at = varint(at, end)
    if at == 0 or length < 0:
        return length, at
    if length > end - at:
        return length, np.int64(0)
    if target == 0:
        return np.int64(-1), at + length
    move(target, at, length)
    return length, at + length


@compiled
def add(tally, which, count):  # type: ignore[no-untyped-def]
    """Add to one count of the tally; return the sum."""
    total = get64(tally, which) + count
    put64(tally, which, total)
    return total


@compiled
def mark(bitmap, row, valid):  # type: ignore[no-untyped-def]
    """Say in a bitmap whether the row has a value. All bits are set at first."""
    if not valid:
        put8(bitmap, row >> 3, get8(bitmap, row >> 3) & ~(1 << (row & 7)))


@compiled
def headers_at(at, end, out):  # type: ignore[no-untyped-def]
    """Write the record's headers, counted in the tally; return where they end, or 0."""
    count, at = varint(at, end)
    if at == 0 or count < 0 or count > end - at:
        return np.int64(0)
    for _ in range(count):
        row = get64(out.tally, HEADERS_SEEN)
        size, at = blob(at, end, out.names + get64(out.tally, NAME_BYTES))
        if at == 0 or size < 0:
            return np.int64(0)
        put32(out.name_ends, row + 1, add(out.tally, NAME_BYTES, size))
        size, at = blob(at, end, out.tags + get64(out.tally, TAG_BYTES))
        if at == 0:
            return np.int64(0)
        mark(out.tag_valid, row, size >= 0)
        put32(out.tag_ends, row + 1, add(out.tally, TAG_BYTES, max(size, 0)))
        add(out.tally, HEADERS_SEEN, 1)
    return at


@compiled
def record_at(at, end, segment, first, until, out):  # type: ignore[no-untyped-def]
    """Write the record between these addresses as a row if it lies in the range; return False on bad bytes.

    What is not in the range is written, too, and overwritten by the next: it is not counted.
    """
    time_delta, at = varint(at + 1, end)
    if at == 0:
        return False
    delta, at = varint(at, end)
    if at == 0 or delta < 0 or delta > get64(segment, LAST_DELTA):
        return False
    key_size, at = blob(at, end, out.keys + get64(out.tally, KEY_BYTES))
    if at == 0:
        return False
    value_size, at = blob(at, end, out.values + get64(out.tally, VALUE_BYTES))
    if at == 0:
        return False
    offset = get64(segment, OFFSET) + delta
    seen = get64(out.tally, HEADERS_SEEN)
    names, tags = get64(out.tally, NAME_BYTES), get64(out.tally, TAG_BYTES)
    if headers_at(at, end, out) != end:
        return False
    if offset < first or offset >= until:
        for header in range(seen, get64(out.tally, HEADERS_SEEN)):
            put8(out.tag_valid, header >> 3, get8(out.tag_valid, header >> 3) | (1 << (header & 7)))
        put64(out.tally, HEADERS_SEEN, seen)
        put64(out.tally, NAME_BYTES, names)
        put64(out.tally, TAG_BYTES, tags)
        return True
    stamp = get64(segment, MAX_TIME) if get64(segment, APPEND) else get64(segment, TIME) + time_delta
    write_row(offset, stamp, get64(segment, APPEND), key_size, value_size, seen, out)
    return True


@compiled
def write_row(offset, stamp, kind, key_size, value_size, seen, out):  # type: ignore[no-untyped-def]
    """Write all of a row but its bytes, which are there already."""
    row = get64(out.tally, ROWS)
    put64(out.offsets, row, offset)
    put64(out.stamps, row, max(-MOST_MS, min(MOST_MS, stamp)) * 1000)
    put32(out.types, row, kind)
    mark(out.key_valid, row, key_size >= 0)
    mark(out.value_valid, row, value_size >= 0)
    mark(out.headers_valid, row, get64(out.tally, HEADERS_SEEN) > seen)
    put32(out.key_ends, row + 1, add(out.tally, KEY_BYTES, max(key_size, 0)))
    put32(out.value_ends, row + 1, add(out.tally, VALUE_BYTES, max(value_size, 0)))
    put32(out.header_ends, row + 1, get64(out.tally, HEADERS_SEEN))
    put64(out.tally, ROWS, row + 1)


@compiled
def read(data, segments, count, first, until, out):  # type: ignore[no-untyped-def]
    """Write the rows of all segments; the tally says where bad bytes stopped it."""
    for number in range(count):
        segment = segments + number * SEGMENT_BYTES
        at, end = data + get64(segment, AT), data + get64(segment, END)
        for _ in range(get64(segment, COUNT)):
            length, body = varint(at, end)
            if body == 0 or length < 1 or length > end - body:
                put64(out.tally, FAULT, at - data)
                return
            at = body + length
            if not record_at(body, at, segment, first, until, out):
                put64(out.tally, FAULT, body - data)
                return
        if at != end:
            put64(out.tally, FAULT, at - data)
            return


class Buffers(NamedTuple):
    """The arrays behind `Out`: as large as they could need to be, and memory only where they are touched."""

    tally: np.ndarray
    offsets: np.ndarray
    stamps: np.ndarray
    types: np.ndarray
    keys: np.ndarray
    key_ends: np.ndarray
    key_valid: np.ndarray
    values: np.ndarray
    value_ends: np.ndarray
    value_valid: np.ndarray
    header_ends: np.ndarray
    headers_valid: np.ndarray
    names: np.ndarray
    name_ends: np.ndarray
    tags: np.ndarray
    tag_ends: np.ndarray
    tag_valid: np.ndarray


assert Buffers._fields == Out._fields
assert len(Segment._fields) == APPEND + 1


def bits(count: int) -> np.ndarray:
    """Return a validity bitmap of so many rows, all valid."""
    return np.full((count + 7) // 8, 255, np.uint8)


def ends(count: int) -> np.ndarray:
    """Return Arrow's offsets of so many values; the first is 0."""
    made = np.empty(count + 1, np.int32)
    made[0] = 0
    return made


def room_for(chunk: Chunk) -> Buffers:
    """Return buffers into which the chunk's rows will fit, whatever they hold.

    A header takes two bytes at least. The kernel trusts these sizes: they hold for hostile bytes, too.
    """
    rows, size = chunk.rows, chunk.size
    headers = size // 2
    return Buffers(
        tally=np.array([0, 0, 0, 0, 0, 0, -1], np.int64),
        offsets=np.empty(rows, np.int64),
        stamps=np.empty(rows, np.int64),
        types=np.empty(rows, np.int32),
        keys=np.empty(size, np.uint8),
        key_ends=ends(rows),
        key_valid=bits(rows),
        values=np.empty(size, np.uint8),
        value_ends=ends(rows),
        value_valid=bits(rows),
        header_ends=ends(rows),
        headers_valid=bits(rows),
        names=np.empty(size, np.uint8),
        name_ends=ends(headers),
        tags=np.empty(size, np.uint8),
        tag_ends=ends(headers),
        tag_valid=bits(headers),
    )


def columns_of(
    chunk: Chunk, *, first: int, until: int, headers: bool, left_out: Collection[str] = ()
) -> dict[str, pa.Array]:
    """Return the columns that come out of the records themselves; `key` and `value` may be left out."""
    buffers = room_for(chunk)
    segments = np.array(chunk.segments, np.int64)
    data = np.frombuffer(chunk.data, np.uint8)
    out = Out(*(buffer.ctypes.data for buffer in buffers))
    out = out._replace(**{f"{name}s": 0 for name in left_out})  # no target: the kernel passes over them
    read(data.ctypes.data, segments.ctypes.data, len(chunk.segments), first, until, out)
    tally = [int(count) for count in buffers.tally]
    if tally[FAULT] >= 0:
        raise Corrupt("record", at=tally[FAULT], expected="a whole one")
    rows = tally[ROWS]
    columns = {
        "key": blobs(pa.binary(), rows, buffers.key_valid, buffers.key_ends, buffers.keys, tally[KEY_BYTES]),
        "value": blobs(
            pa.binary(), rows, buffers.value_valid, buffers.value_ends, buffers.values, tally[VALUE_BYTES]
        ),
        "offset": pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(buffers.offsets)]),
        "timestamp": pa.Array.from_buffers(TIMESTAMP, rows, [None, pa.py_buffer(buffers.stamps)]),
        "timestampType": pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(buffers.types)]),
    }
    if headers:
        columns["headers"] = headers_column(buffers, tally)
    return {name: column for name, column in columns.items() if name not in left_out}


def blobs(
    kind: pa.DataType, rows: int, valid: np.ndarray | None, stops: np.ndarray, data: np.ndarray, used: int
) -> pa.Array:
    """Return an array of bytes or text over these buffers."""
    mask = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(stops), pa.py_buffer(data[:used])])


def headers_column(buffers: Buffers, tally: list[int]) -> pa.Array:
    """Return the lists of headers; a record without any has null, as in Spark's source."""
    count = tally[HEADERS_SEEN]
    names = blobs(pa.string(), count, None, buffers.name_ends, buffers.names, tally[NAME_BYTES])
    tags = blobs(pa.binary(), count, buffers.tag_valid, buffers.tag_ends, buffers.tags, tally[TAG_BYTES])
    pairs = pa.StructArray.from_arrays([names, tags], fields=list(HEADERS.value_type))
    held = [pa.py_buffer(buffers.headers_valid), pa.py_buffer(buffers.header_ends)]
    return pa.Array.from_buffers(HEADERS, tally[ROWS], held, children=[pairs])
