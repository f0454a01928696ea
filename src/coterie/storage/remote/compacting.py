"""The side of a log, and of a store, of compactions: which log needs one, and what it knows by it afterwards.

Rows are never written again by an append, so that none has to be closed before it may be compacted: the part
that stays as it is, as a segment that grows does in files, is what has come since the last time, as long as
that is small and young.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet

from coterie.storage.cleaning import Need, need_of
from coterie.storage.remote.compaction import (
    NOTHING_IS_YOUNG_MS,
    Compacted,
    CompactionWanted,
    Leads,
)
from coterie.storage.remote.session import Broken

if TYPE_CHECKING:
    from coterie.storage.remote.log import RemoteLog
    from coterie.storage.remote.reading import RowHeads
    from coterie.storage.remote.store import RemoteStore

log = logging.getLogger("coterie.storage")

ACTIVE_BYTES = 4 << 20
ACTIVE_BATCHES = 4_096
"""So much of a log at least is left as it is, segment.bytes where that is less, or so many batches, whichever
it has first: whoever leads next reads it, and where commits come one by one each is a row, which costs the
database by itself.
"""
AGAIN_MS, OTHERWISE_MS = 15_000, 60_000
"""So long a log is left alone once it was compacted, or could not be, or not to its end: who reads of it what
was there before, for `OVERDUE_MS` at most, is done by the next time.
"""


class Compactor(Protocol):
    """Carries out compactions, elsewhere."""

    def compact(
        self, wanted: CompactionWanted, done: Callable[[Compacted | Broken], None], *, history: str
    ) -> None:
        """Compact a log in an engine of this history. `done` is called once, later."""
        ...


class _Begun(NamedTuple):
    """A compaction that was begun."""

    at_ms: int
    """What it leaves has come since then: what is younger was too young, if anything was."""
    young_ms: int
    end_offset: int
    settled: int
    is_held: bool
    """Whether an open transaction kept it from the log's end."""
    dirty_batches: int


