"""A log's snapshots of its producers: what tells of them once their batches are gone, or not yet read."""

from contextlib import suppress

from coterie.storage.log.recovery import SNAPSHOT, Loaded
from coterie.storage.log.segment import name_of
from coterie.storage.log.state import LogState
from coterie.storage.rewrite import checksum


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
                state.disk.save(self._path(state.end_offset), state.producers.snapshot(checksum))
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
