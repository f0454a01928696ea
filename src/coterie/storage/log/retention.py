"""What of a log is forgotten: by its settings, by an administrator, and when the files of it are removed."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile

from coterie.storage.disk import Disk
from coterie.storage.log.contract import OffsetOutOfRange
from coterie.storage.log.flushing import Flushing, Snapshots
from coterie.storage.log.segment import DELETED, FILES, Segment
from coterie.storage.log.state import LogState


def run_removal(paths: Sequence[str], disk: Disk) -> None:
    """Remove files that nobody uses any more. Safe in any thread; large ones take their time."""
    for path in paths:
        disk.remove(path)


class LateRemoval:
    """Files that are renamed at once and removed later, in case somebody wants them back."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._due: list[tuple[int, list[str]]] = []

    def rename(self, segment: Segment, now_ms: int) -> None:
        """Rename a segment's files, to be removed after `file.delete.delay.ms`. Raises OSError."""
        segment.release()
        paths = []
        for ending in FILES:
            path = segment.path(ending)
            with suppress(FileNotFoundError):  # tried before, and stopped half way; or there is none
                self._state.disk.rename(path, path + DELETED)
            paths.append(path + DELETED)
        self._due.append((now_ms + self._state.config.file_delete_delay_ms, paths))

    def take_due(self, now_ms: int) -> list[str]:
        """Return the files whose time to be removed has come: the caller's to do, with `run_removal`."""
        due: list[str] = []
        while self._due and self._due[0][0] <= now_ms:
            due += self._due.pop(0)[1]
        return due


class Retention:
    """Deletes segments from the oldest on. `roll` begins a new last one, at the wall's time."""

    def __init__(
        self,
        state: LogState,
        snapshots: Snapshots,
        flushing: Flushing,
        removal: LateRemoval,
        *,
        finish_swaps: Callable[[int], None],
        roll: Callable[[int], Segment],
    ) -> None:
        self._state, self._snapshots, self._flushing, self._removal = state, snapshots, flushing, removal
        self._finish_swaps, self._roll = finish_swaps, roll

    def delete_before(self, offset: int, now_ms: int, *, save: bool = True) -> int:
        """Forget what lies before `offset`; return the new start.

        Who moves many starts writes them down first, with `Checkpoints.save_starts`, and lets none `save`.
        Raises OffsetOutOfRange and StorageFailed.
        """
        state = self._state
        if not 0 <= offset <= state.end_offset:
            raise OffsetOutOfRange(offset=offset, start=state.start_offset, end=state.end_offset)
        if offset > state.start_offset:
            with state.reporting_disk_errors():
                if save:
                    state.checkpoints.save_starts({state.name: offset})
                state.start_at(offset)
                state.save_epochs()
                count = sum(base <= state.start_offset for base in state.segments.bases[1:])
                self._delete(self._deletable(count, now_ms), now_ms)
        return state.start_offset

    def retain(self, now_ms: int, wall_ms: int) -> None:
        """Delete what is too old or too much, whole segments from the oldest on. Raises OSError."""
        config, segments = self._state.config, self._state.segments
        if not config.deleted:
            return
        count = 0
        surplus = segments.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
        while count < len(segments):
            segment = segments[count]
            surplus -= segment.size
            old = 0 <= config.retention_ms < wall_ms - segment.newest_ms
            if not (old or surplus >= 0) or (segment is segments.last and not segment.size):
                break
            count += 1
        if count:
            self._delete_oldest(count, now_ms, wall_ms)

    def _delete_oldest(self, count: int, now_ms: int, wall_ms: int) -> None:
        state = self._state
        if count == len(state.segments):
            self._roll(wall_ms)
        before = state.start_offset
        self._delete(self._deletable(count, now_ms), now_ms)
        if state.start_offset != before:
            state.save_epochs()

    def _delete(self, count: int, now_ms: int) -> None:
        """Take the first segments out of the log; their files go later.

        Where it starts then is written down nowhere but by what is gone: what the disk keeps is not passed.
        """
        state = self._state
        for _ in range(count):
            self._removal.rename(state.segments[0], now_ms)
            state.segments.drop_first()
            if state.segments.bases[0] > state.start_offset:
                state.start_at(state.segments.bases[0])
        self._flushing.flushed_to(max(state.recovery_point, state.segments.bases[0]))

    def _deletable(self, count: int, now_ms: int) -> int:
        """Return the number of segments, up to `count`, that may go one by one, with a crash after any."""
        self._finish_swaps(now_ms)
        known = self._snapshots.tell_of_producers_from
        if not all(map(known, range(1, count + 1))):
            self._flushing.flush_snapshots()
        return sum(1 for _ in takewhile(known, range(1, count + 1)))
