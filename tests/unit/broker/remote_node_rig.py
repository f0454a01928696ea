"""A broker alone whose logs lie in a database, and its topics in a file: the rig of the APIs over that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappush
from itertools import count
from typing import Any
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.broker.node import Node
from coterie.broker.topics.manager import TopicManager
from coterie.storage.config import LogConfig
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.pretended import Fate, PretendedEngine, PretendedReader, Tables
from coterie.storage.remote.reading import (
    DeletedRow,
    LogLed,
    LogWanted,
    RetainedLog,
    RetentionWanted,
    RowsWanted,
    SizeWanted,
    StartWanted,
    StoredLog,
    StoredRows,
    StoredSize,
)
from coterie.storage.remote.recalled import RecalledLog
from coterie.storage.remote.session import Broken
from coterie.storage.remote.store import LogToOpen, RemoteStore
from coterie.storage.remote.tail import TAIL_BYTES

BROKER, LANES = 1, 3


class DatabaseAndDisk(MemoryDisk):
    """What outlives a broker: the database with its logs, and the disk with its topics."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables()
        self.tail_bytes = TAIL_BYTES
        self.fates: dict[str, Fate] = {}
        """What becomes of statements, by name; of others what a disk that is full says."""
        self.ids: dict[tuple[UUID, int], int] = {}
        """The ids of partitions, by topic and number."""

    def id_of(self, topic_id: UUID, partition: int) -> int:
        return self.ids.setdefault((topic_id, partition), len(self.ids) + 1)


class ReaderAtHand:
    """Reads for whoever asks as soon as it is told to, so that a log is made while its topic is."""

    def __init__(self, engine: PretendedEngine) -> None:
        self.tables = engine.tables
        self.rows_wait = False
        """Whether rows are read when it is told to as well, and not by the engine."""
        self._of_engine = PretendedReader(engine)
        self.asked: list[Callable[[], None]] = []

    def prepare(self, *, history: str) -> None:
        """Do nothing: all is at hand."""

    def read_logs(
        self,
        wanted: Sequence[LogWanted],
        done: Callable[[Sequence[StoredLog] | Broken], None],
        *,
        history: str,
    ) -> None:
        self.asked.append(lambda: done(self.tables.read_logs(wanted)))

    def find_lacking(
        self, led: Sequence[LogLed], done: Callable[[Sequence[int] | Broken], None], *, history: str
    ) -> None:
        self.asked.append(lambda: done(self.tables.lacking(led)))

    def read_rows(
        self, wanted: RowsWanted, done: Callable[[StoredRows | Broken], None], *, history: str
    ) -> None:
        if self.rows_wait:
            self.asked.append(lambda: done(self.tables.read_rows(wanted)))
        else:
            self._of_engine.read_rows(wanted, done, history=history)

    def retain(
        self, wanted: RetentionWanted, done: Callable[[RetainedLog | Broken], None], *, history: str
    ) -> None:
        self._of_engine.retain(wanted, done, history=history)

    def delete_rows(
        self,
        partition_id: int,
        before_offset: int,
        done: Callable[[Sequence[DeletedRow] | Broken], None],
        *,
        history: str,
    ) -> None:
        self._of_engine.delete_rows(partition_id, before_offset, done, history=history)

    def measure(
        self, wanted: SizeWanted, done: Callable[[StoredSize | Broken], None], *, history: str
    ) -> None:
        self._of_engine.measure(wanted, done, history=history)

    def save_starts(
        self,
        starts: Sequence[StartWanted],
        done: Callable[[Sequence[int] | Broken], None],
        *,
        history: str,
    ) -> None:
        self.asked.append(lambda: done(self.tables.save_starts(starts)))

    def answer(self) -> None:
        while self.asked:
            self.asked.pop(0)()


class NoCheckpoints:
    """Where a directory has files beside its logs, a database has nothing."""

    def expect_gaps(self, names: Iterable[TopicPartition] = ()) -> None: ...


