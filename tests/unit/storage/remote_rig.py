"""Logs over the pretended database: each append lands before the test goes on, unless it holds them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.storage.config import LogConfig
from coterie.storage.log.contract import Appended
from coterie.storage.remote.lane import Lane
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.pretended import Fate, PretendedEngine, PretendedSession, Tables

BROKER, PARTITION = 1, 7


class PromptLog(RemoteLog):
    """A log whose appends have landed when they return."""

    settle: Callable[[], None]

    def append(self, *what: Any, **terms: Any) -> Appended:
        appended = super().append(*what, **terms)
        self.settle()
        return appended._replace(landed=True)


class RemoteStore:
    """One life of a broker with one partition, over tables that outlive it."""

    def __init__(
        self, tables: Tables | None, config: LogConfig, log_type: type[RemoteLog] = PromptLog
    ) -> None:
        self.log_type = log_type
        self.soon: list[Callable[[], object]] = []
        self.now_ms = 0
        self.fate = Fate()
        self.engine = PretendedEngine(lambda name: self.fate, lambda ms, do: self.soon.append(do))
        if tables is not None:
            self.engine.tables = tables
        self.epoch = self.engine.tables.register(BROKER, 1)
        self.session = PretendedSession(
            self.engine, (BROKER, 0, self.epoch), lambda life, answer: self.lane.answered(life, answer)
        )
        self.lane = Lane(
            self.session,
            self,
            name="lane 0",
            clock=lambda: self.now_ms,
            call_soon=self.soon.append,
        )
        self.lane.open()
        self.settle()
        self.logs: dict[TopicPartition, RemoteLog] = {}
        self.told: list[str] = []
        if tables is not None:
            self._open(TopicPartition("orders", 0), config)

    def settle(self) -> None:
        """Have everything happen that is under way, breaks of the connection mended."""
        while self.soon or self.lane.suspended:
            self.step()

    def step(self) -> None:
        """Have the next thing happen; if nothing is under way, time passes until something is due."""
        due_ms = self.lane.next_ms()
        if self.soon:
            self.soon.pop(0)()
        elif due_ms is not None:
            self.now_ms = max(self.now_ms, due_ms)
            self.lane.tick()

    def create_log(self, topic: str, partition: int, topic_id: UUID, config: LogConfig) -> RemoteLog:
        return self._open(TopicPartition(topic, partition), config)

    def _open(self, name: TopicPartition, config: LogConfig) -> RemoteLog:
        tables = self.engine.tables
        log = self.logs[name] = self.log_type(
            name,
            PARTITION,
            config,
            self.lane,
            chunks=tables.rows(PARTITION),
            epochs=[(0, 0)],
            end_offset=tables.end(PARTITION),
        )
        if isinstance(log, PromptLog):
            log.settle = self.settle
        return log

    def close(self) -> None:
        self.lane.close()

    abandon = close

    # -- what the lane tells

    def fenced(self) -> None:
        self.told.append("fenced")

    def lost(self, partitions: frozenset[int]) -> None:
        self.told.append("lost")

    def conflicted(self, partitions: frozenset[int]) -> None:
        self.told.append("conflicted")
