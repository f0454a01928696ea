"""Who keeps a lock for which a statement waits: asked over another connection meanwhile, and said in the log.

A table that somebody has locked looks as a database does that answers nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from coterie.base.plain import plain
from coterie.storage.postgres.connecting import LOST, Connections
from coterie.storage.postgres.serial import Connection

log = logging.getLogger("coterie.storage")

LOOK_AFTER_S = 0.3
"""So long a statement runs before it is looked who it waits for; a heartbeat waits for 0.7 s."""
LOOK_EVERY_S = 2.0
LASTS_S = 1.0
"""So long who is waited for has been at it at least: brokers wait for each other's changes, for moments."""
AGAIN_S, GONE_S = 600.0, 30.0
"""After how long what goes on is said again, and for how long it is not seen where it is over."""
ANSWERED_WITHIN_MS = 2_000
GIVEN_UP_AFTER_S = 3.0
"""So long a look takes at most: of a server that falls silent meanwhile no time-out comes."""
# Of each session that is waited for the first that it waits for itself: an ALTER TABLE, say, for a dump.
WAITED_FOR = """
WITH RECURSIVE waits AS (
  SELECT 1 AS depth, (pg_blocking_pids($1))[1] AS pid
  UNION ALL
  SELECT depth + 1, (pg_blocking_pids(pid))[1] FROM waits WHERE pid > 0 AND depth < 4),
wanted AS (
  SELECT relation::regclass::text FROM pg_locks
  WHERE pid = $1 AND relation IS NOT NULL AND (NOT granted OR locktype = 'tuple') ORDER BY granted LIMIT 1)
SELECT waits.pid, application_name, usename, state,
  extract(epoch FROM clock_timestamp() - xact_start)::float8, (TABLE wanted)
FROM waits LEFT JOIN pg_stat_activity USING (pid) WHERE waits.pid IS NOT NULL ORDER BY depth
"""


class LockHolder(NamedTuple):
    """A session for which another waits, with what the database tells of it: not all to everybody."""

    pid: int
    application: str | None
    user: str | None
    state: str | None
    since_s: float | None

    def __str__(self) -> str:
        if not self.pid:
            return "a prepared transaction (the database's pg_prepared_xacts says which)"
        since = "" if self.since_s is None else f"for {self.since_s:.0f} s"
        known = (self.application, self.user and f"user {self.user}", self.state, since)
        words = plain(", ".join(one for one in known if one))
        return f"process {self.pid}{f' ({words})' if words else ''}"


class LockWatch:
    """Looks who a statement that takes long waits for; tells of each table and session once in a while."""

    def __init__(self, connections: Connections) -> None:
        self._last, self._last_s = "", -GONE_S
        self._connections = connections
        self._looking = False
        self._looked_s = -LOOK_EVERY_S
        self._seen: dict[tuple[str | None, int], tuple[float, float]] = {}  # when it was said, and seen

    @property
    def wait(self) -> str:
        """The sentence about who is waited for, "" where nobody was of late."""
        return self._last if self._connections.loop.time() - self._last_s < GONE_S else ""

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        """Watch what is done on a connection within the block."""
        loop = self._connections.loop
        pid: int = connection.get_server_pid()

        timer = loop.call_later(LOOK_AFTER_S, lambda: due())

        def due() -> None:
            nonlocal timer
            self._look(pid)
            timer = loop.call_later(LOOK_EVERY_S, due)

        try:
            yield
        finally:
            timer.cancel()

    def _look(self, pid: int) -> None:
        now_s = self._connections.loop.time()
        if not self._looking and now_s - self._looked_s >= LOOK_EVERY_S:
            self._looking, self._looked_s = True, now_s
            self._connections.start(self._see(pid))

    async def _see(self, pid: int) -> None:
        """See who a session waits for. Where that cannot be told nothing is said."""
        try:
            connection = await self._connections.connect(use="who keeps a lock", needed=False)
            giving_up = self._connections.loop.call_later(GIVEN_UP_AFTER_S, connection.terminate)
            try:
                await connection.execute(f"SET statement_timeout = {ANSWERED_WITHIN_MS}")
                rows = await connection.fetch(WAITED_FOR, pid)
            finally:
                giving_up.cancel()
                connection.terminate()
        except LOST:
            return
        finally:
            self._looking = False
        if rows:
            self._note(rows[0][-1], [LockHolder(*row[:-1]) for row in rows])

    def _note(self, table: str | None, holders: list[LockHolder]) -> None:
        last = holders[-1]
        if last.since_s is not None and last.since_s < LASTS_S:
            return
        now_s = self._connections.loop.time()
        said_s, seen_s = self._seen.get((table, last.pid), (-AGAIN_S, -GONE_S))
        is_new = now_s - said_s >= AGAIN_S or now_s - seen_s >= GONE_S
        self._seen = {key: at for key, at in self._seen.items() if now_s - at[1] < GONE_S}
        self._seen[table, last.pid] = (now_s if is_new else said_s, now_s)
        self._last, self._last_s = _sentence(table, holders), now_s
        if is_new:
            log.warning("the database answers, but %s", self._last)


def _sentence(table: str | None, holders: list[LockHolder]) -> str:
    first, *others = map(str, holders)
    behind = "".join(f", which waits for {one}" for one in others)
    which = f"a lock on {table}" if table else "a lock"
    return f"a statement waits for {which} that somebody keeps: {first}{behind}"
