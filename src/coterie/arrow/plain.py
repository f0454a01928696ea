"""The records of a chunk, read in pure Python: what `compiled` does, for where numba is missing.

Both give the same columns and refuse the same bytes; the tests hold them against each other.
"""

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from coterie.arrow.plan import Chunk, Segment
from coterie.arrow.types import HEADERS, RAW_HEADERS, TIMESTAMP, micros
from coterie.base.errors import Corrupt

Row = tuple[int, int, int, bytes | None, bytes | None, list[dict[str, Any]] | None]


def columns_of(
    chunk: Chunk, *, first: int, until: int, headers: bool, left_out: Collection[str] = ()
) -> dict[str, pa.Array]:
    """Return the columns that come out of the records themselves; `key` and `value` may be left out."""
    rows: list[Row] = []
    data = bytes(chunk.data)  # it may be a view
    for segment in chunk.segments:
        read_segment(data, segment, first, until, headers, rows)
    offsets, stamps, types, keys, values, kept = zip(*rows, strict=True) if rows else ((),) * 6
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array(stamps, pa.int64()).cast(TIMESTAMP),
        "timestampType": pa.array(types, pa.int32()),
    }
    if headers:
        columns["headers"] = pa.array(kept, RAW_HEADERS).cast(HEADERS, safe=False)
    return {name: column for name, column in columns.items() if name not in left_out}


def read_segment(
    data: bytes, segment: Segment, first: int, until: int, headers: bool, rows: list[Row]
) -> None:
    """Add the segment's records that lie in [first, until) to `rows`."""
    at = segment.at
    for _ in range(segment.rows):
        length, body = varint(data, at, segment.end)
        if not 0 <= length <= segment.end - body:
            raise Corrupt("record", at=body, expected=f"{length} bytes")
        at = body + length
        row = read_record(data, body, at, segment, headers)
        if first <= row[0] < until:
            rows.append(row)
    if at != segment.end:
        raise Corrupt("record batch", at=at, expected="no bytes after its last record")


def read_record(data: bytes, at: int, end: int, segment: Segment, headers: bool) -> Row:
    """Return one record, whose body is exactly data[at:end]."""
    time_delta, at = varint(data, at + 1, end)
    offset_delta, at = varint(data, at, end)
    key, at = blob(data, at, end)
    value, at = blob(data, at, end)
    kept, at = headers_at(data, at, end)
    if at != end:
        raise Corrupt("record", at=at, expected="its end")
    if not 0 <= offset_delta <= segment.last_offset_delta:
        raise Corrupt(
            "record", at=at, expected=f"an offset within {segment.last_offset_delta} of its batch's"
        )
    stamp = segment.max_timestamp if segment.append_time else segment.base_timestamp + time_delta
    return (
        segment.base_offset + offset_delta,
        micros(stamp),
        segment.append_time,
        key,
        value,
        kept if headers and kept else None,
    )


def headers_at(data: bytes, at: int, end: int) -> tuple[list[dict[str, Any]], int]:
    """Return the record's headers, in Spark's shape, and where they end."""
    count, at = varint(data, at, end)
    if not 0 <= count <= end - at:
        raise Corrupt("record headers", at=at, expected=f"{count} headers")
    kept = []
    for _ in range(count):
        name, at = blob(data, at, end)
        if name is None:
            raise Corrupt("record header", at=at, expected="a key")
        value, at = blob(data, at, end)
        kept.append({"key": name, "value": value})
    return kept, at


def blob(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Return length-prefixed bytes (None for a negative length, as in Java) and where they end."""
    length, at = varint(data, at, end)
    if length < 0:
        return None, at
    if length > end - at:
        raise Corrupt("record", at=at, expected=f"{length} bytes")
    return data[at : at + length], at + length


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the zig-zag number at `at` (10 bytes at most) and where it ends."""
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise Corrupt("varint", at=at, expected="a last byte")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    value &= 0xFFFFFFFFFFFFFFFF
    return (value >> 1) ^ -(value & 1), at
