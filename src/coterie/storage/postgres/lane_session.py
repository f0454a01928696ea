"""A lane's session with PostgreSQL: a connection of its own, one statement under way.

Nothing of it needs the server to keep a session between two statements, but for the one that is prepared: a
pooler that keeps prepared statements may stand in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import asyncpg

from coterie.storage.postgres.blocking import LockWatch
from coterie.storage.postgres.connecting import (
    LOST,
    OTHER_HISTORY,
    Connections,
    cluster_in,
    failure_of,
    in_a_line,
    read_history,
    table_of,
    within_ms,
)
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.session import Broken, Failed, Fenced, Inserted, LaneAnswer, Look, Reopened

# The gate is locked before anything is inserted, and whoever shuts it waits for the whole statement. It is a
# row of the very table in which the life has begun: a backup that is brought back in its place has the same
# rows, and lacks what a lane has appended since.
_GATE = """
WITH gate AS MATERIALIZED (
  SELECT FROM coterie.lanes WHERE broker_id = $1 AND lane = $2 AND broker_epoch = $3 AND life = $4
    AND tableoid = {table} FOR SHARE)
"""
_CHUNKS = """
INSERT INTO coterie.chunks_keep
  (partition_id, base_offset, last_offset, leader_epoch, max_timestamp, batches, size, heads, data)
SELECT chunk.* FROM gate, unnest($5::int[], $6::bigint[], $7::bigint[], $8::int[], $9::bigint[], $10::int[],
  $11::int[], $12::bytea[], $13::bytea[]) AS chunk
