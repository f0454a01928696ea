"""Rows in Arrow columns to the records of batches, by kernels that numba compiles: one pass, bytes by memcpy.

Importing this module needs numba (`pip install 'coterie[spark]'`).
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from coterie.arrow.kernel import compiled, put_varint, varint_size
from coterie.arrow.memory import get8, get32, get64, move, put8, put32, put64
from coterie.arrow.outgoing import ROUND_BYTES, ROUND_HEADER_BYTES, Rows
from coterie.wire.records.columns import Packed

WORD_BYTES = 8
# Columns of the table of batches that the kernel fills.
TARGET, START, END, RECORDS, BASE_TIME, MAX_TIME, FIELDS = range(7)
# What a record, and a header, take at most beside their bytes: varints of sizes, numbers and deltas.
MARGIN, HEADER_MARGIN = 48, 10
MASK = 0xFFFFFFFF
MIX = 0x5BD1E995


class Blobs(NamedTuple):
    """Addresses of a column of bytes: validity (0: all valid) from a bit on, where each ends, the bytes."""

    valid: int
    bit: int
    ends: int
    data: int


NO_BLOBS = Blobs(0, 0, 0, 0)


@compiled
def size_at(blobs, row):  # type: ignore[no-untyped-def]
    """Return the size of a row in bytes, -1 for null."""
    if blobs.ends == 0:
        return np.int64(-1)
    if blobs.valid != 0:
        bit = blobs.bit + row
        if not (get8(blobs.valid, bit >> 3) >> (bit & 7)) & 1:
            return np.int64(-1)
    return get32(blobs.ends, row + 1) - get32(blobs.ends, row)


@compiled
def put_blob(at, blobs, row, size):  # type: ignore[no-untyped-def]
    """Write a row's bytes after their size; return where they end."""
    at = put_varint(at, size)
    if size <= 0:
        return at
    move(at, blobs.data + get32(blobs.ends, row), size)
    return at + size


@compiled
def blob_size(size):  # type: ignore[no-untyped-def]
    """Return the number of bytes that so many bytes take with their size in front (-1: null)."""
    return varint_size(size) + max(size, 0)


@compiled
def headers_of(lists, row):  # type: ignore[no-untyped-def]
    """Return the first of a row's headers, and how many it has."""
    size = size_at(lists, row)
    return (get32(lists.ends, row), size) if size > 0 else (np.int64(0), np.int64(0))


@compiled
def headers_size(lists, names, tags, row):  # type: ignore[no-untyped-def]
    """Return the size of a row's headers as written, and in round numbers."""
    first, count = headers_of(lists, row)
    size, rounded = varint_size(count), np.int64(0)
    for at in range(first, first + count):
        name, tag = size_at(names, at), size_at(tags, at)
        size += blob_size(name) + blob_size(tag)
        rounded += ROUND_HEADER_BYTES + name + max(tag, 0)
    return size, rounded


@compiled
def put_headers(at, lists, names, tags, row):  # type: ignore[no-untyped-def]
    """Write a row's headers; return where they end."""
    first, count = headers_of(lists, row)
    at = put_varint(at, count)
    for header in range(first, first + count):
        at = put_blob(at, names, header, size_at(names, header))
        at = put_blob(at, tags, header, size_at(tags, header))
    return at


@compiled
def word(at):  # type: ignore[no-untyped-def]
    """Return four bytes as a number; they may lie anywhere."""
    return get8(at, 0) | get8(at, 1) << 8 | get8(at, 2) << 16 | get8(at, 3) << 24


@compiled
def hashed(at, size):  # type: ignore[no-untyped-def]
    """Return Kafka's murmur2 of these bytes without its sign (PT-3)."""
    digest = np.int64(0x9747B28C) ^ size
    whole = size & ~3
    for place in range(at, at + whole, 4):
        block = word(place) * MIX & MASK
        block = (block ^ block >> 24) * MIX & MASK
        digest = (digest * MIX & MASK) ^ block
    if size > whole:
        for place in range(whole, size):
            digest ^= get8(at, place) << 8 * (place - whole)
        digest = digest * MIX & MASK
    digest = (digest ^ digest >> 13) * MIX & MASK
    return (digest ^ digest >> 15) & 0x7FFFFFFF


@compiled
def place(targets, keys, count, partitions):  # type: ignore[no-untyped-def]
    """Write the partition of each row that has a key and none yet (-1)."""
    for row in range(count):
        if get32(targets, row) == MASK:
            size = size_at(keys, row)
            if size >= 0:
                put32(targets, row, hashed(keys.data + get32(keys.ends, row), size) % partitions)


