"""Who keeps a lock for which a statement waits: asked over another connection meanwhile, and said in the log.

A table that somebody has locked looks as a database does that answers nothing. So does one where commits wait
for a standby or a disk: what they have written keeps its locks until then, and there is nobody to look for.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import NamedTuple

from coterie.base.plain import plain
from coterie.storage.postgres.connecting import LOST, Connections
from coterie.storage.postgres.serial import Connection

log = logging.getLogger("coterie.storage")

LOOK_AFTER_S, LOOK_AGAIN_AFTER_S, LOOK_EVERY_S = 0.3, 1.2, 2.0
"""So long a statement runs before it is looked who it waits for, and then from one look to the next: a
heartbeat waits for 0.7 s, and the second look at a change is before it is refused (`LOCK_TIMEOUT_MS`), when
a lock that was new at the first is old enough to be told of.
"""
REST_S = 1.0
"""The same of statements that follow each other on a connection."""
LASTS_S = 1.0
"""So long who is waited for has been at it at least: brokers wait for each other's changes, for moments."""
JUST_NOW_S = 2.0
"""So long ago it was seen at most who a statement has waited for that is refused now."""
AGAIN_S, GONE_S = 600.0, 30.0
"""After how long what goes on is said again, and for how long it is not seen where it is over."""
WAITS_FOR = "a statement waits for %s"
OWN_WRITE = "this waits for %s; it is made, and counts once that is over, even if this command is ended"
ANYBODYS_LOCK = (
    "a lock that somebody keeps: the database's pg_stat_activity and pg_blocking_pids() say who, a session"
    " that is idle in transaction, one whose COMMIT waits for a standby, or an ALTER TABLE for a dump, say"
)
"""Where it could not be seen whose it is."""
ANSWERED_WITHIN_MS = 2_000
GIVEN_UP_AFTER_S = 3.0
"""So long a look takes at most: of a server that falls silent meanwhile no time-out comes."""
OF_BROKER = re.compile(r"coterie broker \d+")
STANDBY = "SyncRep"
"""What the server says of a session that waits for a synchronous standby. What it says of one that waits for
the disk with the write-ahead log begins with WAL, from PostgreSQL 17 on with Wal.
"""
# Of each session that is waited for the first that it waits for itself: an ALTER TABLE, say, for a dump. The
# session itself is the first where its own commit is not confirmed.
WAITED_FOR = f"""
WITH RECURSIVE waits AS (
  SELECT 0 AS depth, $1::int AS pid
  UNION ALL
  SELECT depth + 1, (pg_blocking_pids(pid))[1] FROM waits WHERE pid > 0 AND depth < 4),
wanted AS (
  SELECT relation::regclass::text FROM pg_locks
  WHERE pid = $1 AND relation IS NOT NULL AND (NOT granted OR locktype = 'tuple') ORDER BY granted LIMIT 1)
SELECT waits.pid, application_name, usename, state,
  extract(epoch FROM clock_timestamp() - CASE WHEN unconfirmed THEN query_start ELSE xact_start END)::float8,
  CASE WHEN unconfirmed THEN wait_event END, (TABLE wanted)
FROM waits LEFT JOIN pg_stat_activity USING (pid), LATERAL (
  SELECT wait_event = '{STANDBY}' OR wait_event ILIKE 'wal%' AND query NOT ILIKE 'copy%' AS unconfirmed) AS at
WHERE waits.pid IS NOT NULL AND (depth > 0 OR unconfirmed)
ORDER BY depth
"""


class LockHolder(NamedTuple):
    """A session for which another waits, with what the database tells of it: not all to everybody."""

    pid: int
    application: str | None
    user: str | None
    state: str | None
    since_s: float | None
    event: str | None = None
    """For which a commit of its waits, if one does; then it is since when that runs."""

    @property
    def awaits(self) -> str:
        """What it waits for with a write that is as good as made, "" where that is nothing."""
        if self.event == STANDBY:
            return f"a synchronous standby ({STANDBY}; synchronous_standby_names says which)"
        return f"its disk ({self.event})" if self.event else ""

    @property
    def _since(self) -> str:
        return "" if self.since_s is None else f"for {self.since_s:.0f} s"

    @property
    def unconfirmed(self) -> str:
        """The words about its write that is not confirmed."""
        broker = OF_BROKER.match(self.application or "")
        whose = broker[0].removeprefix("coterie ") if broker else f"process {self.pid}"
        since = self._since and f" {self._since}"
        return f"a write of {whose}'s that the database has not confirmed{since}: it waits for {self.awaits}"

    def __str__(self) -> str:
        if not self.pid:
            return "a prepared transaction (the database's pg_prepared_xacts says which)"
        known = (self.application, self.user and f"user {self.user}", self.state, self._since)
        words = plain(", ".join(one for one in known if one))
        return f"process {self.pid}{f' ({words})' if words else ''}"


class LockWait(NamedTuple):
    """What a statement waits for: the table, where it is one's, and the sessions, each of which waits for the
    next, and the last maybe for its write to be confirmed.
    """

    table: str | None
    holders: tuple[LockHolder, ...]

    def __str__(self) -> str:
        if self.holders[-1].awaits:
            return self.holders[-1].unconfirmed
        which = f"a lock on {self.table}" if self.table else "a lock"
        return f"{which} that somebody keeps: {', which waits for '.join(map(str, self.holders))}"

    @property
    def identity(self) -> tuple[str | None, int | str]:
        """By what it is known whether this was told of before: all writes wait for the same standby."""
        last = self.holders[-1]
        return (None, last.awaits) if last.awaits else (self.table, last.pid)

    @property
    def is_passing(self) -> bool:
        """Whether the last of them has not been at it for long, as far as the database tells."""
        since_s = self.holders[-1].since_s
        return since_s is not None and since_s < LASTS_S


