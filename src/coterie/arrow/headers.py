"""The headers of a Fetch's batches as a table: a fetch has hundreds of batches, and most are small."""

from typing import Any, TypeAlias

import numpy as np

from coterie.wire.records.batches import HEADER_SIZE, BatchHeader, ends_of

Headers: TypeAlias = "np.ndarray[Any, np.dtype[np.void]]"
Places: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

KINDS = (">i8", ">i4", ">i4", "i1", ">u4", ">i2", ">i4", ">i8", ">i8", ">i8", ">i2", ">i4", ">i4")
HEADER = np.dtype(list(zip(BatchHeader._fields, KINDS, strict=True)))
assert HEADER.itemsize == HEADER_SIZE
SPAN = np.arange(HEADER_SIZE)


def headers_in(records: bytes) -> tuple[Places, Headers]:
    """Return the places of whole batches, and their headers. A batch that is cut at the end is left out."""
    ends = ends_of(records)
    starts = np.array([0, *ends[:-1]] if ends else [], np.int64)
    gathered = np.frombuffer(records, np.uint8)[starts[:, np.newaxis] + SPAN]
    return starts, gathered.view(HEADER)[:, 0]


def header_rows(headers: Headers) -> list[BatchHeader]:
    """Return the headers one by one."""
    return [BatchHeader._make(row) for row in headers.tolist()]
