"""Opening a partition's directory, whatever a crash left in it.

After a clean stop only the last batches are looked at. Otherwise every batch from the recovery point on is
checked, and the log is cut where the first bad one starts. Files of a compaction that was interrupted are put
in their places or taken away.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from coterie.base.errors import Corrupt
from coterie.storage.checkpoints import EPOCHS, read_epochs
from coterie.storage.disk import Disk, DiskFile, FileInfo
from coterie.storage.epochs import Epochs, until_end
from coterie.storage.log.aborted import AbortedIndex, AbortedSpan
from coterie.storage.log.contract import DirectoryUnusable, StorageFailed
from coterie.storage.log.producers import Completed, ProducerState, marker_of
from coterie.storage.log.segment import (
    ABORTED,
    CLEANED,
    DELETED,
    FILES,
    INDEX,
    LOG,
    OFFSETS_OF_A_SEGMENT,
    SWAP,
    TIME_INDEX,
    Opened,
    Segment,
    name_of,
)
from coterie.wire.records.batches import HEADER_SIZE, LENGTH_STARTS, BatchHeader, check_crc, read_header

SNAPSHOT = ".snapshot"
CHUNK = 1 << 20
OLD_HEADER_SIZE = 26
NAME_DIGITS = 20
BESIDE_A_LOG = (INDEX, TIME_INDEX, ABORTED)


@dataclass(slots=True)
class Loaded:
    """What a partition's directory holds."""

    segments: list[Segment]
    end_offset: int
    producers: ProducerState
    epochs: Epochs
    written_epochs: Epochs
    snapshots: list[int]
    unflushed_snapshots: list[int]
    recovered: bool = False
    """Whether it was stopped without a word: what a start before this one has cut off may not be flushed."""
    gaps: bool = False
    """Whether offsets are missing in what was looked at, and were let pass."""


class Sound(NamedTuple):
    """A batch whose checksum is right, with the bytes it lies in."""

    position: int
    header: BatchHeader
    data: bytes
    at: int


def load(
    disk: Disk,
    directory: str,
    *,
    interval: int,
    start_offset: int,
    recovery_point: int,
    clean: bool,
    gapless: bool,
    now_ms: int,
) -> Loaded:
    """Return the log in `directory`, mended. `clean` says that the last owner closed it.

    A log that is `gapless`, because it was never compacted, ends before the first gap between its segments.
    """
    files = _settled(disk, directory, disk.files(directory))
    opened = Opened()
    segments = [
        Segment(
            disk,
            directory,
            base,
            size=info.size,
            created_ms=info.modified_ms,
            interval=interval,
            opened=opened,
        )
        for base, info in _logs(files)
    ]
    epochs = _read_epochs(disk, directory, files)
    snapshots = sorted(_numbered(files, SNAPSHOT), reverse=True)
    opening = _Opening(
        disk, directory, segments, ProducerState(), epochs.copy(), snapshots, gapless, recovery_point
    )
    end_offset = opening.mend(clean=clean) if segments else -1
    if end_offset < start_offset:  # nothing is left that may be read
        opening.forget_all()
        first = Segment.create(disk, directory, start_offset, now_ms=now_ms, interval=interval, opened=opened)
        segments.append(first)
        opening.rebuilt.add(start_offset)
        end_offset = start_offset
    opening.complete(files)
    if not epochs:
        opening.learn_epochs()
    opening.drop_snapshots(beyond=end_offset)
    known = opening.epochs
    left = until_end(known, end_offset)
    snapshots = sorted(opening.snapshots)
    recovered = bool(opening.rebuilt)
    unflushed = snapshots.copy() if recovered and opening.producers.producers else []
    return Loaded(
        segments, end_offset, opening.producers, left, epochs, snapshots, unflushed, recovered, opening.gaps
    )


# -- names


def _logs(files: dict[str, FileInfo]) -> list[tuple[int, FileInfo]]:
    return [(base, files[name_of(base) + LOG]) for base in sorted(_numbered(files, LOG))]


def _numbered(names: Iterable[str], ending: str) -> Iterator[int]:
    """Yield the offsets of the names that are 20 digits and `ending`."""
    for name in names:
        if name.endswith(ending) and len(name) == NAME_DIGITS + len(ending) and name[:NAME_DIGITS].isdigit():
            yield int(name[:NAME_DIGITS])


