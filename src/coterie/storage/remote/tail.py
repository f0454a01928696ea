"""What of logs is in memory: of each its newest batches, of all as much as the broker has room for.

Who keeps up reads nothing else. What is older is read from the database when somebody asks for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

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


class JoinedBatches(NamedTuple):
    """Batches that have landed and follow each other, read from the database as one: each is looked at when
    somebody wants it and not the others.
    """

    base_offset: int
    last_offset: int
    max_timestamp: int
    data: bytes

    def since(self, offset: int) -> JoinedBatches:
        """Return the batches from the one on that holds an offset or is the first behind it."""
        at = _size_before(self, offset)
        return self._replace(base_offset=offset, data=self.data[at:]) if at else self


Piece: TypeAlias = Batch | JoinedBatches


class TailCache:
    """The room that the tails of a broker's logs share: what has come first goes first."""

    def __init__(self, limit: int = TAIL_BYTES) -> None:
        self.limit = limit
        self.bytes = 0
        self.count = 0
        """The number of pieces in memory."""
        self._order: deque[Tail] = deque()  # the tail of each piece, and of some that it has dropped itself

    def keep(self, tail: Tail, size: int) -> None:
        """Take note of the newest piece of a tail, and have the oldest go that there is no room for."""
        self._order.append(tail)
        self.count += 1
        self.bytes += size + BATCH_COSTS
        while self.bytes > self.limit and self._order:
            self._order.popleft().give_up_oldest()

    def release(self, count: int, size: int) -> None:
        """Take note that a tail has dropped pieces, which are the oldest of it that are noted here."""
        self.count -= count
        self.bytes -= size + count * BATCH_COSTS
        if len(self._order) > 2 * self.count + ROOM_FOR_STALE:
            self._order = deque(tail for tail in self._order if not tail.passes_over())


class Tail:
    """The newest batches of one log, from the offset on where it `begins`: what comes before is older."""

    __slots__ = (
        "_cache",
        "_first",
        "_lasts",
        "_pieces",
        "_stale",
        "begins",
        "older_bytes",
        "older_from",
        "size",
    )

    def __init__(self, cache: TailCache, begins: int, older_bytes: int = 0) -> None:
        self.begins = begins
        self.older_from, self.older_bytes = begins, older_bytes
        """The size of what is older, and where that begins: rows that end before are not counted."""
        self.size = 0
        self._cache: TailCache | None = cache
        self._pieces: list[Piece] = []
        self._lasts: list[int] = []  # the last offset of each
        self._first = 0  # the place of the first that is there still
        self._stale = 0  # so many that the cache has noted are gone

    def keep(self, data: bytes, spans: Sequence[Span]) -> None:
        """Take batches in behind all that are there."""
        at = 0
        for header, base_offset, max_timestamp in spans:
            end = at + header.size
            batch = Batch(base_offset, max_timestamp, header.count, data[at:end])
            self._keep(batch, base_offset + header.last_offset_delta)
            at = end

    def keep_joined(self, joined: JoinedBatches) -> None:
        """Take batches in as one piece, behind all that are there."""
        self._keep(joined, joined.last_offset)

    def _keep(self, piece: Piece, last_offset: int) -> None:
        size = len(piece.data)
        self._pieces.append(piece)
        self._lasts.append(last_offset)
        self.size += size
        if self._cache is not None:
            self._cache.keep(self, size)

    def pass_by(self, last_offset: int, size: int) -> None:
        """Take note of what is older than all that will be kept: it ends there, and is so large."""
        self.begins = last_offset + 1
        self.older_bytes += size

    def pieces_since(self, offset: int) -> Iterator[Piece]:
        """Yield the pieces in memory, the first from the batch on that holds an offset."""
        place = bisect_left(self._lasts, offset, self._first)
        if place == len(self._pieces):
            return
        first = self._pieces[place]
        yield first.since(offset) if isinstance(first, JoinedBatches) else first
        for behind in range(place + 1, len(self._pieces)):
            yield self._pieces[behind]

    def since(self, offset: int) -> Iterator[Batch]:
        """Yield the batches from the one on that holds an offset, of those in memory."""
        for piece in self.pieces_since(offset):
            yield from batches_of(piece)

    def first_from(self, timestamp_ms: int, offset: int) -> Batch | None:
        """Return the first batch from the one on that holds an offset that says to hold a record as young as
        this, None if there is none in memory.
        """
        for piece in self.pieces_since(offset):
            if piece.max_timestamp >= timestamp_ms:
                for batch in batches_of(piece):
                    if batch.max_timestamp >= timestamp_ms and batch.records:
                        return batch
        return None

    def youngest_from(self, offset: int) -> Batch | None:
        """Return the first batch that says to hold the youngest record, of those in memory from the one on
        that holds an offset; None if no batch says so. What a piece says may be of a batch that is empty, or
        was dropped: then others are looked at.
        """
        found: Batch | None = None
        for piece in sorted(self.pieces_since(offset), key=_timestamp, reverse=True):
            if found is not None and piece.max_timestamp < found.max_timestamp:
                break
            found = youngest(batches_of(piece) if found is None else (found, *batches_of(piece)))
        return found

    def size_between(self, offset: int, end_offset: int) -> int:
        """Return the size of the batches from the one on that holds `offset` up to `end_offset`; where they
        begin before this, with all that is older.
        """
        first = bisect_left(self._lasts, offset, self._first)
        behind = bisect_left(self._lasts, end_offset, self._first)
        pieces = self._pieces
        size = sum(len(piece.data) for piece in pieces[first:behind])
        if offset < end_offset and first < len(pieces):
            size -= _size_before(pieces[first], offset)
            size += _size_before(pieces[behind], end_offset) if behind < len(pieces) else 0
        return size + self.older_bytes if offset < self.begins else size

    def drop_before(self, offset: int) -> None:
        """Drop what ends before an offset, which nobody may read any more."""
        count = bisect_left(self._lasts, offset, self._first) - self._first
        size = self._drop(count) + self._cut(offset)
        if self._cache is not None:
            self._stale += count
            self._cache.release(count, size)
        if offset >= self.begins:
            self.begins = self.older_from = offset
            self.older_bytes = 0

    def take_deleted(self, last_offset: int, size: int) -> None:
        """Take note that a row is gone which nobody may read any more."""
        if self.older_from <= last_offset < self.begins:
            self.older_bytes = max(0, self.older_bytes - size)

    def leave(self) -> None:
        """Take up none of the room any more: the log is closed, and goes with whoever holds it still."""
        cache, self._cache = self._cache, None
        if cache is not None:
            count = len(self._pieces) - self._first
            self._stale += count
            cache.release(count, self.size)

    def give_up_oldest(self) -> None:
        """Have the oldest piece be read from the database from now on, unless it is gone already."""
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
        """Drop the oldest pieces, and return their size."""
        first = self._first
        size = sum(len(piece.data) for piece in self._pieces[first : first + count])
        self._pieces[first : first + count] = [GONE] * count
        self._first += count
        self.size -= size
        if self._first > ROOM_FOR_STALE and 2 * self._first > len(self._pieces):
            del self._pieces[: self._first], self._lasts[: self._first]
            self._first = 0
        return size

    def _cut(self, offset: int) -> int:
        """Drop of the oldest piece what ends before an offset, and return its size."""
        if self._first == len(self._pieces):
            return 0
        oldest = self._pieces[self._first]
        size = _size_before(oldest, offset)
        if size:
            assert isinstance(oldest, JoinedBatches)
            self._pieces[self._first] = oldest.since(offset)
            self.size -= size
        return size


