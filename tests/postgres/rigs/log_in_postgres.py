"""A broker's store over PostgreSQL with one partition, whose appends have landed when they return."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.storage.config import LogConfig
from coterie.storage.directory import Store
from coterie.storage.postgres.connecting import Connections, DatabaseAddress, connect, read_history
from coterie.storage.postgres.lane_session import LaneSessions
from coterie.storage.postgres.reading import PostgresReader
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.store import LogToOpen
from unit.storage.remote_rig import PromptLog, PromptStore
from unit.storage.store_rig import Rig

BROKER, PARTITION, LANES = 1, 8, 3
WITHIN_S = 20.0


class OneLogInPostgres:
    """One life of the broker: registered in an epoch, with a log of a leader epoch of its own."""

    def __init__(
        self, address: DatabaseAddress, epoch: int, config: LogConfig | None, *, tail_bytes: int
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.epoch = epoch
        connections = Connections(address, self.loop)
        self.reader = PostgresReader(connections)
        self.store = PromptStore(
            LaneSessions(connections, BROKER),
            self.reader,
            clock=lambda: int(self.loop.time() * 1_000),
            call_soon=self.loop.call_soon,
            later=lambda delay_ms, do: self.loop.call_later(delay_ms / 1_000, do),
            tail_bytes=tail_bytes,
        )
        self.store.listener = self
        self.store.begin(epoch, self.loop.run_until_complete(self._register(address)))
        self.settle()
        if config is not None:
            self.create_log("orders", 0, UUID(int=7), config)

    async def _register(self, address: DatabaseAddress) -> str:
        connection = await connect(address)
        await connection.execute("DELETE FROM coterie.lanes")
        await connection.execute(
            "INSERT INTO coterie.lanes SELECT $1, lane, $2 FROM generate_series(0, $3 - 1) AS lane",
            *(BROKER, self.epoch, LANES),
        )
        history = await read_history(connection)
        connection.terminate()
        return history

    def until(self, holds: Callable[[], bool]) -> None:
        """Let things happen until it holds."""
        end = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < end
            self.loop.call_later(0.0005, self.loop.stop)
            self.loop.run_forever()

    def settle(self) -> None:
        """Have everything happen that is under way."""
        self.until(
            lambda: all(lane.closed or (lane.idle and not lane.suspended) for lane in self.store.lanes)
        )

    @property
    def logs(self) -> dict[TopicPartition, RemoteLog]:
        return self.store.logs

    def create_log(self, topic: str, partition: int, topic_id: UUID, config: LogConfig) -> RemoteLog:
        """Return a log that is led in a leader epoch that nobody has led it in."""
        name = TopicPartition(topic, partition)
        self.store.open([LogToOpen(name, PARTITION, self.epoch - 1, config)], lambda *opened: None)
        self.until(lambda: name in self.logs)
        log = self.logs[name]
        assert isinstance(log, PromptLog)
        log.settle, log.settle_until = self.settle, self.until
        return log

    def close(self) -> None:
        if self.loop.is_closed():
            return
        self.store.close()
        self.reader.close()
        self.until(lambda: not asyncio.all_tasks(self.loop))
        self.loop.run_until_complete(asyncio.sleep(0))  # transports close in a callback
        self.loop.close()

    abandon = close

    # -- what the lanes tell

    def fenced(self) -> None:
        raise AssertionError("fenced")

    def lost(self, names: frozenset[TopicPartition]) -> None:
        raise AssertionError(f"lost: {names}")

    def conflicted(self, names: frozenset[TopicPartition]) -> None:
        raise AssertionError(f"conflicted: {names}")


class RigInPostgres(Rig):
    """What the contract of logs is asked of."""

    def __init__(self, address: DatabaseAddress, path: Path, *, tail_bytes: int) -> None:
        self._address = address
        self._tail_bytes = tail_bytes
        self._lives = 0
        super().__init__("remote", path)

    def _open(self, now_ms: int) -> Store:
        self._lives += 1
        config = None if self._lives == 1 else self.config
        return OneLogInPostgres(  # type: ignore[return-value]
            self._address, self._lives, config, tail_bytes=self._tail_bytes
        )
