"""Reading for consumers what is not in memory: as much of it at once as there is room for, and each row once
for all who ask for it together.

What was read is held until the room is wanted, so that who was answered before it came finds it there. Who
holds it by then has to go on without the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from coterie.storage.kind import OVERDUE_MS
from coterie.storage.log.contract import StorageFailed
from coterie.storage.remote.chunk import CHUNK_BYTES
from coterie.storage.remote.recalled import RecalledLog, Rows

if TYPE_CHECKING:
    from coterie.storage.kind import Readable
    from coterie.storage.remote.log import RemoteLog
    from coterie.storage.remote.reading import RowsWanted
    from coterie.storage.remote.recalled import ReadRows

RECALLED_BYTES = 64 << 20
"""So much is read for consumers at once, and held, over all logs of a broker."""
SHARE = 8
"""No one of them has more than this part of it."""
ROW_COSTS = 1_000
"""So many bytes a row costs beside its data and its heads."""

Come: TypeAlias = "Callable[[Readable], None]"
Pressed: TypeAlias = Callable[[], None]


class Recall:
    """Rows of a log from an offset on: wanted, being read, or there."""

    __slots__ = ("asked_ms", "log", "readings", "room", "rows", "wanted")

    def __init__(self, log: RemoteLog, wanted: RowsWanted) -> None:
        self.log, self.wanted = log, wanted
        self.room = 0
        """The bytes that it takes of the room."""
        self.asked_ms: int | None = None
        """When the database was asked."""
        self.rows: Rows | None = None
        self.readings: dict[RecallReading, None] = {}

    @property
    def found(self) -> RecalledLog | None:
        """The log with the rows, None while they are not there."""
        return None if self.rows is None else RecalledLog(self.log, self.rows, self.wanted.end_offset)


class RecallReading:
    """One of those who wait for rows, or hold them."""

    __slots__ = ("_cache", "_come", "_recall", "pressed")

    def __init__(self, cache: RecallCache, recall: Recall, come: Come, pressed: Pressed) -> None:
        self._cache, self._recall = cache, recall
        self._come = come
        self.pressed = pressed

    @property
    def found(self) -> RecalledLog | None:
        """What was read, None if it has not come, or is held no more."""
        return self._recall.found

    @property
    def overdue(self) -> bool:
        """Whether the database has had more time than whoever asks is to wait."""
        recall = self._recall
        asked_ms = recall.asked_ms
        return recall.rows is None and asked_ms is not None and self._cache.clock() - asked_ms >= OVERDUE_MS

    def release(self) -> None:
        """Wait no more, and hold nothing. It may be called again."""
        self._recall.readings.pop(self, None)
        self._cache.give_up(self._recall)

    def come(self) -> None:
        """Tell that it is there."""
        found = self._recall.found
        assert found is not None
        self._come(found)


class RecallCache:
    """The room that the rows take which consumers of a broker's logs want, and who waits for it."""

    def __init__(self, read: ReadRows, clock: Callable[[], int], limit: int = RECALLED_BYTES) -> None:
        self.limit = limit
        self.clock = clock
        self.bytes = 0
        """The size of what is there, and of what may come of what is being read."""
        self._read = read
        self._recalls: dict[RemoteLog, dict[int, Recall]] = {}  # by offset
        self._queued: dict[Recall, None] = {}  # for which there was no room, first who has asked first
        self._there: dict[Recall, None] = {}  # last who was asked for last
        self._looking = False

    def ask(self, log: RemoteLog, wanted: RowsWanted, come: Come, pressed: Pressed) -> RecallReading:
        """Read rows, unless others have asked for those at that offset: what they get will do.

        `come` is called when they are there, now or later, and `pressed` before they go because others want
        the room.
        """
        of_log = self._recalls.setdefault(log, {})
        recall = of_log.get(wanted.offset)
        if recall is None:
            max_bytes = min(wanted.max_bytes, self.limit // SHARE)
            recall = of_log[wanted.offset] = Recall(log, wanted._replace(max_bytes=max_bytes))
            self._queued[recall] = None
        reading = RecallReading(self, recall, come, pressed)
        recall.readings[reading] = None
        if recall.rows is None:
            self._read_some()
        else:
            self._there[recall] = self._there.pop(recall)
            reading.come()
        return reading

    def give_up(self, recall: Recall) -> None:
        """Do not read what has not begun to be read, if nobody waits for it any more."""
        if not recall.readings and recall in self._queued:
            del self._queued[recall]
            self._forget(recall)

    def close(self, log: RemoteLog) -> None:
        """Hold nothing of a log any more, whoever does. What is wanted of it is read all the same."""
        for recall in tuple(self._recalls.get(log, {}).values()):
            if recall in self._there:
                self._drop(recall)

    def renew(self, log: RemoteLog) -> None:
        """Hold nothing of a log that was read before: its rows are others by now."""
        for recall in tuple(self._recalls.get(log, {}).values()):
            if recall in self._there:
                self._press_out(recall)

    # -- room

    def _read_some(self) -> None:
        """Read what is wanted, as far as there is room; one at least is always being read."""
        if self._looking:  # who was pressed asks for more
            return
        self._looking = True
        try:
            while self._queued and self._read_next():
                pass
        finally:
            self._looking = False

    def _read_next(self) -> bool:
        """Read what was wanted first; return False if there is no room for it."""
        recall = next(iter(self._queued))
        room = recall.wanted.max_bytes + CHUNK_BYTES
        self._make_room(room)
        if recall in self._queued:  # else whoever wanted it was pressed
            if self.bytes and self.bytes + room > self.limit:
                return False
            del self._queued[recall]
            self._take_room(recall, room)
            recall.asked_ms = self.clock()
            self._read(recall.wanted, partial(self._take, recall))
        return True

    def _make_room(self, room: int) -> None:
        """Let go of what was asked for the longest ago, first of what nobody holds."""
        for held in (False, True):
            if self.bytes + room <= self.limit:
                return
            for recall in [one for one in self._there if bool(one.readings) == held]:
                if self.bytes + room > self.limit and recall in self._there:
                    self._press_out(recall)

    def _press_out(self, recall: Recall) -> None:
        for reading in tuple(recall.readings):
            reading.pressed()
        self._drop(recall)

    def _take_room(self, recall: Recall, room: int) -> None:
        self.bytes += room - recall.room
        recall.room = room

    def _drop(self, recall: Recall) -> None:
        """Hold what was read no more, unless it is gone already."""
        if recall in self._there:
            del self._there[recall]
            self._take_room(recall, 0)
            self._forget(recall)
            recall.rows = None

    def _forget(self, recall: Recall) -> None:
        of_log = self._recalls[recall.log]
        del of_log[recall.wanted.offset]
        if not of_log:
            del self._recalls[recall.log]

    def _take(self, recall: Recall, rows: Rows) -> None:
        """Have all who wait for rows go on: they are there, or cannot be read."""
        recall.rows = rows
        if isinstance(rows, StorageFailed) or not rows.chunks or recall.log.closed:
            self._take_room(recall, 0)
            self._forget(recall)
        else:
            size = sum(len(row.data) + len(row.heads) + ROW_COSTS for row in rows.chunks)
            self._take_room(recall, size)
            self._there[recall] = None
        for reading in tuple(recall.readings):
            if reading in recall.readings and recall.rows is not None:
                reading.come()
        self._make_room(0)
        self._read_some()