def _settled(disk: Disk, directory: str, files: dict[str, FileInfo]) -> dict[str, FileInfo]:
    """Finish or undo what was under way: deletions, a compaction's files, indexes that lost their log."""
    doubtful = [
        name
        for name in files
        if name.endswith((DELETED, CLEANED, SWAP, ".tmp"))
        or (name.endswith(BESIDE_A_LOG) and name.split(".")[0] + LOG not in files)
    ]
    if not doubtful:
        return files
    swaps = sorted(_numbered(files, LOG + SWAP))
    for base in swaps:
        _finish_swap(disk, directory, files, base)
    for name in doubtful:
        swapped = not name.endswith((DELETED, CLEANED, ".tmp")) and int(name[:NAME_DIGITS]) in swaps
        if not swapped:
            disk.remove(f"{directory}/{name}")
    return disk.files(directory)


def _finish_swap(disk: Disk, directory: str, files: dict[str, FileInfo], base: int) -> None:
    """Put a compacted segment in the place of those that it was made of."""
    swap = f"{directory}/{name_of(base)}{LOG}{SWAP}"
    file = disk.open(swap)
    try:
        ends = [found.header.last_offset + 1 for found in sound_batches(file, file.size(), base_offset=base)]
    finally:
        file.close()
    for old in _numbered(files, LOG):
        if base <= old < max(ends, default=base + 1):
            for ending in FILES:
                disk.remove(f"{directory}/{name_of(old)}{ending}")
    for ending in FILES:
        name = f"{directory}/{name_of(base)}{ending}"
        if disk.exists(name + SWAP):
            disk.rename(name + SWAP, name)


def _read_epochs(disk: Disk, directory: str, files: dict[str, FileInfo]) -> Epochs:
    if EPOCHS not in files:
        return []
    try:
        return read_epochs(disk.load(f"{directory}/{EPOCHS}"))
    except Corrupt:
        return []


# -- batches


def sound_batches(
    file: DiskFile, size: int, *, start: int = 0, base_offset: int, gapless: bool = False
) -> Iterator[Sound]:
    """Yield the batches from `start` on, up to one whose checksum is wrong or whose offset does not grow.

    `base_offset` is that of the segment. The checksum does not cover a batch's offset, but in a log that is
    `gapless` each has to follow the one before.
    """
    position, least = start, base_offset
    exact = gapless and start == 0
    chunk, chunk_at = b"", start
    while size - position >= HEADER_SIZE:
        at = position - chunk_at
        header = _whole_header(chunk, at)
        if header is None:
            chunk, chunk_at, at = _chunk_from(file, position, size), position, 0
            header = _whole_header(chunk, at)
        if header is None or not check_crc(chunk, at, header):
            return
        if header.base_offset < least or (exact and header.base_offset > least):
            return
        if not 0 <= header.last_offset_delta <= base_offset + OFFSETS_OF_A_SEGMENT - header.base_offset:
            return
        yield Sound(position, header, chunk, at)
        least, exact = header.last_offset + 1, gapless
        position += header.size


def _whole_header(chunk: bytes, at: int) -> BatchHeader | None:
    """Return the header of the batch at `at` if all of it lies in `chunk`."""
    if len(chunk) - at < HEADER_SIZE:
        return None
    try:
        header = read_header(chunk, at)
    except Corrupt:
        return None
    return header if header.size <= len(chunk) - at else None


def _is_old_format(data: bytes) -> bool:
    """Return whether a message of format 0 or 1 lies here, which must not be taken for damage and cut off."""
    end = LENGTH_STARTS + int.from_bytes(data[8:LENGTH_STARTS], signed=True)
    if not OLD_HEADER_SIZE <= end <= len(data) or data[16] > 1:
        return False
    return crc32(data[16:end]) == int.from_bytes(data[12:16])


def _chunk_from(file: DiskFile, position: int, size: int) -> bytes:
    """Return the bytes at `position`: a good deal, and at least one batch if there is a whole one."""
    chunk = file.read(min(CHUNK, size - position), position)
    wanted = LENGTH_STARTS + int.from_bytes(chunk[8:LENGTH_STARTS], signed=True)
    if len(chunk) < wanted <= size - position:
        chunk = file.read(wanted, position)
    return chunk


# -- the end of the log, and its producers


