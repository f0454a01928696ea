"""What a fetch asks of one partition: its log, whether the client knows the epoch, and what is not in memory,
which it waits for in the purgatory as for records that have not come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.leadership import why_absent
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, Until
from coterie.storage.log.contract import StorageFailed

if TYPE_CHECKING:
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.purgatory import Parked, Purgatory
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.storage.kind import HeldReading, Log, Readable

T = TypeVar("T")


class LogParts(Protocol):
    """The parts of the broker by which a log is found."""

    @property
    def topics(self) -> TopicCatalog:
        """The topics."""
        ...

    @property
    def leadership(self) -> Leadership:
        """Who leads what."""
        ...

    @property
    def led_log(self) -> Callable[[TopicPartition], Log | None]:
        """Finds the log of a partition that is led here."""
        ...


def leader_epoch_error(log: Log, sent: int) -> Code:
    """Return the error for a leader epoch that is not the log's, NONE if it is or none was sent (KIP-320)."""
    ours = log.latest_epoch
    if sent in (-1, ours):
        return Code.NONE
    return Code.UNKNOWN_LEADER_EPOCH if sent > ours else Code.FENCED_LEADER_EPOCH


class Wanted:
    """One partition that a fetch asks for, and how many bytes it could have of it."""

    __slots__ = (
        "asked",
        "code",
        "epoch",
        "log",
        "max_bytes",
        "offset",
        "old",
        "partition",
        "there",
        "topic",
    )

    def __init__(self, asked: Any, topic: str, partition: Any, code: Code) -> None:
        self.asked = asked
        self.topic = topic
        self.partition: int = partition.partition
        self.offset: int = partition.fetch_offset
        self.max_bytes: int = partition.partition_max_bytes
        self.epoch: int = getattr(partition, "current_leader_epoch", -1)
        self.log: Log | None = None
        self.code = code
        self.there = 0
        self.old: tuple[Log, HeldReading | None] | None = None
        """The log that was not in memory, and what is read of it; None if there was no room for that."""

    def is_at_hand(self) -> bool:
        """Return whether the partition can be answered at once."""
        log = self.log
        return log is None or self.code != Code.NONE or log.at_hand(self.offset)

    def readable(self, log: Log) -> Readable | None:
        """Return the log, or what was read of it; None if it is not in memory, and nothing was read."""
        if log.at_hand(self.offset):
            return log
        reading = self._reading_of(log)
        return None if reading is None else reading.found

    def has_come(self) -> bool:
        """Return whether something can be answered of a partition that was not in memory."""
        return self.log is not None and self.readable(self.log) is not None

    def is_overdue(self, log: Log) -> bool:
        """Return whether the database has not answered for so long that it is not waited for any more."""
        reading = self._reading_of(log)
        return reading is not None and reading.overdue

    def _reading_of(self, log: Log) -> HeldReading | None:
        return self.old[1] if self.old is not None and self.old[0] is log else None

    def readable_end(self, *, committed: bool) -> int | None:
        """Return the offset before which reading must stop, None if the partition is answered with an
        error.
        """
        log = self.log
        if log is None or self.code or log.closed or not log.start_offset <= self.offset <= log.end_offset:
            return None
        return log.last_stable_offset if committed else log.high_watermark

    def size_up_to(self, end: int) -> int:
        """Return the number of bytes that the partition can be answered with, up to an offset. Raises
        `StorageFailed`.
        """
        log = self.log
        assert log is not None
        source = self.readable(log)
        return 0 if source is None else min(self.max_bytes, source.size_between(self.offset, end))

    def look_up(self, parts: LogParts) -> None:
        """Find the log, or why there is none, and whether the client knows the epoch."""
        log = parts.led_log(TopicPartition(self.topic, self.partition))
        if log is None:
            self.code = why_absent(parts.topics, parts.leadership, self.topic, self.partition)
        else:
            self.log, self.code = log, leader_epoch_error(log, self.epoch)

    def look_again(self, parts: LogParts) -> None:
        """Find out whether the partition is led here still, and in which epoch.

        A log that is closed was given up, or its topic is deleted, whatever has its name by now.
        """
        if self.log is None:
            return
        if not self.log.closed:
            self.look_up(parts)
        else:
            self.log = None
            self.code = why_absent(parts.topics, parts.leadership, self.topic, self.partition)


class OlderRecords:
    """The records that a fetch has to wait for since they are not in memory. When all have come it looks
    whether it has enough.
    """

    __slots__ = ("_left", "_parked", "_purgatory", "_readings", "_until_ms")

    def __init__(self, purgatory: Purgatory, *, until_ms: int) -> None:
        """The fetch waits for more until then, if these are not enough."""
        self._purgatory = purgatory
        self._until_ms = until_ms
        self._parked: Parked | None = None
        self._readings: list[HeldReading] = []
        self._left = 0

    @property
    def missing(self) -> bool:
        """Whether some have not come."""
        return self._left > 0

    def ask(self, old: Sequence[Wanted], left: int) -> None:
        """Have records read of a few partitions side by side, as far as there is room: of one at least. The
        others are answered without records this time.
        """
        asked: list[tuple[Wanted, Log, int]] = []
        for one in old:
            assert one.log is not None
            one.old = one.log, None
            if not asked or (left > 0 and len(asked) < ITEMS_AT_ONCE):
                size = max(0, min(one.max_bytes, left))
                asked.append((one, one.log, size))
                left -= size
        self._left = len(asked)
        for one, log, size in asked:
            reading = log.read_soon(one.offset, size, self._come, self._press)
            if reading is not None:
                one.old = log, reading
                self._readings.append(reading)

    def wait_in(self, parked: Parked) -> None:
        """Have the fetch that is parked go on when they have come."""
        self._parked = parked

    def _come(self, found: Readable) -> None:
        self._left -= 1
        if not self._left and self._parked is not None:
            self._purgatory.go_on(self._parked, self._until_ms)

    def _press(self) -> None:
        if self._parked is not None:
            self._purgatory.press(self._parked)

    def release(self) -> None:
        """Wait for them no more, and hold none."""
        for reading in self._readings:
            reading.release()

    def released_after(self, pieces: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Hold them until work in pieces is done."""
        try:
            return (yield from pieces)
        finally:
            self.release()


def found_by(find: Callable[[Callable[[Any], None]], None]) -> Pieces[bytes | None]:
    """Return the batch that is looked for. Raises `StorageFailed`."""
    found: bytes | StorageFailed | None = yield Until(find)
    if isinstance(found, StorageFailed):
        raise found
    return found
