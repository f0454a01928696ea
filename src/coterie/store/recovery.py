"""Opening a partition's directory, whatever a crash left in it.

After a clean stop only the last batches are looked at. Otherwise every batch from the recovery point on is
checked, and the log is cut where the first bad one starts. Files of a compaction that was interrupted are put
in their places or taken away.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from coterie.base.errors import Corrupt
from coterie.store.checkpoints import EPOCHS, read_epochs
from coterie.store.disk import Disk, DiskFile, FileInfo
from coterie.store.epochs import Epochs, until_end
from coterie.store.log import DirectoryUnusable
from coterie.store.producers import Marker, ProducerState
from coterie.store.rewrite import checksum
from coterie.store.segment import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    OFFSETS_OF_A_SEGMENT,
    SWAP,
    TIME_INDEX,
    Segment,
    name_of,
)
from coterie.wire.batches import HEADER_SIZE, BatchHeader, check_crc, read_header, records_of

__all__ = ["SNAPSHOT", "SNAPSHOTS_KEPT", "Loaded", "Sound", "load", "marker_of", "sound_batches"]

SNAPSHOT = ".snapshot"
SNAPSHOTS_KEPT = 2
CHUNK = 1 << 20
LENGTH_STARTS = 12
OLD_HEADER_SIZE = 26
NAME_DIGITS = 20
BESIDE_A_LOG = (INDEX, TIME_INDEX, ".txnindex")


@dataclass(slots=True)
class Loaded:
    """What a partition's directory holds."""

    segments: list[Segment]
    end_offset: int
    producers: ProducerState
    epochs: Epochs
    written_epochs: Epochs
    snapshots: list[int]


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
    segments = [
        Segment(disk, directory, base, size=info.size, created_ms=info.modified_ms, interval=interval)
        for base, info in _logs(files)
    ]
    epochs = _read_epochs(disk, directory, files)
    snapshots = sorted(_numbered(files, SNAPSHOT), reverse=True)
    opening = _Opening(disk, directory, segments, ProducerState(), epochs.copy(), snapshots, gapless)
    end_offset = opening.mend(recovery_point, clean=clean) if segments else -1
    if end_offset < start_offset:  # nothing is left that may be read
        opening.drop(0)
        segments.append(Segment.create(disk, directory, start_offset, now_ms=now_ms, interval=interval))
        end_offset = start_offset
    opening.complete_indexes(files)
    opening.drop_snapshots(beyond=end_offset)
    known = opening.epochs
    left = until_end(known, end_offset) or known[:1]
    return Loaded(segments, end_offset, opening.producers, left, epochs, opening.snapshots[::-1])


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
        if not (name.endswith(SWAP) and int(name[:NAME_DIGITS]) in swaps):
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
            for ending in (INDEX, TIME_INDEX, LOG):
                disk.remove(f"{directory}/{name_of(old)}{ending}")
    for ending in (INDEX, TIME_INDEX, LOG):
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
    """Return what lies at `position`: a good deal, and at least one batch if there is a whole one."""
    chunk = file.read(min(CHUNK, size - position), position)
    wanted = LENGTH_STARTS + int.from_bytes(chunk[8:LENGTH_STARTS], signed=True)
    if len(chunk) < wanted <= size - position:
        chunk = file.read(wanted, position)
    return chunk


