"""The segments of a log, in the order of their offsets, and what is read from several of them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.log.segment import Segment
from coterie.wire.records.batches import read_header


class Segments(list[Segment]):
    """The segments of a log, never empty; `bases` are their first offsets, kept beside for the search."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        super().__init__(segments)
        self.bases = [segment.base_offset for segment in segments]

    @property
    def last(self) -> Segment:
        """The segment that is written to."""
        return self[-1]

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches."""
        return sum(segment.size for segment in self)

    def place_of(self, offset: int) -> int:
        """Return the place of the segment that holds an offset, -1 where the first one begins later."""
        return bisect_right(self.bases, offset) - 1

    def base_below(self, offset: int) -> int:
        """Return the first offset of the segment that holds an offset; of the first where none does."""
        return self.bases[max(0, self.place_of(offset))]

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """Yield the segments from the one that holds an offset on."""
        return islice(self, max(0, self.place_of(offset)), None)

    def begin(self, segment: Segment) -> None:
        """Put a new segment at the end."""
        self.append(segment)
        self.bases.append(segment.base_offset)

    def drop_first(self) -> None:
        """Forget the first segment."""
        del self[0], self.bases[0]

    def replace(self, place: int, count: int, segment: Segment) -> None:
        """Put one segment where `count` were."""
        self[place : place + count] = [segment]
        self.bases[place : place + count] = [segment.base_offset]

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool, end_offset: int | None) -> bytes:
        """Return whole batches of one segment, from the batch that holds `offset` on. Raises OSError."""
        for segment in self.from_offset(offset):
            data = segment.read(offset, max_bytes=max_bytes, at_least_one=at_least_one, end_offset=end_offset)
            if data is not None:
                return data
        return b""

    def offset_beyond(self, offset: int, size: int, end: int) -> int | None:
        """Return an offset that a read of `size` bytes from `offset` up to `end` does not pass.

        None: with the last segment. Raises OSError.
        """
        place = self.place_of(offset)
        while self[place].position_of(offset) is None:
            place += 1
        beyond = self[place].offset_beyond(offset, size, end_offset=end)
        if beyond is not None:
            return beyond
        return self.bases[place + 1] if place + 1 < len(self) else None

    def size_between(self, offset: int, end_offset: int) -> int:
        """Return the size in bytes from the batch that holds `offset` up to `end_offset`. Raises OSError."""
        first, last = self.place_of(offset), self.place_of(end_offset)
        start = self[first].position_of(offset)
        end = self[last].position_of(end_offset)
        size = sum(segment.size for segment in self[first : last + 1])
        size -= self[first].size if start is None else start
        return size - (0 if end is None else self[last].size - end)

    def has_aborted_from(self, offset: int) -> bool:
        """Return whether transactions were aborted in the segment that holds an offset, or behind it."""
        return any(len(segment.aborted) for segment in self.from_offset(offset))

    def aborted_within(self, first: int, end: int) -> list[AbortedSpan]:
        """Return the aborted transactions that touch the offsets from `first` up to `end`."""
        found: list[AbortedSpan] = []
        for segment in self.from_offset(first):
            spans, complete = segment.aborted.within(first, end)
            found += spans
            if complete:
                break
        return found

    def batch_from(self, timestamp_ms: int, offset: int) -> bytes | None:
        """Return the first batch from an offset on that says to hold a record as young. Raises OSError."""
        for segment in self.from_offset(offset):
            if segment.highest_timestamp >= timestamp_ms:
                batch = segment.batch_from(timestamp_ms, from_offset=offset)
                if batch is not None:
                    return batch
        return None

    def youngest_from(self, offset: int) -> bytes | None:
        """Return the first batch that says to hold the youngest record, from the one on that holds an offset;
        None if no batch says so. Raises OSError.
        """
        found, youngest_ms = None, -1
        for segment in sorted(self.from_offset(offset), key=_highest, reverse=True):
            if segment.highest_timestamp <= youngest_ms:
                break
            batch = segment.batch_from(segment.highest_timestamp, from_offset=offset)
            if batch is None:  # it is of a batch before the offset, or of one that is empty
                batch = _youngest_in(segment, offset)
            if batch is not None and (newest_ms := read_header(batch).max_timestamp) > youngest_ms:
                found, youngest_ms = batch, newest_ms
        return found


def _highest(segment: Segment) -> int:
    return segment.highest_timestamp


def _youngest_in(segment: Segment, offset: int) -> bytes | None:
    position = segment.position_of(offset)
    headers = () if position is None else segment.headers(position)
    times = ((header.max_timestamp, at) for at, header in headers if header.count)
    _, at = max(times, key=lambda one: one[0], default=(-1, -1))
    return None if at < 0 else segment.batch_at(at)
