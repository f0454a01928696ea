"""What becomes of the statements that brokers send: mostly they are done and answered within milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coterie.broker.cluster.pretended import Fate
from coterie.broker.cluster.statements import BrokerHeartbeat, ReadDelta, Statement
from coterie.storage.remote.lane import SILENCE_MS
from coterie.storage.remote.pretended import BROKEN
from coterie.storage.remote.pretended import Fate as LaneFate

if TYPE_CHECKING:
    from swarm.clustered.cluster import DatabaseCluster
    from swarm.clustered.processes import ClusteredProcess

LOST_CHANCE = 0.02
LONG_MS = 100
REFUSED = "53100"
"""The SQLSTATE of a disk that is full."""


class Fates:
    """Draws them. In a bad spell of a process many are lost, late, or in doubt."""

    def __init__(self, cluster: DatabaseCluster) -> None:
        self.on_late: Callable[[ClusteredProcess], None] = lambda _: None
        """Called when a statement of a lane is on its way for so long that another may lead by then."""
        self.on_next: list[Callable[[], None]] = []
        """Called, once, when the next append is on its way."""
        self._cluster = cluster
        self._world = cluster.world

    def _is_bad(self, process: ClusteredProcess | None) -> bool:
        world = self._world
        if process is None:
            return False
        if world.now_ms < process.bad_until_ms:
            return world.chance(0.4)
        return not self._cluster.calm and world.chance(LOST_CHANCE)

    def of_metadata(self, process: ClusteredProcess, statement: Statement) -> Fate:
        """Return the fate of a statement to the engine of the metadata."""
        world = self._world
        done_ms = world.random.choice((1, 1, 1, 2, 3, 8))
        answered_ms = done_ms + world.random.choice((1, 1, 2, 4))
        if process.is_cut_off:
            return Fate(None, None, 5_000)
        bad = self._is_bad(process)
        if isinstance(statement, BrokerHeartbeat | ReadDelta) and world.now_ms >= process.bad_until_ms:
            bad = False
        if not bad:
            return Fate(done_ms, answered_ms)
        world.marks.add("metadata in doubt")
        lost = [
            Fate(None, None, 30),
            Fate(done_ms, None, answered_ms),
            Fate(world.random.choice((100, 600, 4_000)), None, 40),
        ]
        return world.random.choice(lost)

    def of_lane(self, name: str) -> LaneFate:
        """Return the fate of a statement of a lane, or of one that reads logs."""
        world, process = self._world, self._cluster.asks
        if name == "append":
            called, self.on_next = self.on_next, []
            for call in called:
                call()
        effect_ms = world.random.choice((1, 1, 1, 2, 5))
        answer_ms = effect_ms + world.random.choice((1, 1, 3))  # in one millisecond it might come before
        if process is not None and process.is_cut_off:
            process.silent_until_ms = world.now_ms + SILENCE_MS
            return LaneFate(None, None)
        if not self._is_bad(process):
            return LaneFate(effect_ms, answer_ms)
        world.marks.add("append in doubt")
        assert process is not None
        lost = [
            LaneFate(None, 5, BROKEN),
            LaneFate(effect_ms, answer_ms, BROKEN),
            LaneFate(world.random.choice((600, 4_000)), 5, BROKEN),
            LaneFate(world.random.choice((600, 4_000)), 5, BROKEN),
            LaneFate(effect_ms, None),
            LaneFate(world.random.choice((100, 600)), 2_000),
            LaneFate(None, 2, "40001"),
            LaneFate(None, 2, REFUSED),
        ]
        fate = world.random.choice(lost)
        if fate.answer_ms is None or fate.answer_ms > LONG_MS:
            process.silent_until_ms = world.now_ms + SILENCE_MS
        if fate.effect_ms is not None and fate.effect_ms > LONG_MS:
            self.on_late(process)
        if fate.failure == REFUSED:
            process.refused_until_ms = world.now_ms + LONG_MS
        return fate
