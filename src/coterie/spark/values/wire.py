"""Confluent's wire format: a zero byte, the schema's id in four, then the value. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HEADER_BYTES = 5
NO_ID = -1
"""In place of the id of a value that is null, or not in the format."""


class Headers(NamedTuple):
    """What stands before the values of a column."""

    ids: npt.NDArray[np.int64]
    """The id of each value's schema; `NO_ID` where there is none."""
    strange: npt.NDArray[np.bool_]
    """Which values are there and not in the format."""


def headers_of(values: pa.BinaryArray) -> Headers:
    """Return the ids of the schemas with which values were written."""
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], np.int32, count + 1, values.offset * 4).astype(np.int64)
    data = values.buffers()[2]
    octets = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    there = np.asarray(values.is_valid())
    starts = offsets[:-1]
    long_enough = there & (np.diff(offsets) >= HEADER_BYTES)
    if len(octets) < HEADER_BYTES:
        return Headers(np.full(count, NO_ID, np.int64), there)
    at = np.where(long_enough, starts, 0)
    # Four bytes from each place on, read as the number that they are: one look at memory for each value.
    numbers = np.ndarray((len(octets) - HEADER_BYTES + 1,), ">u4", octets, 1, (1,))
    ids = numbers[at].astype(np.int64)
    framed = long_enough & (octets[at] == 0)
    ids = np.where(framed & (ids < 1 << 31), ids, NO_ID)
    return Headers(ids, there & (ids == NO_ID))


def strange_because(value: bytes) -> str:
    """Return the reason that a value is not in the format."""
    begins = value[:HEADER_BYTES].hex(" ") or "nothing"
    return (
        f"not in the wire format of a schema registry, a zero byte and the id of a schema: it begins with"
        f" {begins}"
    )
