"""Virtual time, the engine, and processes of brokers that run the production code of their lives.

A process may be stopped and go on, as under SIGSTOP: what comes meanwhile waits, and is served afterwards in
an order that is drawn, clients' requests among it. Each has a clock of its own that runs at its own rate.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from uuid import UUID

from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.cluster.applying import differences
from coterie.broker.cluster.changes import (
    Changed,
    CreateTopics,
    GiveLeadership,
    NewTopic,
    PartitionKey,
    TakeOver,
)
from coterie.broker.cluster.engine import MetadataSession
from coterie.broker.cluster.giving_back import HANDED_BYTES, GivingBack
from coterie.broker.cluster.image import Image, PartitionRow
from coterie.broker.cluster.lifecycle import BrokerLifecycle
from coterie.broker.cluster.member import ClusterMember
from coterie.broker.cluster.pretended import Fate, PretendedEngine, PretendedSession
from coterie.broker.cluster.statements import (
    Answer,
    BrokerHeartbeat,
    ReadDelta,
    Statement,
)
from coterie.broker.cluster.terms import LifecycleTerms

CLIENTS_EVERY_MS = 23
LOADS_MS = 17


class Violation(AssertionError):
    """What must hold does not."""


class World:
    """The time, the engine, and what is to happen."""

    def __init__(self, seed: int, *, presence: bool, notifies: bool) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.terms = LifecycleTerms(presence=presence)
        self.notifies = notifies
        self.engine = PretendedEngine(fenced=self._fenced, registered=self._registered)
        self.gate: dict[int, int] = {}  # the epoch in which a broker's appends are taken
        self.processes: dict[int, Process] = {}  # the latest of each id
        self.started: list[Process] = []
        self.log: list[str] = []
        self.bad_until: dict[int, int] = {}  # until when statements of a broker get lost
        self.cut_off_until: dict[int, int] = {}  # until when it cannot connect
        self.slow_connects_until = 0
        self.takeovers_get_lost = False
        self.lossless = False  # each statement takes its time, and no more
        self.stale_acts = 0
        self.on_takeover: Callable[[int], None] = lambda _: None
        self.on_departure: Callable[[int], None] = lambda _: None
        self.on_offer: Callable[[int], None] = lambda _: None  # with after how many ms it is answered
        self.leaving: int | None = None
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    # -- time

    def later(self, delay_ms: int, do: Callable[[], None]) -> None:
        """Have something done so much later."""
        self._sequence += 1
        heappush(self._agenda, (self.now + max(delay_ms, 0), self._sequence, do))

    def run_until(self, at_ms: int) -> None:
        """Let everything happen until then."""
        while self._agenda and self._agenda[0][0] <= at_ms:
            self.now, _, do = heappop(self._agenda)
            do()
        self.now = at_ms

    def note(self, text: str) -> None:
        """Write a line of what happened."""
        self.log.append(f"{self.now:>7} {text}")

    # -- the engine's side

    def _fenced(self, broker_id: int) -> None:
        self.gate.pop(broker_id, None)

    def _registered(self, broker_id: int, broker_epoch: int) -> None:
        self.gate[broker_id] = broker_epoch

    def fate(self, broker_id: int, statement: Statement) -> Fate:
        """Draw what becomes of a statement: changes may get lost at any time, others in a bad spell."""
        if self.lossless:
            return Fate(3, 5)
        done_ms = self.random.choice((1, 1, 1, 2, 3, 8))
        answered_ms = done_ms + self.random.choice((1, 1, 2, 4))
        if self.now < self.cut_off_until.get(broker_id, 0):
            return Fate(None, None, 5_000)
        bad = self.random.random() < 0.4 and self.now < self.bad_until.get(broker_id, 0)
        if isinstance(statement, TakeOver):
            if self._goes_on_just_now(statement.broker_id):
                return Fate(self.random.randint(5, 200), 210)
            bad = self.takeovers_get_lost and self.random.random() < 0.6
        elif not isinstance(statement, BrokerHeartbeat | ReadDelta):
            bad |= self.random.random() < 0.12
        if isinstance(statement, GiveLeadership):
            self.on_offer(answered_ms)
        if not bad:
            return Fate(done_ms, answered_ms)
        lost = [
            Fate(None, None, 30),  # never done, and the session ends
            Fate(done_ms, None, answered_ms),  # done, and the answer is lost
            Fate(self.random.choice((100, 600, 4_000)), None, 40),  # done later than the session lives
        ]
        if isinstance(statement, BrokerHeartbeat | ReadDelta):
            lost.append(Fate(None, None, 5_000))  # swallowed
            lost += [Fate(done_ms, self.random.choice((200, 500, 740)))] * 2  # slow
        return self.random.choice(lost)

    def _goes_on_just_now(self, broker_id: int) -> bool:
        """Have a broker that is stopped go on in the moment in which another takes it over, sometimes."""
        process = self.processes[broker_id]
        if not process.alive or not process.stopped or self.random.random() < 0.7:
            return False
        self.note(f"-- {broker_id} goes on just now")
        process.go_on()
        return True

    # -- processes

    def start(self, broker_id: int, *, rate: float | None = None) -> Process:
        """Start a broker's process; one that there is of the id stays beside it."""
        if rate is None:
            rate = self.random.uniform(0.95, 1.05)
        process = Process(self, broker_id, rate)
        self.processes[broker_id] = process
        self.started.append(process)
        self.note(f"{broker_id} starts, its clock at {rate:.3f}")
        process.begin()
        return process

    def running(self) -> Iterable[Process]:
        """Return the processes that are there, stopped or not."""
        return [process for process in self.started if process.alive]

    def make_topics(self) -> None:
        """Make a few topics, before any broker is there; the replicas are drawn."""
        brokers = sorted(self.processes) or [1]
        topics = []
        for name, count in (("orders", 8), (OFFSETS_TOPIC, 6)):
            replicas = []
            for _ in range(count):
                number = self.random.randint(1, len(brokers))
                replicas.append(tuple(self.random.sample(brokers, number)))
            topics.append(NewTopic(UUID(int=self.random.getrandbits(128)), name, tuple(replicas)))
        made = self.engine.execute(CreateTopics(tuple(topics)))
        assert isinstance(made, Changed)


