"""The records of a chunk, read by a kernel that numba compiles: one pass, values copied by memcpy.

Importing this module needs numba (`pip install 'coterie[spark]'`).
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from coterie.arrow.kernel import compiled, inlined, varint
from coterie.arrow.memory import get8, get64, move, put8, put32, put64
from coterie.arrow.plan import Chunk, Segment
from coterie.arrow.types import HEADERS, MOST_MS, TIMESTAMP
from coterie.base.errors import Corrupt

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


@inlined
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


@inlined
def add(tally, which, count):  # type: ignore[no-untyped-def]
    """Add to one count of the tally; return the sum."""
    total = get64(tally, which) + count
    put64(tally, which, total)
    return total


@inlined
def mark(bitmap, row, valid):  # type: ignore[no-untyped-def]
    """Say in a bitmap whether the row has a value; rows come in order, and what is after them is not set."""
    bit = row & 7
    before = get8(bitmap, row >> 3) & ((1 << bit) - 1) if bit else 0
    put8(bitmap, row >> 3, before | (valid << bit))


@inlined
def past_headers(at, end, count):  # type: ignore[no-untyped-def]
    """Return the end of so many headers, passed over, or 0 on bad bytes."""
    for _ in range(count):
        name, start = varint(at, end)
        if start == 0 or name < 0 or name > end - start:
            return np.int64(0)
        _, at = blob(start + name, end, np.int64(0))
        if at == 0:
            return np.int64(0)
    return at


@inlined
def headers_at(at, end, out):  # type: ignore[no-untyped-def]
    """Write the record's headers, counted in the tally, or pass over them; return where they end, or 0."""
    count, at = varint(at, end)
    if at == 0 or count < 0 or count > end - at:
        return np.int64(0)
    if out.names == 0:
        return past_headers(at, end, count)
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


@inlined
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
        put64(out.tally, HEADERS_SEEN, seen)
        put64(out.tally, NAME_BYTES, names)
        put64(out.tally, TAG_BYTES, tags)
        return True
    stamp = get64(segment, MAX_TIME) if get64(segment, APPEND) else get64(segment, TIME) + time_delta
    write_row(offset, stamp, get64(segment, APPEND), key_size, value_size, seen, out)
    return True


@inlined
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
    for ends in (out.key_ends, out.value_ends, out.header_ends, out.name_ends, out.tag_ends):
        put32(ends, 0, 0)
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


assert len(Segment._fields) == APPEND + 1
NO_TALLY = np.array([0, 0, 0, 0, 0, 0, -1], np.int64)


def sizes_of(chunk: Chunk, *, headers: bool) -> Out:
    """Return the sizes in bytes of buffers into which the chunk's rows will fit, whatever they hold.

    A header takes two bytes at least. The kernel trusts these sizes: they hold for hostile bytes, too.
    """
    rows, size = chunk.rows, chunk.size
    ends, bits = 4 * (rows + 1), rows // 8 + 1
    texts, tags = (size, size // 2) if headers else (0, 0)
    return Out(
        tally=0,
        offsets=8 * rows,
        stamps=8 * rows,
        types=4 * rows,
        keys=size,
        key_ends=ends,
        key_valid=bits,
        values=size,
        value_ends=ends,
        value_valid=bits,
        header_ends=ends,
        headers_valid=bits,
        names=texts,
        name_ends=4 * (tags + 1),
        tags=texts,
        tag_ends=4 * (tags + 1),
        tag_valid=tags // 8 + 1,
    )


def columns_of(
    chunk: Chunk, *, first: int, until: int, headers: bool, left_out: Collection[str] = ()
) -> dict[str, pa.Array]:
    """Return the columns that come out of the records themselves; `key` and `value` may be left out."""
    # Arrow's memory, which is used again: numpy's would go back to the system with each chunk, which costs as
    # much as reading it does.
    buffers = dict(zip(Out._fields, map(pa.allocate_buffer, sizes_of(chunk, headers=headers)), strict=True))
    tally = NO_TALLY.copy()
    out = Out(*(buffer.address for buffer in buffers.values()))._replace(tally=tally.ctypes.data)
    unwanted = [f"{name}s" for name in left_out] + ([] if headers else ["names"])
    out = out._replace(**dict.fromkeys(unwanted, 0))  # no target: the kernel passes over them
    table = np.ascontiguousarray(chunk.table)
    data = np.frombuffer(chunk.data, np.uint8)
    read(data.ctypes.data, table.ctypes.data, len(table), first, until, out)
    counts: list[int] = tally.tolist()
    if counts[FAULT] >= 0:
        raise Corrupt("record", at=counts[FAULT], expected="a whole one")
    rows = counts[ROWS]
    of = pa.Array.from_buffers
    columns = {
        "key": blobs(pa.binary(), rows, buffers, "key", counts[KEY_BYTES]),
        "value": blobs(pa.binary(), rows, buffers, "value", counts[VALUE_BYTES]),
        "offset": of(pa.int64(), rows, [None, buffers["offsets"]]),
        "timestamp": of(TIMESTAMP, rows, [None, buffers["stamps"]]),
        "timestampType": of(pa.int32(), rows, [None, buffers["types"]]),
    }
    if headers:
        columns["headers"] = headers_column(buffers, counts)
    return {name: column for name, column in columns.items() if name not in left_out}


def blobs(kind: pa.DataType, rows: int, buffers: Mapping[str, pa.Buffer], name: str, used: int) -> pa.Array:
    """Return an array of bytes or text over the buffers with this name."""
    held = buffers.get(f"{name}_valid"), buffers[f"{name}_ends"], buffers[f"{name}s"].slice(0, used)
    return pa.Array.from_buffers(kind, rows, list(held))


def headers_column(buffers: Mapping[str, pa.Buffer], tally: list[int]) -> pa.Array:
    """Return the lists of headers; a record without any has null, as in Spark's source."""
    count = tally[HEADERS_SEEN]
    names = blobs(pa.string(), count, buffers, "name", tally[NAME_BYTES])
    tags = blobs(pa.binary(), count, buffers, "tag", tally[TAG_BYTES])
    pairs = pa.StructArray.from_arrays([names, tags], fields=list(HEADERS.value_type))
    held = [buffers["headers_valid"], buffers["header_ends"]]
    return pa.Array.from_buffers(HEADERS, tally[ROWS], held, children=[pairs])
