"""Databases that lanes append to, one in memory and PostgreSQL, behind one face; and a session of a lane."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

import asyncpg

from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.postgres.connecting import Connections, DatabaseAddress, connect, read_history
from coterie.storage.postgres.lane_session import LanePlace, LaneSession
from coterie.storage.postgres.reading import PostgresReader
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.pretended import Fate, PretendedEngine, PretendedReader, PretendedSession
from coterie.storage.remote.reading import RemoteReader, RowHeads, StoredLog
from coterie.storage.remote.session import LaneAnswer, Look, Session

NOTHING = Look(None, None)
ANSWERED_WITHIN_S = 20.0


class LaneDatabase(Protocol):
    """A database with lanes."""

    async def open_lanes(self, broker_id: int, broker_epoch: int) -> None:
        """Give a broker two lanes in an epoch, instead of those that it has."""
        ...

    async def fence(self, broker_id: int) -> None:
        """Take a broker's lanes away."""
        ...

    async def rows(self, partition_id: int) -> list[Chunk]:
        """Return the rows of a partition."""
        ...

    @property
    def history(self) -> str:
        """The history that it is of."""
        ...

    def session(
        self,
        place: LanePlace,
        answered: Callable[[int, LaneAnswer], None],
        history: Callable[[], str] | None = None,
    ) -> Session:
        """Return a session of a lane."""
        ...

    def reader(self) -> RemoteReader:
        """Return the way beside the lanes."""
        ...

    async def end_connections(self) -> None:
        """Have the server end all connections of lanes."""
        ...


class InMemory:
    """The pretended one."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.engine = PretendedEngine(
            lambda _: Fate(), lambda delay_ms, do: loop.call_later(delay_ms / 1_000, do)
        )
        self.tables = self.engine.tables

    async def open_lanes(self, broker_id: int, broker_epoch: int) -> None:
        self.tables.open_lanes(broker_id, 2, broker_epoch)

    async def fence(self, broker_id: int) -> None:
        self.tables.fence(broker_id)

    async def rows(self, partition_id: int) -> list[Chunk]:
        return self.tables.rows(partition_id)

    @property
    def history(self) -> str:
        return self.engine.history

    def session(
        self,
        place: LanePlace,
        answered: Callable[[int, LaneAnswer], None],
        history: Callable[[], str] | None = None,
    ) -> Session:
        return PretendedSession(self.engine, place, answered, history)

    def reader(self) -> RemoteReader:
        return PretendedReader(self.engine)

    async def end_connections(self) -> None:
        self.engine.go_away()
        self.engine.come_back()


class InPostgres:
    """The real one."""

    def __init__(self, address: DatabaseAddress, own: asyncpg.Connection, history: str) -> None:
        self.connections = Connections(address, asyncio.get_running_loop())
        self.own = own
        self.history = history
        self.readers: list[PostgresReader] = []

    @classmethod
    async def at(cls, address: DatabaseAddress) -> InPostgres:
        own = await connect(address)
        return cls(address, own, await read_history(own))

    async def open_lanes(self, broker_id: int, broker_epoch: int) -> None:
        await self.own.execute("DELETE FROM coterie.lanes WHERE broker_id = $1", broker_id)
        await self.own.execute(
            "INSERT INTO coterie.lanes SELECT $1, lane, $2 FROM generate_series(0, 1) AS lane",
            broker_id,
            broker_epoch,
        )

    async def fence(self, broker_id: int) -> None:
        await self.own.execute("DELETE FROM coterie.lanes WHERE broker_id = $1", broker_id)

    async def rows(self, partition_id: int) -> list[Chunk]:
        found = await self.own.fetch(
            "SELECT * FROM coterie.chunks_keep WHERE partition_id = $1 ORDER BY base_offset", partition_id
        )
        return [await self._chunk(row) for row in found]

    async def _chunk(self, row: asyncpg.Record) -> Chunk:
        *first, size, heads, data = row
        assert size == len(data)
        spans = await self.own.fetch(
            "SELECT producer_id, first_offset, last_offset, stable FROM coterie.aborted"
            " WHERE partition_id = $1 AND last_offset BETWEEN $2 AND $3 ORDER BY last_offset",
            row["partition_id"],
            row["base_offset"],
            row["last_offset"],
        )
        return Chunk(*first, heads, data, tuple(AbortedSpan(*span) for span in spans))

    def session(
        self,
        place: LanePlace,
        answered: Callable[[int, LaneAnswer], None],
        history: Callable[[], str] | None = None,
    ) -> Session:
        return LaneSession(self.connections, place, answered, history)

    def reader(self) -> PostgresReader:
        reader = PostgresReader(self.connections)
        self.readers.append(reader)
        return reader

    def close(self) -> None:
        """Give up all connections but those of lanes."""
        self.own.terminate()
        for reader in self.readers:
            reader.close()

    async def end_connections(self) -> None:
        await self.own.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )


class Asking:
    """A lane's session, and whoever waits for its answers one after another."""

    def __init__(
        self, database: LaneDatabase, place: LanePlace, history: Callable[[], str] | None = None
    ) -> None:
        self.answers: asyncio.Queue[tuple[int, LaneAnswer]] = asyncio.Queue()
        self.session = database.session(place, self._answered, history)

    def _answered(self, life: int, answer: LaneAnswer) -> None:
        self.answers.put_nowait((life, answer))

    async def reopen(self, life: int, look: Look = NOTHING) -> LaneAnswer:
        self.session.abort()
        self.session.reopen(life, look)
        return await self.answer_in(life)

    async def append(self, life: int, *chunks: Chunk) -> LaneAnswer:
        self.session.append(life, chunks)
        return await self.answer_in(life)

    async def answer_in(self, life: int) -> LaneAnswer:
        """Return the next answer, which has to be one in this life."""
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            answered_in, answer = await self.answers.get()
        assert answered_in == life
        return answer


