"""One database in memory: metadata, lanes and chunks in one place, as in a real one.

What a change of the metadata does to the gate of appends, it does in the same moment: a registration opens
the broker's lanes in its epoch, a takeover or a departure deletes them, and with a topic its rows go. When
the server is away, all of it is; one that takes its place, and was behind, is behind in all.
"""

from __future__ import annotations

from typing import NamedTuple

from coterie.broker.cluster.pretended import MetadataTables, PretendedEngine
from coterie.storage.remote.pretended import Chooser, Later
from coterie.storage.remote.pretended import PretendedEngine as PretendedStorage

LANES = 3


class Moment(NamedTuple):
    """The database as it was at one time, to go back to."""

    metadata: MetadataTables
    mark: int


class Database:
    """Both engines, over one state. Statements of the metadata have their fates drawn by whoever sends them,
    those of lanes by `choose`.
    """

    def __init__(self, *, choose: Chooser, later: Later, lanes: int = LANES) -> None:
        self.storage = PretendedStorage(choose, later)
        self.tables = self.storage.tables
        self.lanes = lanes
        self.metadata = PretendedEngine(
            fenced=self.tables.fence, registered=self._registered, deleted=self.tables.delete_partitions
        )

    def _registered(self, broker_id: int, broker_epoch: int) -> None:
        self.tables.open_lanes(broker_id, self.lanes, broker_epoch)

    def takes_appends(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether a broker's lanes are those of an epoch."""
        rows = [self.tables.lanes.get((broker_id, lane)) for lane in range(self.lanes)]
        return all(row is not None and row.broker_epoch == broker_epoch for row in rows)

    def moment(self) -> Moment:
        """Return the state as it is, to go back to."""
        return Moment(self.metadata.tables.copy(), self.tables.journal.mark())

    def forget_before(self, moment: Moment) -> None:
        """Forget the way back to what was before a moment."""
        self.tables.journal.settle(moment.mark)

    def go_away(self) -> None:
        """Answer nobody: connections break, and what was on its way does not happen."""
        self.storage.go_away()
        self.metadata.go_away()

    def come_back(self) -> None:
        """Take connections again."""
        self.storage.come_back()
        self.metadata.come_back()

    def fall_back(self, moment: Moment, history: str) -> None:
        """Be as at an earlier moment: another server goes on, that was behind, in a history of its own."""
        self.storage.go_away(to=moment.mark)
        self.storage.history = history
        self.storage.come_back()
        self.metadata.fall_back(moment.metadata, history)