GONE = Batch(-1, -1, 0, b"")


def taken(pieces: Iterable[Piece], end: int, *, max_bytes: int, at_least_one: bool) -> bytes:
    """Return as many of the batches as fit, none that starts at or after `end`."""
    found: list[bytes] = []
    left = max_bytes
    for piece in pieces:
        whole = not isinstance(piece, JoinedBatches) or (piece.last_offset < end and len(piece.data) <= left)
        for one in (piece,) if whole else batches_of(piece):
            size = len(one.data)
            if one.base_offset >= end or (size > left and (found or not at_least_one)):
                return b"".join(found)
            found.append(one.data)
            left -= size
    return b"".join(found)


def batches_of(piece: Piece) -> Iterable[Batch]:
    """Return the batches of a piece."""
    return batches_in(piece.data, piece.base_offset) if isinstance(piece, JoinedBatches) else (piece,)


def youngest(batches: Iterable[Batch]) -> Batch | None:
    """Return the batch that says to hold the youngest record, of several the one of the lowest offset; None
    if no batch that has records says so.
    """
    timely = (one for one in batches if one.records and one.max_timestamp >= 0)
    return max(timely, key=lambda one: (one.max_timestamp, -one.base_offset), default=None)


def batches_in(data: Buffer, offset: int) -> Iterator[Batch]:
    """Yield the batches of a row, from the one on that holds an offset."""
    whole = bytes(data)
    for at, header in scan(whole):
        if header.last_offset >= offset:
            yield Batch(header.base_offset, header.max_timestamp, header.count, whole[at : at + header.size])


def _size_before(piece: Piece, offset: int) -> int:
    """Return the size of the batches of a piece that end before an offset: 0 of one alone, which does not."""
    if not isinstance(piece, JoinedBatches) or piece.base_offset >= offset:
        return 0
    found = (at for at, header in scan(piece.data) if header.last_offset >= offset)
    return next(found, len(piece.data))


def _timestamp(piece: Piece) -> int:
    return piece.max_timestamp
