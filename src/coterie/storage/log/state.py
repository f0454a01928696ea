"""What the parts of one partition's log share: where it lies, its segments, and how far it goes."""

from collections.abc import Iterator
from contextlib import contextmanager

from coterie.base.ids import TopicPartition
from coterie.storage.checkpoints import EPOCHS, Checkpoints, write_epochs
from coterie.storage.config import LogConfig
from coterie.storage.disk import Disk
from coterie.storage.epochs import Epochs, from_start
from coterie.storage.log.contract import StorageFailed
from coterie.storage.log.recovery import Loaded
from coterie.storage.log.segments import Segments


class LogState:
    """Where a log lies, what it holds, and the offsets between which it does."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        name: TopicPartition,
        config: LogConfig,
        loaded: Loaded,
        checkpoints: Checkpoints,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.name = name
        self.config = config
        self.checkpoints = checkpoints
        self.producers = loaded.producers
        self.segments = Segments(loaded.segments)
        self.start_offset = max(checkpoints.starts.get(name, 0), loaded.segments[0].base_offset)
        if self.start_offset:  # what lay before may come back with a loss of power, if nobody has written it
            checkpoints.starts[name] = self.start_offset
        self.end_offset = loaded.end_offset
        flushed = max(checkpoints.flushed.get(name, 0), loaded.segments[0].base_offset)
        self.recovery_point = min(flushed, loaded.end_offset)
        # Who moved the start may have been killed before that was written; the next to write them does it.
        self.epochs: Epochs = from_start(loaded.epochs, self.start_offset)

    @property
    def last_stable_offset(self) -> int:
        """The start of the oldest open transaction as far as it is still there, or the end."""
        unstable = self.producers.first_unstable_offset
        return self.end_offset if unstable is None else max(unstable, self.start_offset)

    @property
    def first_recovered(self) -> int:
        """The start of the segment that opening after a crash begins with."""
        return self.segments.base_below(self.checkpoints.written.get(self.name, 0))

    def start_at(self, offset: int) -> None:
        """Have the log start there, once no kill takes it back: a start that was told never does."""
        self.start_offset = offset
        self.checkpoints.starts[self.name] = max(offset, self.checkpoints.starts.get(self.name, 0))
        self.epochs = from_start(self.epochs, offset)

    def save_epochs(self) -> None:
        """Write the leader epochs down. Raises OSError."""
        epoch, start = self.epochs[-1]
        # Else the batches tell of it: a file that a loss of power leaves cut short is made anew from them.
        known_here_only = epoch > 0 and start >= self.recovery_point
        self.disk.save(f"{self.directory}/{EPOCHS}", write_epochs(self.epochs), sync=known_here_only)

    @contextmanager
    def reporting_disk_errors(self) -> Iterator[None]:
        """Raise StorageFailed, which names the directory, for what the disk refuses."""
        try:
            yield
        except OSError as error:
            raise StorageFailed(self.sentence(error)) from error

    def sentence(self, error: OSError | StorageFailed) -> str:
        """Return a sentence: the directory, and the error of its disk."""
        return f"{self.directory}: {getattr(error, 'strerror', None) or error}"
