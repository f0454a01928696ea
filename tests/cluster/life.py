"""One life of a cluster by seed: what disturbs it is drawn, and what must hold is looked at all the time.

What is promised, with clocks that differ by a tenth at most:

1. A broker that answers as the leader of a partition is its leader, in that leader epoch, in the engine.
2. A broker that runs and whose sessions are cut cleanly, or fall silent, one at a time, is not fenced; nor is
   one by an outage of the engine, however long, by a stall, or when all stand still together.
3. From the last disturbance on, every partition has a leader that serves it within BY_COUNTING_MS; within
   BY_PRESENCE_MS where the only disturbance was the end of a process, and sessions are known.
4. A planned stop leaves no partition without a live leader while another broker is live, and ends soon.
5. In the end all brokers are live, their images are the engine's, and preferred leaders lead.
6. No process ends by itself, unless another was started with its id.
7. A partition whose leader changes is in its next leader epoch.

With clocks beyond that, and an engine that goes back to an older state, only this is left of 1: whoever acts
as what it is not may not append, since its broker epoch, or its session, is gone. And 4 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from cluster.world import Process, Violation, World
from coterie.broker.cluster.changes import (
    AddPartitions,
    Change,
    CreateTopics,
    DeleteTopics,
    LeaveCluster,
    NewTopic,
    SetConfigs,
    TakeOver,
)
from coterie.broker.cluster.image import BrokerState, Image
from coterie.broker.cluster.lifecycle import Phase
from coterie.broker.cluster.pretended import MetadataTables, PretendedEngine

SLOWEST = 0.95
BY_COUNTING_MS = 2_100
BY_PRESENCE_MS = 900
PLANNED_MS = 1_000
ON_TOP_MS = 60  # statements on their way, and the image of whoever leads next
LOOK_EVERY_MS = 40
LONE_MS = 3_000  # how far disturbances of one broker are apart that it has to survive
DISTURBED_MS, QUIET_MS = 40_000, 25_000


class Outcome(NamedTuple):
    """What came of a seed."""

    seed: int
    violation: str
    kinds: tuple[str, ...]
    log: tuple[str, ...]
    stale_acts: int
    longest: dict[tuple[str, bool], int]
    """The longest time without a leader that serves, from the disturbance on, where a bound holds."""


class Life:
    """The world of one seed, what disturbs it, and what is looked at."""

    def __init__(self, seed: int, *, wild_clocks: bool = False, falls_back: bool = False) -> None:
        self.world = world = World(seed, presence=seed % 2 == 0, notifies=seed % 3 > 0)
        self.random = world.random
        self.wild_clocks, self.falls_back = wild_clocks, falls_back
        self.kinds: list[str] = []
        self.disturbed_at = 0
        self.disturbed_by = "start"
        self.alone = False  # the disturbance: all was quiet for long before it
        self.harmed_at: dict[int, int] = {}  # when a broker has lost its session, last
        self.engine_away_until = -LONE_MS
        self.all_stopped_until = 0
        self.excused_until: dict[int, int] = {}
        self.doubled: set[int] = set()
        self.asked_to_leave: dict[int, tuple[Process, int]] = {}
        self.older: list[MetadataTables] = []
        self.longest: dict[tuple[str, bool], int] = {}
        world.takeovers_get_lost = self.random.random() < 0.15
        if falls_back:
            world.on_offer = self._fall_back_just_now
        self.ids = [*range(1, self.random.randint(3, 5) + 1)]

    # -- living

    def run(self) -> None:
        """Live. Raises `Violation`."""
        world = self.world
        watch(world.engine, self)
        for broker_id in self.ids:
            self._start(broker_id)
        world.make_topics()
        self._disturbed("start", LONE_MS)
        world.later(5_000, self._disturb)
        world.later(LOOK_EVERY_MS, self._look)
        world.run_until(DISTURBED_MS)
        self._mend()
        world.run_until(world.now + QUIET_MS)
        self._judge_end()

    def _start(self, broker_id: int) -> None:
        rate = self.random.choice((0.5, 0.7, 1.0, 1.5, 2.0)) if self.wild_clocks else None
        self.world.start(broker_id, rate=rate)
        self.excused_until[broker_id] = self.world.now + LONE_MS
        self._not_all_are_stopped()

    def _not_all_are_stopped(self) -> None:
        """Let those be fenced that are stopped together, where others run meanwhile."""
        for_ms = self.all_stopped_until - self.world.now
        for broker_id in self.ids if for_ms > 0 else ():
            self._excuse(broker_id, for_ms)

    def _disturbed(self, by: str, for_ms: int = 0) -> None:
        """Note a disturbance that lasts so long; bounds count from its end."""
        self.kinds.append(by)
        self.alone = self.world.now - self.disturbed_at > LONE_MS
        self.disturbed_at = max(self.disturbed_at, self.world.now + for_ms)
        self.disturbed_by = by
        self.world.note(f"-- {by}")

    def _disturb(self) -> None:
        """Disturb the cluster in some way; then again, soon or after a while."""
        if self.world.now > DISTURBED_MS - 2_000:
            return
        kinds: list[Callable[[], None]] = [
            self._kill, self._kill, self._pause, self._pause, self._cut, self._cut, self._fall_silent,
            self._engine_away, self._engine_stalls, self._leave, self._leave, self._bad_spell, self._change,
            self._change, self._cut_metadata, self._second_process, self._stop_all, self._cut_off,
            self._cut_off,
        ]  # fmt: skip
        if self.falls_back:
            kinds += [self._fall_back] * 4
        self.random.choice(kinds)()
        self.world.later(self.random.choice((100, 700, 2_500, 5_500, 5_500, 7_000)), self._disturb)

    def _one(self) -> Process | None:
        running = [one for one in self.world.running() if not one.stopped and not one.started_leaving]
        return self.random.choice(running) if len(running) > 1 else None

    # -- what disturbs

    def _kill(self) -> None:
        process = self._one()
        if process is not None:
            process.kill()
            self._disturbed(f"kill {process.broker_id}")
            self._start_again(process)

    def _start_again(self, process: Process) -> None:
        after_ms = self.random.choice((50, 700, 3_500, 12_000))

        def start() -> None:
            if not self.world.processes[process.broker_id].alive:
                self._disturbed(f"start {process.broker_id}", 300)
                self._start(process.broker_id)

        self.world.later(after_ms, start)

    def _pause(self) -> None:
        process = self._one()
        if process is None:
            return
        for_ms = self.random.choice((self.random.randint(200, 2_500), 6_000))
        process.stop()
        self._disturbed(f"stop {process.broker_id} for {for_ms}", for_ms + 300)
        self._excuse(process.broker_id, for_ms)

        def go_on() -> None:
            if process.alive:
                self.world.note(f"-- {process.broker_id} goes on")
                process.go_on()

        self.world.later(for_ms, go_on)

    def _stop_all(self) -> None:
        """Stop all processes, as a machine that stands still; they go on within moments of each other."""
        running = [one for one in self.world.running() if not one.stopped]
        for_ms = self.random.choice((600, 1_700, 4_000))
        self._disturbed(f"stop all for {for_ms}", for_ms + 1_200)
        overlaps = self.world.now < self.all_stopped_until
        self.all_stopped_until = max(self.all_stopped_until, self.world.now + for_ms + 800)
        if overlaps:
            self._not_all_are_stopped()
        for process in running:
            process.stop()
            self.world.later(for_ms + self.random.randint(0, 800), process.go_on)

    def _cut_off(self) -> None:
        """Have a broker not reach the engine for a while; its sessions end, or just fall silent."""
        process = self._one()
        if process is None or process.session is None:
            return
        for_ms = self.random.choice((300, 1_000, 1_800, 4_000))
        self._disturbed(f"cut off {process.broker_id} for {for_ms}", for_ms + 800)
        self._excuse(process.broker_id, for_ms)
        self.world.cut_off_until[process.broker_id] = self.world.now + for_ms
        ends = self.random.random() < 0.5

        def reached_again() -> None:
            if process.metadata is not None:
                process.metadata.end()  # nothing that was sent through it arrives any more

        self.world.later(for_ms, reached_again)
        for session in (process.session, process.metadata):
            if session is not None and ends:
                session.end()
            elif session is not None:
                session.fall_silent()

    def _excuse(self, broker_id: int, for_ms: int) -> None:
        """Let a broker be fenced: it does not beat, or not often enough."""
        until = self.world.now + for_ms + LONE_MS
        self.excused_until[broker_id] = max(self.excused_until.get(broker_id, 0), until)

    def _harm(self, process: Process) -> None:
        """Note that a broker's session is gone, which it has to survive if it is the only one for a while."""
        broker_id, now = process.broker_id, self.world.now
        before = max(self.harmed_at.get(broker_id, -LONE_MS), self.engine_away_until)
        if now - before < LONE_MS:
            self._excuse(broker_id, 0)
        self.harmed_at[broker_id] = now

    def _engine_harmed(self, for_ms: int) -> None:
        """Note that nobody can reach the engine: too much for a broker that has just lost its session."""
        self.engine_away_until = self.world.now + for_ms
        for broker_id, harmed_at in self.harmed_at.items():
            if self.world.now - harmed_at < LONE_MS:
                self._excuse(broker_id, for_ms)

    def _cut(self) -> None:
        process = self._one()
        if process is not None and process.session is not None:
            self._disturbed(f"cut {process.broker_id}", 400)
            self._harm(process)
            process.session.end()

    def _cut_metadata(self) -> None:
        process = self._one()
        if process is not None and process.metadata is not None:
            self._disturbed(f"cut metadata {process.broker_id}", 400)
            process.metadata.end()

    def _fall_silent(self) -> None:
        """Have nothing arrive any more, from either side, on the connection that there is."""
        process = self._one()
        if process is None or process.session is None:
            return
        self._disturbed(f"silence {process.broker_id}", 1_200)
        self._harm(process)
        process.session.fall_silent()

    def _engine_away(self) -> None:
        engine = self.world.engine
        if engine.away or engine.stalled:
            return
        for_ms = self.random.choice((100, 700, 1_000, 1_400, 2_500, 10_000))
        self._disturbed(f"engine away for {for_ms}", for_ms + 1_150)
        self._engine_harmed(for_ms + 1_000)
        engine.go_away()
        self.world.slow_connects_until = self.world.now + for_ms + 400
        self.world.later(for_ms, lambda: (self.world.note("-- engine back"), engine.come_back())[1])

    def _engine_stalls(self) -> None:
        engine = self.world.engine
        if engine.away or engine.stalled:
            return
        for_ms = self.random.choice((100, 500, 800, 1_300, 3_000, 9_000))
        self._disturbed(f"engine stalls for {for_ms}", for_ms + 350)
        self._engine_harmed(for_ms)
        engine.stall()
        self.world.later(for_ms, lambda: (self.world.note("-- engine goes on"), engine.go_on())[1])

    def _leave(self) -> None:
        process = self._one()
        if process is None or process.lifecycle.phase is not Phase.LIVE:
            return
        process.started_leaving = True
        self._disturbed(f"terminate {process.broker_id}")
        self.asked_to_leave[process.broker_id] = (process, self.world.now)
        process.run(process.member.terminate)

        def start() -> None:
            if not process.alive and self.world.processes[process.broker_id] is process:
                self._disturbed(f"start {process.broker_id}", 300)
                self._start(process.broker_id)
            elif self.world.processes[process.broker_id] is process:
                self.world.later(1_000, start)

        self.world.later(self.random.choice((900, 4_000)), start)

    def _bad_spell(self) -> None:
        process = self._one()
        if process is not None:
            for_ms = self.random.choice((300, 1_500, 4_000))
            self._disturbed(f"statements of {process.broker_id} get lost for {for_ms}", for_ms + 6_000)
            self.world.bad_until[process.broker_id] = self.world.now + for_ms
            self._excuse(process.broker_id, for_ms)

    def _second_process(self) -> None:
        """Start another process with the id of one that runs: one of them has to go."""
        process = self._one()
        if process is None or self.random.random() < 0.5:
            return
        self._disturbed(f"second process of {process.broker_id}", 1_000)
        self.doubled.add(process.broker_id)
        self._excuse(process.broker_id, 2_000)
        process.started_leaving = True
        self._start(process.broker_id)

    def _change(self) -> None:
        """Have somebody change topics."""
        engine, image = self.world.engine, self.world.engine.image
        live = image.live
        if engine.away or engine.stalled or not live:
            return
        topics = sorted(image.topics())
        topic = self.random.choice(topics)
        placed = tuple(self.random.choice(live) for _ in range(2))
        new = NewTopic(UUID(int=self.random.getrandbits(128)), f"t{self.world.now}", ((placed[0],), placed))
        change: Change = self.random.choice(
            (
                CreateTopics((new,)),
                CreateTopics((new,)),
                AddPartitions(topic.topic_id, topic.partitions, (placed,)),
                SetConfigs(topic.topic_id, topic.version, {"retention.ms": str(self.world.now)}),
                *([DeleteTopics((topic.topic_id,))] if len(topics) > 3 else []),
            )
        )
        self.world.note("-- topics")
        if self.world.now - self.disturbed_at < LONE_MS:
            self.alone = False
        self.disturbed_at = max(self.disturbed_at, self.world.now + 400)
        engine.execute(change)

    def _fall_back(self) -> None:
        engine = self.world.engine
        if engine.away or engine.stalled or not self.older:
            return
        tables = self.random.choice(self.older[-40:])
        self._disturbed(f"engine falls back to version {tables.image.version}", 2_000)
        for broker_id in self.ids:
            self._excuse(broker_id, 4_000)
        self.world.gate.clear()
        for row in tables.image.brokers.values():
            if row.state is not BrokerState.FENCED:
                self.world.gate[row.broker_id] = row.broker_epoch
        engine.fall_back(tables, f"{self.world.now}")
        self.older.clear()

    def _fall_back_just_now(self, answered_ms: int) -> None:
        """Have the engine go back in the moment in which an offer was carried out, sometimes."""
        if self.random.random() < 0.3 and self.world.now < DISTURBED_MS:
            self.world.later(answered_ms + 1, self._fall_back)

    def _mend(self) -> None:
        """Let everything go on, and disturb no more."""
        self._disturbed("all is mended", 1_000)
        self.world.bad_until.clear()
        self.world.cut_off_until.clear()
        self.world.takeovers_get_lost = False
        if self.world.engine.away:
            self.world.engine.come_back()
        if self.world.engine.stalled:
            self.world.engine.go_on()
        for process in self.world.running():
            if process.stopped:
                self._excuse(process.broker_id, 0)
                process.go_on()
        for broker_id in self.ids:
            if not any(one.alive and one.broker_id == broker_id for one in self.world.started):
                self._start(broker_id)

    # -- what must hold

    def fenced(self, change: TakeOver) -> None:
        """Look at a takeover that has just been made."""
        broker_id = change.broker_id
        mine = [one for one in self.world.started if one.alive and one.broker_id == broker_id]
        excused = self.world.now < self.excused_until.get(broker_id, 0)
        if excused or self.wild_clocks or self.falls_back or all(one.stopped for one in mine):
            return
        raise Violation(f"{broker_id} lives, and was fenced")

    def changed(self, before: Image, after: Image) -> None:
        """Look at a change of metadata that has just been made."""
        for row in after.all_partitions():
            was = before.partition(row.topic_id, row.number)
            if was is not None and row.leader != was.leader and row.leader_epoch != was.leader_epoch + 1:
                raise Violation(f"{was} became {row}")

    def departed(self, change: LeaveCluster, before: Image) -> None:
        """Look at a departure that has just been made. Who is about to leave as well serves what it leads."""
        image = self.world.engine.image
        for row in image.all_partitions():
            was = before.partition(row.topic_id, row.number)
            left = was is not None and was.leader == change.broker_id
            if image.live and row.leader not in (image.live if left else image.unfenced):
                raise Violation(f"{change.broker_id} has left {row}, and {image.live} are live")

    def _look(self) -> None:
        world = self.world
        world.later(LOOK_EVERY_MS, self._look)
        if self.falls_back and not world.engine.away:
            self.older.append(world.engine.tables.copy())
        for process in world.started:
            self._look_at_exit(process)
        for process, asked_at in self.asked_to_leave.values():
            late = world.now - max(asked_at, self.disturbed_at) > LONE_MS
            if process.alive and late and not process.stopped:
                raise Violation(f"{process.broker_id} was asked to leave, and is there")
        self._look_at_leaders()

    def _look_at_exit(self, process: Process) -> None:
        """Look whether a process has ended by itself."""
        broker_id = process.broker_id
        if process.exit_sentence and broker_id not in self.doubled:
            asked = broker_id in self.asked_to_leave and broker_id in self.excused_until
            if not asked or "another process" in process.exit_sentence:
                raise Violation(f"{broker_id} has ended: {process.exit_sentence}")

    def _bound_ms(self) -> int:
        """Return within which time there must be leaders."""
        kind = self.disturbed_by.partition(" ")[0] if self.alone else ""
        bound_ms = BY_COUNTING_MS
        if kind == "terminate":
            bound_ms = PLANNED_MS
        elif kind == "kill" and self.world.terms.presence:
            bound_ms = BY_PRESENCE_MS
        if self.world.takeovers_get_lost:
            bound_ms += LONE_MS
        return math.ceil(bound_ms / SLOWEST) + ON_TOP_MS

    def _look_at_leaders(self) -> None:
        world = self.world
        since_ms = world.now - self.disturbed_at
        if since_ms > LONE_MS and world.now % (10 * LOOK_EVERY_MS):
            return  # nothing has happened for long
        if since_ms < 0 or self.wild_clocks or self.falls_back:
            return
        without = self._partition_without_leader()
        if without:
            kind = (self.disturbed_by.partition(" ")[0] if self.alone else "", self.world.terms.presence)
            self.longest[kind] = max(self.longest.get(kind, 0), since_ms)
            if since_ms > self._bound_ms():
                raise Violation(f"{without}, {since_ms} ms after {self.disturbed_by}")

    def _partition_without_leader(self) -> str:
        alive = [process for process in self.world.started if process.alive]
        for row in self.world.engine.image.all_partitions():
            leaders = [process for process in alive if process.broker_id == row.leader]
            # What is offered to another is not served for a moment, as in a planned stop.
            if not any(process.acts_in(row) or not process.giving.leads(row) for process in leaders):
                return f"nobody serves {row}"
        return ""

    def _judge_end(self) -> None:
        truth = self.world.engine.image
        if truth.live != tuple(self.ids):
            raise Violation(f"in the end {truth.live} are live of {self.ids}")
        alive = [process for process in self.world.started if process.alive]
        for process in alive:
            if sum(one.broker_id == process.broker_id for one in alive) > 1:
                raise Violation(f"in the end there are two processes of {process.broker_id}")
            if process.lifecycle.phase is not Phase.LIVE:
                raise Violation(f"in the end {process.broker_id} is {process.lifecycle.phase}")
            if process.lifecycle.image != truth:
                raise Violation(f"in the end {process.broker_id} has another image")
        for row in truth.all_partitions():
            if row.leader != row.replicas[0]:
                raise Violation(f"in the end {row} is not led by the first of its replicas")


def watch(engine: PretendedEngine, life: Life) -> None:
    """Have a life look at each change of who leads, at the moment it is made."""
    execute = engine.execute

    def executed(statement):  # type: ignore[no-untyped-def]
        before = engine.image
        answer = execute(statement)
        if engine.image.version > before.version:
            life.changed(before, engine.image)
            life.world.note(f"engine: {statement} at {engine.image.version}"[:160])
            if isinstance(statement, TakeOver):
                life.fenced(statement)
            if isinstance(statement, LeaveCluster):
                life.departed(statement, before)
        return answer

    engine.execute = executed  # type: ignore[method-assign]


def run(seed: int, *, wild_clocks: bool = False, falls_back: bool = False) -> Outcome:
    """Return what came of a seed."""
    life = Life(seed, wild_clocks=wild_clocks, falls_back=falls_back)
    violation = ""
    try:
        life.run()
    except Violation as found:
        violation = str(found)
    world = life.world
    return Outcome(seed, violation, tuple(life.kinds), tuple(world.log), world.stale_acts, life.longest)