"""
_SPANS = """
, spans AS (
  INSERT INTO coterie.aborted (partition_id, last_offset, producer_id, first_offset, stable)
  SELECT span.* FROM gate,
    unnest($14::int[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[]) AS span)
"""
APPEND = _GATE + _CHUNKS
APPEND_ABORTED = _GATE + _SPANS + _CHUNKS
"""With the transactions that the markers among the batches have aborted."""
BEGIN_LIFE = f"""
WITH {within_ms(8_000)}
UPDATE coterie.lanes SET life = $4 FROM patience
WHERE broker_id = $1 AND lane = $2 AND broker_epoch = $3 AND life < $4 AND {cluster_in("$5")}
RETURNING tableoid
"""
"""Return the table's object id. It waits for what an earlier life has sent, but not for ever: where that
waits for a replica that is away, the server would collect those that were given up, one with each attempt.
"""
LOOK = """
SELECT $1::int IS NULL OR EXISTS (SELECT FROM coterie.chunks_keep
         WHERE (partition_id, base_offset, leader_epoch) = ($1, $2::bigint, $3::int)),
       $4::int IS NULL OR EXISTS (SELECT FROM coterie.chunks_keep
         WHERE (partition_id, base_offset, leader_epoch) = ($4, $5::bigint, $6::int)),
       set_config('client_connection_check_interval', '0', false)
"""
"""And from here on the server goes on though nobody waits: an append that is given up is waited for by the
next life.
"""
NO_ROW = (None, None, None)
WARNING = "01000"


class LanePlace(NamedTuple):
    """The row of a lane, by which its appends pass."""

    broker_id: int
    lane: int
    broker_epoch: int


class LaneSession:
    """The Session of one lane. Its answers go to `answered`, with the life that they were asked in.

    Whoever uses it waits no longer than it wants to: then it aborts, and hears nothing more of that
    connection.
    """

    def __init__(
        self,
        connections: Connections,
        place: LanePlace,
        answered: Callable[[int, LaneAnswer], None],
        history: Callable[[], str] | None = None,
        locks: LockWatch | None = None,
    ) -> None:
        """With `history`, which returns the one that the broker goes by, it begins no life in a database of
        another. `locks` looks who keeps a lock that it waits for.
        """
        self._locks = locks
        self._connections = connections
        self._history = history
        self._place = place
        self._answered = answered
        self._opening: asyncio.Task[None] | None = None
        self._connection: _LaneConnection | None = None

    def append(self, life: int, chunks: Sequence[Chunk]) -> None:
        assert self._connection is not None
        self._connections.start(self._append(self._connection, life, chunks))

    def reopen(self, life: int, look: Look) -> None:
        assert self._connection is None
        self._opening = self._connections.start(self._open(life, look))

    def abort(self) -> None:
        connection, self._connection = self._connection, None
        opening, self._opening = self._opening, None
        if connection is not None:
            if connection.busy and self._locks is not None:
                self._locks.look(connection.pid)  # where the server goes on
            connection.abort()
        elif opening is not None:
            opening.cancel()  # no statement of ours is under way

    async def _append(self, connection: _LaneConnection, life: int, chunks: Sequence[Chunk]) -> None:
        answer = await connection.append(life, chunks)
        if connection is self._connection:
            self._answered(life, answer)

    async def _open(self, life: int, look: Look) -> None:
        answer: LaneAnswer
        try:
            opened = await self._connections.connect(use=f"writing {self._place.lane}", cached=0)
        except LOST as error:
            answer = failure_of(error)
        else:
            connection = self._connection = _LaneConnection(opened, self._place)
            opened.add_termination_listener(lambda _: self._terminated(connection, life))
            with self._locks.over(opened) if self._locks is not None else nullcontext():
                answer = await connection.begin_life(life, look, self._history)
            if connection is not self._connection:
                return
        self._opening = None
        self._answered(life, answer)

    def _terminated(self, connection: _LaneConnection, life: int) -> None:
        """Say that the connection is gone, where no statement is under way that would say so."""
        if connection is self._connection and not connection.busy:
            self._answered(life, Broken("the connection is gone"))


class LaneSessions:
    """Makes the sessions of one broker's lanes: a `NewSession`."""

    def __init__(self, connections: Connections, broker_id: int, locks: LockWatch | None = None) -> None:
        self._connections = connections
        self._broker_id = broker_id
        self._locks = locks

    def __call__(
        self,
        lane: int,
        broker_epoch: int,
        *,
        history: Callable[[], str],
        answered: Callable[[int, LaneAnswer], None],
    ) -> LaneSession:
        return LaneSession(
            self._connections, LanePlace(self._broker_id, lane, broker_epoch), answered, history, self._locks
        )


class _LaneConnection:
    """A connection, and what is prepared on it."""

    def __init__(self, connection: asyncpg.Connection, place: LanePlace) -> None:
        self.busy = False
        self.pid: int = connection.get_server_pid()
        """Of its process at the server; through a pooler it is none's."""
        self._aborted = False
        self._connection = connection
        self._place = place
        self._table = 0  # that of the lanes, in which the life has begun
        self._prepared: dict[str, asyncpg.prepared_stmt.PreparedStatement] = {}
        self._warnings: list[Failed] = []
        connection.add_log_listener(self._take_warning)

    def abort(self) -> None:
        """Drop the socket. A statement that is under way goes on, or not."""
        self._aborted = True
        self._connection.terminate()

    def _take_warning(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        if message.sqlstate == WARNING:
            self._warnings.append(Failed(WARNING, in_a_line(message)))

    async def begin_life(self, life: int, look: Look, history: Callable[[], str] | None) -> LaneAnswer:
        """Have the lane's row be in this life, and look for the rows."""
        return await self._answer_of(partial(self._begin_life, life, look, history))

    async def append(self, life: int, chunks: Sequence[Chunk]) -> LaneAnswer:
        """Insert rows, in one statement."""
        return await self._answer_of(partial(self._append, life, chunks))

    async def _answer_of(self, asked: Callable[[], Coroutine[None, None, LaneAnswer]]) -> LaneAnswer:
        """Return the answer; a warning, if any came with it, in its place."""
        self.busy = True
        self._warnings.clear()
        try:
            answer = await asked()
        except LOST as error:
            answer = failure_of(error)
        except Exception as error:
            if not self._aborted:  # else the driver fails somehow between two statements
                raise
            answer = Broken(f"{type(error).__name__}: {error}")
        self.busy = False
        return self._warnings[0] if self._warnings and not isinstance(answer, Broken) else answer

    async def _begin_life(self, life: int, look: Look, history: Callable[[], str] | None) -> LaneAnswer:
        connection = self._connection
        found = await read_history(connection)
        if history is not None and found != history():
            return Broken(OTHER_HISTORY)
        answer = await self._begin_life_in(table_of(found), life, look)
        return answer if await read_history(connection) == found else Broken(OTHER_HISTORY)

    async def _begin_life_in(self, table: int, life: int, look: Look) -> Fenced | Reopened:
        """Do so where the cluster is in this `table`."""
        connection = self._connection
        of_lanes = await connection.fetchval(BEGIN_LIFE, *self._place, life, table)
        if of_lanes is None:
            return Fenced()
        self._table = of_lanes
        in_doubt, acknowledged = look
        rows = await connection.fetchrow(LOOK, *(in_doubt or NO_ROW), *(acknowledged or NO_ROW))
        return Reopened(*rows[:2])

    async def _append(self, life: int, chunks: Sequence[Chunk]) -> LaneAnswer:
        columns = list(zip(*[(*chunk[:6], len(chunk.data), *chunk[6:8]) for chunk in chunks], strict=True))
        spans = [(chunk.partition_id, *span) for chunk in chunks for span in chunk.aborted]
        statement = await self._statement(APPEND_ABORTED if spans else APPEND)
        if spans:
            partitions, producers, firsts, lasts, stable = zip(*spans, strict=True)
            columns += [partitions, lasts, producers, firsts, stable]
        await statement.fetch(*self._place, life, *columns)
        return Inserted(int(statement.get_statusmsg().rpartition(" ")[2]))

    async def _statement(self, text: str) -> asyncpg.prepared_stmt.PreparedStatement:
        """Return the statement, prepared by a name: the driver, which is to cache none here, would have the
        server read and plan one without a name each time, which took it twice as long as to carry it out.
        """
        statement = self._prepared.get(text)
        if statement is None:
            name = f"append_{len(self._prepared)}"
            text_there = text.format(table=int(self._table))
            statement = self._prepared[text] = await self._connection.prepare(text_there, name=name)
        return statement
