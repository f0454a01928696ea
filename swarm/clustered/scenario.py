"""Scenarios of a cluster over a database: what happens to members of groups anywhere, and besides it to
brokers, to their ways to the database, and to the database itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from coterie.broker.cluster.giving_back import AFTER_MS
from coterie.broker.cluster.terms import LifecycleTerms
from swarm.checks.invariants import Mistakes
from swarm.clients.producers import Producer
from swarm.clustered.checks import ClusteredChecks
from swarm.clustered.cluster import READY_MS, DatabaseCluster
from swarm.clustered.processes import ClusteredProcess
from swarm.clustered.producers import ClusteredProducer
from swarm.options import Options, draw
from swarm.scenario import Outcome, Scenario, live
from swarm.world import World

if TYPE_CHECKING:
    from swarm.cluster import Cluster

FLAG = "--engine"
SESSION_MOST_MS = 15_000
NOT_HERE = {"power", "disk", "move", "jump", "crash", "stop"}
BROKERS_TROUBLES = (
    "kill-broker",
    "kill-broker",
    "leave-broker",
    "freeze",
    "freeze",
    "sever",
    "sever",
    "spell",
)
OUTAGES = ("outage", "fall-back")


def options_of(world: World) -> Options:
    """Return the options that chance picks, for a cluster over a database."""
    drawn, random = draw(world, session_most_ms=SESSION_MOST_MS), world.random
    troubles = [name for name in drawn.troubles if name not in NOT_HERE]
    troubles += [name for name in BROKERS_TROUBLES if random.random() < 0.5]
    troubles += [name for name in OUTAGES if random.random() < 0.3]
    falls_back = "fall-back" in troubles
    return replace(
        drawn,
        brokers=random.choice((2, 3, 3, 3)),
        shards=random.choice((1, 2, 3, 4)),
        producers=0 if falls_back else random.choice((0, 0, 1, 2)),
        landing_ms=40,
        data=not falls_back and random.random() < 0.6,
        troubles=tuple(troubles),
        trouble_every_ms=random.choice((1_500, 4_000, 8_000)),
        chaos_ms=random.choice((30_000, 60_000)),
    )


class ClusteredScenario(Scenario):
    """Everything that one seed draws, and its course."""

    def __init__(self, seed: int, mistakes: Mistakes, *, options: Options | None = None) -> None:
        super().__init__(seed, mistakes, options=options or options_of(World(seed)))

    @property
    def flag(self) -> str:
        """What `python -m swarm` is to be told, besides the seed."""
        return FLAG

    @property
    def over(self) -> DatabaseCluster:
        """The cluster."""
        return cast("DatabaseCluster", self.cluster)

    def _new_cluster(self, mistakes: Mistakes) -> Cluster:
        terms = LifecycleTerms(presence=self.world.chance(0.7))
        cluster = DatabaseCluster(self.world, self.options, self.network, terms)
        cluster.checks = ClusteredChecks(cluster, mistakes)
        cluster.fates.on_late = self._late
        return cluster

    def _late(self, process: ClusteredProcess) -> None:
        """Have a broker die, or stand still for long, whose statement is on its way, sometimes: so that it
        arrives when another leads, and finds its partition quiet.
        """
        if not self.chaos or not self.world.chance(0.4):
            return
        self.world.marks.add("late")
        if self.world.chance(0.5):
            self.world.later(2, self._kill_now, process)
        else:
            self.world.later(2, process.stop)
            self.world.later(6_000, process.go_on)

    def _new_producer(self, name: str) -> Producer:
        return ClusteredProducer(self.cluster, name)

    def _settle(self) -> None:
        """Wait first until leaders have given what others are preferred for. A group that moves loses what
        its log does not tell: that a member has left in a rebalance which is under way, and all assignors but
        the one that was chosen (LO-3).
        """
        self.world.run(self.world.now_ms + AFTER_MS + READY_MS)
        for seat in self.seats:
            if seat.reader is not None:
                self._refresh(seat.reader)
        super()._settle()

    # -- trouble

    def _trouble_of(self, name: str) -> Callable[[], None]:
        own = TROUBLE.get(name)
        return super()._trouble_of(name) if own is None else partial(own, self)

    def _a_process(self) -> ClusteredProcess | None:
        found = [one for one in self.over.members if not one.stopped]
        return self.world.random.choice(found) if found else None

    def _kill_broker(self) -> None:
        process = self._a_process()
        if process is not None:
            self._kill_now(process)

    def _kill_now(self, process: ClusteredProcess) -> None:
        if process.broker.process is process and self.chaos:
            self.over.crash(process.broker.node_id, power=self.world.chance(0.3))
            self._back_later(process)

    def _leave_broker(self) -> None:
        process = self._a_process()
        if process is not None:
            self.over.stop(process.broker.node_id)
            self._back_later(process)

    def _back_later(self, process: ClusteredProcess) -> None:
        """Start the broker again some time after it has gone."""
        after_ms = self.world.random.choice((50, 700, 3_500, 12_000))

        def start() -> None:
            if process.broker.process is process:
                self.world.later(1_000, start)
            elif not process.broker.alive and self.chaos:
                self.over.restart(process.broker.node_id)

        self.world.later(after_ms, start)

    def _freeze(self) -> None:
        """Stop a process, for less than a session or more."""
        process = self._a_process()
        if process is not None:
            process.stop()
            for_ms = self.world.random.choice((200, 900, 1_400, 2_500, 6_000))
            self.world.later(for_ms, process.go_on)

    def _sever(self) -> None:
        """Have a broker not reach the database for a while; its connections end, or just fall silent."""
        process = self._a_process()
        if process is None:
            return
        for_ms = self.world.random.choice((0, 300, 1_000, 1_800, 4_000))
        self.world.tell(f"broker {process.broker.node_id} is cut off for {for_ms}")
        process.cut_off_until_ms = self.world.now_ms + for_ms
        silently = for_ms > 0 and self.world.chance(0.5)
        process.cut(silently=silently)
        if silently:
            self.world.later(for_ms, lambda: process.cut(silently=False) if self.chaos else None)

    def _spell(self) -> None:
        """Have many of a broker's statements get lost, come late, or be in doubt."""
        process = self._a_process()
        if process is not None:
            for_ms = self.world.random.choice((300, 1_500, 4_000))
            self.world.tell(f"statements of {process.broker.node_id} get lost for {for_ms}")
            process.bad_until_ms = self.world.now_ms + for_ms

    def _outage(self) -> None:
        """Have the database be away."""
        if not self.over.database.metadata.away:
            self.over.go_away()
            self.world.later(self.world.random.choice((100, 700, 2_500, 10_000)), self.over.come_back)

    def _fall_back(self) -> None:
        """Have the database go on from an older state, mostly just when an append is on its way."""
        if self.world.chance(0.7):
            self.over.fates.on_next.append(lambda: self.world.later(0, self._fall_back_now))
        else:
            self._fall_back_now()

    def _fall_back_now(self) -> None:
        if self.chaos:
            self.over.fall_back()

    # -- healing

    def _heal(self) -> None:
        self.over.come_back()
        super()._heal()

    def pending(self) -> str:
        return self.over.unserved() or super().pending()


TROUBLE: Mapping[str, Callable[[ClusteredScenario], None]] = {
    "kill-broker": ClusteredScenario._kill_broker,
    "leave-broker": ClusteredScenario._leave_broker,
    "freeze": ClusteredScenario._freeze,
    "sever": ClusteredScenario._sever,
    "spell": ClusteredScenario._spell,
    "outage": ClusteredScenario._outage,
    "fall-back": ClusteredScenario._fall_back,
}


def run(seed: int, *, listener: Callable[[str], None] | None = None) -> Outcome:
    """Live through the scenario of one seed, and return what came of it."""
    return live(lambda mistakes: ClusteredScenario(seed, mistakes), listener)
