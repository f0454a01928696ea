"""What of a log survives a loss of power: the recovery point, what has to be flushed for it, and snapshots of
its producers, which tell of them once their batches are gone, or not yet read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from coterie.storage.disk import Disk
from coterie.storage.log.contract import StorageFailed
from coterie.storage.log.recovery import SNAPSHOT, Loaded
from coterie.storage.log.segment import FILES, Segment, name_of
from coterie.storage.log.state import LogState


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


class Snapshots:
    """The offsets at which a log's producers are written down, and which of these files are flushed."""

    def __init__(self, state: LogState, loaded: Loaded) -> None:
        self._state = state
        self._offsets = loaded.snapshots
        # Opening after a crash begins with the one at the recovery point: they are flushed before it moves.
        self.unflushed = loaded.unflushed_snapshots

    def unflushed_paths(self) -> list[str]:
        """Return the files that may not survive a loss of power."""
        return [*map(self._path, self.unflushed)]

    def flushed(self, offsets: tuple[int, ...]) -> None:
        """Take note that these survive a loss of power."""
        for offset in offsets:
            if offset in self.unflushed:
                self.unflushed.remove(offset)

    def take(self) -> None:
        """Write down the producers as of the end of the log. Without it, opening reads more headers."""
        state = self._state
        with suppress(OSError):
            if state.end_offset not in self._offsets:
                state.disk.save(self._path(state.end_offset), state.producers.snapshot())
                self._offsets.append(state.end_offset)
                if state.producers.producers:
                    self.unflushed.append(state.end_offset)
            self._remove_old()

    def tell_of_producers_from(self, place: int) -> bool:
        """Return whether a start after a loss of power would know the producers if this segment were first.

        The disk may have refused the snapshot, or to flush it: then the segments that tell of them stay.
        """
        state = self._state
        first = state.segments.bases[place]
        begins = max(first, state.first_recovered)
        flushed = (one for one in self._offsets if one not in self.unflushed)
        return not state.producers.producers or any(first <= one <= begins for one in flushed)

    def _path(self, offset: int) -> str:
        return f"{self._state.directory}/{name_of(offset)}{SNAPSHOT}"

    def _remove_old(self) -> None:
        """Keep the newest snapshot and those that opening after a crash may begin with.

        It begins at the segment that holds the recovery point, as far as that is written down.
        """
        start = self._state.first_recovered
        flushed = [offset for offset in self._offsets if offset not in self.unflushed]
        needed = max((offset for offset in flushed if offset <= start), default=0)
        for offset in self._offsets[:-1]:
            if offset < needed or (offset > needed and offset not in self._state.segments.bases):
                self._state.disk.remove(self._path(offset))
                self._offsets.remove(offset)


