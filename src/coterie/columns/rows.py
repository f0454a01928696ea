"""One batch's records as tuples, by way of the compiled kernel: a third of the time that Python takes.

What does not fit columns (headers, timestamps beyond Arrow's) is left to whoever asks: the answer is None.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import Any, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa

from coterie.base.errors import Corrupt
from coterie.columns.compiled import (
    FAULT,
    HEADERS_SEEN,
    KEY_BYTES,
    ROWS,
    VALUE_BYTES,
    Out,
    blobs,
    read,
    room_for,
)
from coterie.columns.plan import LEAST_RECORD, Chunk, segment_of
from coterie.columns.types import MOST_MS
from coterie.wire.batches import BatchHeader

__all__ = ["ColumnRows"]

T = TypeVar("T", bound=tuple[Any, ...])

MOST = 2**63 - 1
MOST_MICROS = MOST_MS * 1000


class ColumnRows(Generic[T]):
    """The records of a batch in columns, made into tuples as they are taken."""

    def __init__(self, kind: type[T], fields: tuple[list[Any] | repeat[Any], ...], count: int) -> None:
        self.left = count
        self._count = count
        self._new = partial(tuple.__new__, kind)
        self._fields = fields

    @classmethod
    def of(
        cls, data: bytes, header: BatchHeader, kind: type[T], *, topic: str, partition: int
    ) -> Self | None:
        """Return the records of a batch whose payload is `data`, None if they do not fit, or raise Corrupt.

        A tuple is made of topic, partition, offset, timestamp (ms) and its type, key, value and no headers.
        """
        if not 0 <= header.count <= len(data) // LEAST_RECORD:
            raise Corrupt("record batch", expected=f"{header.count} records in {len(data)} bytes")
        chunk = Chunk(data, (segment_of(header, at=0, end=len(data)),))
        buffers = room_for(chunk)
        segments = np.array(chunk.segments, np.int64)
        source = np.frombuffer(data, np.uint8)
        out = Out(*(buffer.ctypes.data for buffer in buffers))
        read(source.ctypes.data, segments.ctypes.data, 1, 0, MOST, out)
        tally = buffers.tally.tolist()
        if tally[FAULT] >= 0:
            raise Corrupt("record", at=tally[FAULT], expected="a whole one")
        rows = tally[ROWS]
        micros = buffers.stamps[:rows]
        if tally[HEADERS_SEEN] or (rows and np.abs(micros).max() >= MOST_MICROS):
            return None
        keys = blobs(pa.binary(), rows, buffers.key_valid, buffers.key_ends, buffers.keys, tally[KEY_BYTES])
        values = blobs(
            pa.binary(), rows, buffers.value_valid, buffers.value_ends, buffers.values, tally[VALUE_BYTES]
        )
        fields = (
            repeat(topic),
            repeat(partition),
            buffers.offsets[:rows].tolist(),
            (micros // 1000).tolist(),
            repeat(int(header.append_time)),
            listed(keys),
            listed(values),
            repeat(()),
        )
        return cls(kind, fields, rows)

    def take(self, most: int) -> list[T]:
        """Return the next records, so many at most."""
        first = self._count - self.left
        stop = min(first + most, self._count)
        self.left = self._count - stop
        # What is repeated has no end; the others are as long as each other.
        parts = (field[first:stop] if isinstance(field, list) else field for field in self._fields)
        return list(map(self._new, zip(*parts, strict=False)))


def listed(column: pa.Array) -> list[bytes | None] | repeat[None]:
    """Return a column's values; where all are null there is nothing to look at."""
    if column.null_count == len(column):
        return repeat(None)
    values: list[bytes | None] = column.to_pylist()
    return values