class Reached:
    """The engine as a process reaches it, if it does: what comes of it comes to the process once it runs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def connect(
        self,
        *,
        opened: Callable[[MetadataSession, str], None],
        ended: Callable[[], None],
        notified: Callable[[int], None] | None = None,
    ) -> None:
        """Connect, soon or not; the process's own sessions are there for whoever disturbs them."""
        world, process, is_membership = self._world, self._process, notified is not None
        hears = notified if world.notifies else None

        def arrive() -> None:
            session = None
            if process.alive and world.now >= world.cut_off_until.get(process.broker_id, 0):
                session = world.engine.connect(
                    process.broker_id,
                    later=world.later,
                    choose=lambda statement: world.fate(process.broker_id, statement),
                    ended=lambda: process.run(ended),
                    notified=None if hears is None else (lambda version: process.run(lambda: hears(version))),
                    presence=is_membership and world.terms.presence,
                )
            if session is None:
                process.run(ended)
                return
            if is_membership:
                process.session = session
            else:
                process.metadata = session
            history = world.engine.history
            process.run(lambda: opened(Served(process, session), history))

        slow = is_membership and world.now < world.slow_connects_until
        world.later(world.random.randint(1, 800 if slow else 10), arrive)


class Served:
    """A session whose answers come to a process once it runs."""

    def __init__(self, process: Process, session: PretendedSession) -> None:
        self._process = process
        self._session = session

    @property
    def cluster_id(self) -> str:
        """The cluster that it reaches."""
        return self._session.cluster_id

    def send(self, statement: Statement, answered: Callable[[Answer | None], None]) -> None:
        """Send a statement."""
        self._session.send(statement, lambda answer: self._process.run(lambda: answered(answer)))

    def close(self) -> None:
        """End the session; the engine may notice later."""
        self._session.close(noticed_ms=self._process.world.random.choice((0, 0, 3_000)))