class LogCompaction:
    """What a log knows of its compactions."""

    def __init__(self, of: RemoteLog, compacted_to: int) -> None:
        self._log = of
        self.compacted_to = compacted_to
        self.is_unfinished = False
        """Whether rows were replaced by a compaction that has not come to its end, and none has since."""
        self.oldest_ms: int | None = None
        """The time of the first batch that was not compacted, None if there is none."""
        self.dirty_batches = 0
        """How many have come since the last compaction began."""
        self._clean_bytes = 0
        self._counted_from = of.start_offset
        self._begun: _Begun | None = None
        self._done: _Begun | None = None  # the last that has come to its end
        self._since_ms = 0  # what is dirty has come since then, but for the newest row
        self._in_vain: int | None = None  # all was settled up to there, and no row ended before it

    def take_row(self, row: RowHeads, timestamp_ms: int) -> None:
        """Take note of a row that was there when the log was opened."""
        if row.last_offset < self.compacted_to:
            self._clean_bytes += row.size
        else:
            self.take_dirty(row.batches, timestamp_ms)

    def take_dirty(self, batches: int, timestamp_ms: int) -> None:
        """Take note of batches that were not compacted; the first has a record of that time."""
        self.dirty_batches += batches
        if self.oldest_ms is None:
            self.oldest_ms = timestamp_ms

    def take_deleted(self, last_offset: int, size: int) -> None:
        """Take note that one of the oldest rows was deleted: those before the log's start, when that was read
        or compacted, were not counted.
        """
        if self._counted_from <= last_offset < self.compacted_to:
            self._clean_bytes = max(0, self._clean_bytes - size)

    def recount(self, start_offset: int, clean_bytes: int) -> None:
        """Go by the size of what is compacted of the rows from the start on, as it was read anew."""
        self._counted_from, self._clean_bytes = start_offset, clean_bytes

    def need(self, now_ms: int) -> Need | None:
        """Return the Need of a compaction, None if none is due."""
        of, config = self._log, self._log.config
        if not config.compacted or of.size_bytes <= self._clean_bytes:
            return None
        known_ms = now_ms if self.oldest_ms is None else self.oldest_ms
        if 0 < config.min_compaction_lag_ms > now_ms - known_ms:
            return None
        oldest_ms = now_ms if known_ms < 0 else known_ms  # without a time it is never young, nor overdue
        # Records say what time they like: those of a replay are old, and have come just now.
        dirty_ms = max(oldest_ms, self._since_ms)
        if not self._has_enough and now_ms - dirty_ms < config.roll_ms:
            return None
        if self._in_vain == self._settled:
            return None
        return need_of(
            config,
            clean_bytes=self._clean_bytes,
            dirty_bytes=self._ripe_bytes(now_ms),
            oldest_dirty_ms=dirty_ms,
            now_ms=now_ms,
        )

    @property
    def _has_enough(self) -> bool:
        dirty_bytes = self._log.size_bytes - self._clean_bytes
        enough = min(self._log.config.segment_bytes, ACTIVE_BYTES)
        return dirty_bytes >= enough or self.dirty_batches >= ACTIVE_BATCHES

    @property
    def _first_dirty(self) -> int:
        return max(self.compacted_to, self._log.start_offset)

    @property
    def _settled(self) -> int:
        """The offset that what may be compacted ends before: all is decided there, and the newest row is
        behind it, by which the lane knows what has landed.
        """
        return min(self._log.last_stable_offset, self._log.high_watermark - 1)

    def _ripe_bytes(self, now_ms: int) -> int:
        """Return the size of what was not compacted and may be."""
        first, end = self._first_dirty, self._settled
        young_ms = self._young_ms(now_ms)
        if young_ms < NOTHING_IS_YOUNG_MS:
            pieces = self._log.tail.pieces_since(first)
            young = (one.base_offset for one in pieces if one.max_timestamp > young_ms)
            end = min(end, next(young, end))
        if first >= end:
            return 0
        size = self._log.size_between(first, end)
        return max(0, size - self._clean_bytes) if first < self._log.tail.begins else size

    def _young_ms(self, now_ms: int) -> int:
        """Return the time behind which a record is too young to be compacted."""
        lag_ms = self._log.config.min_compaction_lag_ms
        return now_ms - lag_ms if lag_ms > 0 else NOTHING_IS_YOUNG_MS

    def begin(self, broker_epoch: int, now_ms: int, wall_ms: int) -> CompactionWanted:
        """Return the compaction that is possible now, which begins. How old things are goes by `now_ms`; what
        is written of that, for later, by `wall_ms`.
        """
        of, config = self._log, self._log.config
        self._begun = _Begun(
            now_ms - max(0, config.min_compaction_lag_ms),
            self._young_ms(now_ms),
            of.high_watermark,
            self._settled,
            of.last_stable_offset < of.high_watermark,
            self.dirty_batches,
        )
        return CompactionWanted(
            leads=Leads(of.partition_id, broker_epoch, of.latest_epoch),
            start_offset=of.start_offset,
            first_dirty=self._first_dirty,
            settled=self._settled,
            young_ms=self._young_ms(now_ms),
            now_ms=now_ms,
            wall_ms=wall_ms,
            delete_retention_ms=config.delete_retention_ms,
            producers=frozenset(of.producers.producers),
            listed=frozenset(span.last_offset for span in of.aborted_spans()),
        )

    def finish(self, done: Compacted) -> None:
        """Go by what the compaction that was begun has left."""
        begun = self._begun
        assert begun is not None
        self.is_unfinished = not done.whole and (self.is_unfinished or done.removed_bytes > 0)
        if done.whole:
            self.dirty_batches -= begun.dirty_batches
            self.compacted_to, self._clean_bytes = done.upto, done.clean_bytes
            self._counted_from = done.start_offset
            self._since_ms = self._left_since(begun, done.upto)
            self._done = begun
            self._take_left(done)
        elif done.found_nothing and done.left_ms is not None and done.left_ms > begun.young_ms:
            self.oldest_ms = done.left_ms  # too young, and not for ever
        elif done.found_nothing:
            self._in_vain = begun.settled
        self._log.take_compacted(done)

    def _left_since(self, begun: _Begun, upto: int) -> int:
        """Return since when what a compaction has left is there, at most. What a transaction held back may
        have been there for long, unless it has come since the compaction before.
        """
        if not begun.is_held:
            return begun.at_ms
        before = self._done
        return before.at_ms if before is not None and upto >= before.end_offset else self._since_ms

    def _take_left(self, done: Compacted) -> None:
        """Go by the time of what was left. Where nobody has read it the one before stays: it is no younger,
        and where nothing is appended any more nobody would look again.
        """
        if done.upto >= self._log.tail.begins:
            following = next(self._log.tail.since(done.upto), None)
            self.oldest_ms = None if following is None else following.max_timestamp
        elif done.left_ms is not None:
            self.oldest_ms = done.left_ms