class LogOfOne(RemoteLog):
    """A log that a test may read at once, too."""

    tables: Tables

    def read(self, offset: int, *, max_bytes: int, **how: Any) -> bytes:
        if self.at_hand(offset):
            return super().read(offset, max_bytes=max_bytes, **how)
        wanted = RowsWanted(self.partition_id, offset, self.high_watermark, max_bytes)
        return RecalledLog(self, self.tables.read_rows(wanted)).read(offset, max_bytes=max_bytes, **how)


class StoreOfOne(RemoteStore):
    """The store of a broker that shares its database with nobody, and makes the logs of topics itself."""

    checkpoints = NoCheckpoints()
    log_type = LogOfOne

    def __init__(
        self, disk: DatabaseAndDisk, *, now_ms: int, clock: Callable[[], int], soon: Any, rounds: Any
    ) -> None:
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.numbers = count()
        self.disk = disk
        self.files = MemoryStore.open(now_ms=now_ms, disk=disk)
        self.engine = PretendedEngine(self.choose, lambda _, do: rounds.append(do))
        self.engine.tables = disk.tables
        self.reader = ReaderAtHand(self.engine)
        super().__init__(
            self.engine.new_session_of(BROKER),
            self.reader,
            clock=clock,
            call_soon=soon.append,
            later=lambda after_ms, do: heappush(self.timers, (clock() + after_ms, next(self.numbers), do)),
            tail_bytes=disk.tail_bytes,
        )
        self.told: list[str] = []
        self.listener = self
        self.begin(disk.tables.register(BROKER, LANES), self.engine.history)

    def choose(self, statement: str) -> Fate:
        """Return the fate of a statement: what a full disk refuses to a log in files is refused here, too."""
        if statement in self.disk.fates:
            return self.disk.fates[statement]
        full = self.disk.faults.capacity == 0 and statement == "append"
        return Fate(effect_ms=None, failure="53100") if full else Fate()

    def create_log(self, topic: str, partition: int, topic_id: UUID, config: LogConfig) -> Any:
        partition_id = self.disk.id_of(topic_id, partition)
        epochs = [epoch for epoch, _ in self.disk.tables.epochs(partition_id)]
        name = TopicPartition(topic, partition)
        self.open([LogToOpen(name, partition_id, max(epochs, default=-1) + 1, config)], lambda *_: None)
        self.reader.answer()
        log = self.logs[name]
        assert isinstance(log, LogOfOne)
        log.tables = self.disk.tables
        return log

    def delete_log(self, topic: str, partition: int, *, now_ms: int) -> None:
        name = TopicPartition(topic, partition)
        gone = self.logs[name].partition_id
        self.drop(name)
        self.disk.tables.delete_partitions([gone])

    def make_deletions_certain(self) -> None: ...

    def crash(self) -> DatabaseAndDisk:
        """Stop as by kill -9, and return what is left."""
        self.engine.go_away()
        return self.disk

    def close(self) -> None:
        super().close()
        self.files.close()

    # -- what the lanes tell

    def fenced(self) -> None:
        self.told.append("fenced")

    def lost(self, names: frozenset[TopicPartition]) -> None:
        self.told.append("lost")

    def conflicted(self, names: frozenset[TopicPartition]) -> None:
        self.told.append("conflicted")

    def full(self) -> None:
        self.told.append("full")


class NodeOfOne(Node):
    """A node over that store: its topics are its own."""

    def _own_topic_manager(self) -> TopicManager:
        return TopicManager(
            settings=self.settings,
            topics=self._own_topics(),
            store=self.store,  # type: ignore[arg-type]  # it makes logs as a store of files does
            replica_manager=self.replica_manager,
            purgatory=self.purgatory,
            clock=self.clock,
            leadership=self.leadership,
            load_coordinator=self.load_coordinator,
        )
