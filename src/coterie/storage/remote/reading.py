"""How logs are opened: a leader epoch begins in the database, and the log is read as it is then.

The database refuses nobody here, as it does at a lane's gate. So a statement may take effect late, when
others lead: it begins no epoch that is older than one that has begun, and moves no start back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from coterie.storage.epochs import Epochs, from_start
from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.session import Broken
from coterie.wire.records.batches import HEADER_SIZE

ALL_DATA = 1 << 62


class LogWanted(NamedTuple):
    """A partition that this broker leads, the leader epoch that it begins there, and how much is wanted of
    the data of its newest rows. Of the others the heads of their batches do.
    """

    partition_id: int
    leader_epoch: int
    data_bytes: int = ALL_DATA


class LogLed(NamedTuple):
    """A partition that is led here in a leader epoch, and up to where this broker has compacted it."""

    partition_id: int
    leader_epoch: int
    compacted_to: int = 0


class RowHeads(NamedTuple):
    """A row without its data, which is so many bytes."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    size: int
    heads: bytes

    @property
    def batches(self) -> int:
        """The number of its batches, more or less: the heads of markers are longer than others."""
        return len(self.heads) // HEADER_SIZE


class StoredLog(NamedTuple):
    """What the database holds of a partition.

    `epochs` are its rows of leader epochs, each with the offset where it began, in any order; the one
    that was wanted is among them, unless a later one is. `older`, and behind them `chunks`, are the rows from
    the one on that holds `start_offset`, ascending, of which some may be joined: those that follow each
    other, are of one leader epoch, and all or none compacted. The log goes on at `end_offset`, or behind
    them. It is compacted up to `compacted_to`.
    """

    partition_id: int
    start_offset: int
    end_offset: int
    epochs: Sequence[tuple[int, int]]
    chunks: Sequence[Chunk]
    older: Sequence[RowHeads] = ()
    compacted_to: int = 0

    @property
    def newest_epoch(self) -> int:
        """The newest leader epoch that has begun."""
        return max(epoch for epoch, _ in self.epochs)


class RowsWanted(NamedTuple):
    """Rows of a partition, ascending: from the one on that holds `offset` or is the first behind it, none
    that begins at or after `end_offset`, and none without a record as young as `since_ms`.

    They are as many as it takes to have `max_bytes` of them, at least one, if there is one. If the `youngest`
    are wanted they come by their times, the highest first and of one time the oldest row: of those that begin
    at `offset` or later and hold a record, the ones behind the row of a time and base offset (`after`).
    """

    partition_id: int
    offset: int
    end_offset: int
    max_bytes: int = 0
    since_ms: int = -1
    youngest: bool = False
    after: tuple[int, int] = (1 << 62, -1)


class StoredRows(NamedTuple):
    """Rows, and the aborted transactions of which there are records among them or behind the offset that was
    wanted, in the order of their markers. Of rows that were looked for by time they are left out.
    """

    chunks: Sequence[Chunk]
    aborted: Sequence[AbortedSpan] = ()


class StartWanted(NamedTuple):
    """A log that is led here in a leader epoch, and where it is to start."""

    partition_id: int
    leader_epoch: int
    start_offset: int


class RetentionWanted(NamedTuple):
    """A log that is led here in a leader epoch, its start and end, and what it need not keep: its oldest rows
    as long as all of their records are older than `before_ms`, or they are no more than `surplus_bytes`
    together. Both may be negative.
    """

    partition_id: int
    leader_epoch: int
    start_offset: int
    end_offset: int
    before_ms: int
    surplus_bytes: int


class RetainedLog(NamedTuple):
    """Where a log starts now, and the time of the youngest record in its first row, None if it is not known.

    There may be more that it need not keep: so many rows are looked at at once.
    """

    start_offset: int
    oldest_ms: int | None


class SizeWanted(NamedTuple):
    """A log whose size is read anew: of the rows from the one on that holds its start, what lies before an
    offset, and what is compacted, up to another.
    """

    partition_id: int
    start_offset: int
    end_offset: int
    compacted_to: int


class StoredSize(NamedTuple):
    """The size of the rows that end before the offset, and of those that are compacted; and the heads of the
    row that begins before the offset and goes further, if there is one.
    """

    older_bytes: int
    clean_bytes: int
    heads: bytes = b""


class DeletedRow(NamedTuple):
    """A row that was deleted: where it ended, and the size of its data."""

    last_offset: int
    size: int