@dataclass(slots=True)
class _Opening:
    """A directory while it is opened."""

    disk: Disk
    directory: str
    segments: list[Segment]
    producers: ProducerState
    epochs: Epochs
    snapshots: list[int]
    gapless: bool
    recovery_point: int
    rebuilt: set[int] = field(default_factory=set)
    gaps: bool = False

    def mend(self, *, clean: bool) -> int:
        """Bring everything into agreement with the batches that are whole; return the log's end."""
        end = self._end_after_clean_stop() if clean else None
        if end is None:
            return self._recover()
        self._replay(self._restore(limit=end), until=end)
        if self.recovery_point < end:  # a backup perhaps: which markers lie behind it nobody has looked
            self.segments[-1].note_ended(0)
        return end

    def _end_after_clean_stop(self) -> int | None:
        """Return the end of a log that was closed; None if it does not look like it."""
        active = self.segments[-1]
        end, reached = self._scan(active, start=active.resume(), learn=False)
        return end if reached == active.size else None

    def _recover(self) -> int:
        """Check every batch from the recovery point on; cut the log at the first bad one; return its end."""
        below = [place for place, one in enumerate(self.segments) if one.base_offset <= self.recovery_point]
        first = below[-1] if below else 0
        end = self.segments[first].base_offset
        known = self._restore(limit=end)
        self._replay(known, until=end)
        self.drop_snapshots(beyond=end)  # those may be of batches that are lost, or be lost themselves
        for place, segment in enumerate(self.segments[first:], first):
            if segment.base_offset < end or (self.gapless and place > first and segment.base_offset > end):
                self.drop(place)
                break
            if segment.base_offset != known:
                self._write_snapshot(segment.base_offset)
            self.gaps |= segment.base_offset > end
            segment.doubt()
            end, reached = self._scan(segment, start=0, learn=True)
            segment.settle()
            segment.settle_aborted()
            self.rebuilt.add(segment.base_offset)
            if reached < segment.size:
                if _is_old_format(segment.file.read(CHUNK, reached)):
                    raise DirectoryUnusable(f"{segment.path(LOG)} holds messages older than format 2")
                self.drop(place + 1)  # before the damage goes that tells of it: a crash between begins again
                segment.cut(reached)
                segment.file.sync()
                break
        return end

    def _write_snapshot(self, offset: int) -> None:
        """Write down the producers as of the start of a segment: the next opening may begin there."""
        if not self.producers.producers:
            return
        with suppress(OSError):
            path = f"{self.directory}/{name_of(offset)}{SNAPSHOT}"
            self.disk.save(path, self.producers.snapshot())
            if offset not in self.snapshots:
                self.snapshots.append(offset)

    def _scan(self, segment: Segment, *, start: int, learn: bool) -> tuple[int, int]:
        """Look at the batches of `segment` from `start` on; return the end offset and where they end.

        Producers, epochs and the list of aborted transactions `learn` from them.
        """
        reached, end = start, segment.base_offset
        batches = sound_batches(
            segment.file, segment.size, start=start, base_offset=segment.base_offset, gapless=self.gapless
        )
        for found in batches:
            header = found.header
            segment.note(header, header.base_offset, found.position, header.max_timestamp)
            if learn:
                self.gaps |= header.base_offset > end
                ended = self._learn(header, found.data, found.at)
                if ended is not None and ended.aborted:
                    segment.aborted.add(AbortedSpan(*ended[:4]))
                if ended is not None and ended.last_offset >= self.recovery_point:
                    segment.note_ended(ended.first_offset)
            end, reached = header.last_offset + 1, found.position + header.size
        return end, reached

    def _learn(self, header: BatchHeader, data: bytes, at: int) -> Completed | None:
        self._note_epoch(header)
        return None if header.producer_id < 0 else _learn(self.producers, header, data, at)

    def _restore(self, *, limit: int) -> int:
        """Take the producers from the newest snapshot up to `limit`; return the offset it vouches for."""
        self.producers.clear()
        first = self.segments[0].base_offset  # an older one misses what was deleted since
        for offset in [one for one in self.snapshots if first <= one <= limit]:
            path = f"{self.directory}/{name_of(offset)}{SNAPSHOT}"
            try:
                self.producers.restore(self.disk.load(path))
            except (Corrupt, OSError):
                self.disk.remove(path)
                self.snapshots.remove(offset)
            else:
                return offset
        return 0

    def _replay(self, known: int, *, until: int) -> None:
        """Let producers and epochs learn from the headers of the batches from `known` up to `until`."""
        starts = [segment.base_offset for segment in self.segments]
        for segment, following in zip(self.segments, [*starts[1:], until], strict=True):
            if following <= known or segment.base_offset >= until:
                continue
            for position, header in segment.readable_headers(_place_of(segment, known)):
                if header.base_offset >= until:
                    return
                control = header.producer_id >= 0 and header.control
                self._learn(header, segment.batch_at(position) if control else b"", 0)

    def learn_epochs(self) -> None:
        """Make the list of leader epochs anew from all batches."""
        self.epochs.clear()
        for segment in self.segments:
            for _, header in segment.readable_headers():
                self._note_epoch(header)

    def _note_epoch(self, header: BatchHeader) -> None:
        if header.leader_epoch > (self.epochs[-1][0] if self.epochs else -1):
            self.epochs.append((header.leader_epoch, header.base_offset))

    def drop(self, place: int) -> None:
        """Remove the segments from the one of number `place` on: nothing readable leads up to them.

        The last goes first, and for good: a loss of power must not bring them back behind what is written
        next.
        """
        for segment in reversed(self.segments[place:]):
            segment.release()
            for ending in FILES:
                self.disk.remove(segment.path(ending))
        self.disk.sync_directory(self.directory)
        del self.segments[place:]

    def forget_all(self) -> None:
        """Remove everything: nothing is left that may be read."""
        self.drop(0)
        self.producers.clear()
        self.drop_snapshots(beyond=-1)

    def drop_snapshots(self, *, beyond: int) -> None:
        """Remove the snapshots of a future that was lost."""
        for offset in self.snapshots:
            if offset > beyond:
                self.disk.remove(f"{self.directory}/{name_of(offset)}{SNAPSHOT}")
        self.snapshots = [offset for offset in self.snapshots if offset <= beyond]

    def complete(self, files: dict[str, FileInfo]) -> None:
        """Read the lists of aborted transactions, and make what a segment came without.

        The logs of a backup may have no indexes at all. That a segment has no list is nothing unusual: few
        transactions are aborted. So it is looked for only where another index is missing too.
        """
        bare, doubtful = [], []
        for segment in self.segments:
            name = name_of(segment.base_offset)
            if segment.base_offset in self.rebuilt or name + LOG not in files:
                continue
            if not (name + INDEX in files and name + TIME_INDEX in files):
                bare.append(segment)
                doubtful.append(segment)
            elif name + ABORTED in files:
                try:
                    segment.load_aborted()
                except Corrupt:
                    doubtful.append(segment)
        if doubtful:
            self._list_aborted(doubtful)
        for segment in bare:  # last: by the indexes a start goes that comes after a kill amid all this
            segment.rebuild_indexes()

    def _list_aborted(self, doubtful: list[Segment]) -> None:
        """Make anew the lists of aborted transactions of some segments."""
        state = ProducerState()
        for segment in self.segments[: self.segments.index(doubtful[-1]) + 1]:
            spans = []
            for position, header in segment.readable_headers():
                if header.producer_id >= 0 and header.transactional:
                    data = segment.batch_at(position) if header.control else b""
                    ended = _learn(state, header, data, 0)
                    if ended is not None and ended.aborted:
                        spans.append(AbortedSpan(*ended[:4]))
            if segment in doubtful:
                segment.aborted = AbortedIndex(spans)
                segment.settle_aborted()
                segment.sync_aborted()


def _place_of(segment: Segment, offset: int) -> int:
    """Return the position of an offset's batch; the start of the segment if that is not to be found."""
    if offset <= segment.base_offset:
        return 0
    try:
        return segment.position_of(offset) or 0
    except StorageFailed:
        return 0


def _learn(state: ProducerState, header: BatchHeader, data: bytes, at: int) -> Completed | None:
    """Let producers know of a batch; return the transaction that it ended."""
    if not header.control:
        state.record(header, base_offset=header.base_offset, timestamp=header.max_timestamp)
        return None
    marker = marker_of(data, at, header)
    if marker is None:
        if header.count == 0 and header.producer_id >= 0:
            state.record_emptied(header)
        return None
    return state.end_transaction(header, marker, offset=header.base_offset, timestamp=header.max_timestamp)
