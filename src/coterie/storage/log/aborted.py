"""The aborted transactions whose markers lie in a segment, in memory and as Kafka's .txnindex.

No input or output. A reader that wants only committed records gets the list for what it reads, and passes
over them.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from coterie.base.errors import Corrupt

ENTRY = Struct(">hqqqq")
VERSION = 0


class AbortedSpan(NamedTuple):
    """Where an aborted transaction begins, where its marker lies, and what was stable after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    """Aborted transactions in the order of their markers, in arrays: 32 bytes each."""

    __slots__ = ("_ends", "_firsts", "_producers", "_stable")

    def __init__(self, spans: Iterable[AbortedSpan] = ()) -> None:
        self._producers = array("q")
        self._firsts = array("q")
        self._ends = array("q")
        self._stable = array("q")
        for span in spans:
            self.add(span)

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, span: AbortedSpan) -> None:
        """Note a transaction whose marker comes after all that are noted."""
        self._producers.append(span.producer_id)
        self._firsts.append(span.first_offset)
        self._ends.append(span.last_offset)
        self._stable.append(span.last_stable_offset)

    def drop_before(self, offset: int) -> None:
        """Forget transactions whose markers lie before an offset."""
        count = bisect_left(self._ends, offset)
        if count:
            for column in (self._producers, self._firsts, self._ends, self._stable):
                del column[:count]

    def __iter__(self) -> Iterator[AbortedSpan]:
        return map(AbortedSpan, self._producers, self._firsts, self._ends, self._stable)

    def within(self, first: int, end: int) -> tuple[list[AbortedSpan], bool]:
        """Return the spans that touch offsets from `first` up to `end`; and whether later segments have none.

        No transaction was open before the offset that was stable when the last of them was aborted, so none
        that begins below it can come any more.
        """
        found = []
        for place in range(bisect_left(self._ends, first), len(self._ends)):
            if self._firsts[place] < end:
                found.append(self._at(place))
            if self._stable[place] >= end:
                return found, True
        return found, False

    def _at(self, place: int) -> AbortedSpan:
        return AbortedSpan(
            self._producers[place], self._firsts[place], self._ends[place], self._stable[place]
        )

    def entries(self, since: int = 0) -> bytes:
        """Return the entries from the one of number `since` on, as Kafka writes them."""
        return b"".join(ENTRY.pack(VERSION, *self._at(place)) for place in range(since, len(self)))

    @classmethod
    def read(cls, data: bytes, *, base_offset: int) -> "AbortedIndex":
        """Return the index in `data`, or raise Corrupt if it cannot belong to the segment of that offset."""
        if len(data) % ENTRY.size:
            raise Corrupt("a transaction index cut short", at=len(data))
        index = cls()
        last = base_offset - 1
        for place, (version, *fields) in enumerate(ENTRY.iter_unpack(data)):
            span = AbortedSpan(*fields)
            if version != VERSION or not 0 <= span.first_offset < span.last_offset > last:
                raise Corrupt("a transaction index of another log", at=place * ENTRY.size)
            last = span.last_offset
            index.add(span)
        return index
