"""What a partition's log returns and raises. No input or output."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, Refused, RefusedBy


class Appended(NamedTuple):
    """Where an append went. A duplicate tells where it went the first time.

    Unless it has `landed` it may still be refused, with all that was appended behind it: the log's
    `when_landed` says when it lasts.
    """

    base_offset: int
    last_offset: int
    append_time_ms: int
    start_offset: int
    duplicate: bool = False
    landed: bool = True


Landed = Callable[["AppendRefused | None"], None]
"""Takes word of an append, once: None when it lasts, the refusal when it never will.

Of a refusal it answers nobody before it returns, who might have more appended: what was refused with it, in
other logs, too, is undone one after another.
"""


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
