"""The small text files of Kafka's data directory: checkpoints, meta.properties, partition.metadata; and the
checkpoints of a data directory, which hold an offset for each of its partitions.

Every reader raises `Corrupt` for what it cannot read. Files with the offsets of many partitions lie in the
data directory, those of one partition in its own.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition, uuid_from_text, uuid_text
from coterie.storage.disk import Disk

START_OFFSETS = "log-start-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
META = "meta.properties"
EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
LONGEST_NUMBER = len(str(-(2**63)))
NO_BROKER_EPOCH = -1
NO_OFFSETS: Mapping[TopicPartition, int] = MappingProxyType({})


class Meta(NamedTuple):
    """Whose data directory this is."""

    cluster_id: str
    node_id: int
    directory_id: str


def write_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return a checkpoint of an offset for each partition: version 0, their number, a line each."""
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def read_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint. Kafka leaves such a file empty until it first writes it."""
    rows = _rows(data, words=3)
    return {TopicPartition(topic, _number(partition)): _number(offset) for topic, partition, offset in rows}


def write_epochs(epochs: list[tuple[int, int]]) -> bytes:
    """Return the leader epochs of a partition, each with the offset where it began."""
    lines = [f"{epoch} {start}\n" for epoch, start in epochs]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def read_epochs(data: bytes) -> list[tuple[int, int]]:
    """Return the leader epochs of a partition, oldest first; both columns grow."""
    epochs = [(_number(epoch), _number(start)) for epoch, start in _rows(data, words=2)]
    for older, newer in pairwise(epochs):
        if not (older[0] < newer[0] and older[1] <= newer[1]):
            raise Corrupt(f"epoch {newer} after {older}", expected="growing epochs")
    return epochs


def write_meta(meta: Meta) -> bytes:
    """Return meta.properties, as Kafka's own brokers need it to take the directory for theirs."""
    lines = (
        "#",
        f"node.id={meta.node_id}",
        f"directory.id={meta.directory_id}",
        "version=1",
        f"cluster.id={meta.cluster_id}",
    )
    return "".join(line + "\n" for line in lines).encode()


def read_meta(data: bytes) -> Meta:
    """Return the Meta of a meta.properties of version 1."""
    pairs = dict(line.split("=", 1) for line in _text(data).splitlines() if "=" in line and line[0] != "#")
    if pairs.get("version") != "1" or "cluster.id" not in pairs:
        raise Corrupt("a meta.properties without a cluster", expected="version=1 and a cluster.id")
    return Meta(pairs["cluster.id"], _number(pairs.get("node.id", "0")), pairs.get("directory.id", ""))


def write_clean_stop(broker_epoch: int) -> bytes:
    """Return the mark of a clean stop, with the epoch of the registration that the broker had.

    Kafka's controller takes a broker whose mark has another epoch than it remembers for one that crashed.
    """
    return f'{{"version":0,"brokerEpoch":{broker_epoch}}}'.encode()


def read_clean_stop(data: bytes) -> int:
    """Return the epoch in a mark of a clean stop, -1 if it says none: older Kafkas leave it empty."""
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return NO_BROKER_EPOCH
    return epoch if type(epoch) is int and NO_BROKER_EPOCH < epoch < 2**63 else NO_BROKER_EPOCH