class SeenWaits:
    """What the statements of sessions were seen to wait for of late, and what of it has been said: each table
    and last holder once in a while.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` counts seconds."""
        self._clock = clock
        self._last: dict[int, tuple[LockWait, float]] = {}  # by the session that waits, the latest at the end
        self._said: dict[tuple[str | None, int | str], tuple[float, float]] = {}  # when it was, and seen

    def take(self, pid: int, wait: LockWait) -> bool:
        """Take note of what a session waits for; return whether that is to be said."""
        if wait.is_passing:
            return False
        now_s = self._clock()
        self._last.pop(pid, None)
        self._last = {one: last for one, last in self._last.items() if now_s - last[1] < GONE_S}
        self._last[pid] = (wait, now_s)
        self._said = {key: at for key, at in self._said.items() if now_s - at[1] < GONE_S}
        key = wait.identity
        said_s, _ = self._said.get(key, (-AGAIN_S, 0.0))
        is_due = now_s - said_s >= AGAIN_S
        self._said[key] = (now_s if is_due else said_s, now_s)
        return is_due

    def latest(self) -> LockWait | None:
        """Return the wait that was seen last, None where there was none of late."""
        for wait, seen_s in reversed(self._last.values()):
            return wait if self._clock() - seen_s < GONE_S else None
        return None

    def just_now(self, pid: int) -> LockWait | None:
        """Return the wait of a session that is under way or has just ended, None where none was seen."""
        wait, seen_s = self._last.get(pid, (None, 0.0))
        return wait if self._clock() - seen_s < JUST_NOW_S else None


class LockWatch:
    """Looks who a statement that takes long waits for, and says so in the log, unless it is not to: then only
    where it is the statement's own write that is not confirmed, of which no time-out tells.

    It looks over one connection as long as there are statements at which it does: a command may take hours.
    """

    def __init__(self, connections: Connections, *, says: bool = True) -> None:
        self._says = says
        self._connections = connections
        self._loop = connections.loop
        self._looked_s: dict[int, float] = {}  # at which sessions, of late
        self._to_see: dict[int, None] = {}  # those at which it is to be looked, in their order
        self._looking = False
        self._long: set[_Looks] = set()  # at what takes long
        self._connection: Connection | None = None
        self.seen = SeenWaits(self._loop.time)

    @property
    def wait(self) -> str:
        """The sentence about what was waited for last, "" where nothing was of late."""
        wait = self.seen.latest()
        return WAITS_FOR % (wait,) if wait else ""

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        """Watch what is done on a connection within the block."""
        pid = connection.get_server_pid()

        def due() -> None:
            self._long.add(looks)
            self.look(pid)

        looks = _Looks(self._loop, due)
        try:
            yield
        finally:
            looks.end()
            self._long.discard(looks)
            self._let_go()

    def look(self, pid: int) -> None:
        """Look who a session waits for, unless that was just done."""
        now_s = self._loop.time()
        self._looked_s = {one: at_s for one, at_s in self._looked_s.items() if now_s - at_s < REST_S}
        if pid not in self._looked_s:
            self._looked_s[pid] = now_s
            self._to_see[pid] = None
            if not self._looking:
                self._looking = True
                self._connections.start(self._see())

    async def _see(self) -> None:
        """See who the sessions wait for. Where that cannot be told nothing is said."""
        answered = False
        try:
            is_new = self._connection is None or self._connection.is_closed()
            if is_new:
                self._connection = await self._connections.connect(use="who keeps a lock", needed=False)
            assert self._connection is not None
            await self._see_over(self._connection, is_new=is_new)
            answered = True
        except LOST:
            pass
        finally:
            self._looking = False
            self._to_see.clear()
            self._let_go(is_broken=not answered)

    def _let_go(self, *, is_broken: bool = False) -> None:
        """Give the connection up if it `is_broken`, or there is nothing left at which to look."""
        if self._connection is not None and (is_broken or not (self._long or self._looking)):
            self._connection.terminate()
            self._connection = None

    async def _see_over(self, connection: Connection, *, is_new: bool) -> None:
        giving_up = self._loop.call_later(GIVEN_UP_AFTER_S, connection.terminate)
        try:
            if is_new:
                await connection.execute(f"SET statement_timeout = {ANSWERED_WITHIN_MS}")
            await self._see_each(connection)
        except Exception:
            if not connection.is_closed():  # else the driver fails somehow between two statements
                raise
        finally:
            giving_up.cancel()

    async def _see_each(self, connection: Connection) -> None:
        while self._to_see:
            pid = next(iter(self._to_see))
            rows = await connection.fetch(WAITED_FOR, pid)
            del self._to_see[pid]
            if rows:
                self._note(pid, LockWait(rows[0][-1], tuple(LockHolder(*row[:-1]) for row in rows)))

    def _note(self, pid: int, wait: LockWait) -> None:
        if not self.seen.take(pid, wait):
            return
        if self._says:
            log.warning("the database answers, but " + WAITS_FOR, wait)
        elif wait.holders[0].pid == pid:
            log.warning(OWN_WRITE, wait)


class _Looks:
    """The looks at a statement until it ends, ever again after a while."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> None:
        self._loop = loop
        self._look = look
        self._pauses_s = chain((LOOK_AFTER_S, LOOK_AGAIN_AFTER_S), repeat(LOOK_EVERY_S))
        self._timer = self._later()

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _later(self) -> asyncio.TimerHandle:
        return self._loop.call_later(next(self._pauses_s), self._due)

    def _due(self) -> None:
        self._timer = self._later()
        self._look()