class Process:
    """One broker's process: a member of the cluster, and what waits while it is stopped. It hosts nothing."""

    def __init__(self, world: World, broker_id: int, rate: float) -> None:
        self.world = world
        self.broker_id = broker_id
        self.rate = rate
        self.offset = world.random.randrange(1_000_000)
        self.born = world.now
        self.alive = True
        self.stopped = False
        self.started_leaving = False
        self.exit_sentence: str | None = None
        self._loads_until = 0
        self.lifecycle = BrokerLifecycle(
            broker_id, world.terms, incarnation=UUID(int=world.random.getrandbits(128))
        )
        self.session: PretendedSession | None = None
        self.metadata: PretendedSession | None = None
        self._inbox: list[Callable[[], None]] = []
        self._timer = 0
        self.member = ClusterMember(self.lifecycle, Reached(self), self, clock=self.clock, arm=self._arm)

    @property
    def giving(self) -> GivingBack:
        """What it has offered to preferred leaders."""
        return self.member.giving

    def clock(self) -> int:
        """Return the time that the process sees."""
        return self.offset + math.floor((self.world.now - self.born) * self.rate)

    def begin(self) -> None:
        """Begin the broker's life; clients ask it all the time."""
        self.member.begin()
        self._clients()

    # -- being stopped, going on, ending

    def run(self, do: Callable[[], None]) -> None:
        """Have the process do something, once it runs."""
        if self.alive:
            if self.stopped:
                self._inbox.append(do)
            else:
                do()

    def stop(self) -> None:
        """Stop, as by SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """Go on, and serve what waits in an order that is drawn."""
        self.stopped = False
        inbox, self._inbox = self._inbox, []
        self.world.random.shuffle(inbox)
        for do in inbox:
            self.run(do)

    def kill(self) -> None:
        """End at once; the engine notices within 25 ms."""
        self.alive = False
        for session in (self.session, self.metadata):
            if session is not None:
                session.close(noticed_ms=self.world.random.randint(5, 25))

    def _arm(self, at_ms: int | None) -> None:
        self._timer += 1
        timer = self._timer
        if at_ms is None:
            return
        at = self.born + math.ceil((at_ms - self.offset) / self.rate)

        def due() -> None:
            if timer == self._timer:
                self.run(self.member.tick)

        self.world.later(max(at - self.world.now, 1), due)

    # -- clients

    def _clients(self) -> None:
        if self.alive:
            self.run(self.answer_clients)
            self.world.later(CLIENTS_EVERY_MS, self._clients)

    def acts_in(self, row: PartitionRow) -> bool:
        """Return whether it would answer a client as the leader of a partition, by what it has."""
        return self.lifecycle.serves(self.clock()) and self.giving.leads(row)

    def answer_clients(self) -> None:
        """Answer as the leader of whatever the image says: nobody else may lead it."""
        if not self.lifecycle.serves(self.clock()):
            return
        truth = self.world.engine.image
        if (self.lifecycle.image.version, self.member.history) == (truth.version, self.world.engine.history):
            return  # it is the same
        for row in self.lifecycle.image.all_partitions():
            now = truth.partition(row.topic_id, row.number)
            if now is None or not self.giving.leads(row):
                continue
            if (now.leader, now.leader_epoch) != (self.broker_id, row.leader_epoch):
                self._act_as_what_it_is_not(row, now)

    def _act_as_what_it_is_not(self, row: PartitionRow, now: PartitionRow) -> None:
        self.world.stale_acts += 1
        gate = self.world.gate.get(self.broker_id)
        if gate == self.lifecycle.broker_epoch and self.member.history == self.world.engine.history:
            raise Violation(f"{self.broker_id} could append to {row}, and it is {now}")
        if sum(one.broker_id == self.broker_id for one in self.world.started if one.alive) > 1:
            return  # another process was started with its id: one of them hears by its next heartbeat
        if self.member.history != self.world.engine.history:
            return  # what it sent is lost with its sessions, and it is about to read all anew
        if all(0.94 < one.rate < 1.06 for one in self.world.processes.values()):
            raise Violation(f"{self.broker_id} acts as the leader of {row}, and it is {now}")

    # -- hosting

    def apply(self, before: Image, after: Image) -> None:
        """Go by another image, by which it answers clients; what it is elected for takes a while to load."""
        if any(row.leader == self.broker_id for _, row in differences(before, after).elections):
            self._loads_until = self.world.now + LOADS_MS
            self.world.later(LOADS_MS, lambda: self.run(lambda: self.member.act(lambda: None)))

    def is_settled(self) -> bool:
        """Return whether all is loaded that it was elected for."""
        return self.world.now >= self._loads_until

    def weigh(self, partition: PartitionRow) -> int:
        """Return how much is in a partition: nothing in the first of a topic, little in the next two."""
        return (0, 1 << 10, 1 << 10, HANDED_BYTES)[min(partition.number, 3)]

    def serve(self, broker_epoch: int) -> None:
        """Note that it serves."""
        self.world.note(f"{self.broker_id} serves in epoch {broker_epoch}")

    def suspend(self, why: str) -> None:
        """Note that it does not."""
        self.world.note(f"{self.broker_id} suspends itself")

    def resume(self, *, anew: bool) -> None:
        """Note that it does again."""
        self.world.note(f"{self.broker_id} resumes{' anew' if anew else ''}")

    def fence(self) -> None:
        """Note that it is fenced."""
        self.world.note(f"{self.broker_id} is fenced")

    def drain(self, done: Callable[[], None]) -> None:
        """Have what was decided land some time later."""
        self.world.later(self.world.random.randint(5, 60), lambda: self.run(done))

    def release(self, partitions: Sequence[PartitionKey], done: Callable[[], None]) -> None:
        """Have what was decided there land some time later."""
        self.world.later(20, lambda: self.run(done))

    def exit(self, sentence: str) -> None:
        """End; a fault is the test's to see."""
        fault = sys.exception()
        if fault is not None:
            raise fault
        self.exit_sentence = sentence
        self.world.note(f"{self.broker_id} exits: {sentence!r}")
        self.kill()
