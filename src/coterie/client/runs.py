"""Records of one shape that follow one another, read in columns: a fifth of what one by one takes. Pure.

What a program sends is often alike: the same size, with keys of one size or none, without headers. In such a
run every length stands at the same distance from the one before, so what is compared, and every varint that
is read, goes by the column, in what Python does natively. Nothing is taken for granted: each byte that is
looked at one by one is looked at.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import NamedTuple, TypeAlias

from coterie.base.errors import Corrupt
from coterie.wire.varints import read_varlong

__all__ = ["LEAST", "Run", "begins_alike", "run_at"]

LEAST = 16
"""So many records make a run: fewer are read as fast one by one."""

# The digits of the varints of all numbers that have two at most: those of offsets, most of the time.
TWO_DIGITS = 8_192
ONE_DIGIT = 64
DIGITS = [
    bytes(number << 1 & 127 | 128 * (number >= ONE_DIGIT) for number in range(TWO_DIGITS)),
    bytes(number >> 6 for number in range(TWO_DIGITS)),
]
SIGNED = tuple((digit >> 1) ^ -(digit & 1) for digit in range(128))
LAST_DIGITS, OTHER_DIGITS = bytes(range(128)), bytes(range(128, 256))

# So many records are cut by one step: a format that says it so often.
AT_ONCE = LEAST

Numbers: TypeAlias = Iterable[int]
Blobs: TypeAlias = Iterable[bytes | None]


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
    """Return the records from `at` on that are alike, so many at most, None where there are too few.

    Raises IndexError where the first is cut.
    """
    shape = shape_at(data, at)
    most = 0 if shape is None else min(most, (end - at) // shape.end)
    if shape is None or not seem_alike(data, at, shape, most):
        return None
    count = alike(data, at, shape, most)
    if count < LEAST:
        return None
    end = at + count * shape.end
    places = slice(at + shape.offset, end, shape.end), shape.key_size - shape.offset
    offsets = numbers(data, *places, base=base_offset)
    places = slice(at + shape.time, end, shape.end), shape.offset - shape.time
    timestamps = numbers(data, *places, base=base_timestamp)
    keys, values = blobs(memoryview(data)[at:end], shape)
    return Run(end, offsets, timestamps, keys, values)


def begins_alike(data: bytes, at: int, end: int, count: int) -> bool:
    """Return whether the first of so many records seem to be alike."""
    try:
        shape = shape_at(data, at)
    except (IndexError, Corrupt):
        return False
    return shape is not None and seem_alike(data, at, shape, min(count, (end - at) // shape.end))


def seem_alike(data: bytes, at: int, shape: Shape, count: int) -> bool:
    """Return whether it is worth a closer look: whether one begins as the first does where one should."""
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


def alike(data: bytes, at: int, shape: Shape, count: int) -> int:
    """Return how many of so many records, from the first on, have this shape."""
    for place in sizes_of(shape):
        column = data[at + place : at + count * shape.end : shape.end]
        count -= len(column.lstrip(column[:1]))
    for first, stop in ((shape.time, shape.offset), (shape.offset, shape.key_size)):
        for place in range(first, stop):
            column = data[at + place : at + count * shape.end : shape.end]
            count -= len(column.lstrip(LAST_DIGITS if place == stop - 1 else OTHER_DIGITS))
    return count


@lru_cache(maxsize=256)
def sizes_of(shape: Shape) -> tuple[int, ...]:
    """Return where in a record of this shape there are sizes, and the count of its headers."""
    key = shape.key_size + 1 if shape.key is None else shape.key
    value = shape.headers if shape.value is None else shape.value
    ranges = range(shape.time - 1), range(shape.key_size, key), range(shape.value_size, value)
    return (*chain.from_iterable(ranges), shape.headers)


def numbers(data: bytes, places: slice, width: int, *, base: int) -> Numbers:
    """Return the sums of `base` and the varints whose first digits lie at these places."""
    columns = [data[places.start + digit : places.stop : places.step] for digit in range(width)]
    low, count = columns[0], len(columns[0])
    if all(column.count(column[:1]) == count for column in columns):
        return repeat(base + read_varlong(data, places.start)[0], count)
    if width == 1:
        return [base + SIGNED[digit] for digit in low]
    first, _ = read_varlong(data, places.start)
    last = first + count
    if first >= 0 and columns == [digits[first:last] for digits in DIGITS]:
        return range(base + first, base + last)
    return [base + read_varlong(bytes(digits), 0)[0] for digits in zip(*columns, strict=True)]


def blobs(records: memoryview, shape: Shape) -> tuple[Blobs, Blobs]:
    """Return the keys and the values of records of this shape."""
    many = len(records) - len(records) % (AT_ONCE * shape.end)
    found = [*chain.from_iterable(cutter(shape, AT_ONCE).iter_unpack(records[:many]))]
    found += chain.from_iterable(cutter(shape, 1).iter_unpack(records[many:]))
    if shape.key is None:
        return repeat(None), found if shape.value is not None else repeat(None)
    if shape.value is None:
        return found, repeat(None)
    return found[::2], found[1::2]


@lru_cache(maxsize=256)
def cutter(shape: Shape, count: int) -> Struct:
    """Return what cuts key and value, where they are not null, out of so many records of this shape."""
    parts, at = [], 0
    for start, stop in ((shape.key, shape.value_size), (shape.value, shape.headers)):
        if start is not None:
            parts.append(f"{start - at}x{stop - start}s")
            at = stop
    return Struct(("".join(parts) + f"{shape.end - at}x") * count)
