"""What of a log is not in memory, once it was read from the database for who asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from coterie.storage.kind import OVERDUE_MS
from coterie.storage.log.contract import StorageFailed
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.reading import RowsWanted, StoredRows
from coterie.storage.remote.tail import Batch, batches_in, youngest

if TYPE_CHECKING:
    from coterie.storage.kind import Found
    from coterie.storage.remote.log import RemoteLog
    from coterie.wire.records.visible import AbortedTransaction

LOOKED_AT_BYTES = 1 << 20
Rows: TypeAlias = StoredRows | StorageFailed
ReadRows: TypeAlias = "Callable[[RowsWanted, Callable[[Rows], None]], None]"
"""Reads rows; what takes them is called once, later."""


class TimelyReads:
    """Reads rows, or says in time that the database is silent. As long as it is it is not asked for more, and
    who asks hears so at once.
    """

    def __init__(
        self, read: ReadRows, clock: Callable[[], int], later: Callable[[int, Callable[[], None]], object]
    ) -> None:
        self._read, self._clock, self._later = read, clock, later
        self._asked_ms: dict[object, int] = {}  # of what is not answered, the oldest first

    def read(self, wanted: RowsWanted, done: Callable[[Rows], None]) -> None:
        """Read rows; `done` is called once, later."""
        now_ms = self._clock()
        oldest_ms = next(iter(self._asked_ms.values()), now_ms)
        if now_ms - oldest_ms >= OVERDUE_MS:
            self._later(0, lambda: done(_silent()))
            return
        waiting, asked = [done], object()

        def tell(rows: Rows) -> None:
            if waiting:
                waiting.pop()(rows)

        def come(rows: Rows) -> None:
            del self._asked_ms[asked]
            tell(rows)

        self._asked_ms[asked] = now_ms
        self._read(wanted, come)
        self._later(OVERDUE_MS, lambda: tell(_silent()))


def _silent() -> StorageFailed:
    return StorageFailed(f"the database has not answered for {OVERDUE_MS} ms")


class RecalledLog:
    """A log with rows of it that are not in memory, to be read as the log is."""

    def __init__(self, log: RemoteLog, rows: Rows, upto: int = 0) -> None:
        """If there are no rows there is nothing from where they were looked for `upto` that offset."""
        self._log = log
        self._rows = rows
        self._upto = upto

    def read(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True, end_offset: int | None = None
    ) -> bytes:
        """Return batches, as `Log.read` does, as far as they were read. Raises `StorageFailed` if not."""
        return self._log.read_of(
            self._since, offset, max_bytes=max_bytes, at_least_one=at_least_one, end_offset=end_offset
        )

    def read_committed(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True
    ) -> tuple[bytes, tuple[AbortedTransaction, ...]]:
        """Return batches, as `Log.read_committed` does, as far as they were read. Raises `StorageFailed`."""
        end = self._log.last_stable_offset
        records = self.read(offset, max_bytes=max_bytes, at_least_one=at_least_one, end_offset=end)
        older = () if isinstance(self._rows, StorageFailed) else self._rows.aborted
        return records, self._log.aborted_among(records, offset, older)

    def size_between(self, offset: int, end_offset: int) -> int:
        """Return the size of batches, as `Log.size_between` does; where there are older ones that were not
        read, with all that are older. Raises `StorageFailed`.
        """
        chunks = self._chunks()
        size = 0
        for row in chunks:
            if offset <= row.base_offset and row.last_offset < end_offset:
                size += len(row.data)
            elif row.last_offset >= offset and row.base_offset < end_offset:
                size += sum(
                    len(one.data) for one in batches_in(row.data, offset) if one.base_offset < end_offset
                )
        end = self._end(chunks)
        return size if end >= end_offset else size + self._log.tail.size_between(max(offset, end), end_offset)

    def _since(self, offset: int) -> Iterator[Batch]:
        chunks = self._chunks()
        for row in chunks:
            if row.last_offset >= offset:
                yield from batches_in(row.data, offset)
        end = self._end(chunks)
        if end >= self._log.tail.begins:
            yield from self._log.tail.since(max(offset, end))

    def _chunks(self) -> Sequence[Chunk]:
        if isinstance(self._rows, StorageFailed):
            raise self._rows
        return self._rows.chunks

    def _end(self, chunks: Sequence[Chunk]) -> int:
        """Return the offset up to which there is nothing older than what was read."""
        return chunks[-1].last_offset + 1 if chunks else self._upto


def find_by_time(read: ReadRows, wanted: RowsWanted, done: Found) -> None:
    """Have `done` take the first batch from an offset on that says to hold a record as young as is wanted.

    A row may say so for a batch that is empty, or lies before the offset: then others are looked at.
    """

    def look(rows: Rows) -> None:
        if isinstance(rows, StorageFailed):
            done(rows)
            return
        for row in rows.chunks:
            for batch in batches_in(row.data, wanted.offset):
                if batch.max_timestamp >= wanted.since_ms and batch.records:
                    done(batch.data)
                    return
        if rows.chunks:
            find_by_time(read, wanted._replace(offset=rows.chunks[-1].last_offset + 1), done)
        else:
            done(None)

    read(wanted, look)


def find_youngest(read: ReadRows, wanted: RowsWanted, done: Found) -> None:
    """Have `done` take the batch that says to hold the highest timestamp, the first of several, of those that
    hold a record.

    The row that holds the offset may have batches before it, and is looked at by itself. The others are by
    their times, until none may have a younger record than was found. A row may say the time of a batch that
    compaction has left empty, since it is the last of its producer: then the next is looked at. Apache Kafka
    4.3.1 finds none then (`offsetOfMaxTimestamp` of a batch without records); logs in files look on, too.
    """

    def looked_at_first(rows: Rows) -> None:
        if isinstance(rows, StorageFailed) or not rows.chunks:
            done(rows if isinstance(rows, StorageFailed) else None)
            return
        first = _youngest_in(rows.chunks, wanted.offset)
        rest = wanted._replace(offset=rows.chunks[-1].last_offset + 1, youngest=True)
        _look_on(read, rest, first, done)

    read(wanted, looked_at_first)


def _youngest_in(rows: Sequence[Chunk], offset: int) -> Batch | None:
    return youngest(batch for row in rows for batch in batches_in(row.data, offset))


def _look_on(read: ReadRows, wanted: RowsWanted, found: Batch | None, done: Found) -> None:
    """Look at rows that say to hold a record as young as was found, those that say to hold the youngest
    first, some at a time.
    """

    def look(rows: Rows) -> None:
        if isinstance(rows, StorageFailed):
            done(rows)
            return
        younger = _younger(found, rows.chunks)
        if not rows.chunks or _is_youngest(younger, rows.chunks[-1]):
            done(None if younger is None else younger.data)
            return
        last = rows.chunks[-1]
        behind = wanted._replace(after=(last.max_timestamp, last.base_offset), max_bytes=LOOKED_AT_BYTES)
        _look_on(read, behind, younger, done)

    read(wanted._replace(since_ms=0 if found is None else found.max_timestamp), look)


def _is_youngest(found: Batch | None, last: Chunk) -> bool:
    """Return whether no row that comes behind `last`, by time, has a record as young, or as young and older
    by its offset.
    """
    if found is None or found.max_timestamp < last.max_timestamp:
        return False
    return found.max_timestamp > last.max_timestamp or found.base_offset <= last.last_offset


def _younger(found: Batch | None, rows: Sequence[Chunk]) -> Batch | None:
    """Return the youngest of what was found before and what is in rows."""
    return youngest(one for one in (found, _youngest_in(rows, 0)) if one is not None)
