"""Records by columns, in Python: those of one shape are read, those without headers are written. Pure.

A consumer reads records by the hundred and a producer hands over values by the hundred thousand. One by one
they take three times as long (decision 15). In a column a number is looked up in a table of varints, or
compared with a slice of it, and what is the same for all records is looked at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from math import inf
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from coterie.base.errors import Corrupt
from coterie.wire.records.batches import NO_ATTRIBUTES, NO_HEADERS, NULL, encoded, encoded_headers, sized
from coterie.wire.varints import FIRST_DIGITS, SECOND_DIGITS, WIDER_AT, read_varlong, varlong

LEAST = 16
"""So many records make a run: fewer are read as fast one by one."""

DIGITS = FIRST_DIGITS, SECOND_DIGITS
SIGNED = tuple((digit >> 1) ^ -(digit & 1) for digit in range(128))
LAST_DIGITS, OTHER_DIGITS = bytes(range(128)), bytes(range(128, 256))

# So many records are cut by one step: a format that says it so often.
AT_ONCE = LEAST

Numbers: TypeAlias = Iterable[int]
Blobs: TypeAlias = Iterable[bytes | None]


# -- reading: records of one shape
#
# The records that a program sends are often uniform: the same size, with keys of one size or none, without
# headers. In such a run every length stands at the same distance from the one before, so what is compared,
# and every varint that is read, goes by the column, in what Python does natively. Each byte that is checked
# where records are read one by one is checked here, too.


class Run(NamedTuple):
    """Some records, by columns. One that is the same for all of them repeats without end."""

    end: int
    """Where the records end."""
    offsets: Numbers
    timestamps: Numbers
    keys: Blobs
    values: Blobs


class Shape(NamedTuple):
    """Where the parts of a record begin, counted from its size."""

    time: int
    offset: int
    key_size: int
    key: int | None
    value_size: int
    value: int | None
    headers: int
    end: int


def run_at(data: bytes, at: int, end: int, most: int, base_offset: int, base_timestamp: int) -> Run | None:
    """Return the records from `at` on that are uniform, so many at most, None where there are too few.

    Raises IndexError where the first is cut.
    """
    shape = shape_at(data, at)
    most = 0 if shape is None else min(most, (end - at) // shape.end)
    if shape is None or not seem_uniform(data, at, shape, most):
        return None
    reader = reader_of(shape)
    count = uniform_count(data, at, shape, reader, most)
    if count < LEAST:
        return None
    offset, time, stride = at + shape.offset, at + shape.time, shape.end
    end = at + count * stride
    offsets = numbers(data, offset, end, stride, shape.key_size - shape.offset, base=base_offset)
    timestamps = numbers(data, time, end, stride, shape.offset - shape.time, base=base_timestamp)
    keys, values = blobs(memoryview(data)[at:end], shape, reader)
    return Run(end, offsets, timestamps, keys, values)


def begins_uniform(data: bytes, at: int, end: int, count: int) -> bool:
    """Return whether the first of so many records seem to be uniform."""
    try:
        shape = shape_at(data, at)
    except (IndexError, Corrupt):
        return False
    return shape is not None and seem_uniform(data, at, shape, min(count, (end - at) // shape.end))


def seem_uniform(data: bytes, at: int, shape: Shape, count: int) -> bool:
    """Return whether a record begins as the first does where one should: only then more is compared."""
    return count >= LEAST and data[at] == data[at + shape.end * (LEAST - 1)]


def shape_at(data: bytes, at: int) -> Shape | None:
    """Return the shape of a record, None if it has headers or is none: that is for others to say."""
    size, body = read_varlong(data, at)
    _, offset = read_varlong(data, body + 1)
    _, key_size = read_varlong(data, offset)
    size_of_key, key = read_varlong(data, key_size)
    value_size = key + max(size_of_key, 0)
    size_of_value, value = read_varlong(data, value_size)
    headers = value + max(size_of_value, 0)
    if headers + 1 != body + size or data[headers]:
        return None
    return Shape(
        time=body + 1 - at,
        offset=offset - at,
        key_size=key_size - at,
        key=None if size_of_key < 0 else key - at,
        value_size=value_size - at,
        value=None if size_of_value < 0 else value - at,
        headers=headers - at,
        end=headers + 1 - at,
    )


class ShapeReader(NamedTuple):
    """What to compare in records of one shape, and how to cut them."""

    sizes: tuple[int, ...]
    """Where there are sizes, and the count of headers: the same in all records."""
    digits: tuple[tuple[int, bytes], ...]
    """Where there are digits of varints, and which ones may stand there."""
    many: Struct
    one: Struct
    """What cuts key and value, where they are not null, out of AT_ONCE records, and out of one."""


@lru_cache(maxsize=256)
def reader_of(shape: Shape) -> ShapeReader:
    """Return the reader of records of this shape."""
    key = shape.key_size + 1 if shape.key is None else shape.key
    value = shape.headers if shape.value is None else shape.value
    sizes = range(shape.time - 1), range(shape.key_size, key), range(shape.value_size, value)
    ends = shape.offset - 1, shape.key_size - 1
    digits = [
        (place, LAST_DIGITS if place in ends else OTHER_DIGITS) for place in range(shape.time, shape.key_size)
    ]
    return ShapeReader((*chain.from_iterable(sizes), shape.headers), tuple(digits),
                cutter(shape, AT_ONCE), cutter(shape, 1))  # fmt: skip


def cutter(shape: Shape, count: int) -> Struct:
    """Return the Struct that cuts key and value out of so many records of this shape."""
    parts, at = [], 0
    for start, stop in ((shape.key, shape.value_size), (shape.value, shape.headers)):
        if start is not None:
            parts.append(f"{start - at}x{stop - start}s")
            at = stop
    return Struct(("".join(parts) + f"{shape.end - at}x") * count)


def uniform_count(data: bytes, at: int, shape: Shape, reader: ShapeReader, count: int) -> int:
    """Return the count of records, of so many from the first on, that have this shape."""
    stride = shape.end
    for place in reader.sizes:
        column = data[at + place : at + count * stride : stride]
        count -= len(column.lstrip(column[:1]))
    for place, allowed in reader.digits:
        column = data[at + place : at + count * stride : stride]
        count -= len(column.lstrip(allowed))
    return count


def numbers(data: bytes, start: int, stop: int, stride: int, width: int, *, base: int) -> Numbers:
    """Return the sums of `base` and the varints of that many digits that lie at such distances."""
    columns = [data[start + digit : stop : stride] for digit in range(width)]
    count = len(columns[0])
    first, _ = read_varlong(data, start)
    if all(column.count(column[:1]) == count for column in columns):
        return repeat(base + first, count)
    if width == 1:
        return [base + SIGNED[digit] for digit in columns[0]]
    if first >= 0 and columns == [digits[first : first + count] for digits in DIGITS]:
        return range(base + first, base + first + count)
    found = [*columns.pop()]
    while columns:
        found = [(high << 7) + low - 128 for high, low in zip(found, columns.pop(), strict=True)]
    return [base + ((number >> 1) ^ -(number & 1)) for number in found]


def blobs(records: memoryview, shape: Shape, reader: ShapeReader) -> tuple[Blobs, Blobs]:
    """Return the keys and the values of records of this shape."""
    many = len(records) - len(records) % reader.many.size
    found = [*chain.from_iterable(reader.many.iter_unpack(records[:many]))]
    found += chain.from_iterable(reader.one.iter_unpack(records[many:]))
    if shape.key is None:
        return repeat(None), found if shape.value is not None else repeat(None)
    if shape.value is None:
        return found, repeat(None)
    return found[::2], found[1::2]


# -- writing: records without headers, and the others one by one

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
# The timestamps in runs: from which record on which timestamp holds. The first run begins with record 0.
Stamps: TypeAlias = Sequence[tuple[int, int]]
# Attributes, and the number of headers.
FIXED_BYTES = 2
# The varints of the numbers from 0 on, and the bytes that data of that many bytes takes with its size before
# it. Both grow with the largest record that was seen, up to a limit: larger ones are packed one by one.
VARLONGS: list[bytes] = []
TAKEN: list[int] = []
LARGEST_LOOKED_UP = 16_384
# What a record takes beside its key and its value, at most: its size, deltas, and the rest.
MARGIN = 32


class Packed(NamedTuple):
    """Records of one partition (-1: of whichever) as they lie in a batch, compressed if they are to be."""

    partition: int
    body: bytes
    records: int
    base_timestamp: int
    max_timestamp: int


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
