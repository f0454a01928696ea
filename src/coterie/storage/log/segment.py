"""A segment: a stretch of a partition's log in one .log file, with its indexes beside it.

Batches lie in the file one after the other. Indexes are kept in memory and written behind, since they can be
made anew from the batches; those of closed segments are read when they are first asked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct

from coterie.base.errors import Corrupt
from coterie.storage.disk import Buffer, Disk, DiskFile
from coterie.storage.log.aborted import ENTRY as ABORTED_ENTRY
from coterie.storage.log.aborted import AbortedIndex
from coterie.storage.log.contract import StorageFailed
from coterie.storage.log.index import ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from coterie.wire.records.batches import HEADER_SIZE, LENGTH_STARTS, BatchHeader, read_header

LOG, INDEX, TIME_INDEX, ABORTED = ".log", ".index", ".timeindex", ".txnindex"
FILES = (INDEX, TIME_INDEX, ABORTED, LOG)  # the log last: where it is, the others are
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"

OFFSETS = Struct(">qi11xi")
LAST_TIME = Struct(">qi")
LOOK = 4096 + HEADER_SIZE
OFFSETS_OF_A_SEGMENT = 2**31 - 1
UNSAVED_ENTRIES = 128
ENDS_KEPT = 16
OPEN_MOST = 4


def name_of(base_offset: int) -> str:
    """Return the name, without its ending, of the files of the segment that starts with this offset."""
    return f"{base_offset:020d}"


class Opened:
    """The segments of a log whose files were opened last: the others' are closed.

    Segments may be very small, and all that are open more than the process may have.
    """

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def note(self, segment: "Segment") -> None:
        """Take in one that was opened; of too many, the first is let go of."""
        if segment in self._segments:  # it was closed meanwhile
            self._segments.remove(segment)
        self._segments.append(segment)
        if len(self._segments) > OPEN_MOST:
            self._segments.pop(0).release()


class Segment:
    """The batches from `base_offset` on, up to the next segment. The last segment of a log grows."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        size: int,
        created_ms: int,
        interval: int,
        suffix: str = "",
        opened: Opened | None = None,
    ) -> None:
        self.disk = disk
        # After how many bytes an index entry is due.
        self.interval = interval
        self.stem = f"{directory}/{name_of(base_offset)}"
        self.suffix = suffix
        self.base_offset = base_offset
        self.size = size
        self.created_ms = self.written_ms = created_ms
        self.first_timestamp: int | None = None
        self.max_timestamp = -1
        self.offset_of_max = base_offset
        # The offset after the last batch; known in the segment that grows, -1 in others.
        self.next_offset = -1
        self.idle = self.flush_failed = False
        # Where the oldest transaction begins that ended here with a marker which may not be flushed.
        self.ended_from: int | None = None
        # Whole, or to be made anew: unlike the other two it is not read when it is first asked for.
        self.aborted = AbortedIndex()
        self._saved_aborted = self._synced_aborted = 0
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._saved = self._saved_times = 0
        self._unsynced = False
        self._since_entry = 0
        self._peeked = False
        self.opened = Opened() if opened is None else opened
        self._file: DiskFile | None = None
        self._read_ends: dict[int, int] = {}

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        now_ms: int,
        interval: int,
        suffix: str = "",
        opened: Opened | None = None,
    ) -> "Segment":
        """Return a new segment with its three files, empty. `suffix` marks one that does not count yet."""
        segment = cls(
            disk,
            directory,
            base_offset,
            size=0,
            created_ms=now_ms,
            interval=interval,
            suffix=suffix,
            opened=opened,
        )
        segment._file = disk.open(segment.path(LOG), create=True)
        segment.opened.note(segment)
        try:
            segment._file.truncate(0)
            segment.rebuilt(OffsetIndex(), TimeIndex())
        except OSError:
            segment.release()
            raise
        return segment

    # -- files

    def path(self, ending: str) -> str:
        """Return the path of one of its files."""
        return self.stem + ending + self.suffix

    @property
    def file(self) -> DiskFile:
        """The .log file, open."""
        self.idle = False
        if self._file is None:
            self._file = self.disk.open(self.path(LOG))
            self.opened.note(self)
        return self._file

    def release(self) -> None:
        """Let go of the open file; it is opened again when it is needed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- indexes

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index."""
        if self._offsets is None:
            self._load_indexes()
            assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        """The time index."""
        if self._times is None:
            self._load_indexes()
            assert self._times is not None
        return self._times

    def _load_indexes(self) -> None:
        try:
            offsets, times = self._read_indexes()
        except Corrupt:
            self.rebuild_indexes()
        except FileNotFoundError:  # a start makes them, once it knows what was aborted
            self._gather_indexes()
        else:
            self.adopt(offsets, times)

    def _read_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return the indexes on the disk, or raise Corrupt if they are not of this log.

        That the last entry points to its batch is a cheap look that finds most damage.
        """
        offsets = OffsetIndex.read(self.disk.load(self.path(INDEX)), log_size=self.size)
        times = TimeIndex.read(self.disk.load(self.path(TIME_INDEX)))
        if len(offsets):
            header = read_header(self.file.read(HEADER_SIZE, offsets.positions[-1]))
            if header.last_offset != self.base_offset + offsets.offsets[-1]:
                raise Corrupt("an offset index of another log", at=offsets.positions[-1])
        return offsets, times

    def adopt(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        """Take over indexes that are on the disk already."""
        self._offsets, self._times = offsets, times
        self._saved, self._saved_times = len(offsets), len(times)
        if len(times) and times.timestamps[-1] > self.max_timestamp:
            self.max_timestamp = times.timestamps[-1]
            self.offset_of_max = self.base_offset + times.offsets[-1]

    def rebuilt(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        """Take over indexes made anew, and write them."""
        self._write_index(INDEX, offsets.entries(), at=0)
        self._write_index(TIME_INDEX, times.entries(), at=0)
        self.adopt(offsets, times)

    def rebuild_indexes(self) -> None:
        """Make the indexes of offsets and times anew from the batches that can be read, and flush them.

        Each appears whole, that of times last: where both are, a start after a kill believes them.
        """
        self._gather_indexes()
        offsets, times = self.offsets, self.times
        self.disk.save(self.path(INDEX), offsets.entries())
        self.disk.save(self.path(TIME_INDEX), times.entries())
        self._unsynced = True
        self.adopt(offsets, times)
        self.sync_indexes()

    def _gather_indexes(self) -> None:
        self.doubt()
        for position, header in self.readable_headers():
            self.note(header, header.base_offset, position, header.max_timestamp)
        self.times.add(self.max_timestamp, self.offset_of_max - self.base_offset)

    def sync_indexes(self) -> None:
        """Have both indexes survive a loss of power where no start looks at the batches again.

        One of times that is empty would pass for that of a segment whose records have none.
        """
        if not self._unsynced:
            return
        for ending in (INDEX, TIME_INDEX):
            file = self.disk.open(self.path(ending))
            try:
                file.sync()
            except OSError:
                self.flush_failed = True
                raise
            finally:
                file.close()
        self._unsynced = False

    def settle(self) -> None:
        """Write the indexes of offsets and times whole, in the place of whatever was there."""
        self.times.add(self.max_timestamp, self.offset_of_max - self.base_offset)
        self.rebuilt(self.offsets, self.times)

    def load_aborted(self) -> None:
        """Read which transactions were aborted; Corrupt for a file that cannot be this segment's."""
        data = self.disk.load(self.path(ABORTED))
        self.adopt_aborted(AbortedIndex.read(data, base_offset=self.base_offset))

    def adopt_aborted(self, aborted: AbortedIndex) -> None:
        """Take over aborted transactions that are on the disk already."""
        self.aborted = aborted
        self._saved_aborted = self._synced_aborted = len(aborted)

    def settle_aborted(self) -> None:
        """Write the aborted transactions whole, or take their file away if there are none."""
        self._saved_aborted = self._synced_aborted = 0
        if len(self.aborted):
            self.disk.save(self.path(ABORTED), self.aborted.entries())
            self._saved_aborted = len(self.aborted)
        else:
            self.disk.remove(self.path(ABORTED))

    def sync_aborted(self) -> None:
        """Have the aborted transactions survive a loss of power, their file's name too.

        The next start believes what it says, and that there are none where it is missing.
        """
        if len(self.aborted) == self._synced_aborted:
            return
        self._save_aborted()
        file = self.disk.open(self.path(ABORTED))
        try:
            file.sync()
            if not self._synced_aborted:
                self.disk.sync_directory(self.stem.rpartition("/")[0])
        except OSError:
            self.flush_failed = True
            raise
        finally:
            file.close()
        self._synced_aborted = len(self.aborted)

    def _save_aborted(self) -> None:
        at, entries = self._saved_aborted * ABORTED_ENTRY.size, self.aborted.entries(self._saved_aborted)
        self._write_index(ABORTED, entries, at=at)
        self._saved_aborted = len(self.aborted)

    def save_indexes(self, *, final: bool = False) -> bool:
        """Write the entries that are not on the disk yet; `final` adds the highest timestamp of all.

        A disk that is full or broken is no matter here: the entries stay in memory, to be tried again, and a
        crash costs no more than making the indexes anew. Returns whether all are written.
        """
        offsets, times = self._offsets, self._times
        if offsets is None or times is None:
            return True
        if final and self.size:
            times.add(self.max_timestamp, self.offset_of_max - self.base_offset)
        with suppress(OSError):
            if len(offsets) > self._saved:
                self._write_index(INDEX, offsets.entries(self._saved), at=self._saved * ENTRY)
                self._saved = len(offsets)
            if len(times) > self._saved_times:
                entries = times.entries(self._saved_times)
                self._write_index(TIME_INDEX, entries, at=self._saved_times * TIME_ENTRY)
                self._saved_times = len(times)
            if len(self.aborted) > self._saved_aborted:
                self._save_aborted()
        saved = self._saved, self._saved_times, self._saved_aborted
        return saved == (len(offsets), len(times), len(self.aborted))

    def _write_index(self, ending: str, entries: bytes, *, at: int) -> None:
        """Write entries into an index from `at` on, where it then ends. A bad one is found out later."""
        self._unsynced = True
        file = self.disk.open(self.path(ending), create=True)
        try:
            file.write([entries], at)
            if file.size() != at + len(entries):
                file.truncate(at + len(entries))
        finally:
            file.close()

    def resume(self) -> int:
        """Trust the indexes on the disk if they fit; return the position of the last batch that they know."""
        try:
            offsets, times = self._read_indexes()
        except (Corrupt, OSError):
            self.doubt()
            return 0
        self.adopt(offsets, times)
        return offsets.positions[-1] if len(offsets) else 0

    def doubt(self) -> None:
        """Forget both indexes: they are to be made anew, by `note` for each batch and `settle` in the end."""
        self._offsets, self._times = OffsetIndex(), TimeIndex()
        self._saved = self._saved_times = self._since_entry = 0
        self.max_timestamp, self.offset_of_max = -1, self.base_offset

    # -- writing

    def note_ended(self, first_offset: int) -> None:
        """Take note that a transaction ended here whose marker is not known to be flushed."""
        if self.ended_from is None or first_offset < self.ended_from:
            self.ended_from = first_offset

    def append(
        self, parts: Sequence[Buffer], size: int, spans: Sequence[tuple[BatchHeader, int, int]], *, sync: bool
    ) -> None:
        """Write `size` bytes of batches and index them; of each, its header, base offset and last timestamp.

        After an OSError nothing has changed but perhaps bytes beyond the end, which `mend` takes away.
        """
        position = self.size
        file = self._file or self.file
        file.write(parts, position)
        if sync:
            self.sync()
        self.size = position + size
        for header, base_offset, timestamp in spans:
            self.note(header, base_offset, position, timestamp)
            position += LENGTH_STARTS + header.length
        if len(self.offsets) - self._saved >= UNSAVED_ENTRIES:
            self.save_indexes()

    def note(self, header: BatchHeader, base_offset: int, position: int, timestamp: int) -> None:
        """Take a batch that lies at `position` into account; an entry comes every few kilobytes."""
        offsets = self._offsets
        times = self._times
        assert offsets is not None
        assert times is not None
        last = base_offset + header.last_offset_delta
        self.next_offset = last + 1
        if position == 0:
            self.first_timestamp = timestamp
        # A batch that compaction emptied has a timestamp but no record that has it.
        if timestamp > self.max_timestamp and header.count:
            self.max_timestamp, self.offset_of_max = timestamp, last
        if self._since_entry > self.interval:
            offsets.add(last - self.base_offset, position)
            times.add(self.max_timestamp, self.offset_of_max - self.base_offset)
            self._since_entry = 0
        self._since_entry += LENGTH_STARTS + header.length

    def sync(self) -> None:
        """Make what was written survive a loss of power."""
        try:
            self.file.sync()
        except OSError:
            self.flush_failed = True
            raise

    def mend(self) -> None:
        """Take away what a failed append may have left behind the last good batch."""
        self.file.truncate(self.size)

    def cut(self, size: int) -> None:
        """Take away everything from `size` on, where a batch must start."""
        self.file.truncate(size)
        self.size = size
        self._read_ends.clear()

    # -- reading

    def position_of(self, offset: int) -> int | None:
        """Return the position of the first batch that ends with `offset` or later; None if there is none."""
        position = self._read_ends.get(offset)
        if position is not None:
            return position if position < self.size else None
        _, position = self.offsets.at_or_before(offset - self.base_offset)
        for at, _, last, _ in self._spans(position):
            if last >= offset:
                return at
        return None

    def read(
        self, offset: int, *, max_bytes: int, at_least_one: bool, end_offset: int | None
    ) -> bytes | None:
        """Return whole batches from the one that holds `offset`, or None if it lies beyond this segment."""
        start = self.position_of(offset)
        if start is None:
            return None
        limit = None if end_offset is None else self.position_of(end_offset)
        if limit is None:
            limit = self.size
        end = self._whole_until(start, ceiling=start + max_bytes, limit=limit)
        if end == start and at_least_one and start < limit:
            end, last = self._span_at(start)
            self.remember(last + 1, end)
        return self.file.read(end - start, start)

    def offset_beyond(self, offset: int, size: int, *, end_offset: int) -> int | None:
        """Return an offset that a read of `size` bytes from `offset` does not pass; None: the segment's end.

        Only the index is looked at, as in Kafka, so it may be a few kilobytes too far.
        """
        start, limit = self.position_of(offset), self.position_of(end_offset)
        assert start is not None, f"{self.path(LOG)}: {offset} was read a moment ago"
        beyond = self.offsets.first_from(min(start + size, self.size if limit is None else limit))
        return None if beyond is None else self.base_offset + beyond

    def _whole_until(self, start: int, *, ceiling: int, limit: int) -> int:
        """Return the end of the last batch that ends at or before `ceiling`; `limit` is the end of one."""
        if ceiling >= limit:
            if limit == self.size and self.next_offset >= 0:
                self.remember(self.next_offset, limit)
            return max(start, limit)
        end = max(start, self.offsets.position_at_or_before(ceiling))
        next_offset = -1
        for at, base, last, size in self._spans(end):
            if at + size > ceiling:
                if next_offset < 0:  # the index has an entry for the very batch
                    next_offset = base
                break
            end, next_offset = at + size, last + 1
        if next_offset >= 0:
            self.remember(next_offset, end)
        return end

    def remember(self, next_offset: int, position: int) -> None:
        """Note where the reader that was served last will go on."""
        ends = self._read_ends
        ends[next_offset] = position
        if len(ends) > ENDS_KEPT:
            del ends[next(iter(ends))]

    def _span_at(self, position: int) -> tuple[int, int]:
        """Return the end of the batch at `position`, and its last offset."""
        for at, _, last, size in self._spans(position):
            return at + size, last
        raise StorageFailed(f"{self.path(LOG)}: no batch at byte {position}")

    def _spans(self, position: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, base offset, last offset and size of each batch from `position` on."""
        while position < self.size:
            look = self.file.read(min(LOOK, self.size - position), position)
            at = 0
            while at + HEADER_SIZE <= len(look):
                base, length, delta = OFFSETS.unpack_from(look, at)
                size = length + LENGTH_STARTS
                if size < HEADER_SIZE or position + at + size > self.size or base < self.base_offset:
                    raise StorageFailed(f"{self.path(LOG)}: no batch at byte {position + at}")
                yield position + at, base, base + delta, size
                at += size
            if at == 0:
                raise StorageFailed(f"{self.path(LOG)}: a batch is cut short at byte {position}")
            position += at

    def headers(self, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each batch from `start` on."""
        for at, *_ in self._spans(start):
            yield at, self._header_at(at)

    def _header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch that begins there; StorageFailed, with the file, if it is none."""
        try:
            return read_header(self.file.read(HEADER_SIZE, position))
        except Corrupt as error:
            raise StorageFailed(f"{self.path(LOG)} is damaged at byte {position}: {error}") from error

    def readable_headers(self, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the headers that can be read, as `headers` does: whoever reads the others will hear of it."""
        with suppress(StorageFailed):
            for at, *_ in self._spans(start):
                with suppress(StorageFailed):
                    yield at, self._header_at(at)

    def batch_at(self, position: int) -> bytes:
        """Return the whole batch at `position`."""
        end, _ = self._span_at(position)
        return self.file.read(end - position, position)

    # -- times

    @property
    def highest_timestamp(self) -> int:
        """The highest timestamp of all records, -1 without any."""
        if self._times is None and self.size and not self._peeked:
            self._peeked = True
            if not self._peek_at_times():
                self._load_indexes()
        return self.max_timestamp

    def _peek_at_times(self) -> bool:
        """Read the last entry of the time index alone; return whether it is there to be read."""
        try:
            file = self.disk.open(self.path(TIME_INDEX))
        except FileNotFoundError:
            return False
        try:
            size = file.size()
            if size == 0 or size % TIME_ENTRY:
                return False
            self.max_timestamp, offset = LAST_TIME.unpack(file.read(TIME_ENTRY, size - TIME_ENTRY))
        finally:
            file.close()
        self.offset_of_max = self.base_offset + offset
        return True

    @property
    def newest_ms(self) -> int:
        """The time of the youngest record, or when the file was written if its records have none."""
        highest = self.highest_timestamp
        return highest if highest >= 0 else self.written_ms

    @property
    def first_ms(self) -> int:
        """The time of the first batch; -1 if it has none, or if there is none."""
        if self.first_timestamp is None and self.size:
            self.first_timestamp = self._header_at(0).max_timestamp
        return -1 if self.first_timestamp is None else self.first_timestamp

    def waited_ms(self, newest_ms: int, now_ms: int) -> int:
        """Return the age of the segment in milliseconds: by its records' times if they have any."""
        first_ms = self.first_ms
        return newest_ms - first_ms if first_ms >= 0 else now_ms - self.created_ms

    def batch_from(self, timestamp_ms: int, *, from_offset: int) -> bytes | None:
        """Return the first batch with offsets from there on that says it is not older than this."""
        noted = self.times.at_or_before(timestamp_ms)
        position = self.position_of(max(from_offset, self.base_offset + noted if noted >= 0 else 0))
        if position is None:
            return None
        for at, header in self.headers(position):
            if header.max_timestamp >= timestamp_ms and header.count:
                return self.batch_at(at)
        return None

    def full(self, size: int, last_offset: int, *, segment_bytes: int, index_bytes: int) -> bool:
        """Return whether `size` more bytes up to `last_offset` do not fit in, as Kafka counts it."""
        return (
            self.size > segment_bytes - size
            or last_offset - self.base_offset > OFFSETS_OF_A_SEGMENT
            or len(self.offsets) >= index_bytes // ENTRY
            or len(self.times) >= index_bytes // TIME_ENTRY - 1
        )
