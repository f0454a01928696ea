"""The compaction of a log in a database: which rows are read, and what takes the places of which.

It is a generator of statements, each with a broker epoch and a leader epoch without which it changes nothing.
Whoever carries them out may be a process of its own. A stop between any two loses nothing: rows are rewritten
from the start on, so that a tombstone or a marker never goes before what it is about, and each statement
takes the places of just the rows that were read, all of which have to be there as they were.

Where a row was there is a row after that, or none: its first offset stays, its last is that of what it has
left, so that whoever reads from an offset on finds something in the first row that goes as far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

from coterie.base.errors import Corrupt
from coterie.storage.cleaning import CleaningTerms, Newest, Survey, Sweep
from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.remote.chunk import CHUNK_BYTES, Chunk
from coterie.storage.remote.heads import heads_of
from coterie.storage.remote.reading import RowsWanted
from coterie.wire.records.batches import BatchHeader, check_crc, scan

PAGE_BYTES = 4 << 20
"""So much is read, and rewritten, at once."""
NOTHING_IS_YOUNG_MS = 1 << 62


class Leads(NamedTuple):
    """Who leads a partition in which epochs: a statement of somebody else's changes nothing."""

    partition_id: int
    broker_epoch: int
    leader_epoch: int


class CompactionWanted(NamedTuple):
    """A log that is to be compacted: rows from its start on that end before an offset up to which all is
    `settled`; those from `first_dirty` on for the first time, and only up to one that has a record younger
    than `young_ms`.
    """

    leads: Leads
    start_offset: int
    first_dirty: int
    settled: int
    young_ms: int
    now_ms: int
    wall_ms: int
    delete_retention_ms: int
    producers: frozenset[int]
    """Those that the log remembers."""
    listed: frozenset[int]
    """The markers of the aborted transactions that its leader has in memory."""


class SpansWanted(NamedTuple):
    """The aborted transactions of a partition that begin before an offset."""

    partition_id: int
    end_offset: int


class RowPlace(NamedTuple):
    """Where a row is, and how large."""

    base_offset: int
    last_offset: int
    size: int


class RowsReplaced(NamedTuple):
    """Rows, and those that take their places, each that of one of them; and the aborted transactions of which
    nothing is left. The rows are all there, or nothing happens. It is answered with whether they were.
    """

    leads: Leads
    old: Sequence[RowPlace]
    new: Sequence[Chunk]
    gone: Sequence[AbortedSpan] = ()


class CompactedTo(NamedTuple):
    """An offset up to which a log is compacted. It is answered with whether that is written down."""

    leads: Leads
    upto: int


class Compacted(NamedTuple):
    """What has become of a compaction.

    Unless it is `whole` the log was another's by then, or was changed meanwhile, or is damaged; rows may have
    been replaced all the same. What is clean was counted from `start_offset` on. `aborted` are the
    transactions of which there may be something left.
    """

    upto: int
    start_offset: int = 0
    clean_bytes: int = 0
    removed_bytes: int = 0
    aborted: tuple[AbortedSpan, ...] = ()
    whole: bool = False
    damage: str = ""
    found_nothing: bool = False
    """Whether there was no row that may be compacted and was not."""
    left_ms: int | None = None
    """The time of the first row that was left as it is, if that is known."""


Statement: TypeAlias = SpansWanted | RowsWanted | RowsReplaced | CompactedTo
Statements: TypeAlias = Generator[Statement, Any, Compacted]


def compaction(wanted: CompactionWanted) -> Statements:
    """Yield the statements of a compaction, which are answered with rows or whether they have changed
    something; return what has become of it.
    """
    try:
        aborted: Sequence[AbortedSpan] = yield SpansWanted(wanted.leads.partition_id, wanted.settled)
        newest, upto, left_ms = yield from _survey(wanted, aborted)
        if upto <= wanted.first_dirty:
            return Compacted(wanted.first_dirty, found_nothing=True, left_ms=left_ms)
        sweep = Sweep(_terms_of(wanted, aborted, upto), newest)
        done = yield from _sweep(wanted, sweep, aborted, upto)
        return done._replace(left_ms=left_ms) if done.whole else done
    except Corrupt as error:
        return Compacted(wanted.first_dirty, damage=str(error))


def _survey(
    wanted: CompactionWanted, aborted: Sequence[AbortedSpan]
) -> Generator[Statement, Any, tuple[Newest, int, int | None]]:
    """Return the `Newest`, the offset up to which rows may be compacted, and the time of the row there, if it
    was read.
    """
    survey = Survey(wanted.first_dirty, wanted.producers, aborted)
    partition_id, upto = wanted.leads.partition_id, wanted.start_offset
    while rows := (yield RowsWanted(partition_id, upto, wanted.settled, PAGE_BYTES)).chunks:
        for row in rows:
            if not _may_be_compacted(row, wanted):
                return survey.newest, upto, row.max_timestamp
            for batch in _batches_of(row):
                survey.take(*batch)
            upto = row.last_offset + 1
    return survey.newest, upto, None


