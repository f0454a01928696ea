"""The data directory: a log for each partition in it, and the files that all share.

Only what is known to be ours is opened, renamed or removed: the directory may hold others' things.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import ClassVar, NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition, uuid_text
from coterie.storage.checkpoints import (
    CLEAN_OFFSETS,
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOCK,
    META,
    NO_BROKER_EPOCH,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    START_OFFSETS,
    Checkpoints,
    Meta,
    read_clean_stop,
    read_meta,
    read_partition_metadata,
    write_clean_stop,
    write_meta,
    write_partition_metadata,
)
from coterie.storage.config import LogConfig
from coterie.storage.disk import Disk, Space
from coterie.storage.kind import Saved
from coterie.storage.log.contract import DirectoryUnusable, StorageFailed
from coterie.storage.log.partition import PartitionLog
from coterie.storage.log.segment import LOG, SWAP

log = logging.getLogger("coterie.storage")

LEDGER_INTERVAL_MS = 60_000
LONGEST_NAME = 255
MOST_PARTITIONS = 100_000  # of a topic; `orders-20261122` is somebody's copy
DELETE_SUFFIX = "-delete"
DELETED_DIRECTORY = re.compile(r".+\.[0-9a-f]{32}-delete")
STRAY_SUFFIX = "-stray"
STRAY_DIRECTORY = re.compile(r".+-(?P<partition>0|[1-9][0-9]{0,9})\.[0-9a-f]{32}-stray")
PARTITION_DIRECTORY = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
SEGMENT_FILE = re.compile(rf"[0-9]{{20}}\{LOG}")
SWAPPED_FILE = re.compile(rf"[0-9]{{20}}\{LOG}\{SWAP}")
# Where Apache Kafka keeps what a cluster has agreed upon.
KEPT_BY_KAFKA = "__cluster_metadata"
CHECKPOINTS = (START_OFFSETS, RECOVERY_POINTS, HIGH_WATERMARKS, CLEAN_OFFSETS)
SHARED_FILES = "|".join(map(re.escape, (META, CLEAN_SHUTDOWN, *CHECKPOINTS)))
SHARED_FILE = re.compile(rf"({SHARED_FILES}|coterie\.[a-z]+\.json)(\.tmp)?")
# What the roots of disks have, and what keeps a directory that is to be empty in a repository.
IGNORED = frozenset({LOCK, "lost+found", ".snapshot", ".gitkeep", ".gitignore", ".DS_Store"})
Configs = Callable[[TopicPartition, UUID | None], LogConfig | None]
"""How a partition's log shall behave, made for the topic of that id as far as its directory says; None where
nobody knows. May raise `OfAnotherTopic`.
"""


GONE = (
    "%s is not there any more, with its records up to offset %d: the partition begins anew, empty. Was that"
    " not meant, stop this broker, and put the directory back in its place, before more is written"
)


class OfAnotherTopic(Exception):
    """A directory holds the log of another topic than the one that is known by its name."""


class OnDisk(NamedTuple):
    """A partition that has a directory. Its topic's id is None if it is not written down."""

    topic: str
    partition: int
    topic_id: UUID | None


class Stray(NamedTuple):
    """A partition's directory that was set aside, by us or by Apache Kafka: the topic was not known."""

    directory: str
    topic_id: UUID
    partition: int


def things_of_others(disk: Disk, path: str) -> list[str]:
    """Return the names in a directory that no broker had: where there are any, it is no place for logs.

    Nothing is returned where a broker was killed at whatever point of its first start, where some file or log
    is Apache Kafka's or ours, and for what is the root of an empty disk.
    """
    directories = disk.directories(path)
    held = sorted({*directories, *disk.files(path)} - IGNORED)
    if any(map(SHARED_FILE.fullmatch, held)):
        return []
    return [] if any(_is_brokers(disk, path, name) for name in directories) else held


def _is_brokers(disk: Disk, path: str, name: str) -> bool:
    """Return whether a directory's name and files are those of a partition, or a broker has just made it."""
    if DELETED_DIRECTORY.fullmatch(name) or STRAY_DIRECTORY.fullmatch(name):
        return True
    if partition_of(name) is None:  # what is in it may be much, or not ours to read
        return False
    where = f"{path}/{name}"
    files = disk.files(where)
    return is_log(files) or not (files or disk.directories(where))