def a_chunk(base: int, last: int | None = None, *, partition: int = 1, epoch: int = 3) -> Chunk:
    """Return a row with bytes that say whose it is."""
    last = base if last is None else last
    return Chunk(partition, base, last, epoch, 1_700_000_000_000, last - base + 1, b"head" * 15, b"%d" % base)


def joined(rows: Sequence[Chunk]) -> list[Chunk]:
    """Return rows of one partition as one for each leader epoch: a reader may have joined some."""
    found: list[Chunk] = []
    for row in rows:
        if found and found[-1].leader_epoch == row.leader_epoch:
            before = found.pop()
            row = row._replace(
                base_offset=before.base_offset,
                max_timestamp=max(before.max_timestamp, row.max_timestamp),
                batches=before.batches + row.batches,
                heads=before.heads + row.heads,
                data=bytes(before.data) + bytes(row.data),
            )
        found.append(row)
    return found


def joined_heads(rows: Sequence[RowHeads]) -> list[RowHeads]:
    """Return rows without their data as one for each leader epoch."""
    found: list[RowHeads] = []
    for row in rows:
        if found and found[-1].leader_epoch == row.leader_epoch:
            before = found.pop()
            row = row._replace(
                base_offset=before.base_offset, size=before.size + row.size, heads=before.heads + row.heads
            )
        found.append(row)
    return found


def whole(log: StoredLog) -> StoredLog:
    """Return a log with its rows joined."""
    return log._replace(chunks=joined(log.chunks), older=joined_heads(log.older))


PLACE = LanePlace(broker_id=7, lane=1, broker_epoch=5)
Scene: TypeAlias = Callable[[LaneDatabase, Asking], Awaitable[None]]
Play: TypeAlias = Callable[[Scene], None]


def play_over(address: DatabaseAddress | None) -> Play:
    """Return a function that runs a scene over a database, the one in memory if None: a lane of broker 7,
    whose row is in life 0 of epoch 5.
    """

    async def played(scene: Scene) -> None:
        database: LaneDatabase = InMemory() if address is None else await InPostgres.at(address)
        await database.open_lanes(PLACE.broker_id, PLACE.broker_epoch)
        lane = Asking(database, PLACE)
        await scene(database, lane)
        lane.session.abort()
        if isinstance(database, InPostgres):
            database.close()

    return lambda scene: asyncio.run(played(scene))