def _may_be_compacted(row: Chunk, wanted: CompactionWanted) -> bool:
    if row.last_offset >= wanted.settled:
        return False
    return row.last_offset < wanted.first_dirty or row.max_timestamp <= wanted.young_ms


def _terms_of(wanted: CompactionWanted, aborted: Sequence[AbortedSpan], upto: int) -> CleaningTerms:
    return CleaningTerms(
        first_dirty=wanted.first_dirty,
        upto=upto,
        now_ms=wanted.now_ms,
        wall_ms=wanted.wall_ms,
        delete_retention_ms=wanted.delete_retention_ms,
        producers=wanted.producers,
        aborted=aborted,
        listed=wanted.listed | {span.last_offset for span in aborted},
    )


def _sweep(wanted: CompactionWanted, sweep: Sweep, aborted: Sequence[AbortedSpan], upto: int) -> Statements:
    """Replace what is there by what stays, from the start on."""
    leads, offset, clean, removed = wanted.leads, wanted.start_offset, 0, 0
    ahead, left = deque(aborted), list[AbortedSpan]()
    while rows := (yield RowsWanted(leads.partition_id, offset, upto, PAGE_BYTES)).chunks:
        runs = _joined(rows, sweep)
        left += (kept := sweep.take_aborted())
        gone = set[AbortedSpan]()
        while ahead and ahead[0].last_offset <= rows[-1].last_offset:
            gone.add(ahead.popleft())
        change = _change_of(leads, runs, gone.difference(kept))
        if (change.old or change.gone) and not (yield change):
            return Compacted(wanted.first_dirty, removed_bytes=removed)
        size = sum([run.size for run in runs])
        clean += size
        removed += sum([len(row.data) for row in rows]) - size
        offset = rows[-1].last_offset + 1
    whole = yield CompactedTo(leads, upto)
    return Compacted(upto, wanted.start_offset, clean, removed, tuple(left), whole)


def _change_of(leads: Leads, runs: Sequence[_Run], gone: Set[AbortedSpan]) -> RowsReplaced:
    changed = [run for run in runs if not run.is_as_it_was(gone)]
    old = [RowPlace(*row[1:3], len(row.data)) for run in changed for row in run.rows]
    return RowsReplaced(leads, old, [run.row(gone) for run in changed if run.size], sorted(gone))


class _Run:
    """Rows that follow each other, and what stays of them, which becomes one."""

    def __init__(self, row: Chunk, batches: list[tuple[BatchHeader, bytes]]) -> None:
        self.rows = [row]
        self.first = row
        """The first of which something stays."""
        self.batches = batches
        self.size = sum([len(data) for _, data in batches])

    def is_as_it_was(self, gone: Set[AbortedSpan]) -> bool:
        """Return whether this is one row that stays as it is, where some transactions are gone."""
        if len(self.rows) > 1 or not gone.isdisjoint(self.first.aborted):
            return False
        return b"".join([data for _, data in self.batches]) == self.first.data

    def takes(self, following: _Run) -> bool:
        """Take in what follows, unless that has another leader epoch or is too much."""
        fits = self.size + following.size <= CHUNK_BYTES
        of_one_epoch = following.first.leader_epoch == self.first.leader_epoch
        if self.size and following.size and not (fits and of_one_epoch):
            return False
        if not self.size:
            self.first = following.first
        self.rows += following.rows
        self.batches += following.batches
        self.size += following.size
        return True

    def row(self, gone: Set[AbortedSpan]) -> Chunk:
        """Return the row that this becomes, where some transactions are gone."""
        spans = [(header, header.base_offset, header.max_timestamp) for header, _ in self.batches]
        data = b"".join([data for _, data in self.batches])
        return self.first._replace(
            last_offset=spans[-1][0].last_offset,
            max_timestamp=max([timestamp for *_, timestamp in spans]),
            batches=len(spans),
            heads=heads_of(data, spans),
            data=data,
            aborted=tuple(span for row in self.rows for span in row.aborted if span not in gone),
        )


def _joined(rows: Sequence[Chunk], sweep: Sweep) -> list[_Run]:
    """Return the runs that rows are joined to."""
    runs: list[_Run] = []
    for row in rows:
        batches = [kept for batch in _batches_of(row) if (kept := sweep.stays(*batch)) is not None]
        run = _Run(row, batches)
        if not runs or not runs[-1].takes(run):
            runs.append(run)
    return runs


def _batches_of(row: Chunk) -> Iterator[tuple[BatchHeader, bytes, int]]:
    """Yield the batches of a row. Raises `Corrupt` where one is not whole."""
    data = bytes(row.data)
    reached = 0
    for at, header in scan(data):
        if not check_crc(data, at, header):
            break
        yield header, data, at
        reached = at + header.size
    if reached != len(data):
        raise Corrupt(f"the row from offset {row.base_offset} on", at=reached, expected="a sound batch")
