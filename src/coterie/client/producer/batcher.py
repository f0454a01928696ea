"""Batches that fill column by column, what became of each, and a bound on their memory. Pure."""

from collections.abc import Callable
from typing import NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.wire.records.batches import head_for, records_of
from coterie.wire.records.columns import Headers, Packed, pack_records
from coterie.wire.records.compression import compress

# What a record takes in a batch beside its key and its value, in round numbers.
RECORD_OVERHEAD = 12
HEADER_OVERHEAD = 4
HALVES_LEAST = 2


class Identity(NamedTuple):
    """What a broker knows a producer by."""

    producer_id: int
    epoch: int


NO_IDENTITY = Identity(-1, -1)


class BatchResult(NamedTuple):
    """What became of a batch: where it begins, or why it was not written."""

    base_offset: int = -1
    append_time_ms: int = -1
    error: CoterieError | None = None


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return about how many bytes a record takes."""
    size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += HEADER_OVERHEAD + len(name) + len(content or b"")
    return size


class Batch:
    """Records of one partition that are written or fail together.

    While it is open its columns grow, by `add` or, where every nanosecond counts, by who holds it: `room` and
    `values` for records without key and headers, once `tick` is looked at. `room` is negative when it is
    closed.
    """

    __slots__ = (
        "_body",
        "base_sequence",
        "created_ms",
        "halves",
        "headers",
        "identity",
        "in_flight",
        "keys",
        "maybe_written",
        "outcome",
        "place",
        "reserved",
        "retry_at_ms",
        "room",
        "size",
        "stamps",
        "tick",
        "tries",
        "values",
        "waiters",
    )

    def __init__(self, place: TopicPartition, *, size: int, now_ms: float) -> None:
        self.place = place
        self.size = self.room = self.reserved = size
        self.created_ms = now_ms
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers] | None = None
        self.stamps: list[tuple[int, int]] = []
        self.tick = 0.0
        """The time, in seconds since 1970, at which the timestamp of the last record is over."""
        self.identity = NO_IDENTITY
        self.base_sequence = -1
        self.tries = 0
        self.retry_at_ms = 0.0
        self.in_flight = False
        self.maybe_written = False
        """Whether an answer was lost: the batch may be in the log."""
        self.outcome: BatchResult | None = None
        self.halves: tuple[Batch, Batch] | None = None
        self.waiters: list[Callable[[], object]] = []
        self._body = b""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def filled(self) -> int:
        """About the bytes that its records take."""
        return self.size - max(self.room, 0)

    def mark_time(self, now_s: float) -> None:
        """Let the records from the next one on have this time, in seconds since 1970, as their timestamp."""
        stamp = int(now_s * 1000)
        if not self.stamps or self.stamps[-1][1] != stamp:
            self.stamps.append((len(self.values), stamp))
        self.tick = (stamp + 1) / 1000

    def add(
        self, value: bytes | None, *, key: bytes | None = None, headers: Headers = (), timestamp: int
    ) -> int:
        """Add a record, for which there is room, and return its place among them."""
        index = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * index
        if headers and self.headers is None:
            self.headers = [()] * index
        if not self.stamps or self.stamps[-1][1] != timestamp:
            self.stamps.append((index, timestamp))
        self.tick = 0.0
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        self.room -= record_size(key, value, headers)
        return index

    def timestamp_of(self, index: int) -> int:
        """Return the timestamp that the record was given."""
        return next(stamp for start, stamp in reversed(self.stamps) if start <= index)

    def encoded(self, codec: str, *, transactional: bool) -> bytes:
        """Return the batch as it goes out, under the identity that it has now. Its records never change."""
        if not self._body:
            self._body = compress(
                codec, pack_records(self.values, self.stamps, keys=self.keys, headers=self.headers)
            )
        head = head_for(
            self._body,
            count=len(self),
            base_timestamp=self.stamps[0][1],
            max_timestamp=max(stamp for _, stamp in self.stamps),
            codec=codec,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=self.base_sequence,
            transactional=transactional,
        )
        return head + self._body

    def settle(self, outcome: BatchResult) -> None:
        """Tell everybody who waits for it what became of it; only the first outcome counts."""
        if self.outcome is None:
            self.outcome = outcome
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter()

    def split(self) -> "tuple[Batch, Batch]":
        """Return two batches with half of the records each, which settle in its stead."""
        assert len(self) >= HALVES_LEAST
        middle = len(self) // 2
        self.halves = self._part(0, middle), self._part(middle, len(self))
        left = [len(self.halves)]

        def one_less() -> None:
            left[0] -= 1
            if not left[0]:
                self.settle(BatchResult())

        for half in self.halves:
            half.waiters.append(one_less)
        return self.halves

    def _part(self, start: int, stop: int) -> "Batch":
        part = Batch(self.place, size=self.size, now_ms=self.created_ms)
        part.values = self.values[start:stop]
        part.keys = None if self.keys is None else self.keys[start:stop]
        part.headers = None if self.headers is None else self.headers[start:stop]
        part.stamps = [(0, self.timestamp_of(start))]
        part.stamps += [(at - start, stamp) for at, stamp in self.stamps if start < at < stop]
        part.room, part.reserved = -1, 0
        part.identity, part.base_sequence = self.identity, self.base_sequence
        if start and part.base_sequence >= 0:
            part.base_sequence = sequence_after(part.base_sequence, start)
        return part

    def holding(self, index: int) -> "tuple[Batch, int]":
        """Return the batch that has the record now, and its place there: itself unless it was split."""
        batch = self
        while batch.halves is not None:
            first, second = batch.halves
            batch, index = (first, index) if index < len(first) else (second, index - len(first))
        return batch, index


class PackedBatch(Batch):
    """Records that somebody else has encoded: whole from the start, and told of as one.

    Its records are only looked at when the broker finds them too many.
    """

    __slots__ = ("_codec", "_count")

    def __init__(self, place: TopicPartition, packed: Packed, *, codec: str, now_ms: float) -> None:
        super().__init__(place, size=len(packed.body), now_ms=now_ms)
        self.room = -1
        self._body, self._codec, self._count = packed.body, codec, packed.records
        self.stamps = [(0, packed.base_timestamp), (0, packed.max_timestamp)]

    def __len__(self) -> int:
        return self._count

    def split(self) -> tuple[Batch, Batch]:
        """Return two batches with half of the records each, which settle in its stead."""
        records = list(records_of(self.encoded(self._codec, transactional=False)))
        self.stamps = []
        for one in records:
            self.add(one.value, key=one.key, headers=one.headers, timestamp=one.timestamp)
        return super().split()


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence number `count` records later; after the largest follows 0."""
    return (sequence + count) & 0x7FFFFFFF


class Memory:
    """How many bytes open and unanswered batches may take together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> bool:
        """Reserve so much, if there is room. What alone is too much gets room when nothing else has."""
        if self.used and self.used + size > self.limit:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """Free what was reserved."""
        self.used -= size
        assert self.used >= 0