def marker_of(batch: bytes | bytearray, at: int = 0) -> Marker | None:
    """Return what the control batch at `at` says about a transaction; None if it is about something else."""
    for record in records_of(batch, at):
        if record.key is not None and len(record.key) >= 4 and record.value is not None:
            kind = int.from_bytes(record.key[2:4], signed=True)
            if kind in (0, 1):
                return Marker(kind == 1, int.from_bytes(record.value[2:6], signed=True))
    return None


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

    def mend(self, recovery_point: int, *, clean: bool) -> int:
        """Bring everything into agreement with the batches that are whole; return the log's end."""
        end = self._end_after_clean_stop() if clean else None
        if end is not None:
            self._replay(self._restore(limit=end), until=end)
            return end
        known = self._restore(limit=None)
        end = self._recover(recovery_point, known)
        if known > end:  # the snapshot told of batches that are lost
            self._replay(self._restore(limit=end), until=end)
        return end

    def _end_after_clean_stop(self) -> int | None:
        """Return the end of a log that was closed; None if it does not look like it."""
        active = self.segments[-1]
        end, reached = self._scan(active, start=active.resume(), known=None)
        return end if reached == active.size else None

    def _recover(self, recovery_point: int, known: int) -> int:
        """Check every batch from the recovery point on; cut the log at the first bad one; return its end."""
        below = [place for place, one in enumerate(self.segments) if one.base_offset <= recovery_point]
        first = below[-1] if below else 0
        self._replay(known, until=self.segments[first].base_offset)
        end = self.segments[first].base_offset
        for place, segment in enumerate(self.segments[first:], first):
            if segment.base_offset < end or (self.gapless and place > first and segment.base_offset > end):
                self.drop(place)
                break
            segment.doubt()
            end, reached = self._scan(segment, start=0, known=known)
            segment.settle()
            if reached < segment.size:
                if _is_old_format(segment.file.read(CHUNK, reached)):
                    raise DirectoryUnusable(f"{segment.path(LOG)} holds messages older than format 2")
                segment.cut(reached)
                self.drop(place + 1)
                break
        return end

    def _scan(self, segment: Segment, *, start: int, known: int | None) -> tuple[int, int]:
        """Look at the batches of `segment` from `start` on; return the end offset and where they end.

        Producers and epochs learn from batches at `known` and later.
        """
        reached, end = start, segment.base_offset
        batches = sound_batches(
            segment.file, segment.size, start=start, base_offset=segment.base_offset, gapless=self.gapless
        )
        for found in batches:
            header = found.header
            segment.note(header, header.base_offset, found.position, header.max_timestamp)
            if known is not None and header.base_offset >= known:
                self._learn(header, found.data, found.at)
            end, reached = header.last_offset + 1, found.position + header.size
        return end, reached

    def _learn(self, header: BatchHeader, data: bytes, at: int) -> None:
        if header.leader_epoch > (self.epochs[-1][0] if self.epochs else -1):
            self.epochs.append((header.leader_epoch, header.base_offset))
        if header.producer_id < 0:
            return
        if not header.control:
            self.producers.record(header, base_offset=header.base_offset, timestamp=header.max_timestamp)
        elif (marker := marker_of(data, at)) is not None:
            self.producers.end_transaction(
                header, marker, offset=header.base_offset, timestamp=header.max_timestamp
            )

    def _restore(self, *, limit: int | None) -> int:
        """Take the producers from the newest snapshot up to `limit`; return the offset it vouches for."""
        self.producers.clear()
        for offset in self.snapshots:
            if limit is not None and offset > limit:
                continue
            try:
                data = self.disk.load(f"{self.directory}/{name_of(offset)}{SNAPSHOT}")
                self.producers.restore(data, checksum)
            except (Corrupt, OSError):
                continue
            return offset
        return 0

    def _replay(self, known: int, *, until: int) -> None:
        """Let producers and epochs learn from the headers of the batches from `known` up to `until`."""
        starts = [segment.base_offset for segment in self.segments]
        for segment, following in zip(self.segments, [*starts[1:], until], strict=True):
            if following <= known or segment.base_offset >= until:
                continue
            for position, header in segment.headers(segment.position_of(known) or 0):
                if header.base_offset >= until:
                    return
                control = header.producer_id >= 0 and header.control
                self._learn(header, segment.batch_at(position) if control else b"", 0)

    def drop(self, place: int) -> None:
        """Remove the segments from the one of number `place` on: nothing readable leads up to them."""
        for segment in self.segments[place:]:
            segment.release()
            for ending in (INDEX, TIME_INDEX, LOG):
                self.disk.remove(segment.path(ending))
        del self.segments[place:]

    def drop_snapshots(self, *, beyond: int) -> None:
        """Remove the snapshots of a future that was lost, and those of a distant past."""
        good = [offset for offset in self.snapshots if offset <= beyond][:SNAPSHOTS_KEPT]
        for offset in self.snapshots:
            if offset not in good:
                self.disk.remove(f"{self.directory}/{name_of(offset)}{SNAPSHOT}")
        self.snapshots = good

    def complete_indexes(self, files: dict[str, FileInfo]) -> None:
        """Make the indexes that a segment came without, as the logs of a backup may."""
        for segment in self.segments:
            name = name_of(segment.base_offset)
            if name + LOG in files and not (name + INDEX in files and name + TIME_INDEX in files):
                segment.rebuild_indexes()
