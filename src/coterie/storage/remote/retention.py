"""What logs in a database need not keep: where they are to start by their settings, and deleting what lies
before that, of one log after the other.

The start moves first, which the database refuses to who leads no more; then the lane expects none of the rows
before it any more, and then they are deleted, a slice at a time. Who stops in between leaves rows that nobody
reads, and whoever leads next deletes them. Where an answer is lost, so is how large the log is: that is read
anew, before its size counts again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from coterie.storage.remote.reading import DeletedRow, RetainedLog, RetentionWanted, StoredSize
from coterie.storage.remote.session import Broken

if TYPE_CHECKING:
    from coterie.storage.remote.log import RemoteLog
    from coterie.storage.remote.reading import RemoteReader
    from coterie.storage.remote.store import RemoteStore

log = logging.getLogger("coterie.storage")

LOOK_AGAIN_MS = 60_000
"""So long a log is left alone of which something was looked for."""
NEVER_MS = -(1 << 62)


class RemoteRetention:
    """Sees to the logs of a store, one at a time."""

    def __init__(self, store: RemoteStore, reader: RemoteReader) -> None:
        self._store, self._reader = store, reader
        self._waiting: deque[RemoteLog] = deque()
        self._seen_to: RemoteLog | None = None
        self._today_ms = self._now_ms = 0
        self._refused = False  # whether the database could not be asked, and that was told
        self._not_before_ms: WeakKeyDictionary[RemoteLog, int] = WeakKeyDictionary()
        self._oldest_ms: WeakKeyDictionary[RemoteLog, int] = WeakKeyDictionary()  # as the database has said
        self._deleted_upto: WeakKeyDictionary[RemoteLog, int] = WeakKeyDictionary()
        self._doubted: WeakKeyDictionary[RemoteLog, object] = WeakKeyDictionary()  # how large they are

    def tick(self, now_ms: int, today_ms: int) -> None:
        """See to the logs of which something is due, unless some are being seen to. The age of records goes
        by `today_ms`.
        """
        self._now_ms, self._today_ms = now_ms, today_ms
        if self._seen_to is not None and not self._seen_to.closed:
            return
        self._waiting = deque(self._due(tuple(self._store.logs.values())))
        self._next()

    def doubt(self, one: RemoteLog) -> None:
        """Have it read anew how large a log is, before its size counts again: what has come of a statement is
        not known. That is done some time later, when what was late has happened or never will.
        """
        self._doubted[one] = object()
        self._not_before_ms[one] = self._now_ms + LOOK_AGAIN_MS

    def is_measuring(self, one: RemoteLog) -> bool:
        """Return whether it is being read how large a log is."""
        return one is self._seen_to and one in self._doubted

    def _due(self, logs: Iterable[RemoteLog]) -> Iterable[RemoteLog]:
        for one in logs:
            if self._is_time(one) and (
                one in self._doubted
                or self._is_to_delete(one)
                or self._surplus(one) >= 0
                or self._is_old(one)
            ):
                yield one

    def _is_to_delete(self, one: RemoteLog) -> bool:
        return one.start_offset > self._deleted_upto.get(one, 0)

    def _surplus(self, one: RemoteLog) -> int:
        """Return the number of bytes that a log has beyond its settings, negative if it has none, or its size
        is in doubt.
        """
        config = one.config
        bounded = config.deleted and config.retention_bytes >= 0 and one not in self._doubted
        return one.size_bytes - config.retention_bytes if bounded and one.size_bytes else -1

    def _before_ms(self, one: RemoteLog) -> int:
        config = one.config
        bounded = config.deleted and config.retention_ms >= 0
        return self._today_ms - config.retention_ms if bounded else NEVER_MS

    def _is_old(self, one: RemoteLog) -> bool:
        if one.high_watermark <= one.start_offset:
            return False
        known_ms = one.oldest_ms
        oldest_ms = self._oldest_ms.get(one, 0) if known_ms is None else known_ms
        return oldest_ms < self._before_ms(one)

    def _next(self) -> None:
        while self._waiting:
            one = self._seen_to = self._waiting.popleft()
            if one.closed or not self._is_time(one):  # as of one that is in doubt since
                continue
            self._not_before_ms[one] = self._now_ms + LOOK_AGAIN_MS
            if one in self._doubted:
                self._measure(one)
                return
            if self._is_seen_to(one):
                return
        self._seen_to = None

    def _is_time(self, one: RemoteLog) -> bool:
        if one in self._doubted and self._store.compaction.is_under_way(one):
            return False
        return self._not_before_ms.get(one, self._now_ms) <= self._now_ms

    def _go_on(self, one: RemoteLog) -> None:
        """See to what else is due of a log, or to the next."""
        if not self._is_seen_to(one):
            self._next()

    def _is_seen_to(self, one: RemoteLog) -> bool:
        """Have done what is due of a log; return False if nothing is any more."""
        if self._is_to_delete(one):
            self._delete(one)
        elif self._surplus(one) >= 0 or self._is_old(one):
            self._retain(one)
        else:
            return False
        return True

    def _measure(self, one: RemoteLog) -> None:
        """Read anew how large a log is. What is not in memory may become more meanwhile; if anything else is
        another by then, it is read again the next time.
        """
        doubted, asked, before = self._doubted[one], one.size_wanted, one.tail.older_bytes

        def measured(answer: StoredSize | Broken) -> None:
            if self._is_over(one, answer):
                return
            assert isinstance(answer, StoredSize)
            is_same = one.size_wanted._replace(end_offset=asked.end_offset) == asked
            if is_same and self._doubted[one] is doubted:
                del self._doubted[one]
                one.take_size(asked, answer, one.tail.older_bytes - before)
                self._go_on(one)
            else:
                self._next()

        self._reader.measure(asked, measured, history=self._store.history)

    def _retain(self, one: RemoteLog) -> None:
        """Have a log start where its settings say, as far as the database looks at once."""
        wanted = RetentionWanted(
            one.partition_id,
            one.latest_epoch,
            one.start_offset,
            one.high_watermark,
            self._before_ms(one),
            self._surplus(one),
        )

        def moved(answer: RetainedLog | Broken) -> None:
            if self._is_over(one, answer):
                return
            assert isinstance(answer, RetainedLog)
            if answer.oldest_ms is not None:
                self._oldest_ms[one] = answer.oldest_ms
            if one.start_offset < answer.start_offset <= one.high_watermark:
                one.delete_before(answer.start_offset, self._now_ms)
                self._delete(one)
            else:
                self._next()

        self._reader.retain(wanted, moved, history=self._store.history)

    def _delete(self, one: RemoteLog) -> None:
        """Delete the rows before a log's start, and look then whether more need not be kept."""
        start = one.start_offset

        def deleted(answer: Sequence[DeletedRow] | Broken) -> None:
            if isinstance(answer, Broken):
                self.doubt(one)
            if self._is_over(one, answer):
                return
            assert not isinstance(answer, Broken)
            one.take_deleted(answer)
            if answer:
                self._delete(one)
                return
            self._deleted_upto[one] = max(start, self._deleted_upto.get(one, 0))
            self._go_on(one)

        self._reader.delete_rows(one.partition_id, start, deleted, history=self._store.history)

    def _is_over(self, one: RemoteLog, answer: object) -> bool:
        """Return whether nothing is to follow an answer: the log was given up, or the database is away."""
        if one is not self._seen_to:
            return True
        if isinstance(answer, Broken):
            if not self._refused:
                log.warning("what logs need not keep cannot be deleted for now: %s", answer.reason)
            self._refused = True
            self._seen_to = None
            return True
        self._refused = False
        if one.closed:
            self._next()
        return one.closed
