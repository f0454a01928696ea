"""A partition's log: a row of segments on a disk, real or pretended. See `contract` for what it promises."""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.storage import compaction
from coterie.storage.checkpoints import EPOCHS, PARTITION_METADATA, write_epochs, write_partition_metadata
from coterie.storage.compaction import CompactionPlan, CompactionResult, Need
from coterie.storage.config import LogConfig
from coterie.storage.disk import Buffer, Disk
from coterie.storage.log.aborted import Aborted, AbortedIndex, AbortedSpan
from coterie.storage.log.contract import (
    Appended,
    AppendRefused,
    Log,
    OffsetAt,
    OffsetOutOfRange,
    StorageFailed,
)
from coterie.storage.log.epochs import Epochs, begun, end_of, from_start
from coterie.storage.log.producers import ActiveProducer, ProducerState, Verification, marker_of
from coterie.storage.log.recovery import SNAPSHOT, Loaded, load
from coterie.storage.log.searching import first_from, youngest_of
from coterie.storage.log.segment import DELETED, FILES, LOG, SWAP, Segment, name_of
from coterie.storage.log.validate import (
    Batch,
    Prepared,
    coordinator_batches,
    headed,
    prepared,
    prepared_promptly,
)
from coterie.storage.offset_checkpoints import Ledger
from coterie.storage.rewrite import checksum
from coterie.wire.records.batches import BatchHeader, read_header, restamp

__all__ = ["FileLog", "FlushPlan", "run_flush", "run_removal"]

log = logging.getLogger("coterie.storage")

STAMP = Struct(">qii")
EXPIRY_INTERVAL_MS = 600_000
IDLE_INTERVAL_MS = 60_000

Span = tuple[BatchHeader, int, int]
"""A batch as it goes into the log: its header as it came, its base offset, the last of its timestamps."""


def _made_ready(
    records: bytes | bytearray | Prepared, config: LogConfig, now_ms: int, *, promptly: bool
) -> Batch:
    if isinstance(records, Prepared):
        return records
    batch = headed(records, config)
    return prepared_promptly(batch, config, now_ms) if promptly else prepared(batch, config, now_ms)


class FlushPlan(NamedTuple):
    """Closed segments and snapshots of producers that are not yet known to survive a loss of power."""

    directory: str
    paths: tuple[str, ...]
    upto: int
    snapshots: tuple[int, ...]
    failed: str = ""


def run_flush(plan: FlushPlan, disk: Disk) -> FlushPlan:
    """Flush what a plan names, and return it; `failed` says why if the disk would not.

    Safe in any thread: nobody writes to these files any more.
    """
    for path in plan.paths:
        with suppress(FileNotFoundError):  # deleted meanwhile, by retention or because it was compacted
            file = disk.open(path)
            try:
                file.sync()
            except OSError as error:
                return plan._replace(failed=error.strerror or str(error))
            finally:
                file.close()
    try:
        disk.sync_directory(plan.directory)
    except OSError as error:
        return plan._replace(failed=error.strerror or str(error))
    return plan


def run_removal(paths: Sequence[str], disk: Disk) -> None:
    """Remove files that nobody uses any more. Safe in any thread; large ones take their time."""
    for path in paths:
        disk.remove(path)


