"""The data directory: a log for each partition in it, and the files that all share."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition, uuid_text
from coterie.store.checkpoints import (
    CLEAN_SHUTDOWN,
    META,
    PARTITION_METADATA,
    Meta,
    read_meta,
    read_partition_metadata,
    write_meta,
)
from coterie.store.config import LogConfig
from coterie.store.disk import Disk
from coterie.store.ledger import Ledger
from coterie.store.log import DirectoryUnusable, StorageFailed
from coterie.store.partition import FileLog

__all__ = ["OnDisk", "Store"]

LEDGER_INTERVAL_MS = 60_000
LONGEST_NAME = 255
DELETE_SUFFIX = "-delete"
NOT_OURS = frozenset({TopicPartition("__cluster_metadata", 0)})
Configs = Callable[[TopicPartition], LogConfig]


class OnDisk(NamedTuple):
    """A partition that has a directory. Its topic's id is None if it is not written down."""

    topic: str
    partition: int
    topic_id: UUID | None


class Store:
    """All logs of a broker."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        now_ms: int,
        new_uuid: Callable[[], UUID],
        configs: Configs | None = None,
        cluster_id: str | None = None,
        node_id: int | None = None,
    ) -> None:
        self.path = path
        self.logs: dict[TopicPartition, FileLog] = {}
        self.disk = disk
        self._new_uuid = new_uuid
        self._now_ms = now_ms
        self._doomed: list[tuple[int, str]] = []
        self.meta = self._own(cluster_id, node_id)
        self.ledger = Ledger(disk, path)
        self._next_save_ms = now_ms + LEDGER_INTERVAL_MS
        self._load(configs)

    # -- opening

    def _own(self, cluster_id: str | None, node_id: int | None) -> Meta:
        """Return whose directory this is, or make it ours."""
        where = f"{self.path}/{META}"
        try:
            meta = read_meta(self.disk.load(where))
        except FileNotFoundError:
            cluster = uuid_text(self._new_uuid()) if cluster_id is None else cluster_id
            meta = Meta(cluster, 1 if node_id is None else node_id, uuid_text(self._new_uuid()))
            self.disk.save(where, write_meta(meta), sync=True)
        except Corrupt as error:
            raise DirectoryUnusable(f"{where} cannot be read: {error}") from None
        if cluster_id not in (None, meta.cluster_id):
            raise DirectoryUnusable(f"{self.path} belongs to cluster {meta.cluster_id}, not to {cluster_id}")
        if node_id not in (None, meta.node_id):
            raise DirectoryUnusable(f"{self.path} belongs to node {meta.node_id}, not to {node_id}")
        return meta

    def _load(self, configs: Configs | None) -> None:
        marker = f"{self.path}/{CLEAN_SHUTDOWN}"
        clean = self.disk.exists(marker)
        for name in sorted(self.disk.directories(self.path)):
            if name.endswith(DELETE_SUFFIX):
                self.disk.remove_tree(f"{self.path}/{name}")
                continue
            found = _partition_of(name)
            if found is not None and found not in NOT_OURS:
                self.logs[found] = self._open(found, configs and configs(found), clean=clean)
        if clean:
            self.disk.remove(marker)

    def _open(self, name: TopicPartition, config: LogConfig | None, *, clean: bool) -> FileLog:
        """Return the log of a directory. Only if it is known never to have been compacted are gaps damage."""
        compacted = config is None or config.compacted or name in self.ledger.compacted
        return FileLog.open(
            self.disk,
            self._directory(name),
            name,
            config or LogConfig(),
            self.ledger,
            clean=clean,
            gapless=not compacted,
            now_ms=self._now_ms,
        )

    def _directory(self, name: TopicPartition) -> str:
        return f"{self.path}/{name}"

    # -- partitions

    def partitions(self) -> list[OnDisk]:
        """Return the partitions that have a log, with the topic that each belongs to."""
        return [OnDisk(topic, partition, self.topic_id(topic, partition)) for topic, partition in self.logs]

    def topic_id(self, topic: str, partition: int) -> UUID | None:
        """Return the id of the topic that a partition's directory was made for."""
        try:
            where = f"{self._directory(TopicPartition(topic, partition))}/{PARTITION_METADATA}"
            return read_partition_metadata(self.disk.load(where))
        except (Corrupt, FileNotFoundError):
            return None

    def create_log(self, topic: str, partition: int, topic_id: UUID, config: LogConfig) -> FileLog:
        """Return a new, empty log. Raises `StorageFailed` when there is no room for it."""
        name = TopicPartition(topic, partition)
        assert name not in self.logs, f"{name} has a log"
        try:
            if self.disk.exists(self._directory(name)):  # of a topic whose deletion the disk refused
                self.disk.remove_tree(self._directory(name))
            log = FileLog.create(
                self.disk,
                self._directory(name),
                name,
                config,
                self.ledger,
                topic_id=topic_id,
                now_ms=self._now_ms,
            )
        except OSError as error:
            with suppress(OSError):
                self.disk.remove_tree(self._directory(name))
            raise StorageFailed(f"{self._directory(name)}: {error.strerror or error}") from error
        self.logs[name] = log
        return log

    def open_log(
        self, topic: str, partition: int, topic_id: UUID, config: LogConfig, *, now_ms: int
    ) -> FileLog:
        """Return the log of a partition: the one it has, with this config, or a new one.

        What lies there from an earlier topic of the same name is deleted.
        """
        name = TopicPartition(topic, partition)
        log = self.logs.get(name)
        if log is not None and self.topic_id(topic, partition) not in (None, topic_id):
            self.delete_log(topic, partition, now_ms=now_ms)
            log = None
        if log is None:
            return self.create_log(topic, partition, topic_id, config)
        log.configure(config)
        return log

    def delete_log(self, topic: str, partition: int, *, now_ms: int) -> None:
        """Take a partition out of sight at once, and off the disk after file.delete.delay.ms."""
        name = TopicPartition(topic, partition)
        log = self.logs.pop(name)
        log.abandon()
        suffix = f".{self._new_uuid().hex}{DELETE_SUFFIX}"
        gone = f"{self.path}/{str(name)[: LONGEST_NAME - len(suffix)]}{suffix}"
        try:
            self.disk.rename(log.directory, gone)
        except OSError as error:
            raise StorageFailed(f"{log.directory}: {error.strerror or error}") from error
        self._doomed.append((now_ms + log.config.file_delete_delay_ms, gone))
        self.ledger.forget(name)

    # -- time and end

    def tick(self, now_ms: int) -> None:
        """Do what time asks for beyond the logs' own ticks: remove deleted partitions, write checkpoints."""
        self._now_ms = now_ms
        for path in self.take_doomed(now_ms):
            self.disk.remove_tree(path)
        if now_ms >= self._next_save_ms:
            self._next_save_ms = now_ms + LEDGER_INTERVAL_MS
            self.ledger.save(self._high_watermarks())

    def take_doomed(self, now_ms: int) -> list[str]:
        """Return the directories of partitions whose time to be removed has come: the caller's to do."""
        due = [path for at_ms, path in self._doomed if at_ms <= now_ms]
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        return due

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {name: log.high_watermark for name, log in self.logs.items()}

    def close(self) -> None:
        """Close all logs and leave the mark of a clean stop, so that the next start need not check them.

        Raises `StorageFailed` if the disk refused, after letting go of everything.
        """
        failed: StorageFailed | OSError | None = None
        for log in self.logs.values():
            try:
                log.close()
            except StorageFailed as error:
                failed = error
        try:
            self.ledger.save(self._high_watermarks())
            if failed is None:
                self.disk.save(f"{self.path}/{CLEAN_SHUTDOWN}", b'{"version":0,"brokerEpoch":-1}', sync=True)
        except OSError as error:
            failed = error
        self.release()
        if failed is not None:
            raise StorageFailed(f"{self.path} was not closed cleanly: {failed}") from failed

    def abandon(self) -> None:
        """Let go of everything and write nothing, as the end of the process would."""
        for log in self.logs.values():
            log.abandon()
        self.release()

    def release(self) -> None:
        """Give up whatever keeps others out."""


def _partition_of(name: str) -> TopicPartition | None:
    topic, dash, number = name.rpartition("-")
    return TopicPartition(topic, int(number)) if topic and dash and number.isdecimal() else None
