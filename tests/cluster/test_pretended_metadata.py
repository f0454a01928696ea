"""The engine in memory is an engine: the kit that each passes, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from random import Random

from cluster.engine_kit import EngineKit
from coterie.broker.cluster.database import Database
from coterie.broker.cluster.pretended import EngineOfBroker, Fate
from coterie.broker.cluster.statements import Statement
from coterie.storage.remote.pretended import Fate as LaneFate


class PretendedStage:
    """The engine, and time that goes from one event to the next."""

    has_presence = has_lanes = True

    def __init__(self) -> None:
        self.database = Database(choose=lambda _: LaneFate(), later=self.later)
        self._random = Random(1)
        self._now = self._sequence = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []

    def later(self, delay_ms: int, do: Callable[[], None]) -> None:
        """Have something done so much later."""
        self._sequence += 1
        heappush(self._agenda, (self._now + delay_ms, self._sequence, do))

    def _fate(self, statement: Statement) -> Fate:
        return Fate(1, 2)

    def engine(self, broker_id: int) -> EngineOfBroker:
        """Return the engine as a broker reaches it."""
        return EngineOfBroker(
            self.database.metadata,
            broker_id,
            later=self.later,
            choose=self._fate,
            connect_ms=lambda: self._random.randint(0, 3),
        )

    def until(self, holds: Callable[[], bool]) -> None:
        """Let things happen until it holds."""
        while not holds():
            assert self._agenda, "nothing is about to happen any more"
            self._now, _, do = heappop(self._agenda)
            do()

    def end_sessions(self) -> None:
        """Have the engine restart."""
        self.database.go_away()
        self.database.come_back()

    def takes_appends(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether all lanes of a broker do."""
        return self.database.takes_appends(broker_id, broker_epoch)


class TestPretendedEngine(EngineKit):
    """The kit."""

    @contextmanager
    def stage(self) -> Iterator[PretendedStage]:
        yield PretendedStage()
