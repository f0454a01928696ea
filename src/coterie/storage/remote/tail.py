"""What of logs is in memory: of each its newest batches, of all as much as the broker has room for.

Who keeps up reads nothing else. What is older is read from the database when somebody asks for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from coterie.storage.disk import Buffer
from coterie.storage.log.placing import Span
from coterie.wire.records.batches import scan

TAIL_BYTES = 128 << 20
BATCH_COSTS = 200
"""So many bytes a batch in memory costs beside its own."""
ROOM_FOR_STALE = 1_024


class Batch(NamedTuple):
    """A batch that has landed, and of its header what readers go by."""

    base_offset: int
    max_timestamp: int
    records: int
    data: bytes


class TailCache:
    """The room that the tails of a broker's logs share: what has come first goes first."""

    def __init__(self, limit: int = TAIL_BYTES) -> None:
        self.limit = limit
        self.bytes = 0
        self.count = 0
        """The number of batches in memory."""
        self._order: deque[Tail] = deque()  # the tail of each batch, and of some that it has dropped itself

    def keep(self, tail: Tail, size: int) -> None:
        """Take note of the newest batch of a tail, and have the oldest go that there is no room for."""
        self._order.append(tail)
        self.count += 1
        self.bytes += size + BATCH_COSTS
        while self.bytes > self.limit and self._order:
            self._order.popleft().give_up_oldest()

    def release(self, count: int, size: int) -> None:
        """Take note that a tail has dropped batches, which are the oldest of it that are noted here."""
        self.count -= count
        self.bytes -= size + count * BATCH_COSTS
        if len(self._order) > 2 * self.count + ROOM_FOR_STALE:
            self._order = deque(tail for tail in self._order if not tail.passes_over())


class Tail:
    """The newest batches of one log, from the offset on where it `begins`: what comes before is older."""

    __slots__ = ("_batches", "_cache", "_first", "_lasts", "_stale", "begins", "older_bytes", "size")

    def __init__(self, cache: TailCache, begins: int, older_bytes: int = 0) -> None:
        self.begins = begins
        self.older_bytes = older_bytes
        """The size of what is older."""
        self.size = 0
        self._cache: TailCache | None = cache
        self._batches: list[Batch] = []
        self._lasts: list[int] = []  # the last offset of each
        self._first = 0  # the place of the first that is there still
        self._stale = 0  # so many that the cache has noted are gone

    def keep(self, data: bytes, spans: Sequence[Span]) -> None:
        """Take batches in behind all that are there."""
        at = 0
        for header, base_offset, max_timestamp in spans:
            end = at + header.size
            self._batches.append(Batch(base_offset, max_timestamp, header.count, data[at:end]))
            self._lasts.append(base_offset + header.last_offset_delta)
            self.size += header.size
            if self._cache is not None:
                self._cache.keep(self, header.size)
            at = end

    def pass_by(self, last_offset: int, size: int) -> None:
        """Take note of what is older than all that will be kept: it ends there, and is so large."""
        self.begins = last_offset + 1
        self.older_bytes += size

    def since(self, offset: int) -> Iterator[Batch]:
        """Yield the batches from the one on that holds an offset, of those in memory."""
        for place in range(bisect_left(self._lasts, offset, self._first), len(self._batches)):
            yield self._batches[place]

    def size_between(self, offset: int, end_offset: int) -> int:
        """Return the size of the batches from the one on that holds `offset` up to `end_offset`; where they
        begin before this, with all that is older.
        """
        first = bisect_left(self._lasts, offset, self._first)
        behind = bisect_left(self._lasts, end_offset, self._first)
        size = sum(len(batch.data) for batch in self._batches[first:behind])
        return size + self.older_bytes if offset < self.begins else size

    def drop_before(self, offset: int) -> None:
        """Drop what ends before an offset, which nobody may read any more."""
        count = bisect_left(self._lasts, offset, self._first) - self._first
        size = self._drop(count)
        if self._cache is not None:
            self._stale += count
            self._cache.release(count, size)
        if offset >= self.begins:
            self.begins, self.older_bytes = offset, 0

    def leave(self) -> None:
        """Take up none of the room any more: the log is closed, and goes with whoever holds it still."""
        cache, self._cache = self._cache, None
        if cache is not None:
            count = len(self._batches) - self._first
            self._stale += count
            cache.release(count, self.size)

    def give_up_oldest(self) -> None:
        """Have the oldest batch be read from the database from now on, unless it is gone already."""
        if self.passes_over():
            return
        self.begins = self._lasts[self._first] + 1
        size = self._drop(1)
        self.older_bytes += size
        assert self._cache is not None
        self._cache.count -= 1
        self._cache.bytes -= size + BATCH_COSTS

    def passes_over(self) -> bool:
        """Return whether what the cache has noted first of this is gone; then it is noted no more."""
        if self._stale:
            self._stale -= 1
            return True
        return False

    def _drop(self, count: int) -> int:
        """Drop the oldest batches, and return their size."""
        first = self._first
        size = sum(len(batch.data) for batch in self._batches[first : first + count])
        self._batches[first : first + count] = [GONE] * count
        self._first += count
        self.size -= size
        if self._first > ROOM_FOR_STALE and 2 * self._first > len(self._batches):
            del self._batches[: self._first], self._lasts[: self._first]
            self._first = 0
        return size


GONE = Batch(-1, -1, 0, b"")


def taken(batches: Iterable[Batch], end: int, *, max_bytes: int, at_least_one: bool) -> bytes:
    """Return as many of these batches as fit, none that starts at or after `end`."""
    found: list[bytes] = []
    left = max_bytes
    for base_offset, _, _, data in batches:
        if base_offset >= end or (len(data) > left and (found or not at_least_one)):
            break
        found.append(data)
        left -= len(data)
    return b"".join(found)


def batches_in(data: Buffer, offset: int) -> Iterator[Batch]:
    """Yield the batches of a row, from the one on that holds an offset."""
    whole = bytes(data)
    for at, header in scan(whole):
        if header.last_offset >= offset:
            yield Batch(header.base_offset, header.max_timestamp, header.count, whole[at : at + header.size])