@compiled
def write(order, targets, count, values, keys, lists, names, tags, stamps, now, most, out, table):  # type: ignore[no-untyped-def]
    """Write all rows in this order, and say in the table where batches begin and end; return how many."""
    batches, at, filled, offset, target = 0, out, np.int64(0), np.int64(0), np.int64(-1)
    base = np.int64(0)
    line = table - FIELDS * 8
    for place in range(count):
        row = get64(order, place) if order != 0 else np.int64(place)
        key, value = size_at(keys, row), size_at(values, row)
        headers, rounded = headers_size(lists, names, tags, row)
        rounded += ROUND_BYTES + max(key, 0) + max(value, 0)
        when = get64(stamps, row) if stamps != 0 else now
        theirs = get32(targets, row)
        if batches == 0 or theirs != target or filled + rounded > most:
            batches, filled, offset, base, target = batches + 1, np.int64(0), np.int64(0), when, theirs
            line += FIELDS * 8
            put64(line, TARGET, target)
            put64(line, START, at - out)
            put64(line, BASE_TIME, when)
            put64(line, MAX_TIME, when)
        size = (
            1 + varint_size(when - base) + varint_size(offset) + blob_size(key) + blob_size(value) + headers
        )
        at = put_varint(at, size)
        put8(at, 0, 0)
        at = put_varint(put_varint(at + 1, when - base), offset)
        at = put_blob(put_blob(at, keys, row, key), values, row, value)
        at = put_headers(at, lists, names, tags, row)
        filled, offset = filled + rounded, offset + 1
        put64(line, END, at - out)
        put64(line, RECORDS, offset)
        put64(line, MAX_TIME, max(when, get64(line, MAX_TIME)))
    return batches


def pack(rows: Rows, *, partitions: int, most_bytes: int, now_ms: int) -> list[Packed]:
    """Return the rows as batches, partition by partition, those of no partition first."""
    count = len(rows.value)
    values, keys = blobs_of(rows.value), blobs_of(rows.key)
    lists, names, tags, headers = headers_column(rows.headers)
    stamps = None if rows.stamps is None else rows.stamps.fill_null(now_ms)
    targets = targets_of(rows)
    place(targets.ctypes.data, keys, count, partitions)
    order = None if (targets == targets[:1]).all() else np.argsort(targets, kind="stable")
    room = bytes_of(rows.value) + bytes_of(rows.key) + count * MARGIN + headers
    out = np.empty(room, np.uint8)
    table = np.empty((count, FIELDS), np.int64)
    made = write(
        0 if order is None else order.ctypes.data,
        targets.ctypes.data,
        count,
        values,
        keys,
        lists,
        names,
        tags,
        0 if stamps is None else address(stamps, 1, WORD_BYTES),
        now_ms,
        most_bytes,
        out.ctypes.data,
        table.ctypes.data,
    )
    return [
        Packed(number if number < MASK else -1, out[start:end].tobytes(), records, base, last)
        for number, start, end, records, base, last in table[:made].tolist()
    ]


def targets_of(rows: Rows) -> np.ndarray:
    """Return the partitions that rows name, -1 where they name none."""
    if rows.partition is None:
        return np.full(len(rows.value), -1, np.int32)
    return np.array(rows.partition.fill_null(-1))


def address(column: pa.Array, which: int, width: int) -> int:
    """Return the address of the first element in one of a column's buffers; 0 if there is no such buffer."""
    buffer = column.buffers()[which]
    return 0 if buffer is None else int(buffer.address) + column.offset * width


def blobs_of(column: pa.Array | None) -> Blobs:
    """Return a column of bytes or text, or of lists, as addresses."""
    if column is None:
        return NO_BLOBS
    data = 0 if pa.types.is_list(column.type) else address(column, 2, 0)
    return Blobs(address(column, 0, 0), column.offset, address(column, 1, 4), data)


def bytes_of(column: pa.Array | None) -> int:
    """Return the size in bytes of all rows of a column together."""
    if column is None or not len(column):
        return 0
    ends = np.frombuffer(column.buffers()[1], np.int32)
    return int(ends[column.offset + len(column)] - ends[column.offset])


def headers_column(column: pa.Array | None) -> tuple[Blobs, Blobs, Blobs, int]:
    """Return the lists, names and values of headers, and the room that all of them may take."""
    if column is None:
        return NO_BLOBS, NO_BLOBS, NO_BLOBS, 0
    names, tags = column.values.flatten()
    room = bytes_of(names) + bytes_of(tags) + len(names) * HEADER_MARGIN
    return blobs_of(column), blobs_of(names), blobs_of(tags), room
