"""The two sparse indexes of a segment, in memory and as Kafka's bytes. No input or output.

The offset index tells where a batch lies by its last offset, the time index up to which offset no record is
younger than a time. Both hold an entry every few kilobytes, in arrays: 20 bytes an entry.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from operator import lt
from struct import pack

from coterie.base.errors import Corrupt

ENTRY = 8
TIME_ENTRY = 12
SWAPPED = sys.byteorder == "little"


class OffsetIndex:
    """Batches by their last offset, as a distance from the segment's base, each with its position."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, position: int) -> None:
        """Note that the batch that ends with `offset` starts at `position`; both beyond all noted before."""
        self.offsets.append(offset)
        self.positions.append(position)

    def at_or_before(self, offset: int) -> tuple[int, int]:
        """Return the last noted batch that ends at or before `offset`, or (-1, 0)."""
        place = bisect_right(self.offsets, offset)
        return (self.offsets[place - 1], self.positions[place - 1]) if place else (-1, 0)

    def position_at_or_before(self, position: int) -> int:
        """Return the start of the last noted batch that starts at or before `position`, or 0."""
        place = bisect_right(self.positions, position)
        return self.positions[place - 1] if place else 0

    def first_from(self, position: int) -> int | None:
        """Return the end of the first noted batch that starts at or after `position`, None beyond all."""
        place = bisect_left(self.positions, position)
        return self.offsets[place] if place < len(self.offsets) else None

    def entries(self, since: int = 0) -> bytes:
        """Return the entries from the one of number `since` on, as Kafka writes them."""
        both = [
            number
            for pair in zip(self.offsets[since:], self.positions[since:], strict=True)
            for number in pair
        ]
        return pack(f">{len(both)}i", *both)

    @classmethod
    def read(cls, data: bytes, *, log_size: int) -> "OffsetIndex":
        """Return the index in `data`, or raise Corrupt if it cannot belong to a log of that size.

        Kafka's running brokers pad their indexes with zeros, which does not pass for one here.
        """
        if len(data) % ENTRY:
            raise Corrupt("an offset index cut short", at=len(data))
        words = array("i", data)
        if SWAPPED:
            words.byteswap()
        index = cls()
        index.offsets, index.positions = words[0::2], words[1::2]
        if not (_grows(index.offsets) and _grows(index.positions)):
            raise Corrupt("an offset index that does not grow")
        if index.positions and not (index.positions[0] >= 0 and index.positions[-1] < log_size):
            raise Corrupt("an offset index of another log", expected=f"positions below {log_size}")
        return index


class TimeIndex:
    """Timestamps that were the highest of their segment when their batch came, with its last offset."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, timestamp: int, offset: int) -> None:
        """Note the highest timestamp so far, unless it is noted already."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.offsets.append(offset)

    def at_or_before(self, timestamp: int) -> int:
        """Return the offset up to which no record is younger than `timestamp`, or -1."""
        place = bisect_right(self.timestamps, timestamp)
        return self.offsets[place - 1] if place else -1

    def entries(self, since: int = 0) -> bytes:
        """Return the entries from the one of number `since` on, as Kafka writes them."""
        pairs = zip(self.timestamps[since:], self.offsets[since:], strict=True)
        return b"".join(pack(">qi", timestamp, offset) for timestamp, offset in pairs)

    @classmethod
    def read(cls, data: bytes) -> "TimeIndex":
        """Return the index in `data`, or raise Corrupt if its times do not grow."""
        if len(data) % TIME_ENTRY:
            raise Corrupt("a time index cut short", at=len(data))
        index = cls()
        index.timestamps = _column("q", data, start=0, width=8)
        index.offsets = _column("i", data, start=8, width=4)
        if not (_grows(index.timestamps) and _grows(index.offsets)):
            raise Corrupt("a time index that does not grow")
        return index


def _column(kind: str, data: bytes, *, start: int, width: int) -> "array[int]":
    """Return one field of all entries. Slices with a step copy at C's speed, entry by entry would not."""
    packed = bytearray(len(data) // TIME_ENTRY * width)
    for byte in range(width):
        packed[byte::width] = data[start + byte :: TIME_ENTRY]
    column = array(kind, bytes(packed))
    if SWAPPED:
        column.byteswap()
    return column


def _grows(numbers: "array[int]") -> bool:
    return all(map(lt, numbers, numbers[1:]))
