"""The contract of a partition's log, and what it raises. `files` and `memory` keep it.

Nothing here does input or output. A log is used by one thread at a time; what may run elsewhere says so.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, Refused, RefusedBy
from coterie.storage.config import BadSetting, LogConfig
from coterie.storage.log.aborted import Aborted

__all__ = [
    "AppendRefused",
    "Appended",
    "BadSetting",
    "DirectoryInUse",
    "DirectoryUnusable",
    "Log",
    "LogConfig",
    "OffsetAt",
    "OffsetOutOfRange",
    "StorageFailed",
]


class Appended(NamedTuple):
    """Where an append went. A duplicate tells where it went the first time."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    start_offset: int
    duplicate: bool = False


class OffsetAt(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


class TakesLong(CoterieError):
    """A producer's batch cannot be judged at once: it is to be prepared aside (`validate.prepare`)."""


class AppendRefused(RefusedBy):
    """The log does not take these bytes. `record_errors`: the place of each record at fault, and why.

    `unread`: it did not come to looking at the log, so that the answer does not say where that starts.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        record_errors: Sequence[tuple[int, str]] = (),
        *,
        unread: bool = False,
    ) -> None:
        super().__init__(code, message)
        self.message = message
        self.record_errors = tuple(record_errors)
        self.unread = unread


class OffsetOutOfRange(Refused):
    """An offset below the start of the log or beyond its end."""

    code, slug = Code.OFFSET_OUT_OF_RANGE, "offset-out-of-range"

    def __init__(self, *, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is not within {start} to {end}")
        self.offset, self.start, self.end = offset, start, end


class StorageFailed(Refused):
    """The disk would not read, write or flush, or gave back something that was never written."""

    code, slug = Code.KAFKA_STORAGE_ERROR, "storage-failed"


class DirectoryInUse(CoterieError):
    """Another broker holds the data directory."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory} is in use by another broker: it holds the lock {directory}/.lock")
        self.directory = directory


class DirectoryUnusable(CoterieError):
    """The data directory cannot be made, read or written, or belongs to another cluster."""


class Log(Protocol):
    """One partition's log. Offsets are given without gaps; whatever `append` returned for stays readable."""

    @property
    def config(self) -> LogConfig: ...
    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        ...

    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int:
        """The end of what a read_committed reader may see: the start of the oldest open transaction."""
        ...

    @property
    def size_bytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...

    def append(
        self, records: bytes | bytearray, *, now_ms: int, leader_epoch: int = 0, origin: str = "client"
    ) -> Appended:
        """Write whole batches at the end, or raise `AppendRefused` and leave the log as it was.

        A `client` may send one batch at a time and is checked; the `coordinator` several, markers too.
        """
        ...

    def read(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True, end_offset: int | None = None
    ) -> bytes:
        """Return whole batches from the one that holds `offset`, none that starts at or after `end_offset`.

        The first may be larger than `max_bytes` if `at_least_one`. Raises `OffsetOutOfRange`.
        """
        ...

    def read_committed(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True
    ) -> tuple[bytes, tuple[Aborted, ...]]:
        """Return what `read` does up to the last stable offset, and which transactions in it were aborted."""
        ...

    def aborted_transactions(self, first: int, end: int) -> tuple[Aborted, ...]:
        """Return the aborted transactions that touch the offsets from `first` up to `end`."""
        ...

    def open_transaction(self, producer_id: int) -> int:
        """Return the first offset of a producer's open transaction, -1 without one."""
        ...

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAt | None:
        """Return the first record that is as young as `timestamp_ms` or younger."""
        ...

    def offset_of_max_timestamp(self) -> OffsetAt | None:
        """Return the record with the highest timestamp; the first of several."""
        ...

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch known up to `epoch` and the offset where it ends, or (-1, -1)."""
        ...

    def delete_before(self, offset: int, now_ms: int, *, save: bool = True) -> int:
        """Forget what lies before `offset`; return the new start."""
        ...

    def flush(self) -> None:
        """Make everything appended so far survive a loss of power."""
        ...

    def tick(self, now_ms: int) -> None:
        """Do what time asks for: retention, flushing, expiry of producers, late removal of files."""
        ...

    def configure(self, config: LogConfig) -> None:
        """Take other settings from now on."""
        ...

    def close(self) -> None: ...
