"""One batch's records as tuples, out of the columns that the compiled kernel reads."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa

from coterie.arrow.compiled import columns_of
from coterie.arrow.plan import LEAST_RECORD, Chunk, Segment
from coterie.arrow.types import MOST_MS
from coterie.base.errors import Corrupt
from coterie.wire.records.batches import BatchHeader

T = TypeVar("T", bound=tuple[Any, ...])
Headers = tuple[tuple[str, bytes | None], ...]

US_PER_MS = 1000


class ColumnRows(Generic[T]):
    """The records of a batch in columns, made into tuples as they are taken."""

    slow_records = 0

    def __init__(self, columns: dict[str, pa.Array], kind: type[T], place: tuple[str, int]) -> None:
        self.left = self._count = len(columns["offset"])
        self._columns, self._kind, self._place = columns, kind, place

    @classmethod
    def of(
        cls, data: bytes, start: int, end: int, header: BatchHeader, kind: type[T], place: tuple[str, int]
    ) -> Self | None:
        """Return the records of a batch between these places, None for the plain reader to read.

        That one says what is wrong with bad bytes, and reads what no column holds: timestamps beyond Spark's,
        headers' names that are no UTF-8. A tuple is made of topic, partition, offset, timestamp (ms) and its
        type, key, value and headers.
        """
        if not 0 < header.count <= (end - start) // LEAST_RECORD or abs(header.base_timestamp) >= MOST_MS:
            return None
        columns = columns_between(data, start, end, header)
        if columns is None or len(columns["offset"]) != header.count:
            return None
        return cls(columns, kind, place)

    def take(self, most: int) -> list[T]:
        """Return the next records, so many at most."""
        first = self._count - self.left
        columns = {name: column.slice(first, most) for name, column in self._columns.items()}
        topic, partition = self._place
        rows = zip(
            repeat(topic),
            repeat(partition),
            columns["offset"].to_pylist(),
            columns["timestamp"].to_pylist(),
            columns["timestampType"].to_pylist(),
            columns["key"].to_pylist(),
            columns["value"].to_pylist(),
            headers_of(columns["headers"]),
            strict=False,  # what is the same for all has no end
        )
        taken: list[T] = [*map(tuple.__new__, repeat(self._kind), rows)]
        self.left -= len(taken)
        return taken


def columns_between(data: bytes, start: int, end: int, header: BatchHeader) -> dict[str, pa.Array] | None:
    """Return the columns of a batch's records, timestamps in ms; None where these cannot hold them."""
    segment = Segment(
        at=start,
        end=end,
        rows=header.count,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        append_time=int(header.append_time),
    )
    chunk = Chunk(data, np.array([segment], np.int64))
    try:
        columns = columns_of(chunk, first=header.base_offset, until=header.last_offset + 1, headers=True)
        columns["headers"].validate(full=True)
    except (Corrupt, OverflowError, pa.ArrowInvalid):
        return None
    stamps = columns["timestamp"].to_numpy().view(np.int64) // US_PER_MS
    if len(stamps) and max(-stamps.min(), stamps.max()) >= MOST_MS:  # as the kernel writes all beyond
        return None
    return {**columns, "timestamp": pa.array(stamps)}


def headers_of(column: pa.Array) -> Iterable[Headers]:
    """Return the headers of records, `()` for those without any."""
    if column.null_count == len(column):
        return repeat(())
    return [
        tuple((header["key"], header["value"]) for header in headers or ()) for headers in column.to_pylist()
    ]
