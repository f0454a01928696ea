"""A log's side of its compaction: what is due, and compacted segments in the places of those they replace.

What is kept of each segment is for `storage.cleaning` to say, in `storage.compaction`, which may run in a
process of its own.
"""

from contextlib import suppress

from coterie.storage import compaction
from coterie.storage.cleaning import Need
from coterie.storage.compaction import CompactionPlan, CompactionResult
from coterie.storage.log.aborted import AbortedIndex
from coterie.storage.log.contract import StorageFailed
from coterie.storage.log.flushing import Flushing
from coterie.storage.log.retention import LateRemoval
from coterie.storage.log.segment import LOG, SWAP, Segment
from coterie.storage.log.state import LogState


class Compacting:
    """Plans the compactions of one log, and swaps their segments in."""

    def __init__(self, state: LogState, flushing: Flushing, removal: LateRemoval) -> None:
        self._state, self._flushing, self._removal = state, flushing, removal
        # Compacted segments that are not yet called by their names, each with those that they replace.
        self._swaps: list[tuple[Segment, list[Segment]]] = []

    def need(self, now_ms: int) -> Need | None:
        """Return the Need of a compaction, None if none is due. Raises StorageFailed for a damaged log."""
        return compaction.need(self._log_to_clean(now_ms), self._state.config, now_ms)

    def plan(self, now_ms: int, wall_ms: int | None = None) -> CompactionPlan | None:
        """Return the plan of a compaction now; None if nothing can be compacted.

        How old things are goes by `now_ms`; what is written of that, for later, by `wall_ms` if it is given.
        """
        state = self._state
        if not state.config.compacted or self._swaps:
            return None
        found = self._log_to_clean(now_ms)
        return compaction.plan(
            found,
            state.config,
            state.directory,
            producers=state.producers.producers,
            aborted=tuple(state.segments.aborted_within(state.segments.bases[0], found.upto)),
            now_ms=now_ms,
            wall_ms=now_ms if wall_ms is None else wall_ms,
        )

    def finish(self, result: CompactionResult, now_ms: int) -> bool:
        """Put compacted segments in their places; or return False if the log has changed under the plan.

        Raises StorageFailed where the disk refuses, or has refused what was to be written.
        """
        state, flushing = self._state, self._flushing
        if not all(map(self._still_there, result.plan.groups)):
            compaction.discard(result.plan, state.disk)
            return False
        if result.failed:  # by nothing that the log knows of
            raise StorageFailed(result.failed)
        try:
            with state.reporting_disk_errors():
                flushing.insist()
                state.checkpoints.expect_gaps([state.name])
                self._have_starts_begin_at(result.plan.upto)
                flushing.names_flushed = False
                for group in result.groups:
                    self._swap(group, now_ms)
                flushing.flush_names()  # or a loss of power leaves as it was what is said to be compacted
                state.checkpoints.compacted[state.name] = result.plan.upto
                state.checkpoints.save_compacted()
        except StorageFailed:
            with suppress(OSError):
                compaction.discard(result.plan, state.disk)
            raise
        return True

    def run(self, now_ms: int) -> bool:
        """Compact at once, in this thread; return whether there was anything to do."""
        self._flushing.flush_closed()
        plan = self.plan(now_ms)
        return plan is not None and self.finish(compaction.run_compaction(plan, self._state.disk), now_ms)

    def finish_swaps(self, now_ms: int) -> None:
        """Take away what compacted segments replace, and give them their names. Raises OSError."""
        while self._swaps:
            new, old = self._swaps[0]
            while old:
                self._removal.rename(old[-1], now_ms)
                old.pop()
            compaction.swap_to_final(new.stem, self._state.disk)
            new.suffix = ""
            del self._swaps[0]
            self._state.disk.touch(new.path(LOG), new.created_ms)

    def _log_to_clean(self, now_ms: int) -> compaction.LogToClean:
        state = self._state
        first_dirty = state.checkpoints.compacted.get(state.name, 0)
        if not state.start_offset <= first_dirty <= state.end_offset:
            first_dirty = state.start_offset
        return compaction.log_to_clean(
            state.segments, state.config, first_dirty=first_dirty, settled=self._settled(), now_ms=now_ms
        )

    def _settled(self) -> int:
        """Return up to where everything is decided and flushed, the markers that have decided it too.

        What a loss of power leaves undecided must not have replaced anything.
        """
        state = self._state
        unsure = [
            one.ended_from
            for one in state.segments.from_offset(state.recovery_point)
            if one.ended_from is not None
        ]
        return min(state.last_stable_offset, state.recovery_point, *unsure)

    def _have_starts_begin_at(self, offset: int) -> None:
        """Have a start begin there, or later, before segments below become one.

        Else it might begin with that one, where no snapshot tells of producers whose batches are deleted.
        """
        if self._state.producers.producers and self._state.first_recovered < offset:
            self._state.checkpoints.save()

    def _still_there(self, bases: tuple[int, ...]) -> bool:
        segments = self._state.segments
        place = segments.place_of(bases[0])
        return tuple(segments.bases[place : place + len(bases)]) == bases

    def _swap(self, group: compaction.SegmentGroup, now_ms: int) -> None:
        """Put a compacted segment in the place of those it was made of.

        It counts from the moment that it is a `.swap`, here as for a start after a crash. The disk may refuse
        what is left to do; readers go on with it, and `finish_swaps` tries again.
        """
        state = self._state
        place = state.segments.bases.index(group.bases[0])
        old = state.segments[place : place + len(group.bases)]
        compaction.cleaned_to_swap(old[0].stem, state.disk)
        new = Segment(
            state.disk,
            state.directory,
            group.bases[0],
            size=group.size,
            created_ms=old[-1].written_ms,
            interval=state.config.index_interval_bytes,
            suffix=SWAP,
            opened=old[0].opened,
        )
        new.adopt_aborted(AbortedIndex(group.aborted))
        state.segments.replace(place, len(old), new)
        self._swaps.append((new, old))
        self.finish_swaps(now_ms)
