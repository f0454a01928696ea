"""Many records to the bytes of a batch in one pass, for who hands over values by the hundred thousand.

Those of a plain shape come in columns, and their varints are looked up: a tenth of a producer's time and more
(decision 15). All others are written one by one, by `encoded`.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from math import inf
from typing import Any, NamedTuple, TypeAlias

from coterie.wire.records.batches import NO_ATTRIBUTES, NO_HEADERS, NULL, encoded, encoded_headers, sized
from coterie.wire.varints import varlong

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
# The timestamps in runs: from which record on which timestamp holds. The first run begins with record 0.
Stamps: TypeAlias = Sequence[tuple[int, int]]


class Packed(NamedTuple):
    """Records of one partition (-1: of whichever) as they lie in a batch, compressed if they are to be."""

    partition: int
    body: bytes
    records: int
    base_timestamp: int
    max_timestamp: int


# Attributes, and the number of headers.
FIXED_BYTES = 2
# From these offsets on, an offset's varint is a byte longer.
WIDER_AT = (64, 8_192, 1_048_576, 134_217_728)

# The varints of the numbers from 0 on, and the bytes that data of that many bytes takes with its size before
# it. Both grow with the largest record that was seen, up to a limit: larger ones are packed one by one.
VARLONGS: list[bytes] = []
TAKEN: list[int] = []
LARGEST_LOOKED_UP = 16_384
# What a record takes beside its key and its value, at most: its size, deltas, and the rest.
MARGIN = 32


def pack_records(
    values: Sequence[bytes | None],
    stamps: Stamps,
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
) -> bytes:
    """Return the records of a batch, offsets from 0 on, timestamps from the first one on.

    No `keys`: all are null; no `headers`: none has any.
    """
    parts: list[bytes] = []
    looked_up = headers is None and _look_up(len(values), _longest(values) + _longest(keys or (b"",)))
    for start, stop, when in _stretches(len(values), stamps):
        some, some_keys = values[start:stop], None if keys is None else keys[start:stop]
        if not looked_up:
            some_headers = repeat(()) if headers is None else headers[start:stop]
            columns = zip(some, some_keys or repeat(None), some_headers, strict=False)
            for offset, (value, key, with_headers) in enumerate(columns, start):
                tags = encoded_headers(with_headers) if with_headers else NO_HEADERS
                parts.append(encoded(when, varlong(offset), sized(key), sized(value), tags))
        elif some_keys is None:
            parts += _values_only(some, when, VARLONGS[start:stop])
        else:
            parts += _keys_and_values(some_keys, some, when, VARLONGS[start:stop])
    return b"".join(parts)


def _longest(column: Sequence[Any]) -> float:
    """Return the largest size, infinite where something is null."""
    try:
        return max(map(len, column))
    except TypeError:  # to look for nulls beforehand would cost as much again
        return inf


def _look_up(count: int, size: float) -> bool:
    """Make the varints of all offsets and sizes ready, and return True, unless a record is too large."""
    if size > LARGEST_LOOKED_UP:
        return False
    needed = max(count, int(size) + MARGIN)
    if len(VARLONGS) < needed:
        VARLONGS.extend(varlong(number) for number in range(len(VARLONGS), needed))
        TAKEN.extend(number + len(VARLONGS[number]) for number in range(len(TAKEN), needed))
    return True


def _stretches(count: int, stamps: Stamps) -> Iterator[tuple[int, int, bytes]]:
    """Yield stretches of records with the timestamp, and the size of the offset's varint, in common."""
    if len(stamps) == 1 and count <= WIDER_AT[0]:
        yield 0, count, varlong(0)
        return
    timestamps = dict(stamps)
    starts = sorted({*timestamps, *(at for at in WIDER_AT if at < count)})
    when = b""
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        if start in timestamps:
            when = varlong(timestamps[start] - timestamps[0])
        yield start, stop, when


def _values_only(values: Sequence[Any], when: bytes, offsets: Sequence[bytes]) -> list[bytes]:
    """Return the parts of records without keys and headers."""
    varlongs, taken, after = VARLONGS, TAKEN, NO_HEADERS
    middle = NO_ATTRIBUTES + when
    fixed = FIXED_BYTES + len(when) + len(offsets[0]) + len(NULL)
    return [
        part
        for value, offset in zip(values, offsets, strict=True)
        for size in (len(value),)
        for part in (
            varlongs[fixed + taken[size]],
            middle,
            offset,
            NULL,
            varlongs[size],
            value,
            after,
        )
    ]


def _keys_and_values(
    keys: Sequence[Any], values: Sequence[Any], when: bytes, offsets: Sequence[bytes]
) -> list[bytes]:
    """Return the parts of records with keys and without headers."""
    varlongs, taken, after = VARLONGS, TAKEN, NO_HEADERS
    middle = NO_ATTRIBUTES + when
    fixed = FIXED_BYTES + len(when) + len(offsets[0])
    return [
        part
        for key, value, offset in zip(keys, values, offsets, strict=True)
        for key_size, size in ((len(key), len(value)),)
        for part in (
            varlongs[fixed + taken[key_size] + taken[size]],
            middle,
            offset,
            varlongs[key_size],
            key,
            varlongs[size],
            value,
            after,
        )
    ]
