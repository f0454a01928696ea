"""One batch's records as tuples, found by a kernel that numba compiles: half of the time that Python takes.

Needs numba and numpy, not pyarrow. What does not fit, bad bytes above all, is left to whoever asks: the
answer is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any, Generic, Self, TypeVar

import numpy as np

from coterie.arrow.kernel import compiled, varint
from coterie.arrow.memory import get8, get64, put64
from coterie.arrow.plan import LEAST_RECORD
from coterie.base.errors import Corrupt
from coterie.wire.records.batches import BatchHeader, read_headers

T = TypeVar("T", bound=tuple[Any, ...])
Tags = tuple[tuple[str, bytes | None], ...]

# What the kernel notes of each record; places count from the begin of the data, a null begins at -1.
OFFSET, TIME, KEY, KEY_END, VALUE, VALUE_END, END = range(7)
FIELDS = 7
# Sums below this fit 64 bits.
MOST = 1 << 62


@compiled
def blob(at, end, data, row, rows, field, table):  # type: ignore[no-untyped-def]
    """Note where length-prefixed bytes lie; return where they end, or 0."""
    size, at = varint(at, end)
    if at == 0 or size > end - at:
        return np.int64(0)
    put64(table, field * rows + row, at - data if size >= 0 else np.int64(-1))
    at += max(size, 0)
    put64(table, (field + 1) * rows + row, at - data)
    return at


@compiled
def record(at, end, data, row, rows, table):  # type: ignore[no-untyped-def]
    """Note where the parts of a record lie; return False on bad bytes. Headers are not looked into."""
    time, at = varint(at + 1, end)
    if at == 0:
        return False
    offset, at = varint(at, end)
    if at == 0:
        return False
    put64(table, TIME * rows + row, time)
    put64(table, OFFSET * rows + row, offset)
    at = blob(at, end, data, row, rows, KEY, table)
    if at == 0:
        return False
    at = blob(at, end, data, row, rows, VALUE, table)
    if at == 0 or at >= end:
        return False
    put64(table, END * rows + row, end - data)
    return get8(at, 0) != 0 or at + 1 == end


@compiled
def index(data, start, end, rows, table):  # type: ignore[no-untyped-def]
    """Fill the table, field by field, with so many records; return how many have headers, -1 on bad bytes."""
    at, end, tagged = data + start, data + end, 0
    for row in range(rows):
        length, body = varint(at, end)
        if body == 0 or length < 1 or length > end - body:
            return -1
        at = body + length
        if not record(body, at, data, row, rows, table):
            return -1
        if get8(data + get64(table, VALUE_END * rows + row), 0):
            tagged += 1
    return tagged if at == end else -1


class ColumnRows(Generic[T]):
    """The records of a batch in columns, made into tuples as they are taken."""

    slow_records = 0

    def __init__(
        self, kind: type[T], data: bytes, table: np.ndarray, fixed: tuple[repeat[Any], ...], tagged: bool
    ) -> None:
        self.left = self._count = table.shape[1]
        self._kind, self._data, self._table = kind, data, table
        self._topic, self._partition, self._stamped = fixed
        self._tagged = tagged

    @classmethod
    def of(
        cls, data: bytes, start: int, end: int, header: BatchHeader, kind: type[T], place: tuple[str, int]
    ) -> Self | None:
        """Return the records of a batch that lie between these places, None if they do not fit.

        A tuple is made of topic, partition, offset, timestamp (ms) and its type, key, value and headers.
        """
        if not 0 < header.count <= (end - start) // LEAST_RECORD:
            return None
        table = np.empty((FIELDS, header.count), np.int64)
        source = np.frombuffer(data, np.uint8)
        tagged = index(source.ctypes.data, start, end, header.count, table.ctypes.data)
        if tagged < 0 or not summed(table, header):
            return None
        fixed = repeat(place[0]), repeat(place[1]), repeat(int(header.append_time))
        return cls(kind, data, table, fixed, tagged > 0)

    def take(self, most: int) -> list[T]:
        """Return the next records, so many at most, or raise Corrupt and stay before them."""
        first = self._count - self.left
        offsets, times, keys, key_ends, values, value_ends, ends = self._table[
            :, first : first + most
        ].tolist()
        columns = zip(
            self._topic,
            self._partition,
            offsets,
            times,
            self._stamped,
            cut(self._data, keys, key_ends),
            cut(self._data, values, value_ends),
            tags(self._data, value_ends, ends) if self._tagged else repeat(()),
            strict=False,  # what is the same for all has no end
        )
        rows: list[T] = [*map(tuple.__new__, repeat(self._kind), columns)]
        self.left -= len(rows)
        return rows


def summed(table: np.ndarray, header: BatchHeader) -> bool:
    """Make offsets and timestamps out of what was read; return False where they do not fit."""
    deltas = table[:KEY]
    bases = header.base_offset, header.base_timestamp
    if deltas.min() <= -MOST or max(deltas.max(), *map(abs, bases)) >= MOST:
        return False
    if deltas[OFFSET].max() > header.last_offset_delta:
        return False
    table[OFFSET] += header.base_offset
    if header.append_time:
        table[TIME] = header.max_timestamp
    else:
        table[TIME] += header.base_timestamp
    return True


def cut(data: bytes, starts: list[int], ends: list[int]) -> Iterable[bytes | None]:
    """Return the bytes between these places; a null begins at -1."""
    if min(starts) >= 0:
        return [data[start:end] for start, end in zip(starts, ends, strict=True)]
    if max(starts) < 0:
        return repeat(None)
    return [None if start < 0 else data[start:end] for start, end in zip(starts, ends, strict=True)]


def tags(data: bytes, starts: list[int], ends: list[int]) -> list[Tags]:
    """Return the headers of records that end at these places, or raise Corrupt."""
    found: list[Tags] = []
    try:
        for start, end in zip(starts, ends, strict=True):
            some, at = read_headers(data, start, end) if data[start] else ((), end)
            if at != end:
                raise Corrupt("record", at=at, expected=f"its end at {end}")
            found.append(some)
    except IndexError as failure:
        raise Corrupt("record headers", expected="whole ones") from failure
    return found