class RemoteReader(Protocol):
    """The way to the database beside the lanes.

    `history` is the engine's, by the metadata that the broker goes by. An engine of another one is not asked:
    it has gone back to an older state, in which others may lead. Then, and whenever no answer
    will come, `done` takes Broken; it is always called, and never from within. How long is waited for an
    answer is the reader's to know. Any number of calls may be under way.
    """

    def prepare(self, *, history: str) -> None:
        """Have at hand what reading needs: whoever takes over is waited for."""
        ...

    def read_logs(
        self,
        wanted: Sequence[LogWanted],
        done: Callable[[Sequence[StoredLog] | Broken], None],
        *,
        history: str,
    ) -> None:
        """Begin leader epochs, each at the end of its log, and read the logs as they are from then on.

        An epoch that has begun already stays as it is; nothing begins where a later one has. The answer has
        the logs in the order of those that are wanted. Of more than is well read at once it has the first of
        them, one at least; the others are to be asked for again.
        """
        ...

    def find_lacking(
        self, led: Sequence[LogLed], done: Callable[[Sequence[int] | Broken], None], *, history: str
    ) -> None:
        """Find the partitions in which a leader epoch has not begun, or that are not compacted so far: their
        ids, ascending.
        """
        ...

    def read_rows(
        self, wanted: RowsWanted, done: Callable[[StoredRows | Broken], None], *, history: str
    ) -> None:
        """Read rows of a log. It is not waited for by those who open logs, nor does it wait for them."""
        ...

    def retain(
        self, wanted: RetentionWanted, done: Callable[[RetainedLog | Broken], None], *, history: str
    ) -> None:
        """Have a log start behind rows that it need not keep. Nothing moves in a partition that has a later
        leader epoch, or will have one before this is done.
        """
        ...

    def delete_rows(
        self,
        partition_id: int,
        before_offset: int,
        done: Callable[[Sequence[DeletedRow] | Broken], None],
        *,
        history: str,
    ) -> None:
        """Delete some of the oldest rows of a log that end before an offset, where it starts at the earliest;
        none once there are none. `done` takes those that are gone.
        """
        ...

    def measure(
        self, wanted: SizeWanted, done: Callable[[StoredSize | Broken], None], *, history: str
    ) -> None:
        """Read how large a log is."""
        ...

    def save_starts(
        self,
        starts: Sequence[StartWanted],
        done: Callable[[Sequence[int] | Broken], None],
        *,
        history: str,
    ) -> None:
        """Write down where logs start; one that starts later already stays as it is, and so does one whose
        topic is deleted.

        Nothing moves in a partition that has a later leader epoch, or will have one before this is done:
        `done` takes the ids of those, ascending.
        """
        ...


def epochs_of(rows: Iterable[tuple[int, int]], start_offset: int) -> Epochs:
    """Return the leader epochs of a log that starts at an offset; those without records are left out."""
    ascending = sorted(rows)
    written = [before for before, after in pairwise(ascending) if before[1] < after[1]]
    return from_start([*written, *ascending[-1:]], start_offset)


def pieces_of(
    rows: Sequence[Chunk], data_bytes: int, compacted_to: int, piece_bytes: int
) -> tuple[list[Chunk], list[RowHeads]]:
    """Return the rows of a log joined as a database joins them, up to so many bytes of what is read of each:
    the newest, with as much data as is wanted, and of the others the heads.
    """
    data_from = len(rows)
    while data_from and data_bytes > 0:
        data_from -= 1
        data_bytes -= len(rows[data_from].data)
    upto = 0
    pieces: dict[tuple[bool, int, bool, int], list[Chunk]] = {}
    for number, row in enumerate(rows):
        with_data = number >= data_from
        upto += len(row.data) if with_data else row.batches * HEADER_SIZE
        place = (with_data, row.leader_epoch, row.last_offset < compacted_to, upto // piece_bytes)
        pieces.setdefault(place, []).append(row)
    newest = [_joined(piece) for (with_data, *_), piece in pieces.items() if with_data]
    return newest, [_heads_of(piece) for (with_data, *_), piece in pieces.items() if not with_data]


def _joined(rows: Sequence[Chunk]) -> Chunk:
    return rows[0]._replace(
        last_offset=rows[-1].last_offset,
        max_timestamp=max([row.max_timestamp for row in rows]),
        batches=sum([row.batches for row in rows]),
        heads=b"".join([row.heads for row in rows]),
        data=b"".join([row.data for row in rows]),
        aborted=(),
    )


def _heads_of(rows: Sequence[Chunk]) -> RowHeads:
    heads = b"".join([row.heads for row in rows])
    size = sum([len(row.data) for row in rows])
    return RowHeads(rows[0].base_offset, rows[-1].last_offset, rows[0].leader_epoch, size, heads)


def by_time(rows: Sequence[Chunk], wanted: RowsWanted) -> list[Chunk]:
    """Return the rows among which the youngest are that are wanted, in the order in which they come."""
    after_ms, after_offset = wanted.after
    places = {
        (-row.max_timestamp, row.base_offset): row
        for row in rows
        if row.base_offset >= wanted.offset and len(row.data) > row.batches * HEADER_SIZE
    }
    return [row for place, row in sorted(places.items()) if place > (-after_ms, after_offset)]


def size_of(rows: Sequence[Chunk], wanted: SizeWanted) -> StoredSize:
    """Return the size of a log, of which there are the rows from its start on."""
    _, _, end_offset, compacted_to = wanted
    further = [row.heads for row in rows if row.base_offset < end_offset <= row.last_offset]
    return StoredSize(
        sum([len(row.data) for row in rows if row.last_offset < end_offset]),
        sum([len(row.data) for row in rows if row.last_offset < compacted_to]),
        *further,
    )