def id_in(disk: Disk, directory: str) -> UUID | None:
    """Return the id of the topic that a partition's directory was made for, None if it does not say."""
    try:
        return read_partition_metadata(disk.load(f"{directory}/{PARTITION_METADATA}"))
    except (Corrupt, FileNotFoundError):
        return None


def is_log(files: Collection[str]) -> bool:
    """Return whether a directory with a partition's name and such files holds one: its topic's id, or a
    segment.
    """
    return PARTITION_METADATA in files or any(map(SEGMENT_FILE.fullmatch, files))


class Store:
    """All logs of a broker."""

    log_type: ClassVar[type[PartitionLog]] = PartitionLog

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
        self.logs: dict[TopicPartition, PartitionLog] = {}
        # What the directories of the logs say, as far as it was read: a start asks for it more than once.
        self._topic_ids: dict[TopicPartition, UUID | None] = {}
        self.disk = disk
        self._new_uuid = new_uuid
        self._now_ms = now_ms
        self._doomed: list[tuple[int, str]] = []
        # Logs that are deleted, or were never finished, whose directories the disk would not give up.
        self._left_over: set[TopicPartition] = set()
        # Logs that nobody deleted, and that are not there all the same: up to where they had records.
        self._gone: dict[TopicPartition, int] = {}
        self._closed = False
        self.was_closed = False
        """Whether it was closed before by who doubted nothing, so that nothing can be missing."""
        self.in_doubt = False
        """Whether something may be missing that is still to be looked for. It is not closed cleanly then."""
        self._broker_epoch = NO_BROKER_EPOCH
        self.meta = self._own(cluster_id, node_id)
        self.checkpoints = Checkpoints(disk, path)
        self._next_save_ms = now_ms + LEDGER_INTERVAL_MS
        self._load(configs)

    # -- opening

    def _own(self, cluster_id: str | None, node_id: int | None) -> Meta:
        """Return the Meta of the directory; one that has none is made ours."""
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
        self.was_closed = clean
        if clean:
            self._broker_epoch = read_clean_stop(self.disk.load(marker))
        names = sorted(self.disk.directories(self.path))
        if not self.checkpoints.compacted_is_known:  # before one of them is written down, and no other
            found_logs = filter(None, map(partition_of, names))
            self.checkpoints.compacted = dict.fromkeys(found_logs, 0)
        for name in names:
            if DELETED_DIRECTORY.fullmatch(name):
                self._doomed.append((self._now_ms, f"{self.path}/{name}"))
                continue
            found = partition_of(name)
            if found is None or found.topic == KEPT_BY_KAFKA:
                continue
            files = self.disk.files(f"{self.path}/{name}")
            if found.partition < MOST_PARTITIONS and is_log(files):
                if any(map(SWAPPED_FILE.fullmatch, files)):  # to open the log is to finish that
                    self.checkpoints.expect_gaps([found])
                self.logs[found] = self._open(found, self._config_of(found, configs), clean=clean)
            elif not self._is_free(found):
                log.warning("%s/%s is no partition of ours and is left alone", self.path, name)
        self._gone = {
            name: offset
            for name, offset in self.checkpoints.last_offsets().items()
            if offset > 0 and name not in self.logs and not any(one.startswith(f"{name}.") for one in names)
        }
        self.checkpoints.keep_only(self.logs)
        self.in_doubt = not clean and bool(self.logs)
        if clean:
            self.disk.remove(marker)
        # Or a loss of power brings the mark back, to vouch for another life, or takes what was found.
        self.disk.sync_directory(self.path)

    def _config_of(self, name: TopicPartition, configs: Configs | None) -> LogConfig | None:
        """Return the settings of a log that is found, None where nobody knows them."""
        try:
            return configs and configs(name, self.topic_id(*name))
        except OfAnotherTopic:
            # What is known by the name is the other's: begun there, a log that ends before would be removed.
            self.checkpoints.forget(name)
            return None

    def _open(self, name: TopicPartition, config: LogConfig | None, *, clean: bool) -> PartitionLog:
        """Return the log of a directory. Only if it is known never to have been compacted are gaps damage."""
        compacted = config is None or config.compacted or name in self.checkpoints.compacted
        return self.log_type.open(
            self.disk,
            self._directory(name),
            name,
            config or LogConfig.of({}),
            self.checkpoints,
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
        """Return the id of the topic that a partition's directory was made for, None if it does not say."""
        name = TopicPartition(topic, partition)
        if name not in self._topic_ids:
            self._topic_ids[name] = id_in(self.disk, self._directory(name))
        return self._topic_ids[name]

    def tie(self, topic: str, partition: int, topic_id: UUID) -> None:
        """Write down which topic a log belongs to, where a crash or another broker has left that out."""
        name = TopicPartition(topic, partition)
        self.disk.save(f"{self._directory(name)}/{PARTITION_METADATA}", write_partition_metadata(topic_id))
        self._topic_ids[name] = topic_id

    def strays(self) -> list[Stray]:
        """Return the directories that were set aside and say which topic they belong to."""
        found = []
        for name in sorted(self.disk.directories(self.path)):
            parts = STRAY_DIRECTORY.fullmatch(name)
            topic_id = parts and id_in(self.disk, f"{self.path}/{name}")
            if parts and topic_id is not None:
                found.append(Stray(name, topic_id, int(parts["partition"])))
        return found

    def recall(self, stray: Stray, topic: str) -> None:
        """Put a directory that was set aside back in its place, which is free, and open its log."""
        name = TopicPartition(topic, stray.partition)
        self.checkpoints.forget(name)  # what is there is of another log
        self.expect_gaps([name])
        self.disk.rename(f"{self.path}/{stray.directory}", self._directory(name))
        self.logs[name] = self._open(name, None, clean=False)

    def expect_gaps(self, names: Iterable[TopicPartition]) -> None:
        """Take logs whose past is not known for compacted, if only up to 0: gaps in them are no damage.

        The disk forgets with that what it said of other logs by these names.
        """
        for name in names:
            self.checkpoints.compacted.setdefault(name, 0)
        self.checkpoints.save()

    def create_log(self, topic: str, partition: int, topic_id: UUID, config: LogConfig) -> PartitionLog:
        """Return a new, empty log. Raises `StorageFailed` when there is no room for it."""
        name = TopicPartition(topic, partition)
        assert name not in self.logs, f"{name} has a log"
        try:
            self._make_free(name)
            self.checkpoints.forget_for_good(name)
        except OSError as error:
            raise StorageFailed(f"{self._directory(name)}: {error.strerror or error}") from error
        try:
            made = self.log_type.create(
                self.disk,
                self._directory(name),
                name,
                config,
                self.checkpoints,
                topic_id=topic_id,
                now_ms=self._now_ms,
            )
        except OSError as error:
            self._left_over.add(name)
            with suppress(OSError):
                self._make_free(name)
            raise StorageFailed(f"{self._directory(name)}: {error.strerror or error}") from error
        if offset := self._gone.pop(name, 0):
            log.error(GONE, made.directory, offset)
        self.logs[name] = made
        return made

    def _make_free(self, name: TopicPartition) -> None:
        """Have nothing lie where a new log is to be. What is not ours is never touched: StorageFailed."""
        if name in self._left_over:
            if self.disk.exists(self._directory(name)):
                self._doomed.append((self._now_ms, self._rename(name, DELETE_SUFFIX)))
            self._left_over.discard(name)
        if name.topic == KEPT_BY_KAFKA or not self._is_free(name):
            raise StorageFailed(
                f"{self._directory(name)} is not ours to write to; move it away, or take another topic name"
            )

    def _is_free(self, name: TopicPartition) -> bool:
        """Return whether a log can be made: nothing is there, or what a crash left before there was a log."""
        directory = self._directory(name)
        if not self.disk.exists(directory):
            return True
        files = self.disk.files(directory)
        return files.keys() <= {f"{PARTITION_METADATA}.tmp"} and not self.disk.directories(directory)

    def delete_log(self, topic: str, partition: int, *, now_ms: int) -> None:
        """Take a partition out of sight at once, and off the disk after file.delete.delay.ms."""
        name = TopicPartition(topic, partition)
        gone = self._take_out(name)
        self.checkpoints.forget(name)
        self._left_over.add(name)
        try:
            aside = self._rename(name, DELETE_SUFFIX)
        except OSError as error:
            with suppress(OSError):
                self._make_id_certain(gone.directory)
            raise StorageFailed(f"{gone.directory}: {error.strerror or error}") from error
        self._doomed.append((now_ms + gone.config.file_delete_delay_ms, aside))
        self._left_over.discard(name)

    def _make_id_certain(self, directory: str) -> None:
        """By its topic's id the next start will know that a log is to go."""
        file = self.disk.open(f"{directory}/{PARTITION_METADATA}")
        try:
            file.sync()
        finally:
            file.close()
        self.disk.sync_directory(directory)

    def _rename(self, name: TopicPartition, ending: str) -> str:
        """Give a directory one of Kafka's names under which no start takes it for a log, and return it."""
        aside = f"{self.path}/{name_aside(name, self._new_uuid(), ending)}"
        self.disk.rename(self._directory(name), aside)
        return aside

    def make_stray(self, topic: str, partition: int) -> str:
        """Take a partition out of sight and leave it on the disk for good; return where it is now."""
        where = self._rename(TopicPartition(topic, partition), STRAY_SUFFIX)
        self.release_log(topic, partition)
        return where

    def make_deletions_certain(self) -> None:
        """Flush the directory: then no loss of power brings back what was deleted. Raises `StorageFailed`."""
        try:
            self.disk.sync_directory(self.path)
        except OSError as error:
            raise StorageFailed(f"{self.path}: {error.strerror or error}") from error

    def release_log(self, topic: str, partition: int) -> None:
        """Let go of a log that turned out to be no partition of ours; nothing of it is touched."""
        name = TopicPartition(topic, partition)
        self._take_out(name)
        self.checkpoints.forget(name)

    def _take_out(self, name: TopicPartition) -> PartitionLog:
        """Return a log that is no longer one of ours, abandoned."""
        self._topic_ids.pop(name, None)
        gone = self.logs.pop(name)
        gone.abandon()
        return gone

    # -- for the broker

    @property
    def log_dir(self) -> str:
        """The path of the directory, as clients are told it."""
        from pathlib import Path

        return str(Path(self.path).absolute())

    def space(self) -> Space:
        """Return the room there is on the directory's disk. Raises OSError."""
        return self.disk.space(self.path)

    def save_starts(self, starts: Mapping[TopicPartition, int], done: Saved) -> None:
        """Write down where logs are to start; `done` is called before this returns."""
        try:
            self.checkpoints.save_starts(starts)
        except OSError as error:
            done(error)
        else:
            done(frozenset())

    # -- time and end

    def tick(self, now_ms: int) -> None:
        """Do what time asks for beyond the logs' own ticks: remove deleted partitions, write checkpoints."""
        self._now_ms = now_ms
        for path in self.take_doomed(now_ms):
            self.disk.remove_tree(path)
        if now_ms >= self._next_save_ms:
            self._next_save_ms = now_ms + LEDGER_INTERVAL_MS
            self.checkpoints.save(self._high_watermarks())

    def take_doomed(self, now_ms: int) -> list[str]:
        """Return the directories of partitions whose time to be removed has come: the caller's to do."""
        due = [path for at_ms, path in self._doomed if at_ms <= now_ms]
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        return due

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {name: log.high_watermark for name, log in self.logs.items()}

    def close(self) -> None:
        """Close all logs and leave the mark of a clean stop, so that the next start need not check them.

        Raises `StorageFailed` if the disk refused, after letting go of everything. The first call says how
        the store ended, for good: another one does nothing.
        """
        if self._closed:
            return
        self._closed = True
        failed: StorageFailed | OSError | None = None
        for log in self.logs.values():
            try:
                log.close()
            except StorageFailed as error:
                failed = error
        try:
            self.checkpoints.save(self._high_watermarks())
            if failed is None and not self.in_doubt:
                mark = write_clean_stop(self._broker_epoch)
                self.disk.save(f"{self.path}/{CLEAN_SHUTDOWN}", mark, sync=True)
        except OSError as error:
            failed = error
        self.release()
        if failed is not None:
            raise StorageFailed(f"{self.path} was not closed cleanly: {failed}") from failed

    def abandon(self) -> None:
        """Let go of everything and write nothing, as the end of the process would."""
        self._closed = True
        for log in self.logs.values():
            log.abandon()
        self.release()

    def release(self) -> None:
        """Give up whatever keeps others out."""


def partition_of(name: str) -> TopicPartition | None:
    """Return the partition that a directory of this name is for, None for any other name."""
    found = PARTITION_DIRECTORY.fullmatch(name)
    return TopicPartition(found["topic"], int(found["partition"])) if found else None


def name_aside(name: TopicPartition, unique: UUID, ending: str) -> str:
    """Return a name of Kafka's for a partition's directory under which no start takes it for a log."""
    suffix = f"-{name.partition}.{unique.hex}{ending}"
    return f"{name.topic[: LONGEST_NAME - len(suffix)]}{suffix}"
