"""What a broker asks of its logs, and of the store that holds them, wherever that keeps them.

A log in files is a `PartitionLog`, its store a `directory.Store`; one whose rows lie in a database that
brokers share is a `RemoteLog`, its store a `RemoteStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.storage.config import LogConfig
    from coterie.storage.disk import Space
    from coterie.storage.log.contract import Appended, Landed, StorageFailed
    from coterie.storage.log.producers import ActiveProducer, ProducerState, Verification
    from coterie.storage.log.validate import Prepared
    from coterie.wire.records.batches import BatchHeader
    from coterie.wire.records.visible import AbortedTransaction

Saved: TypeAlias = "Callable[[OSError | StorageFailed | Set[TopicPartition]], None]"
"""Takes word, once, of what was to be written down: why none of it is, or of which partitions nothing is,
since they are led elsewhere by now.
"""


OVERDUE_MS = 5_000
"""So long whoever reads what is not in memory waits for it; then they hear that it cannot be read for now."""

Found: TypeAlias = "Callable[[bytes | StorageFailed | None], None]"
"""Takes a batch that was looked for, None if there is none."""


class Readable(Protocol):
    """What can be read as a log is: the log, or what was fetched of it."""

    def read(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True, end_offset: int | None = None
    ) -> bytes:
        """Return whole batches from the one that holds `offset`, none that starts at or after `end_offset`.

        The first may be larger than `max_bytes` if `at_least_one`. Raises `OffsetOutOfRange`, and
        `StorageFailed` where it could not be read.
        """
        ...

    def read_committed(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True
    ) -> tuple[bytes, tuple[AbortedTransaction, ...]]:
        """Return batches, as `read` does, up to the last stable offset, and their aborted transactions."""
        ...

    def size_between(self, offset: int, end_offset: int) -> int:
        """Return the size in bytes of the batches from the one that holds `offset` up to `end_offset`; where
        they begin with one that is not at hand, more. Raises `StorageFailed`.
        """
        ...


class HeldReading(Protocol):
    """What is being read for somebody, or was, and is held for them."""

    @property
    def found(self) -> Readable | None:
        """What was read, None if it has not come, or is held no more."""
        ...

    @property
    def overdue(self) -> bool:
        """Whether it has been asked for `OVERDUE_MS` ago, and has not come."""
        ...

    def release(self) -> None:
        """Wait for it no more, and hold it no more. It may be called again."""
        ...


class Log(Readable, Protocol):
    """The log of one partition. Offsets are given without gaps."""

    # -- what it is

    @property
    def name(self) -> TopicPartition:
        """The partition."""
        ...

    @property
    def config(self) -> LogConfig:
        """The settings of its topic."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it takes nothing any more: its topic is deleted, or the partition is led elsewhere."""
        ...

    @property
    def producers(self) -> ProducerState:
        """Against which the next batch is checked: with all that is placed."""
        ...

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        ...

    @property
    def high_watermark(self) -> int:
        """The end of what readers may see: of what has landed."""
        ...

    @property
    def last_stable_offset(self) -> int:
        """The end of what a read_committed reader may see: the start of the oldest open transaction."""
        ...

    @property
    def recovery_point(self) -> int:
        """The offset up to which everything survives a loss of power."""
        ...

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches that have landed."""
        ...

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch: what clients are told, and what batches are stamped with."""
        ...

    @property
    def earliest_epoch(self) -> int:
        """The leader epoch of the first record, -1 if that is not known."""
        ...

    @property
    def may_bring_back(self) -> bool:
        """Whether a crash may bring back batches that were refused."""
        ...

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch known up to `epoch` and the offset where it ends, or (-1, -1)."""
        ...

    def open_transaction(self, producer_id: int) -> int:
        """Return the first offset of a producer's open transaction, -1 without one."""
        ...

    def active_producers(self) -> list[ActiveProducer]:
        """Return the producers that the log remembers."""
        ...

    def configure(self, config: LogConfig) -> None:
        """Take other settings from now on."""
        ...

    # -- appending

    def verification(self, header: BatchHeader, *, joins: bool, now_ms: int) -> Verification | None:
        """Return the Verification that `append` needs with this batch once the coordinator has agreed."""
        ...

    def append(
        self,
        records: bytes | bytearray | Prepared,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        leader_epoch: int = 0,
        origin: str = "client",
        verified: Verification | None = None,
        transaction_version: int = 0,
        promptly: bool = False,
    ) -> Appended:
        """Place whole batches at the end. Raises `AppendRefused`, having left the log as it was."""
        ...

    def when_landed(self, last_offset: int, done: Landed) -> None:
        """Have `done` called once what was appended up to an offset lasts, or never will."""
        ...

    def lead(self, epoch: int) -> None:
        """Have what comes be written in this epoch, unless a later one is known. Raises OSError."""
        ...

    def flush(self) -> None:
        """Make everything appended so far survive a loss of power. Raises `StorageFailed`."""
        ...

    # -- reading

    def at_hand(self, offset: int) -> bool:
        """Return whether what is there at an offset can be read at once; else `read_soon` is to be asked."""
        ...

    def read_soon(
        self,
        offset: int,
        max_bytes: int,
        done: Callable[[Readable], None],
        pressed: Callable[[], None] | None = None,
    ) -> HeldReading | None:
        """Have `done` called, once, with what can be read at an offset; it may be much less than `max_bytes`,
        and is at least one batch.

        Whoever says what to do when they are `pressed` has a HeldReading. They may have to wait until there
        is room for theirs, and `done` may be called from within. They hold what was read until they release
        it. If others want the room before, they are called, and it is gone when they return; it goes with the
        log as well.
        """
        ...

    def find_soon(self, timestamp_ms: int, offset: int, done: Found) -> None:
        """Have `done` called, once, with what `batch_from` finds, wherever that lies."""
        ...

    def find_youngest_soon(self, done: Found) -> None:
        """Have `done` called, once, with what `youngest_batch` finds, wherever that lies."""
        ...

    def batch_from(self, timestamp_ms: int, offset: int) -> bytes | None:
        """Return the first batch from an offset on that says to hold a record as young as this."""
        ...

    def youngest_batch(self) -> bytes | None:
        """Return the batch that says to hold the highest timestamp, the first of several."""
        ...

    # -- forgetting

    def expire_producers(self, before_ms: int) -> None:
        """Forget producers that wrote nothing since then, and have no transaction open."""
        ...

    def delete_before(self, offset: int, now_ms: int, *, save: bool = True) -> int:
        """Forget what lies before `offset`; return the new start. Raises OffsetOutOfRange, `StorageFailed`.

        Who moves many starts writes them down first (`LogStore.save_starts`), and lets none `save`.
        """
        ...


class LogStore(Protocol):
    """The logs of a broker."""

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs that are open, by partition."""
        ...

    @property
    def log_dir(self) -> str:
        """The place where the logs lie, as clients are told it: the path of a directory."""
        ...

    @property
    def was_closed(self) -> bool:
        """Whether nothing can be missing of what was appended before this start."""
        ...

    in_doubt: bool
    """Whether something may be missing that is still to be looked for."""

    def space(self) -> Space:
        """Return the room there is where the logs lie. Raises OSError."""
        ...

    def save_starts(self, starts: Mapping[TopicPartition, int], done: Saved) -> None:
        """Write down where logs are to start; `done` is called now or later."""
        ...

    def close(self) -> None:
        """Close all logs. Raises `StorageFailed`, having let go of everything."""
        ...
