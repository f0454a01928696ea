"""Builders and a rig for the tests of logs: the same test runs on files and on the fake in memory."""

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.storage.config import (
    LogConfig,
)
from coterie.storage.directory import Store
from coterie.storage.files import (
    FileStore,
)
from coterie.storage.log.partition import (
    PartitionLog,
)
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.storage.remote.pretended import Tables
from coterie.storage.remote.tail import TAIL_BYTES
from coterie.wire.records.batches import Record, build_batch, build_marker, records_of, scan
from unit.storage.remote_rig import OneLog

NOW = 1_700_000_000_000
TOPIC_ID = UUID(int=7)
ORDERS = TopicPartition("orders", 0)


def a_config(**settings: object) -> LogConfig:
    """Return a config by Kafka's names, with _ for the dots."""
    return LogConfig.of({name.replace("_", "."): str(value) for name, value in settings.items()})


def a_batch(
    *values: bytes | str | None, key: bytes | str | None = None, at: int | Iterable[int] = NOW, **how: object
) -> bytes:
    """Return a batch of these values, all of one key and one time unless `at` gives several."""
    times = [at] * len(values) if isinstance(at, int) else list(at)
    records = [
        Record(place, time, _bytes(key), _bytes(value))
        for place, (value, time) in enumerate(zip(values, times, strict=True))
    ]
    return build_batch(records, **how)  # type: ignore[arg-type]


def keyed(*pairs: tuple[str, str | None], at: int = NOW, **how: object) -> bytes:
    """Return a batch of keys and values."""
    records = [Record(place, at, key.encode(), _bytes(value)) for place, (key, value) in enumerate(pairs)]
    return build_batch(records, **how)  # type: ignore[arg-type]


def idempotent(sequence: int, *, count: int = 1, pid: int = 9, epoch: int = 0, **how: object) -> bytes:
    """Return a batch of an idempotent producer."""
    values = [f"{pid}:{epoch}:{sequence + place}" for place in range(count)]
    return a_batch(*values, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, **how)


def a_marker(
    *, commit: bool, pid: int = 9, epoch: int = 0, coordinator_epoch: int = 0, at: int = NOW
) -> bytes:
    """Return a control batch that ends a transaction."""
    return build_marker(
        commit=commit,
        producer_id=pid,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=at,
    )


def records_in(data: bytes) -> list[Record]:
    """Return all records of some batches."""
    return [record for at, header in scan(data) if header.count for record in records_of(data, at)]


def everything(log: PartitionLog) -> list[Record]:
    """Return all records of a log, read batch by batch as a consumer would."""
    found: list[Record] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=300)
        if not data:
            break
        found += [record for record in records_in(data) if record.offset >= offset]
        offset = scan(data)[-1][1].last_offset + 1
    return found


def offsets(log: PartitionLog) -> list[int]:
    """Return the offsets of all records of a log."""
    return [record.offset for record in everything(log)]


def committed(log: PartitionLog, *, max_bytes: int = 300) -> list[Record]:
    """Return what a read_committed consumer makes of a log: it passes over what was aborted."""
    found: list[Record] = []
    offset = log.start_offset
    while offset < log.last_stable_offset:
        data, aborted = log.read_committed(offset, max_bytes=max_bytes)
        if not data:
            break
        ahead = sorted(aborted, key=lambda one: one.first_offset)
        void: set[int] = set()
        for at, header in scan(data):
            while ahead and ahead[0].first_offset <= header.last_offset:
                void.add(ahead.pop(0).producer_id)
            if header.control:
                void.discard(header.producer_id)
            elif header.count and not (header.transactional and header.producer_id in void):
                found += [record for record in records_of(data, at) if record.offset >= offset]
        offset = scan(data)[-1][1].last_offset + 1
    return found


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


class Rig:
    """A store with one log, which can be stopped in several ways and opened again."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path
        self.memory = MemoryDisk(seed=1)
        self.config = LogConfig.of({})
        self.tables: Tables | None = None
        self.store = self._open(NOW)

    def _open(self, now_ms: int) -> Store:
        if self.kind in ("remote", "recalled"):
            tail_bytes = TAIL_BYTES if self.kind == "remote" else 0
            store = OneLog(self.tables, self.config, prompt=True, tail_bytes=tail_bytes)
            self.tables = store.engine.tables
            return store  # type: ignore[return-value]  # of which the contract asks no more
        if self.kind == "memory":
            return MemoryStore.open(now_ms=now_ms, disk=self.memory, configs=lambda *_: self.config)
        return FileStore.open(
            self.path / "data", now_ms=now_ms, configs=lambda *_: self.config, durable=False
        )

    def log_of(self, **settings: object) -> PartitionLog:
        """Return a new log with these settings."""
        self.config = a_config(**settings)
        return self.store.create_log(*ORDERS, TOPIC_ID, self.config)

    @property
    def log(self) -> PartitionLog:
        """The log, in its present life."""
        return self.store.logs[ORDERS]

    @property
    def directory(self) -> str:
        """Where the log's files are."""
        return self.log.directory

    def names(self) -> set[str]:
        """Return the names of the log's files."""
        return set(self.store.disk.files(self.directory))

    def restart(self, now_ms: int = NOW) -> PartitionLog:
        """Close everything and open it again."""
        self.store.close()
        self.store = self._open(now_ms)
        return self.log

    def kill(self, now_ms: int = NOW) -> PartitionLog:
        """Stop without a word and open everything again."""
        self.store.abandon()
        self.store = self._open(now_ms)
        return self.log
