"""The same as `outgoing_compiled` in plain Python, for where numba is missing."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from coterie.arrow.outgoing import ROUND_BYTES, ROUND_HEADER_BYTES, Rows
from coterie.base.hashes import murmur2, to_positive
from coterie.wire.records.packing import Headers, Packed, pack_records

Record = tuple[bytes | None, bytes | None, Headers, int]


def pack(rows: Rows, *, partitions: int, most_bytes: int, now_ms: int) -> list[Packed]:
    """Return the rows as batches, partition by partition, those of no partition first."""
    count = len(rows.value)
    nothing = [None] * count
    values, keys, headers, stamps, asked = (
        nothing if column is None else column.to_pylist()
        for column in (rows.value, rows.key, rows.headers, rows.stamps, rows.partition)
    )
    by_partition: dict[int, list[Record]] = defaultdict(list)
    for value, key, named, stamp, number in zip(values, keys, headers, stamps, asked, strict=True):
        record = (value, key, pairs(named), now_ms if stamp is None else stamp)
        by_partition[target(number, key, partitions)].append(record)
    return [
        packed(number, records)
        for number in sorted(by_partition)
        for records in cut(by_partition[number], most_bytes)
    ]


def target(number: int | None, key: bytes | None, partitions: int) -> int:
    """Return a record's partition, -1 for any."""
    if number is not None:
        return number
    return -1 if key is None else to_positive(murmur2(key)) % partitions


def pairs(headers: Sequence[dict[str, Any]] | None) -> Headers:
    """Return headers as names and values."""
    return [(one["key"], one["value"]) for one in headers or ()]


def cut(records: Sequence[Record], most_bytes: int) -> Iterator[Sequence[Record]]:
    """Yield stretches of about so many bytes at most."""
    start = filled = 0
    for at, record in enumerate(records):
        size = rounded(record)
        if at > start and filled + size > most_bytes:
            yield records[start:at]
            start, filled = at, 0
        filled += size
    yield records[start:]


def rounded(record: Record) -> int:
    """Return about how many bytes a record takes."""
    value, key, headers, _ = record
    size = ROUND_BYTES + len(value or b"") + len(key or b"")
    return size + sum(ROUND_HEADER_BYTES + len(name.encode()) + len(tag or b"") for name, tag in headers)


def packed(number: int, records: Sequence[Record]) -> Packed:
    """Return one batch."""
    values, keys, headers, times = zip(*records, strict=True)
    stamps = [(at, when) for at, when in enumerate(times) if at == 0 or when != times[at - 1]]
    body = pack_records(
        values,
        stamps,
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
    )
    return Packed(number, body, len(records), times[0], max(times))
