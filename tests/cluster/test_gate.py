"""Whose appends are taken is decided with who is registered: in the same moment, in the same epoch."""

from __future__ import annotations

from uuid import UUID

from coterie.broker.cluster.changes import Change, Changed, LeaveCluster, RegisterBroker, TakeOver
from coterie.broker.cluster.pretended import PretendedEngine
from coterie.storage.remote.pretended import Tables

LANES = 2


class Database:
    """An engine of the metadata, and the tables of chunks behind the gate that it opens and shuts."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.engine = PretendedEngine(
            fenced=self.tables.fence,
            registered=lambda broker_id, epoch: self.tables.open_lanes(broker_id, LANES, epoch),
        )

    def change(self, change: Change) -> int:
        """Have a change made, and return its version."""
        answer = self.engine.execute(change)
        assert isinstance(answer, Changed)
        return answer.version

    def takes(self, broker_id: int, broker_epoch: int) -> set[bool]:
        """Return whether the lanes of a broker may append in an epoch."""
        return {self.tables.passes_gate(broker_id, lane, broker_epoch, 0) for lane in range(LANES)}


def test_a_broker_appends_in_the_epoch_of_its_last_registration():
    database = Database()
    first = database.change(RegisterBroker(1, UUID(int=1), 0))
    other = database.change(RegisterBroker(2, UUID(int=2), 0))
    second = database.change(RegisterBroker(1, UUID(int=3), first))

    assert database.takes(1, first) == {False}
    assert database.takes(1, second) == {True}
    assert database.takes(2, other) == {True}


def test_a_broker_that_is_taken_over_or_has_left_appends_nothing():
    database = Database()
    dead = database.change(RegisterBroker(1, UUID(int=1), 0))
    leaving = database.change(RegisterBroker(2, UUID(int=2), 0))
    other = database.change(RegisterBroker(3, UUID(int=3), 0))

    database.change(TakeOver(1, dead, beats=0))
    database.change(LeaveCluster(2, leaving))

    assert database.takes(1, dead) == database.takes(2, leaving) == {False}
    assert database.takes(3, other) == {True}
