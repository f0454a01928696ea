"""The checkpoint files of the data directory, which hold an offset for each of its partitions."""

from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.storage.checkpoints import (
    CLEAN_OFFSETS,
    HIGH_WATERMARKS,
    RECOVERY_POINTS,
    START_OFFSETS,
    read_offsets,
    write_offsets,
)
from coterie.storage.disk import Disk

NO_OFFSETS: Mapping[TopicPartition, int] = MappingProxyType({})


def nothing(why: str) -> None:
    """Do nothing."""


class Ledger:
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