class RemoteCompaction:
    """Has the logs of a store compacted, one at a time, as one Kafka cleaner thread."""

    def __init__(self, store: RemoteStore, compactor: Compactor | None, clock: Callable[[], int]) -> None:
        self._store, self._compactor, self._clock = store, compactor, clock
        self._compacting: RemoteLog | None = None
        self._refused = False  # whether the database could not be asked, and that was told
        self._not_before_ms: WeakKeyDictionary[RemoteLog, int] = WeakKeyDictionary()
        # Logs that are damaged where a compaction would read.
        self._uncleanable: WeakSet[RemoteLog] = WeakSet()

    def tick(self, today_ms: int, wall_ms: int, again: Callable[[], None]) -> None:
        """Have the log compacted that needs it most, unless one is being compacted. `again` is called when it
        is, for the next.
        """
        if self._compacting is not None or self._compactor is None:
            return
        waiting = list(self._waiting(tuple(self._store.logs.values()), today_ms))
        if not waiting:
            return
        _, one = max(waiting, key=lambda entry: entry[0])
        self._compacting = one
        wanted = one.compaction.begin(self._store.broker_epoch, today_ms, wall_ms)
        history = self._store.history

        def done(answer: Compacted | Broken) -> None:
            self._compacting = None
            is_whole = not isinstance(answer, Broken) and answer.whole
            self._not_before_ms[one] = self._clock() + (AGAIN_MS if is_whole else OTHERWISE_MS)
            if self._store.history != history:
                if not one.closed:
                    self._store.retention.doubt(one)
                return
            if not one.closed:
                self._take(one, answer)
            if not isinstance(answer, Broken):
                again()

        self._compactor.compact(wanted, done, history=history)

    def is_under_way(self, one: RemoteLog) -> bool:
        """Return whether a log is being compacted: how large it is may be read before its end, or after."""
        return self._compacting is one

    def _waiting(self, logs: Iterable[RemoteLog], today_ms: int) -> Iterable[tuple[Need, RemoteLog]]:
        now_ms = self._clock()
        for one in logs:
            if one in self._uncleanable or self._not_before_ms.get(one, now_ms) > now_ms:
                continue
            if self._store.retention.is_measuring(one):
                continue
            need = one.compaction.need(today_ms)
            if need is not None:
                yield need, one

    def _take(self, one: RemoteLog, answer: Compacted | Broken) -> None:
        if isinstance(answer, Broken):
            if not self._refused:
                log.warning("%s cannot be compacted for now: %s", one.name, answer.reason)
            self._refused = True
            self._store.retention.doubt(one)
            return
        self._refused = False
        if answer.damage:
            self._uncleanable.add(one)
            log.error("%s is not compacted any more: %s", one.name, answer.damage)
        before = one.size_bytes
        one.compaction.finish(answer)
        if answer.removed_bytes and not answer.whole:  # some of it may be in memory as it was
            self._store.retention.doubt(one)
        if answer.whole:
            log.info("compacted %s from %d to %d bytes", one.name, before, one.size_bytes)