class FileLog:
    """The log of one partition."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: TopicPartition,
        config: LogConfig,
        loaded: Loaded,
        ledger: Ledger,
    ) -> None:
        self.name = name
        self.directory = directory
        self.producers: ProducerState = loaded.producers
        self.start_offset = max(ledger.starts.get(name, 0), loaded.segments[0].base_offset)
        if self.start_offset:  # what lay before may come back with a loss of power, if nobody has written it
            ledger.starts[name] = self.start_offset
        self.end_offset = loaded.end_offset
        self.closed = False
        self._disk = disk
        self._config = config
        self._ledger = ledger
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        # Who moved the start may have been killed before that was written; the next to write them does it.
        self._epochs: Epochs = from_start(loaded.epochs, self.start_offset)
        flushed = max(ledger.flushed.get(name, 0), loaded.segments[0].base_offset)
        self.recovery_point = min(flushed, loaded.end_offset)
        # What the disk refused last while time was served; empty when it is well.
        self.trouble = ""
        self._torn = False  # whether there may be bytes of a failed append behind the end
        self._cut = False  # whether there were, and a loss of power might bring them back
        # Whether the next start would take what is missing for damage, or what is new for compacted.
        self._gaps_untold = ledger.was_cut(name, loaded.end_offset) or loaded.gaps
        self._recovered = loaded.recovered  # whether what a start has cut off might come back
        self._takes_none = False
        """The disk has refused the last append, and that was told."""
        self._stray: int | None = None
        # Whether the names of its files survive a loss of power; the number of its directory if it is new.
        self._names_flushed = False
        self._made = 0
        self._unflushed_since: int | None = None
        # Once a flush has failed no later one is believed: the system may have dropped what it could not
        # write, and says so once. Until the next start, which reads what is there, nothing counts as flushed.
        self._flush_failed = False
        self._doomed: list[tuple[int, list[str]]] = []
        # Compacted segments that are not yet called by their names, each with those that they replace.
        self._swaps: list[tuple[Segment, list[Segment]]] = []
        self._snapshots = loaded.snapshots
        # Opening after a crash begins with the one at the recovery point: they are flushed before it moves.
        self._unflushed_snapshots = loaded.unflushed_snapshots
        self._next_expiry_ms = self._next_idle_ms = 0

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        name: TopicPartition,
        config: LogConfig,
        ledger: Ledger,
        *,
        topic_id: UUID,
        now_ms: int,
    ) -> "FileLog":
        """Return a new log in a directory of its own, led in epoch 0 from the start."""
        disk.make_directory(directory)
        disk.save(f"{directory}/{PARTITION_METADATA}", write_partition_metadata(topic_id))
        first = Segment.create(disk, directory, 0, now_ms=now_ms, interval=config.index_interval_bytes)
        log = cls(
            disk, directory, name, config, Loaded([first], 0, ProducerState(), [(0, 0)], [], [], []), ledger
        )
        log._made = ledger.directory_made()
        log._save_epochs()
        return log

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        name: TopicPartition,
        config: LogConfig,
        ledger: Ledger,
        *,
        clean: bool,
        gapless: bool,
        now_ms: int,
    ) -> "FileLog":
        """Return the log that lies in a directory, mended if it was not closed. `gapless`: see `recovery`.

        Producers expire with the first `tick`: until then the config may not be the topic's own.
        """
        loaded = load(
            disk,
            directory,
            interval=config.index_interval_bytes,
            start_offset=ledger.starts.get(name, 0),
            recovery_point=ledger.flushed.get(name, 0),
            clean=clean,
            gapless=gapless,
            now_ms=now_ms,
        )
        log = cls(disk, directory, name, config, loaded, ledger)
        if not log._epochs:
            log._epochs = [(0, log.start_offset)]
        if log._epochs != from_start(loaded.written_epochs, log.start_offset):
            log._save_epochs()
        with suppress(OSError):  # tried again before anything is written behind them, or the policy changes
            log._tell_of_gaps()
        return log

    # -- what it is

    @property
    def config(self) -> LogConfig:
        """The settings of its topic."""
        return self._config

    @property
    def high_watermark(self) -> int:
        """The end of what readers may see: all of it, with one replica."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The start of the oldest open transaction as far as it is still there, or the end."""
        unstable = self.producers.first_unstable_offset
        return self.end_offset if unstable is None else max(unstable, self.start_offset)

    def open_transaction(self, producer_id: int) -> int:
        """Return the first offset of a producer's open transaction, -1 without one."""
        return self.producers.open_since(producer_id)

    def active_producers(self) -> list[ActiveProducer]:
        """Return the producers that the log remembers."""
        return [*self.producers.active()]

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches on the disk."""
        return sum(segment.size for segment in self._segments)

    def configure(self, config: LogConfig) -> None:
        """Take other settings from now on."""
        self._config = config
        for segment in self._segments:
            segment.interval = config.index_interval_bytes

    # -- appending

    def verification(self, header: BatchHeader, *, joins: bool, now_ms: int) -> Verification | None:
        """Return what `append` must be shown with this transactional batch once the coordinator agreed.

        None: nobody needs to be asked. `joins`: partitions join a transaction by being written to (KIP-890).
        """
        return self.producers.verification(header, joins=joins, now_ms=now_ms)

    def append(
        self,
        records: bytes | bytearray | Prepared,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        leader_epoch: int = 0,
        origin: str = "client",
        verified: Verification | None = None,
        transaction_version: int = 0,
        promptly: bool = False,
    ) -> Appended:
        """Write whole batches at the end, or raise `AppendRefused` and leave the log as it was.

        Timestamps go by `wall_ms`, without it by `now_ms`. `verified` is what `verification` gave; the
        `transaction_version` says how strictly the epoch of a marker is looked at. Who wants it `promptly` is
        told with `TakesLong` to have a producer's batch prepared aside.
        """
        if self.closed:
            raise AppendRefused(Code.KAFKA_STORAGE_ERROR, f"{self.directory} is closed")
        config = self._config
        wall_ms = now_ms if wall_ms is None else wall_ms
        headers: Sequence[BatchHeader]
        if isinstance(records, Prepared) or origin == "client":
            header, records = _made_ready(records, config, wall_ms, promptly=promptly)
            if header.producer_id >= 0:
                known = self.producers.duplicate_of(header)
                if known is not None:
                    return Appended(
                        known.base_offset, known.last_offset, known.timestamp, self.start_offset, True
                    )
                self.producers.check(header, sequenced=True, verified=verified)
            headers = (header,)
        else:
            headers = coordinator_batches(records, config)
            self._check_producers(records, headers, transaction_version, verified)

        if leader_epoch > self._epochs[-1][0]:
            try:
                self.lead(leader_epoch)
            except OSError as error:
                raise AppendRefused(Code.KAFKA_STORAGE_ERROR, _sentence(self.directory, error)) from error
        leader_epoch = self._epochs[-1][0]  # a directory of a cluster's may have seen later ones than ours
        base_offset = self.end_offset
        append_time_ms = wall_ms if config.message_timestamp_type == "LogAppendTime" else -1
        spans, next_offset = _placed(headers, base_offset, append_time_ms)
        parts = _stamped(records, spans, leader_epoch, append_time_ms)
        self._write(parts, len(records), spans, next_offset, wall_ms)
        self.end_offset = next_offset
        if self._unflushed_since is None and self.recovery_point < next_offset:
            self._unflushed_since = now_ms
        if headers[0].producer_id >= 0 or len(headers) > 1:
            self._learn(records, spans)
        return Appended(base_offset, next_offset - 1, append_time_ms, self.start_offset)

    def _check_producers(
        self,
        records: bytes | bytearray,
        headers: Sequence[BatchHeader],
        transaction_version: int,
        verified: Verification | None,
    ) -> None:
        at = 0
        for header in headers:
            if header.producer_id >= 0:
                marker = marker_of(records, at) if header.control else None
                if marker is None:
                    self.producers.check(header, sequenced=False, verified=verified)
                else:
                    self.producers.check_marker(header, marker, transaction_version=transaction_version)
            at += header.size

    def _write(
        self,
        parts: Sequence[Buffer],
        size: int,
        spans: Sequence[Span],
        next_offset: int,
        wall_ms: int,
    ) -> None:
        """Write to the last segment, or to a new one if that is full. What fails is taken back."""
        segment = self._segments[-1]
        sync = next_offset - self.recovery_point >= self._config.flush_messages
        try:
            self._clear_away()
            if segment.size and self._is_full(segment, size, next_offset - 1, spans[-1][2], wall_ms):
                segment = self._roll(wall_ms)
            if sync and (self.recovery_point < segment.base_offset or not self._names_flushed):
                self.flush()
            if sync:
                self._demand_flushes()
            segment.append(parts, size, spans, sync=sync)
        except (OSError, StorageFailed) as error:
            if segment.flush_failed:
                self._fail_flush(str(getattr(error, "strerror", None) or error))
            self._take_back(segment)
            why = _sentence(self.directory, error)
            if not self._takes_none:  # once: producers try again and again
                self._takes_none = True
                log.error("no records can be written for now: %s", why)
            raise AppendRefused(Code.KAFKA_STORAGE_ERROR, why) from error
        if self._takes_none:
            self._takes_none = False
            log.warning("records are written again: %s", self.directory)
        segment.written_ms = wall_ms
        if sync:
            self._flushed_to(next_offset)

    def _take_back(self, segment: Segment) -> None:
        """Cut off what a failed append left; if even that fails, the next append tries again first."""
        self._cut = True
        try:
            segment.mend()
        except OSError:
            self._torn = True

    def _tell_of_gaps(self) -> None:
        if self._gaps_untold:
            self._ledger.expect_gaps([self.name])
            self._gaps_untold = False

    def _clear_away(self) -> None:
        """Take away what failed appends have left, where that has failed as well."""
        self._tell_of_gaps()
        if self._torn:
            self._segments[-1].mend()
            self._torn = False
        if self._stray is not None:
            self._remove_stray(self._stray)

    def _remove_stray(self, base_offset: int) -> None:
        """Take away the files of a segment that could not be begun.

        Once the one before it goes on, opening would find two segments for the same offsets, and lose what
        comes behind. So would it if a loss of power brought the files back.
        """
        stem = f"{self.directory}/{name_of(base_offset)}"
        for ending in FILES:
            self._disk.remove(stem + ending)
        self._stray, self._names_flushed = None, False

    def _is_full(self, segment: Segment, size: int, last_offset: int, newest_ms: int, wall_ms: int) -> bool:
        config = self._config
        return (
            segment.full(
                size,
                last_offset,
                segment_bytes=config.segment_bytes,
                index_bytes=config.segment_index_bytes,
            )
            or segment.waited_ms(newest_ms, wall_ms) > config.roll_ms
        )

    def _roll(self, wall_ms: int) -> Segment:
        """Begin a new segment at the end of the log."""
        self._clear_away()  # opening would take what is torn for the end, and drop what comes behind
        if self.recovery_point >= self.end_offset:  # a crash would not look at the last segment again
            self._flush_unseen(self._segments[-1])
        interval = self._config.index_interval_bytes
        self._stray = self.end_offset  # until all of its files are there
        segment = Segment.create(
            self._disk,
            self.directory,
            self.end_offset,
            now_ms=wall_ms,
            interval=interval,
            opened=self._segments[-1].opened,
        )
        self._stray = None
        self._segments[-1].save_indexes(final=True)
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._names_flushed = self._recovered = False
        self._take_snapshot()
        return segment

    def _flush_unseen(self, last: Segment) -> None:
        """Flush what a recovery point says nothing of: the indexes, and what was cut off."""
        if last.flush_failed:  # the next start is to look at it again
            self._demand_flushes()
        if not last.save_indexes(final=True):
            raise StorageFailed(f"{self.directory}: the indexes cannot be written")
        try:
            last.sync_aborted()
            last.sync_indexes()
            if self._cut or self._recovered:
                last.sync()
                self._cut = False
        except OSError as error:
            if last.flush_failed:  # and not refused for want of room
                self._fail_flush(error.strerror or str(error))
            raise

    def _learn(self, records: bytes | bytearray, spans: Sequence[Span]) -> None:
        """Let producers know of what was written."""
        at = 0
        for header, base_offset, timestamp in spans:
            if header.producer_id >= 0:
                if not header.control:
                    self.producers.record(header, base_offset=base_offset, timestamp=timestamp)
                elif (marker := marker_of(records, at)) is not None:
                    ended = self.producers.end_transaction(
                        header, marker, offset=base_offset, timestamp=timestamp
                    )
                    if ended is not None and ended.aborted:
                        self._segments[-1].aborted.add(AbortedSpan(*ended[:4]))
                    if ended is not None and base_offset >= self.recovery_point:
                        self._segments[-1].note_ended(ended.first_offset)
            at += header.size

    def lead(self, epoch: int) -> None:
        """Have what comes be written in this epoch, unless a later one is known. Raises OSError."""
        if epoch <= self.latest_epoch:
            return
        before, self._epochs = self._epochs, begun(self._epochs, epoch, self.end_offset)
        try:
            self._save_epochs()
        except OSError:
            self._epochs = before
            raise

    def _save_epochs(self) -> None:
        epoch, start = self._epochs[-1]
        # Else the batches tell of it: a file that a loss of power leaves cut short is made anew from them.
        told_here_alone = epoch > 0 and start >= self.recovery_point
        self._disk.save(f"{self.directory}/{EPOCHS}", write_epochs(self._epochs), sync=told_here_alone)

    # -- reading

    def read(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True, end_offset: int | None = None
    ) -> bytes:
        """Return whole batches from the one that holds `offset`, none from `end_offset` on."""
        end = self.end_offset
        if not self.start_offset <= offset <= end:
            raise OffsetOutOfRange(offset=offset, start=self.start_offset, end=end)
        if end_offset is not None and end_offset < end:
            end = end_offset
        if offset >= end:
            return b""
        upto = None if end == self.end_offset else end
        try:
            return self._read(offset, max_bytes, at_least_one, upto)
        except OSError as error:
            raise StorageFailed(f"{self.directory}: {error.strerror}") from error

    def _read(self, offset: int, max_bytes: int, at_least_one: bool, upto: int | None) -> bytes:
        for segment in self._segments[bisect_right(self._bases, offset) - 1 :]:
            data = segment.read(offset, max_bytes=max_bytes, at_least_one=at_least_one, end_offset=upto)
            if data is not None:
                return data
        return b""

    def read_committed(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True
    ) -> tuple[bytes, tuple[Aborted, ...]]:
        """Return what `read` does up to the last stable offset, and which transactions in it were aborted."""
        end = self.last_stable_offset
        records = self.read(offset, max_bytes=max_bytes, at_least_one=at_least_one, end_offset=end)
        here = max(0, bisect_right(self._bases, offset) - 1)
        if not records or not any(len(segment.aborted) for segment in islice(self._segments, here, None)):
            return records, ()
        with self._told_of():
            beyond = self._offset_beyond(offset, max(max_bytes, len(records)), end)
            return records, self.aborted_transactions(offset, beyond)

    def _offset_beyond(self, offset: int, size: int, end: int) -> int:
        """Return where a read of `size` bytes from `offset` up to `end` ends at the latest."""
        place = bisect_right(self._bases, offset) - 1
        while self._segments[place].position_of(offset) is None:
            place += 1
        beyond = self._segments[place].offset_beyond(offset, size, end_offset=end)
        if beyond is not None:
            return beyond
        return self._bases[place + 1] if place + 1 < len(self._bases) else self.end_offset

    def size_between(self, offset: int, end_offset: int) -> int:
        """Return how many bytes the batches have from the one that holds `offset` up to `end_offset`."""
        first, last = bisect_right(self._bases, offset) - 1, bisect_right(self._bases, end_offset) - 1
        with self._told_of():
            start = self._segments[first].position_of(offset)
            end = self._segments[last].position_of(end_offset)
        size = sum(segment.size for segment in self._segments[first : last + 1])
        size -= self._segments[first].size if start is None else start
        return size - (0 if end is None else self._segments[last].size - end)

    def aborted_transactions(self, first: int, end: int) -> tuple[Aborted, ...]:
        """Return the aborted transactions that touch the offsets from `first` up to `end`."""
        return tuple(Aborted(*span[:2]) for span in self._aborted_within(first, end))

    def _aborted_within(self, first: int, end: int) -> list[AbortedSpan]:
        found: list[AbortedSpan] = []
        for segment in self._segments[max(0, bisect_right(self._bases, first) - 1) :]:
            spans, complete = segment.aborted.within(first, end)
            found += spans
            if complete:
                break
        return found

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAt | None:
        """Return the first record that is as young as `timestamp_ms` or younger."""
        at = self.start_offset
        while (batch := self.batch_from(timestamp_ms, at)) is not None:
            found = first_from(batch, timestamp_ms, at)
            if found is not None:
                return found
            at = read_header(batch).last_offset + 1
        return None

    def batch_from(self, timestamp_ms: int, offset: int) -> bytes | None:
        """Return the first batch from an offset on that says to hold a record as young as this.

        Whether it does `first_from` finds out, which may take its time, and needs nothing but the batch.
        """
        offset = max(offset, self.start_offset)
        with self._told_of():
            for segment in self._segments[max(0, bisect_right(self._bases, offset) - 1) :]:
                if segment.highest_timestamp >= timestamp_ms:
                    batch = segment.batch_from(timestamp_ms, from_offset=offset)
                    if batch is not None:
                        return batch
        return None

    def offset_of_max_timestamp(self) -> OffsetAt | None:
        """Return the record with the highest timestamp; the first of several."""
        batch = self.youngest_batch()
        return None if batch is None else youngest_of(batch, self.start_offset)

    def youngest_batch(self) -> bytes | None:
        """Return the batch that says to hold the highest timestamp, the first of several."""
        with self._told_of():
            highest = max(segment.highest_timestamp for segment in self._segments)
        return None if highest < 0 else self.batch_from(highest, self.start_offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch known up to `epoch` and the offset where it ends, or (-1, -1)."""
        return end_of(self._epochs, epoch, end_offset=self.end_offset)

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch: what clients are told, and what batches are stamped with."""
        return self._epochs[-1][0]

    @property
    def earliest_epoch(self) -> int:
        """The leader epoch of the first record, -1 if that is not known."""
        epoch, start = self._epochs[0]
        return epoch if start <= self.start_offset else -1

    # -- forgetting

    def delete_before(self, offset: int, now_ms: int, *, save: bool = True) -> int:
        """Forget what lies before `offset`; return the new start.

        Who moves many starts has them written down first, with `Ledger.save_starts`, and lets none `save`.
        """
        if not 0 <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset=offset, start=self.start_offset, end=self.end_offset)
        if offset > self.start_offset:
            with self._told_of():
                if save:
                    self._ledger.save_starts({self.name: offset})
                self._start_at(offset)
                self._save_epochs()
                self._delete_breached(now_ms)
        return self.start_offset

    def _start_at(self, offset: int) -> None:
        """Have the log start there, once no kill takes it back: a start that was told never does."""
        self.start_offset = offset
        self._ledger.starts[self.name] = max(offset, self._ledger.starts.get(self.name, 0))
        self._epochs = from_start(self._epochs, offset)

    def _delete_breached(self, now_ms: int) -> None:
        """Delete the segments that end below the start of the log."""
        count = sum(base <= self.start_offset for base in self._bases[1:])
        self._delete_segments(self._deletable(count, now_ms), now_ms)

    def _retain(self, now_ms: int, wall_ms: int) -> None:
        """Delete what is too old or too much, whole segments from the oldest on."""
        config = self._config
        if not config.deleted:
            return
        count = 0
        surplus = self.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
        while count < len(self._segments):
            segment = self._segments[count]
            surplus -= segment.size
            old = 0 <= config.retention_ms < wall_ms - segment.newest_ms
            if not (old or surplus >= 0) or (segment is self._segments[-1] and not segment.size):
                break
            count += 1
        if count:
            self._delete_oldest(count, now_ms, wall_ms)

    def _delete_oldest(self, count: int, now_ms: int, wall_ms: int) -> None:
        if count == len(self._segments):
            self._roll(wall_ms)
        before = self.start_offset
        self._delete_segments(self._deletable(count, now_ms), now_ms)
        if self.start_offset != before:
            self._save_epochs()

    def _delete_segments(self, count: int, now_ms: int) -> None:
        """Take the first segments out of the log; their files go later, in case somebody wants them back.

        Where it starts then is written down nowhere but by what is gone: what the disk keeps is not passed.
        """
        for _ in range(count):
            self._doom(self._segments[0], now_ms)
            del self._segments[0], self._bases[0]
            if self._bases[0] > self.start_offset:
                self._start_at(self._bases[0])
        self._flushed_to(max(self.recovery_point, self._bases[0]))

    def _deletable(self, count: int, now_ms: int) -> int:
        """Return how many of the first `count` segments may go one by one: a crash may come after any."""
        self._finish_swaps(now_ms)
        if not all(map(self._knows_producers_from, range(1, count + 1))):
            self._flush_snapshots()
        return sum(1 for _ in takewhile(self._knows_producers_from, range(1, count + 1)))

    def _doom(self, segment: Segment, now_ms: int) -> None:
        segment.release()
        paths = []
        for ending in FILES:
            path = segment.path(ending)
            with suppress(FileNotFoundError):  # tried before, and stopped half way; or there is none
                self._disk.rename(path, path + DELETED)
            paths.append(path + DELETED)
        self._doomed.append((now_ms + self._config.file_delete_delay_ms, paths))

    # -- compaction

    def need_of_compaction(self, now_ms: int) -> Need | None:
        """Return how much a compaction is due, None if it is not. Raises StorageFailed for a damaged log."""
        return compaction.need(self._compaction_range(now_ms), self._config, now_ms)

    def _compaction_range(self, now_ms: int) -> compaction.Range:
        first_dirty = self._ledger.compacted.get(self.name, 0)
        if not self.start_offset <= first_dirty <= self.end_offset:
            first_dirty = self.start_offset
        return compaction.range_of(
            self._segments,
            self._config,
            first_dirty=first_dirty,
            settled=self._settled(),
            now_ms=now_ms,
        )

    def _settled(self) -> int:
        """Return up to where everything is decided and flushed, the markers that have decided it too.

        What a loss of power leaves undecided must not have replaced anything.
        """
        first = max(0, bisect_right(self._bases, self.recovery_point) - 1)
        unsure = [one.ended_from for one in self._segments[first:] if one.ended_from is not None]
        return min(self.last_stable_offset, self.recovery_point, *unsure)

    def plan_compaction(self, now_ms: int, wall_ms: int | None = None) -> CompactionPlan | None:
        """Return what a compaction would do now; None if nothing can be compacted.

        How old things are goes by `now_ms`; what is written of that, for later, by `wall_ms` if it is given.
        """
        if not self._config.compacted or self._swaps:
            return None
        found = self._compaction_range(now_ms)
        return compaction.plan(
            found,
            self._config,
            self.directory,
            producers=self.producers.producers,
            aborted=tuple(self._aborted_within(self._bases[0], found.upto)),
            now_ms=now_ms,
            wall_ms=now_ms if wall_ms is None else wall_ms,
        )

    def finish_compaction(self, result: CompactionResult, now_ms: int) -> bool:
        """Put compacted segments in their places; or return False if the log has changed under the plan.

        Raises StorageFailed where the disk refuses, or has refused what was to be written.
        """
        if not all(map(self._still_there, result.plan.groups)):
            compaction.discard(result.plan, self._disk)
            return False
        if result.failed:  # by nothing that the log knows of
            raise StorageFailed(result.failed)
        try:
            with self._told_of():
                self._demand_flushes()
                self._ledger.expect_gaps([self.name])
                self._have_starts_begin_at(result.plan.upto)
                self._names_flushed = False
                for group in result.groups:
                    self._swap(group, now_ms)
                self._flush_names()  # or a loss of power leaves as it was what is said to be compacted
                self._ledger.compacted[self.name] = result.plan.upto
                self._ledger.save_compacted()
        except StorageFailed:
            with suppress(OSError):
                compaction.discard(result.plan, self._disk)
            raise
        return True

    def _have_starts_begin_at(self, offset: int) -> None:
        """Have a start begin there, or later, before segments below become one.

        Else it might begin with that one, where no snapshot tells of producers whose batches are deleted.
        """
        if self.producers.producers and self._first_recovered() < offset:
            self._ledger.save()

    def _still_there(self, bases: tuple[int, ...]) -> bool:
        place = bisect_right(self._bases, bases[0]) - 1
        return tuple(self._bases[place : place + len(bases)]) == bases

    def _swap(self, group: compaction.Group, now_ms: int) -> None:
        """Put a compacted segment in the place of those it was made of.

        It counts from the moment that it is a `.swap`, here as for a start after a crash. The disk may refuse
        what is left to do; readers go on with it, and `_finish_swaps` tries again.
        """
        place = self._bases.index(group.bases[0])
        old = self._segments[place : place + len(group.bases)]
        compaction.cleaned_to_swap(old[0].stem, self._disk)
        new = Segment(
            self._disk,
            self.directory,
            group.bases[0],
            size=group.size,
            created_ms=old[-1].written_ms,
            interval=self._config.index_interval_bytes,
            suffix=SWAP,
            opened=old[0].opened,
        )
        new.adopt_aborted(AbortedIndex(group.aborted))
        self._segments[place : place + len(old)] = [new]
        self._bases[place : place + len(old)] = [new.base_offset]
        self._swaps.append((new, old))
        self._finish_swaps(now_ms)

    def _finish_swaps(self, now_ms: int) -> None:
        """Take away what compacted segments replace, and give them their names."""
        while self._swaps:
            new, old = self._swaps[0]
            while old:
                self._doom(old[-1], now_ms)
                old.pop()
            compaction.swap_to_final(new.stem, self._disk)
            new.suffix = ""
            del self._swaps[0]
            self._disk.touch(new.path(LOG), new.created_ms)

    def compact(self, now_ms: int) -> bool:
        """Compact at once, in this thread; return whether there was anything to do."""
        self._flush_closed()
        plan = self.plan_compaction(now_ms)
        return plan is not None and self.finish_compaction(
            compaction.run_compaction(plan, self._disk), now_ms
        )

    # -- flushing

    def flush(self) -> None:
        """Make everything appended so far survive a loss of power, and nothing that was refused."""
        self._demand_flushes()
        with self._told_of():
            self._clear_away()
            self._flush_closed()
            if self.recovery_point < self.end_offset or self._cut:
                try:
                    self._segments[-1].sync()
                except OSError as error:
                    self._fail_flush(error.strerror or str(error))
                    raise
                self._cut = False
        if self.recovery_point < self._bases[-1]:
            raise StorageFailed(f"{self.directory}: the indexes of closed segments cannot be written")
        self._flushed_to(self.end_offset)

    @property
    def may_bring_back(self) -> bool:
        """Whether a crash might leave what was refused, until the next flush."""
        return self._torn or self._cut

    @property
    def needs_restart(self) -> bool:
        """Whether a flush has failed, so that only the next start can tell what is left."""
        return self._flush_failed

    def _fail_flush(self, why: str) -> None:
        """Believe no flush any more, and tell whoever is to know."""
        if not self._flush_failed:
            self._flush_failed = True
            self._ledger.on_failed_flush(f"{self.directory} cannot be flushed: {why}")

    def _demand_flushes(self) -> None:
        """Raise StorageFailed if nothing can be promised any more of what survives a loss of power."""
        if self._flush_failed:
            raise StorageFailed(f"{self.directory}: a flush has failed; only a restart can tell what is left")

    @contextmanager
    def _told_of(self) -> Iterator[None]:
        """Raise StorageFailed for what the disk refuses."""
        try:
            yield
        except OSError as error:
            raise StorageFailed(_sentence(self.directory, error)) from error

    def _flush_closed(self) -> None:
        plan = self.plan_flush()
        if plan is not None:
            self.finish_flush(run_flush(plan, self._disk))
            self._demand_flushes()
        self._flush_names()

    def _flush_names(self) -> None:
        if self._names_flushed:
            return
        try:
            self._disk.sync_directory(self.directory)
            self._ledger.make_certain(self._made)
        except OSError as error:
            self._fail_flush(error.strerror or str(error))
            raise
        self._names_flushed = True

    def plan_flush(self) -> FlushPlan | None:
        """Return what is to flush of closed segments, for `run_flush` in any thread, then `finish_flush`."""
        if self._flush_failed:
            return None
        done = upto = self.recovery_point
        paths: list[str] = []
        for segment, end in zip(self._segments, self._bases[1:], strict=False):
            if end <= done:
                continue
            if not segment.save_indexes(final=True):
                break
            paths += map(segment.path, FILES)
            upto = end
        paths += map(self._snapshot_path, self._unflushed_snapshots)
        plan = FlushPlan(self.directory, tuple(paths), upto, tuple(self._unflushed_snapshots))
        return plan if plan.paths else None

    def finish_flush(self, plan: FlushPlan) -> None:
        """Take note that a plan was carried out, or that the disk would not flush."""
        if plan.failed:
            self._fail_flush(plan.failed)
        if self._flush_failed:  # it may have failed before this plan was carried out
            return
        for offset in plan.snapshots:
            if offset in self._unflushed_snapshots:
                self._unflushed_snapshots.remove(offset)
        self._flushed_to(max(self.recovery_point, plan.upto))

    def _flushed_to(self, offset: int) -> None:
        self.recovery_point = self._ledger.flushed[self.name] = offset
        if offset >= self.end_offset:
            self._unflushed_since = self._segments[-1].ended_from = None

    # -- time

    def tick(self, now_ms: int, wall_ms: int | None = None) -> None:
        """Do what time asks for: retention, flushing, expiry of producers, late removal of files.

        How old records and producers are goes by `wall_ms`, without it by `now_ms`. A disk that refuses is
        told of in `trouble`; what was due is tried again the next time.
        """
        try:
            self._serve_disk(now_ms, now_ms if wall_ms is None else wall_ms)
            self.trouble = ""
        except (OSError, StorageFailed) as error:
            self.trouble = str(error)
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + EXPIRY_INTERVAL_MS
            today_ms = now_ms if wall_ms is None else wall_ms
            self.producers.expire(before_ms=today_ms - self._config.producer_id_expiration_ms)
        if now_ms >= self._next_idle_ms:
            self._next_idle_ms = now_ms + IDLE_INTERVAL_MS
            self._release_idle()

    def _serve_disk(self, now_ms: int, wall_ms: int) -> None:
        self._segments[-1].save_indexes()
        self._finish_swaps(now_ms)
        self._retain(now_ms, wall_ms)
        run_removal(self.take_doomed(now_ms), self._disk)
        if self._unflushed_since is not None and now_ms - self._unflushed_since >= self._config.flush_ms:
            self.flush()

    def take_doomed(self, now_ms: int) -> list[str]:
        """Return the files whose time to be removed has come: the caller's to do, with `run_removal`."""
        due: list[str] = []
        while self._doomed and self._doomed[0][0] <= now_ms:
            due += self._doomed.pop(0)[1]
        return due

    def _release_idle(self) -> None:
        """Close files that nobody has used since the last time round."""
        for segment in self._segments:
            if segment.idle:
                segment.release()
            segment.idle = True

    def _take_snapshot(self) -> None:
        """Write down the producers as of the end of the log. Without it, opening reads more headers."""
        with suppress(OSError):
            if self.end_offset not in self._snapshots:
                self._disk.save(self._snapshot_path(self.end_offset), self.producers.snapshot(checksum))
                self._snapshots.append(self.end_offset)
                if self.producers.producers:
                    self._unflushed_snapshots.append(self.end_offset)
            self._remove_old_snapshots()

    def _knows_producers_from(self, place: int) -> bool:
        """Return whether a start after a power cut would know the producers if this were the first segment.

        The disk may have refused the snapshot, or to flush it: then the segments that tell of them stay.
        """
        first = self._bases[place]
        begins = max(first, self._first_recovered())
        flushed = (one for one in self._snapshots if one not in self._unflushed_snapshots)
        return not self.producers.producers or any(first <= one <= begins for one in flushed)

    def _first_recovered(self) -> int:
        """Return the start of the segment that opening after a crash begins with."""
        written = self._ledger.written.get(self.name, 0)
        return self._bases[max(0, bisect_right(self._bases, written) - 1)]

    def _flush_snapshots(self) -> None:
        paths = tuple(map(self._snapshot_path, self._unflushed_snapshots))
        if paths and not self._flush_failed:
            plan = FlushPlan(self.directory, paths, self.recovery_point, tuple(self._unflushed_snapshots))
            self.finish_flush(run_flush(plan, self._disk))

    def _snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{name_of(offset)}{SNAPSHOT}"

    def _remove_old_snapshots(self) -> None:
        """Keep the newest snapshot and those that opening after a crash may begin with.

        It begins at the segment that holds the recovery point, as far as that is written down.
        """
        start = self._first_recovered()
        flushed = [offset for offset in self._snapshots if offset not in self._unflushed_snapshots]
        needed = max((offset for offset in flushed if offset <= start), default=0)
        for offset in self._snapshots[:-1]:
            if offset < needed or (offset > needed and offset not in self._bases):
                self._disk.remove(self._snapshot_path(offset))
                self._snapshots.remove(offset)

    def close(self) -> None:
        """Write what is kept in memory and let go of the files. Raises StorageFailed, having let go."""
        if self.closed:
            return
        self.closed = True
        saved = self._segments[-1].save_indexes(final=True)
        self._take_snapshot()
        try:
            self.flush()  # what lies behind the end, too, or the next start takes it for good
            with self._told_of():
                self._segments[-1].sync_aborted()
                self._segments[-1].sync_indexes()
            if not saved:
                raise StorageFailed(f"{self.directory}: the indexes cannot be written")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the files and write nothing."""
        self.closed = True
        for segment in self._segments:
            segment.release()


def _placed(headers: Sequence[BatchHeader], base_offset: int, append_time_ms: int) -> tuple[list[Span], int]:
    """Return where each batch goes if the first goes to `base_offset`, and the offset after the last."""
    spans = []
    for header in headers:
        spans.append((header, base_offset, header.max_timestamp if append_time_ms < 0 else append_time_ms))
        base_offset += header.last_offset_delta + 1
    return spans, base_offset


def _stamped(
    records: bytes | bytearray, spans: Sequence[Span], leader_epoch: int, append_time_ms: int
) -> list[Buffer]:
    """Return the batches with their offsets and epoch, as pieces to write; append times need a copy."""
    at = 0
    if append_time_ms >= 0:
        copy = bytearray(records)
        for header, base_offset, _ in spans:
            restamp(
                copy, at, base_offset=base_offset, leader_epoch=leader_epoch, append_time_ms=append_time_ms
            )
            at += header.size
        return [copy]
    view = memoryview(records)
    parts: list[Buffer] = []
    for header, base_offset, _ in spans:
        end = at + header.size
        parts += STAMP.pack(base_offset, header.length, leader_epoch), view[at + STAMP.size : end]
        at = end
    return parts


def _sentence(directory: str, error: OSError | StorageFailed) -> str:
    return f"{directory}: {getattr(error, 'strerror', None) or error}"


if TYPE_CHECKING:
    _keeps_the_contract: type[Log] = FileLog
