"""A broker's store over the pretended database, in time that a test has pass."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.storage.config import LogConfig
from coterie.storage.kind import Readable
from coterie.storage.log.contract import Appended
from coterie.storage.remote.lane import Lane
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.pretended import Fate, PretendedEngine, PretendedReader, Tables
from coterie.storage.remote.pretended_compaction import PretendedCompactor
from coterie.storage.remote.store import LogToOpen, RemoteStore
from coterie.storage.remote.tail import TAIL_BYTES
from coterie.wire.records.visible import AbortedTransaction

BROKER, PARTITION = 1, 8


class Time:
    """Passes when a test says so. What the database does is due at times, and so are timers, which alone keep
    nobody from having settled.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.soon: list[Callable[[], object]] = []
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def clock(self) -> int:
        return self.now_ms

    def event(self, delay_ms: int, do: Callable[[], None]) -> None:
        heappush(self.events, (self.now_ms + delay_ms, next(self._numbers), do))

    def timer(self, delay_ms: int, do: Callable[[], None]) -> None:
        heappush(self.timers, (self.now_ms + delay_ms, next(self._numbers), do))

    def step(self) -> None:
        """Have the next thing happen."""
        if self.soon:
            self.soon.pop(0)()
        elif self.events or self.timers:
            earlier = min((heap for heap in (self.events, self.timers) if heap), key=lambda heap: heap[0])
            self.now_ms, _, do = heappop(earlier)
            do()

    def run(self) -> None:
        """Have happen what is to happen at once."""
        while self.soon:
            self.soon.pop(0)()

    def pass_ms(self, span_ms: int) -> None:
        """Let time pass."""
        until_ms = self.now_ms + span_ms
        self.run()
        while any(heap and heap[0][0] <= until_ms for heap in (self.events, self.timers)):
            self.step()
            self.run()
        self.now_ms = until_ms


class PromptLog(RemoteLog):
    """A log whose appends have landed when they return."""

    settle: Callable[[], None]
    settle_until: Callable[[Callable[[], bool]], None]

    def recalled(self, offset: int, max_bytes: int) -> Readable:
        """Return what can be read at an offset, wherever it lies."""
        if self.at_hand(offset):
            return self
        found: list[Readable] = []
        self.read_soon(offset, max_bytes, found.append)
        self.settle_until(lambda: bool(found))
        return found[0]

    def read(self, offset: int, *, max_bytes: int, **how: Any) -> bytes:
        there = self.recalled(offset, max_bytes)
        read = super().read if there is self else there.read
        return read(offset, max_bytes=max_bytes, **how)

    def read_committed(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True
    ) -> tuple[bytes, tuple[AbortedTransaction, ...]]:
        there = self.recalled(offset, max_bytes)
        read = super().read_committed if there is self else there.read_committed
        return read(offset, max_bytes=max_bytes, at_least_one=at_least_one)

    def batch_from(self, timestamp_ms: int, offset: int) -> bytes | None:
        if self.at_hand(max(offset, self.start_offset)):
            return super().batch_from(timestamp_ms, offset)
        found: list[Any] = []
        self.find_soon(timestamp_ms, offset, found.append)
        self.settle_until(lambda: bool(found))
        return found[0]

    def youngest_batch(self) -> bytes | None:
        if self.at_hand(self.start_offset):
            return super().youngest_batch()
        found: list[Any] = []
        self.find_youngest_soon(found.append)
        self.settle_until(lambda: bool(found))
        return found[0]

    def append(self, *what: Any, **terms: Any) -> Appended:
        appended = super().append(*what, **terms)
        self.settle()
        return appended._replace(landed=True)


class PromptStore(RemoteStore):
    """A store of such logs."""

    log_type = PromptLog


class OneLog(Time):
    """One life of a broker with one partition, over tables that outlive it."""

    def __init__(
        self,
        tables: Tables | None,
        config: LogConfig,
        *,
        prompt: bool = False,
        tail_bytes: int = TAIL_BYTES,
    ) -> None:
        super().__init__()
        self.fate = Fate()
        self.engine = PretendedEngine(lambda name: self.fate, self.event)
        if tables is not None:
            self.engine.tables = tables
        self.epoch = self.engine.tables.register(BROKER, 3)
        self.told: list[str] = []
        self.store = (PromptStore if prompt else RemoteStore)(
            self.engine.new_session_of(BROKER),
            PretendedReader(self.engine),
            PretendedCompactor(self.engine, BROKER),
            clock=self.clock,
            call_soon=self.soon.append,
            later=self.timer,
            tail_bytes=tail_bytes,
        )
        self.store.listener = self
        self.store.begin(self.epoch, self.engine.history)
        self.settle()
        if tables is not None:
            self.create_log("orders", 0, UUID(int=7), config)

    @property
    def logs(self) -> dict[TopicPartition, RemoteLog]:
        return self.store.logs

    @property
    def lane(self) -> Lane:
        """The lane of the log."""
        return self.store.lanes[1]

    def settle(self) -> None:
        """Have everything happen that is under way, breaks of the connection mended."""
        while self.soon or self.events or any(lane.suspended for lane in self.store.lanes):
            self.step()

    def until(self, holds: Callable[[], bool]) -> None:
        """Have things happen until it holds."""
        while not holds():
            self.step()

    def create_log(
        self, topic: str, partition: int, topic_id: UUID, config: LogConfig, partition_id: int = PARTITION
    ) -> RemoteLog:
        """Return a log that is led in a leader epoch that nobody has led it in."""
        name = TopicPartition(topic, partition)
        epochs = [epoch for epoch, _ in self.engine.tables.epochs(partition_id)]
        wanted = LogToOpen(name, partition_id, max(epochs, default=-1) + 1, config)
        self.store.open([wanted], lambda *opened: None)
        while name not in self.logs:
            self.step()
        log = self.logs[name]
        if isinstance(log, PromptLog):
            log.settle, log.settle_until = self.settle, self.until
        return log

    def close(self) -> None:
        self.store.close()

    abandon = close

    # -- what the lanes tell

    def fenced(self) -> None:
        self.told.append("fenced")

    def lost(self, names: frozenset[TopicPartition]) -> None:
        self.told.append("lost")

    def conflicted(self, names: frozenset[TopicPartition]) -> None:
        self.told.append("conflicted")

    def full(self) -> None:
        self.told.append("full")
