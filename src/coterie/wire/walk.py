"""Whether the records of a batch are whole, one after the other up to its end, without taking them out.

Who reads a batch goes by its count and by the lengths in it: what does not fit stops every consumer of the
partition. Every record of every producer is walked over, so this is written for speed: numbers of one and of
two bytes are read in place, and records that are alike are compared by the column.
"""

from typing import TypeAlias

from coterie.base.errors import Corrupt

__all__ = ["EndlessLength", "youngest_delta"]

Bytes: TypeAlias = bytes | bytearray

INT_BYTES, LONG_BYTES = 5, 10
TWO_BYTES_MOST = (1 << 14) - 1
ALIKE_FROM = 8  # so many records are worth a look by the column, which is not tried more often either
ALIKE_MOST = 256  # at a time
# The first bytes of zig-zag numbers that are not negative: of one byte, and of more.
EVEN, GOES_ON_EVEN = bytes(range(0, 128, 2)), bytes(range(128, 256, 2))
# The offsets of the 64th to the 8,191st record take two bytes.
ONE_BYTE_UNTIL, TWO_BYTES_UNTIL = 64, 8192
FIRST_BYTES = bytes(2 * n if n < ONE_BYTE_UNTIL else 2 * n & 127 | 128 for n in range(TWO_BYTES_UNTIL))
SECOND_BYTES = bytes(n >> 6 for n in range(TWO_BYTES_UNTIL))


class EndlessLength(Corrupt):
    """The length of a record goes on for longer than a length can."""


def youngest_delta(data: Bytes, at: int, count: int) -> int:
    """Return by how much the youngest of `count` records, which fill `data` from `at` on, is after the base.

    Raises Corrupt where they do not, or where a record's offset is one of as many. As in Kafka, an
    offset may come twice, and the name of a header need not be text.
    """
    try:
        youngest, at = _walked(data, at, count)
    except IndexError:
        raise Corrupt("record", at=len(data), expected="a whole one") from None
    if at != len(data):
        raise Corrupt("batch", at=at, expected=f"{count} records and no more")
    return youngest


def _walked(data: Bytes, at: int, count: int) -> tuple[int, int]:
    """Return what `youngest_delta` does, and where the last ends. Numbers are kept as written: zig-zag."""
    end, last = len(data), count - 1 << 1
    youngest, before = -1, 1 << 64  # of the times from the base on, and of those before it
    walked = size = look_from = 0
    while walked < count:
        begin, former = at, size
        length, at = data[at], at + 1
        if length > 127:
            length, at = length + (data[at] << 7) - 128, at + 1
            if length > TWO_BYTES_MOST:
                length, at = _number(data, begin, INT_BYTES, EndlessLength)
        stop = at + (length >> 1)
        if length & 1 or stop > end:
            raise Corrupt("record", at=begin, expected="a length that is there")
        time_at, at = at + 1, at + 2
        time = data[time_at]
        if time > 127:
            time, at = _number(data, time_at, LONG_BYTES)
        if time & 1:
            before = min(before, time)
        elif time > youngest:
            youngest = time
        delta_at, at = at, at + 1
        delta = data[delta_at]
        if delta > 127:
            delta, at = delta + (data[at] << 7) - 128, at + 1
            if delta > TWO_BYTES_MOST:
                delta, at = _number(data, delta_at, INT_BYTES)
        if delta > last or delta & 1:
            raise Corrupt("record", at=begin, expected="an offset within its batch")
        key_at, at = at, at + 1
        key = data[key_at]
        if key > 127:
            key, at = _number(data, key_at, INT_BYTES)
        if not key & 1:
            at += key >> 1
        value_at, at = at, at + 1
        value = data[value_at]
        if value > 127:
            value, at = value + (data[at] << 7) - 128, at + 1
            if value > TWO_BYTES_MOST:
                value, at = _number(data, value_at, INT_BYTES)
        if not value & 1:
            at += value >> 1
        if at + 1 != stop or data[at]:
            _walk_headers(data, at, stop)
        headers_at, at = at, stop
        walked += 1
        size = at - begin
        if size == former and walked >= look_from and count - walked >= ALIKE_FROM:
            places = time_at, delta_at, key_at, value_at, headers_at
            alike, time = _alike(data, begin, size, walked, count, places)
            youngest = max(youngest, time)
            walked += alike
            at += alike * size
            look_from = walked if alike else walked + ALIKE_FROM
    return youngest >> 1 if youngest >= 0 else -(before + 1 >> 1), at


def _alike(
    data: Bytes, begin: int, size: int, walked: int, count: int, places: tuple[int, int, int, int, int]
) -> tuple[int, int]:
    """Return how many records follow that are of one form with the one at `begin`, and the youngest's time.

    That one is the last of those `walked`, and sound: so is what has the same lengths in the same places.
    """
    time_at, delta_at, key_at, value_at, headers_at = places
    two = walked >= ONE_BYTE_UNTIL
    most = min(count - walked, (len(data) - begin) // size - 1, ALIKE_MOST)
    most = min(most, (TWO_BYTES_UNTIL if two else ONE_BYTE_UNTIL) - walked)
    # An offset may be written in more bytes than it needs: those that follow, in fewer, are of another form.
    if key_at != delta_at + 1 + two or delta_at > time_at + 2 or headers_at != begin + size - 1:
        return 0, -1
    if most < ALIKE_FROM:
        return 0, -1
    for place in (begin, key_at, value_at, headers_at):
        more = True
        while more:
            column = data[place + size : place + (most + 1) * size : size]
            most -= len(column.lstrip(data[place : place + 1]))
            if most < ALIKE_FROM:
                return 0, -1
            more = data[place] > 127
            place += 1
    end = begin + (most + 1) * size
    times = data[time_at + size : end : size]
    later = data[time_at + 1 + size : end : size] if delta_at == time_at + 2 else b""
    if (
        times.lstrip(GOES_ON_EVEN if later else EVEN)
        or not later.isascii()
        or data[delta_at + size : end : size] != FIRST_BYTES[walked : walked + most]
        or (two and data[delta_at + 1 + size : end : size] != SECOND_BYTES[walked : walked + most])
    ):
        return 0, -1
    if later:
        second, first = max(zip(later, times, strict=True))
        return most, first + (second << 7) - 128
    return most, max(times)


def _number(data: Bytes, at: int, longest: int, failure: type[Corrupt] = Corrupt) -> tuple[int, int]:
    """Return the zig-zag number at `at` as it is written, and where it ends, `longest` bytes on at most."""
    number = 0
    for shift in range(0, 7 * longest, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise failure("number", at=at, expected=f"at most {longest} bytes")


def _walk_headers(data: Bytes, at: int, stop: int) -> None:
    """Raise Corrupt unless the headers of a record end where it does."""
    number, at = _number(data, at, INT_BYTES)
    if number & 1 or number >> 1 > stop - at:
        raise Corrupt("record", at=at, expected="as many headers as fit")
    for _ in range(number >> 1):
        name, at = _number(data, at, INT_BYTES)
        at += name >> 1
        if name & 1 or at > stop:
            raise Corrupt("header", at=at, expected="a name")
        value, at = _number(data, at, INT_BYTES)
        if not value & 1:
            at += value >> 1
        if at > stop:
            raise Corrupt("header", at=at, expected="a value within its record")
    if at != stop:
        raise Corrupt("record", at=at, expected=f"its end at {stop}")
