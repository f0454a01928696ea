"""What a fetch asks of one partition: its log, whether the client knows the epoch, and reading what is not in
memory before it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.leadership import why_absent
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, Until, when_all
from coterie.storage.log.contract import StorageFailed

if TYPE_CHECKING:
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.storage.kind import Log, Readable


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
        "partition",
        "recalled",
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
        self.recalled: tuple[Log, Readable] | None = None
        """What was read of a log that is not in memory."""

    def is_at_hand(self) -> bool:
        """Return whether the partition can be answered at once."""
        log = self.log
        return log is None or self.code != Code.NONE or log.at_hand(self.offset)

    def recall(self, max_bytes: int, done: Callable[[], None]) -> None:
        """Read what is not in memory, and call `done`."""
        log = self.log
        assert log is not None

        def read(found: Readable) -> None:
            self.recalled = log, found
            done()

        log.read_soon(self.offset, max_bytes, read)

    def readable(self, log: Log) -> Readable | None:
        """Return the log, or what was read of it; None if it is not in memory, and nothing was read."""
        if log.at_hand(self.offset):
            return log
        return self.recalled[1] if self.recalled is not None and self.recalled[0] is log else None

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


def recall(old: Sequence[Wanted], left: int, done: Callable[[None], None]) -> None:
    """Read what is not in memory, of a few partitions side by side, as far as there is room: one of them at
    least. The others are answered without records this time.
    """
    asks: list[Callable[[Callable[[], None]], None]] = []
    for one in old[:ITEMS_AT_ONCE]:
        if asks and left <= 0:
            break
        size = max(0, min(one.max_bytes, left))
        asks.append(partial(one.recall, size))
        left -= size
    when_all(asks, partial(done, None))


def found_by(find: Callable[[Callable[[Any], None]], None]) -> Pieces[bytes | None]:
    """Return the batch that is looked for. Raises `StorageFailed`."""
    found: bytes | StorageFailed | None = yield Until(find)
    if isinstance(found, StorageFailed):
        raise found
    return found
