"""A partition's log: a row of segments on a disk, real or pretended.

Offsets are given without gaps, and whatever `append` returned for stays readable. A log is used by one thread
at a time; what may run elsewhere says so. Here is what is written and read; what is forgotten is in
`retention` and `compacting`, what survives a loss of power in `flushing` and `snapshots`.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.storage.checkpoints import PARTITION_METADATA, Checkpoints, write_partition_metadata
from coterie.storage.config import LogConfig
from coterie.storage.disk import Disk
from coterie.storage.epochs import Epochs, begun, from_start
from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.log.compacting import Compacting
from coterie.storage.log.contract import (
    Appended,
    AppendRefused,
    Landed,
    OffsetOutOfRange,
    StorageFailed,
)
from coterie.storage.log.flushing import Flushing, Snapshots
from coterie.storage.log.placing import Placed, PlacingLog, learn
from coterie.storage.log.producers import Completed, ProducerState
from coterie.storage.log.recovery import Loaded, load
from coterie.storage.log.retention import LateRemoval, Retention, run_removal
from coterie.storage.log.segment import Segment
from coterie.storage.log.state import LogState
from coterie.wire.records.visible import AbortedTransaction

log = logging.getLogger("coterie.storage")

EXPIRY_INTERVAL_MS = 600_000
IDLE_INTERVAL_MS = 60_000


class PartitionLog(PlacingLog):
    """The log of one partition. `flushing`, `retention`, `removal` and `compacting` are its parts."""

    _state: LogState

    def __init__(
        self,
        state: LogState,
        loaded: Loaded,
    ) -> None:
        self.name = state.name
        self.directory = self.where = state.directory
        self.closed = False
        # What the disk refused last while time was served; empty when it is well.
        self.trouble = ""
        self._takes_none = False
        """The disk has refused the last append, and that was told."""
        self._next_expiry_ms = self._next_idle_ms = 0
        self._state = state
        self._segments = state.segments
        self.producers: ProducerState = state.producers
        self._snapshots = snapshots = Snapshots(state, loaded)
        self.flushing = Flushing(state, snapshots, loaded)
        self.removal = LateRemoval(state)
        self.compacting = Compacting(state, self.flushing, self.removal)
        self.retention = Retention(
            state,
            snapshots,
            self.flushing,
            self.removal,
            finish_swaps=self.compacting.finish_swaps,
            roll=self._roll,
        )

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        name: TopicPartition,
        config: LogConfig,
        checkpoints: Checkpoints,
        *,
        topic_id: UUID,
        now_ms: int,
    ) -> "PartitionLog":
        """Return a new log in a directory of its own, led in epoch 0 from the start."""
        disk.make_directory(directory)
        disk.save(f"{directory}/{PARTITION_METADATA}", write_partition_metadata(topic_id))
        first = Segment.create(disk, directory, 0, now_ms=now_ms, interval=config.index_interval_bytes)
        loaded = Loaded([first], 0, ProducerState(), [(0, 0)], [], [], [])
        log = cls(LogState(disk, directory, name, config, loaded, checkpoints), loaded)
        log.flushing.directory_number = checkpoints.directory_made()
        log._state.save_epochs()
        return log

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        name: TopicPartition,
        config: LogConfig,
        checkpoints: Checkpoints,
        *,
        clean: bool,
        gapless: bool,
        now_ms: int,
    ) -> "PartitionLog":
        """Return the log that lies in a directory, mended if it was not closed. `gapless`: see `recovery`.

        Producers expire with the first `tick`: until then the config may not be the topic's own.
        """
        loaded = load(
            disk,
            directory,
            interval=config.index_interval_bytes,
            start_offset=checkpoints.starts.get(name, 0),
            recovery_point=checkpoints.flushed.get(name, 0),
            clean=clean,
            gapless=gapless,
            now_ms=now_ms,
        )
        state = LogState(disk, directory, name, config, loaded, checkpoints)
        log = cls(state, loaded)
        if not state.epochs:
            state.epochs = [(0, state.start_offset)]
        if state.epochs != from_start(loaded.written_epochs, state.start_offset):
            state.save_epochs()
        with suppress(OSError):  # tried again before anything is written behind them, or the policy changes
            log.flushing.tell_of_gaps()
        return log

    # -- what it is

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._state.end_offset

    @property
    def high_watermark(self) -> int:
        """The end of what readers may see: all of it."""
        return self._state.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of what a read_committed reader may see: the start of the oldest open transaction."""
        return self._state.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """The offset up to which everything survives a loss of power."""
        return self._state.recovery_point

    @property
    def may_bring_back(self) -> bool:
        """Whether a crash may bring back batches that were refused."""
        return self.flushing.may_bring_back

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches on the disk."""
        return self._segments.size_bytes

    @property
    def epochs(self) -> Epochs:
        """The leader epochs, each with the offset where it began."""
        return self._state.epochs

    def configure(self, config: LogConfig) -> None:
        """Take other settings from now on."""
        self._state.config = config
        for segment in self._segments:
            segment.interval = config.index_interval_bytes

    # -- appending

    def _put(self, place: Placed, now_ms: int, wall_ms: int) -> Appended:
        """Write what is placed: in files it lasts, as far as it ever does, when it is written."""
        state = self._state
        self._write(place, wall_ms)
        state.end_offset = place.next_offset
        if self.flushing.unflushed_since is None and state.recovery_point < place.next_offset:
            self.flushing.unflushed_since = now_ms
        if place.has_producers:
            self._note_ended(learn(state.producers, place))
        return Appended(place.base_offset, place.next_offset - 1, place.append_time_ms, state.start_offset)

    def when_landed(self, last_offset: int, done: Landed) -> None:
        """Have `done` called once what was appended up to an offset lasts, or never will: at once, here."""
        done(None)

    def _write(self, place: Placed, wall_ms: int) -> None:
        """Write to the last segment, or to a new one if that is full. What fails is taken back."""
        state, flushing = self._state, self.flushing
        segment = self._segments.last
        records, parts, spans, _, next_offset, _ = place
        size = len(records)
        sync = next_offset - state.recovery_point >= state.config.flush_messages
        try:
            flushing.clear_away()
            if segment.size and self._is_full(segment, size, next_offset - 1, spans[-1][2], wall_ms):
                segment = self._roll(wall_ms)
            if sync and (state.recovery_point < segment.base_offset or not flushing.names_flushed):
                flushing.flush()
            if sync:
                flushing.insist()
            segment.append(parts, size, spans, sync=sync)
        except (OSError, StorageFailed) as error:
            if segment.flush_failed:
                flushing.fail(str(getattr(error, "strerror", None) or error))
            flushing.take_back(segment)
            why = state.sentence(error)
            if not self._takes_none:  # once: producers try again and again
                self._takes_none = True
                log.error("no records can be written for now: %s", why)
            raise AppendRefused(Code.KAFKA_STORAGE_ERROR, why) from error
        if self._takes_none:
            self._takes_none = False
            log.warning("records are written again: %s", self.directory)
        segment.written_ms = wall_ms
        if sync:
            flushing.flushed_to(next_offset)

    def _is_full(self, segment: Segment, size: int, last_offset: int, newest_ms: int, wall_ms: int) -> bool:
        config = self._state.config
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
        """Begin a new segment at the end of the log, and return it. Raises OSError and StorageFailed."""
        state, flushing, last = self._state, self.flushing, self._segments.last
        flushing.clear_away()  # opening would take what is torn for the end, and drop what comes behind
        if state.recovery_point >= state.end_offset:  # a crash would not look at the last segment again
            flushing.flush_unseen(last)
        with flushing.beginning(state.end_offset):
            segment = Segment.create(
                state.disk,
                self.directory,
                state.end_offset,
                now_ms=wall_ms,
                interval=state.config.index_interval_bytes,
                opened=last.opened,
            )
        last.save_indexes(final=True)
        self._segments.begin(segment)
        flushing.segment_begun()
        self._snapshots.take()
        return segment

    def _note_ended(self, transactions: Iterable[Completed]) -> None:
        """Keep what readers and a start need to know of transactions that have ended."""
        last = self._segments.last
        for ended in transactions:
            if ended.aborted:
                last.aborted.add(AbortedSpan(*ended[:4]))
            if ended.last_offset >= self._state.recovery_point:
                last.note_ended(ended.first_offset)

    def _begin_epoch(self, epoch: int) -> None:
        try:
            self.lead(epoch)
        except OSError as error:
            raise AppendRefused(Code.KAFKA_STORAGE_ERROR, self._state.sentence(error)) from error

    def lead(self, epoch: int) -> None:
        state = self._state
        if epoch <= self.latest_epoch:
            return
        before, state.epochs = state.epochs, begun(state.epochs, epoch, state.end_offset)
        try:
            state.save_epochs()
        except OSError:
            state.epochs = before
            raise

    # -- reading

    def read(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True, end_offset: int | None = None
    ) -> bytes:
        """Return whole batches from the one that holds `offset`, none that starts at or after `end_offset`.

        The first may be larger than `max_bytes` if `at_least_one`. Raises `OffsetOutOfRange`.
        """
        state = self._state
        end = state.end_offset
        if not state.start_offset <= offset <= end:
            raise OffsetOutOfRange(offset=offset, start=state.start_offset, end=end)
        if end_offset is not None and end_offset < end:
            end = end_offset
        if offset >= end:
            return b""
        upto = None if end == state.end_offset else end
        try:
            return self._segments.read(offset, max_bytes, at_least_one=at_least_one, end_offset=upto)
        except OSError as error:
            raise StorageFailed(state.sentence(error)) from error

    def read_committed(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True
    ) -> tuple[bytes, tuple[AbortedTransaction, ...]]:
        """Return batches, as `read` does, up to the last stable offset, and their aborted transactions."""
        state, segments = self._state, self._segments
        end = state.last_stable_offset
        records = self.read(offset, max_bytes=max_bytes, at_least_one=at_least_one, end_offset=end)
        if not records or not segments.has_aborted_from(offset):
            return records, ()
        with state.reporting_disk_errors():
            beyond = segments.offset_beyond(offset, max(max_bytes, len(records)), end)
        return records, self.aborted_transactions(offset, state.end_offset if beyond is None else beyond)

    def size_between(self, offset: int, end_offset: int) -> int:
        """Return the size in bytes of the batches from the one that holds `offset` up to `end_offset`."""
        with self._state.reporting_disk_errors():
            return self._segments.size_between(offset, end_offset)

    def aborted_transactions(self, first: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that touch the offsets from `first` up to `end`."""
        return tuple(AbortedTransaction(*span[:2]) for span in self.aborted_spans(first, end))

    def aborted_spans(self, first: int, end: int) -> list[AbortedSpan]:
        """Return the same, with where each ends."""
        return self._segments.aborted_within(first, end)

    def batch_from(self, timestamp_ms: int, offset: int) -> bytes | None:
        with self._state.reporting_disk_errors():
            return self._segments.batch_from(timestamp_ms, max(offset, self._state.start_offset))

    def youngest_batch(self) -> bytes | None:
        with self._state.reporting_disk_errors():
            return self._segments.youngest_from(self._state.start_offset)

    # -- forgetting and flushing

    def delete_before(self, offset: int, now_ms: int, *, save: bool = True) -> int:
        """Forget what lies before `offset`; return the new start. See `Retention.delete_before`."""
        return self.retention.delete_before(offset, now_ms, save=save)

    def flush(self) -> None:
        """Make everything appended so far survive a loss of power, and nothing that was refused."""
        self.flushing.flush()

    def expire_producers(self, before_ms: int) -> None:
        """Forget producers that wrote nothing since then, and have no transaction open."""
        self.producers.expire(before_ms=before_ms)

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
            self.expire_producers(today_ms - self.config.producer_id_expiration_ms)
        if now_ms >= self._next_idle_ms:
            self._next_idle_ms = now_ms + IDLE_INTERVAL_MS
            self._release_idle()

    def _serve_disk(self, now_ms: int, wall_ms: int) -> None:
        self._segments.last.save_indexes()
        self.compacting.finish_swaps(now_ms)
        self.retention.retain(now_ms, wall_ms)
        run_removal(self.removal.take_due(now_ms), self._state.disk)
        since = self.flushing.unflushed_since
        if since is not None and now_ms - since >= self.config.flush_ms:
            self.flushing.flush()

    def _release_idle(self) -> None:
        """Close files that nobody has used since the last time round."""
        for segment in self._segments:
            if segment.idle:
                segment.release()
            segment.idle = True

    def close(self) -> None:
        """Write what is kept in memory and let go of the files. Raises StorageFailed, having let go."""
        if self.closed:
            return
        self.closed = True
        last = self._segments.last
        saved = last.save_indexes(final=True)
        self._snapshots.take()
        try:
            self.flushing.flush()  # what lies behind the end, too, or the next start takes it for good
            with self._state.reporting_disk_errors():
                last.sync_aborted()
                last.sync_indexes()
            if not saved:
                raise StorageFailed(f"{self.directory}: the indexes cannot be written")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the files and write nothing."""
        self.closed = True
        for segment in self._segments:
            segment.release()