def write_partition_metadata(topic_id: UUID) -> bytes:
    """Return partition.metadata, which ties a directory to one life of a topic."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def read_partition_metadata(data: bytes) -> UUID:
    """Return the id of the topic that a partition belongs to."""
    pairs = dict(line.split(": ", 1) for line in _text(data).splitlines() if ": " in line)
    if pairs.get("version") != "0":
        raise Corrupt("a partition.metadata of another version", expected="version: 0")
    return uuid_from_text(pairs.get("topic_id", ""))


def _rows(data: bytes, *, words: int) -> list[list[str]]:
    text = _text(data)
    lines = text.splitlines()
    if not lines:
        return []
    if text[-1] != "\n":  # the last number may have lost digits
        raise Corrupt("a checkpoint cut short", at=len(data))
    if len(lines) < 2 or lines[0] != "0":
        raise Corrupt("a checkpoint of another version", at=0, expected="0")
    rows = [line.split(" ") for line in lines[2:]]
    if len(rows) != _number(lines[1]) or any(len(row) != words for row in rows):
        raise Corrupt("a checkpoint cut short", expected=f"{lines[1]} lines of {words} words")
    return rows


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Corrupt("a file that is no text", at=error.start) from None


def _number(text: str) -> int:
    if len(text) > LONGEST_NUMBER or not (text.isascii() and text.removeprefix("-").isdigit()):
        raise Corrupt(f"{text[: 2 * LONGEST_NUMBER]!r} is no number", expected="one of 64 bits at most")
    return int(text)


def nothing(why: str) -> None:
    """Do nothing."""


class Checkpoints:
    """Where each log starts, and up to where it is flushed and compacted: one for all logs of a directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.starts = self._load(START_OFFSETS) or {}
        self.flushed = self._load(RECOVERY_POINTS) or {}
        compacted = self._load(CLEAN_OFFSETS)
        self.compacted = compacted or {}
        # Written before the recovery points are, it is missing in a directory's first minute alone.
        is_new = not any(disk.exists(f"{directory}/{name}") for name in (CLEAN_OFFSETS, RECOVERY_POINTS))
        self.compacted_is_known = compacted is not None or is_new
        """Whether nothing but the logs named there can have been compacted."""
        # Up to where each log is flushed, as far as the disk knows: opening after a crash begins there.
        self.written = dict(self.flushed)
        # How many directories of partitions were made, and how many of them survive a loss of power.
        self._made = self._certain = 0
        # What the disk said when it would not flush their names: it says so once, and no later flush counts.
        self._refused: tuple[object, ...] = ()
        # What is done when a log cannot be flushed, which no later flush makes good: told where and why.
        self.on_failed_flush: Callable[[str], None] = nothing
        # Whom the files may name. They go by a partition's name, which the next topic may have again.
        self._named = self._known()
        # Which logs the disk knows to be compacted, or to have gaps for another reason.
        self._known_compacted = frozenset(self.compacted)

    def _load(self, name: str) -> dict[TopicPartition, int] | None:
        """Return a checkpoint, None if it is missing or damaged: that costs time, not records."""
        try:
            return read_offsets(self._disk.load(f"{self._directory}/{name}"))
        except (FileNotFoundError, Corrupt):
            return None

    def _known(self) -> set[TopicPartition]:
        return {*self.starts, *self.flushed, *self.compacted}

    def forget(self, partition: TopicPartition) -> None:
        """Drop what is known of a partition that is deleted; the files may still tell of it."""
        for offsets in (self.starts, self.flushed, self.compacted, self.written):
            offsets.pop(partition, None)

    def forget_for_good(self, partition: TopicPartition) -> None:
        """Have the files, too, say nothing of a partition before one of that name is made: no crash may
        give a new log the start, or the recovery point, of an earlier one.
        """
        self.forget(partition)
        if partition in self._named:
            self.save()

    def last_offsets(self) -> dict[TopicPartition, int]:
        """Return up to where each partition had records, when this was last written down."""
        ends = self._load(HIGH_WATERMARKS) or {}
        return {name: max(ends.get(name, 0), self.flushed.get(name, 0)) for name in {*ends, *self.flushed}}

    def keep_only(self, partitions: Container[TopicPartition]) -> None:
        """Forget all others: their directories are gone."""
        for partition in self._known():
            if partition not in partitions:
                self.forget(partition)

    def directory_made(self) -> int:
        """Return the number of a partition's directory that is new, for `make_certain`."""
        self._made += 1
        return self._made

    def make_certain(self, made: int) -> None:
        """Have a new directory survive a loss of power, and with it all that were made or renamed so far."""
        if made > self._certain:
            if self._refused:
                raise OSError(*self._refused)
            try:
                self._disk.sync_directory(self._directory)
            except OSError as error:
                self._refused = error.args
                raise
            self._certain = self._made

    def save_starts(self, ahead: Mapping[TopicPartition, int] = NO_OFFSETS) -> None:
        """Write where the logs start, and where some are about to: until it is written nobody is told.

        After an OSError none of them is to start there.
        """
        moved = {name: offset for name, offset in ahead.items() if offset > self.starts.get(name, 0)}
        self._named |= self.starts.keys() | moved.keys()
        self._save(START_OFFSETS, {**self.starts, **moved})
        self.starts.update(moved)

    def save_compacted(self) -> None:
        """Write up to where the logs are compacted, and that they were: gaps in those are no damage."""
        self._named |= self.compacted.keys()
        self._known_compacted = frozenset()  # after an OSError it may be either
        self._save(CLEAN_OFFSETS, self.compacted)
        self._known_compacted = frozenset(self.compacted)

    def expect_gaps(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Have the disk know which logs may have gaps, those that it was to know before too. Raises OSError.

        It has to know before there are any, and before the topic's policy is another one: a start that is
        told to delete would take a gap for damage, and cut the log there.
        """
        for partition in partitions:
            self.compacted.setdefault(partition, 0)
        if not self.compacted.keys() <= self._known_compacted:
            self.save_compacted()

    def was_cut(self, partition: TopicPartition, end_offset: int) -> bool:
        """Return whether a log ends below what of it was compacted: what comes there now never was.

        The disk has to know before anything comes, or what has grown up to there passes for compacted.
        """
        if self.compacted.get(partition, 0) <= end_offset:
            return False
        self.compacted[partition] = 0
        self._known_compacted -= {partition}
        return True

    def save(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Write everything; the high watermarks are for Kafka's brokers, which trust nothing beyond them."""
        self._named |= self._known()
        self._save(START_OFFSETS, self.starts)
        self.save_compacted()
        self._save(RECOVERY_POINTS, self.flushed)
        self.written = dict(self.flushed)
        self._named = self._known()
        if high_watermarks is not None:
            self._save(HIGH_WATERMARKS, high_watermarks)

    def _save(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._disk.save(f"{self._directory}/{name}", write_offsets(offsets), sync=True)