class Flushing:
    """What is flushed of a log, and what failed appends have left that must not come back."""

    def __init__(self, state: LogState, snapshots: Snapshots, loaded: Loaded) -> None:
        self._state, self._snapshots = state, snapshots
        self._torn = False  # whether there may be bytes of a failed append behind the end
        self._cut = False  # whether there were, and a loss of power might bring them back
        # Whether the next start would take what is missing for damage, or what is new for compacted.
        self._gaps_untold = state.checkpoints.was_cut(state.name, loaded.end_offset) or loaded.gaps
        self._recovered = loaded.recovered  # whether what a start has cut off might come back
        self._stray: int | None = None
        # Whether the names of its files survive a loss of power; the number of its directory if it is new.
        self.names_flushed = False
        self.directory_number = 0
        self.unflushed_since: int | None = None
        # Once a flush has failed no later one is believed: the system may have dropped what it could not
        # write, and says so once. Until the next start, which reads what is there, nothing counts as flushed.
        self.has_failed = False

    @property
    def may_bring_back(self) -> bool:
        """Whether a crash might leave what was refused, until the next flush."""
        return self._torn or self._cut

    def flush(self) -> None:
        """Make everything appended so far survive a loss of power, and nothing that was refused."""
        state = self._state
        self.insist()
        with state.reporting_disk_errors():
            self.clear_away()
            self.flush_closed()
            if state.recovery_point < state.end_offset or self._cut:
                try:
                    state.segments.last.sync()
                except OSError as error:
                    self.fail(error.strerror or str(error))
                    raise
                self._cut = False
        if state.recovery_point < state.segments.bases[-1]:
            raise StorageFailed(f"{state.directory}: the indexes of closed segments cannot be written")
        self.flushed_to(state.end_offset)

    def plan(self) -> FlushPlan | None:
        """Return the FlushPlan of closed segments, for `run_flush` in any thread, then `finish`."""
        if self.has_failed:
            return None
        state = self._state
        done = upto = state.recovery_point
        paths: list[str] = []
        for segment, end in zip(state.segments, state.segments.bases[1:], strict=False):
            if end <= done:
                continue
            if not segment.save_indexes(final=True):
                break
            paths += map(segment.path, FILES)
            upto = end
        paths += self._snapshots.unflushed_paths()
        return self._plan_of(paths, upto) if paths else None

    def finish(self, plan: FlushPlan) -> None:
        """Take note that a plan was carried out, or that the disk would not flush."""
        if plan.failed:
            self.fail(plan.failed)
        if self.has_failed:  # it may have failed before this plan was carried out
            return
        self._snapshots.flushed(plan.snapshots)
        self.flushed_to(max(self._state.recovery_point, plan.upto))

    def flush_snapshots(self) -> None:
        """Flush the snapshots of producers alone."""
        paths = self._snapshots.unflushed_paths()
        if paths and not self.has_failed:
            self.finish(run_flush(self._plan_of(paths, self._state.recovery_point), self._state.disk))

    def flush_closed(self) -> None:
        """Flush the closed segments and all names. Raises OSError and StorageFailed."""
        plan = self.plan()
        if plan is not None:
            self.finish(run_flush(plan, self._state.disk))
            self.insist()
        self.flush_names()

    def flush_names(self) -> None:
        """Flush the names of the files and of their directory. Raises OSError."""
        if self.names_flushed:
            return
        try:
            self._state.disk.sync_directory(self._state.directory)
            self._state.checkpoints.make_certain(self.directory_number)
        except OSError as error:
            self.fail(error.strerror or str(error))
            raise
        self.names_flushed = True

    def flush_unseen(self, last: Segment) -> None:
        """Flush what a recovery point says nothing of: the indexes, and what was cut off."""
        if last.flush_failed:  # the next start is to look at it again
            self.insist()
        if not last.save_indexes(final=True):
            raise StorageFailed(f"{self._state.directory}: the indexes cannot be written")
        try:
            last.sync_aborted()
            last.sync_indexes()
            if self._cut or self._recovered:
                last.sync()
                self._cut = False
        except OSError as error:
            if last.flush_failed:  # and not refused for want of room
                self.fail(error.strerror or str(error))
            raise

    def flushed_to(self, offset: int) -> None:
        """Take note that what lies before an offset survives a loss of power."""
        state = self._state
        state.recovery_point = state.checkpoints.flushed[state.name] = offset
        if offset >= state.end_offset:
            self.unflushed_since = state.segments.last.ended_from = None

    def fail(self, why: str) -> None:
        """Believe no flush any more, and tell whoever is to know."""
        if not self.has_failed:
            self.has_failed = True
            self._state.checkpoints.on_failed_flush(f"{self._state.directory} cannot be flushed: {why}")

    def insist(self) -> None:
        """Raise StorageFailed if nothing can be promised any more of what survives a loss of power."""
        if self.has_failed:
            raise StorageFailed(
                f"{self._state.directory}: a flush has failed; only a restart can tell what is left"
            )

    # -- what failed appends leave

    def take_back(self, segment: Segment) -> None:
        """Cut off what a failed append left; if even that fails, the next append tries again first."""
        self._cut = True
        try:
            segment.mend()
        except OSError:
            self._torn = True

    def clear_away(self) -> None:
        """Take away what failed appends have left, where that has failed as well. Raises OSError."""
        self.tell_of_gaps()
        if self._torn:
            self._state.segments.last.mend()
            self._torn = False
        if self._stray is not None:
            self._remove_stray(self._stray)

    def tell_of_gaps(self) -> None:
        """Write down that the log may have gaps, where that is not known yet. Raises OSError."""
        if self._gaps_untold:
            self._state.checkpoints.expect_gaps([self._state.name])
            self._gaps_untold = False

    @contextmanager
    def beginning(self, offset: int) -> Iterator[None]:
        """Take the files of a segment that begins there for stray ones until all of them are made."""
        self._stray = offset
        yield
        self._stray = None

    def segment_begun(self) -> None:
        """Take note of a new segment: its names are not flushed, and what was cut off lies before it."""
        self.names_flushed = self._recovered = False

    def _remove_stray(self, base_offset: int) -> None:
        """Take away the files of a segment that could not be begun.

        Once the one before it goes on, opening would find two segments for the same offsets, and lose what
        comes behind. So would it if a loss of power brought the files back.
        """
        stem = f"{self._state.directory}/{name_of(base_offset)}"
        for ending in FILES:
            self._state.disk.remove(stem + ending)
        self._stray, self.names_flushed = None, False

    def _plan_of(self, paths: Sequence[str], upto: int) -> FlushPlan:
        return FlushPlan(self._state.directory, tuple(paths), upto, tuple(self._snapshots.unflushed))
