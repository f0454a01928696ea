"""The engine on PostgreSQL with nothing in it, and a loop that goes on while a test waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench.postgres import Server

from coterie.broker.cluster.engine import MetadataSession
from coterie.broker.cluster.postgres.engine import PostgresEngine
from coterie.storage.postgres.connecting import Connections, DatabaseAddress, connect

LANES = 3
TABLES = "brokers, lanes, topics, partitions, settings"
EMPTY = f"""
SET search_path = coterie;
TRUNCATE {TABLES};
UPDATE cluster SET version = 0, level = 0, next_partition_id = 1, next_producer_id = 0
"""
REPLACED = """
CREATE TABLE coterie.others AS TABLE coterie.cluster;
DROP TABLE coterie.cluster;
ALTER TABLE coterie.others RENAME TO cluster
"""
"""Have another table take the place of the cluster's, with the same in it."""
WITHIN_S = 20.0


class NotedEngine(PostgresEngine):
    """One that knows what it has opened, to close it."""

    def __init__(self, connections: Connections, broker_id: int, sessions: list[MetadataSession]) -> None:
        super().__init__(connections, broker_id, lanes=LANES)
        self.sessions = sessions

    def connect(
        self,
        *,
        opened: Callable[[MetadataSession, str], None],
        ended: Callable[[], None],
        notified: Callable[[int], None] | None = None,
    ) -> None:
        def noted(session: MetadataSession, history: str) -> None:
            self.sessions.append(session)
            opened(session, history)

        super().connect(opened=noted, ended=ended, notified=notified)


class PostgresStage:
    """A database with nothing in it, and a loop that goes on while a test waits."""

    has_presence = has_lanes = True

    def __init__(self, server: Server, database: str) -> None:
        self.server = server
        self.database = database
        self.loop = asyncio.new_event_loop()
        self.connections = Connections(DatabaseAddress(server.url(database)), self.loop)
        self.sessions: list[MetadataSession] = []
        self.loop.run_until_complete(self._empty())

    async def _empty(self) -> None:
        connection = await connect(self.connections.address)
        await connection.execute(EMPTY)
        connection.terminate()

    def engine(self, broker_id: int) -> PostgresEngine:
        return NotedEngine(self.connections, broker_id, self.sessions)

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < end
            self.loop.call_later(0.001, self.loop.stop)
            self.loop.run_forever()

    def end_sessions(self) -> None:
        self.server.sql(
            self.database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()",
        )

    def takes_appends(self, broker_id: int, broker_epoch: int) -> bool:
        lanes = self.server.sql(
            self.database,
            "SELECT count(*) FROM coterie.lanes WHERE life = 0"
            f" AND (broker_id, broker_epoch) = ({broker_id}, {broker_epoch})",
        )
        return int(lanes) == LANES

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self.until(lambda: not asyncio.all_tasks(self.loop))
        self.loop.run_until_complete(asyncio.sleep(0))  # transports close in a callback
        self.loop.close()
