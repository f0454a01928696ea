"""One scenario from one seed: trouble first, with safety checked at every step; then all is healed, and every
group has to get to work within its time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.member import Phase
from coterie.coordinator.group.model import State
from coterie.simulate.agenda import (
    START_MS,
)
from swarm.checks.invariants import Checks, Mistakes
from swarm.clients.actors import Reader
from swarm.clients.data import DataClient, Ledger
from swarm.clients.producers import Producer
from swarm.clients.rude import Known, RawClient
from swarm.clients.upgrade import Upgrade, stage
from swarm.cluster import Cluster
from swarm.disk import ill
from swarm.network import Network, Weather
from swarm.options import Options, draw, with_data
from swarm.world import (
    Violation,
    World,
)

TRIES = 40


class Outcome(NamedTuple):
    """What came of a scenario. `violation` is "" if all held."""

    seed: int
    violation: str
    rule: str
    trace_hash: str
    simulated_ms: int
    steps: int
    told: tuple[str, ...]
    marks: frozenset[str]
    """What came about in it."""
    settled: float
    """What part of the time that they had the groups took to get to work, at most."""
    flag: str = ""
    """What `python -m swarm` is to be told, besides the seed, to see it again."""

    @property
    def line(self) -> str:
        """The one line that says what failed and how to see it again."""
        how = f" {self.flag}" if self.flag else ""
        return f"seed {self.seed}: {self.violation} | python -m swarm --seed {self.seed}{how}"


@dataclass(slots=True)
class Seat:
    """A place for one reader; processes come and go on it."""

    group_id: str
    instance_id: str | None
    malformed: bool
    number: int = 0
    reader: Reader | None = None
    empty_until: int = 0
    lives: int = 0
    bounces: int = 0
    """How often its members were restarted in a rolling upgrade."""


class Scenario:
    """Everything that one seed draws, and its course."""

    def __init__(self, seed: int, mistakes: Mistakes, *, options: Options | None = None) -> None:
        self.world = World(seed)
        self.options = options or draw(self.world)
        self.network = Network(self.world, self._weather())
        self.cluster = self._new_cluster(mistakes)
        self.checks = self.cluster.checks
        self.known = Known()
        self.chaos = True
        self.settled = 0.0
        # A static leader that was away does not see that a topic has grown meanwhile (KIP-814), only later.
        self.unseen_growth = "grow" in self.options.troubles and self.options.static_share > 0
        self.groups = tuple(f"g{number}" for number in range(self.options.groups))
        self.seats = [seat for group_id in self.groups for seat in self._seats(group_id)]
        self.raw: list[RawClient] = []
        self.producers: list[Producer] = []
        self.ledger = Ledger()
        self.data: list[DataClient] = []

    @property
    def flag(self) -> str:
        """What `python -m swarm` is to be told, besides the seed."""
        return "--data" if self.options.data else ""

    def _new_cluster(self, mistakes: Mistakes) -> Cluster:
        """Return the brokers, and what is checked of them."""
        cluster = Cluster(self.world, self.options, self.network)
        cluster.checks = Checks(cluster, mistakes)
        return cluster

    def _new_producer(self, name: str) -> Producer:
        return Producer(self.cluster, name)

    def _weather(self) -> Weather:
        options = self.options
        return Weather(
            delay_ms=options.delay_ms,
            spike_chance=options.spike_chance,
            spike_ms=options.session_ms // 2,
            reset_chance=options.reset_chance,
        )

    def _seats(self, group_id: str) -> Iterator[Seat]:
        options = self.options
        for number in range(options.members):
            static = number < options.static_share * options.members
            malformed = options.malformed and number == options.members - 1 > 0
            yield Seat(group_id, f"{group_id}-i{number}" if static else None, malformed, number)
        if options.twins and options.static_share:
            yield Seat(group_id, f"{group_id}-i0", False)

    # -- the course

    def run(self) -> None:
        """Live through it; raise `Violation` where something must not be."""
        world, options = self.world, self.options
        self.cluster.start()
        self._supervise()
        for number in range(options.hostile):
            self.raw.append(RawClient(self.cluster, f"rude{number}", groups=self.groups, known=self.known))
        for number in range(options.producers):
            self.producers.append(self._new_producer(f"p{number}"))
        if options.data:
            self.data = [DataClient(self.cluster, f"d{number}", self.ledger) for number in range(2)]
        if options.upgrade:
            Upgrade(self)
        if options.troubles:
            world.later(options.trouble_every_ms, self._trouble)
        world.run(START_MS + options.chaos_ms)
        self._heal()
        self._settle()
        self.checks.finish()
        self._check_transactions()
        self._check_data()

    def _supervise(self) -> None:
        """Fill the seats whose readers are dead or have failed, as whoever runs applications would."""
        for seat in self.seats:
            reader = seat.reader
            if reader is not None and reader.running and reader.member.phase is Phase.FAILED:
                self._check_failure(reader)
                self._retire(reader)
                seat.empty_until = self.world.now_ms + self.world.between(0, self.options.poll_ms)
            if reader is not None:
                self.known.note(reader)
            if (reader is None or not reader.running) and self.world.now_ms >= seat.empty_until:
                self._fill(seat)
        self.world.later(self.options.poll_ms, self._supervise)

    def _retire(self, reader: Reader) -> None:
        """End a process whose member has given up: by closing it, or at once."""
        if reader.leaving:
            return
        reader.leave()
        if self.world.chance(0.5):
            reader.kill()

    def _check_failure(self, reader: Reader) -> None:
        """A member gives up when another took its place, when there is no room, or when all that is known of
        the others is an assignor that it does not have; and for nothing else.
        """
        failure, reasons = reader.member.failure, {Code.FENCED_INSTANCE_ID, Code.GROUP_MAX_SIZE_REACHED}
        if self.options.mixed:
            reasons.add(Code.INCONSISTENT_GROUP_PROTOCOL)
        if failure is None or failure.code not in reasons:
            raise Violation("members live", f"{reader.name} gives up: {failure}")

    def _assignors_of(self, seat: Seat) -> tuple[str, ...]:
        if self.options.upgrade:
            return stage(self.options.upgrade, seat.bounces)
        return self.options.assignors[seat.number % len(self.options.assignors)]

    def _fill(self, seat: Seat) -> None:
        seat.lives += 1
        place = self.seats.index(seat)
        seat.reader = Reader(
            self.cluster,
            f"r{place}.{seat.lives}",
            group_id=seat.group_id,
            topics=tuple(self.options.topics),
            assignors=self._assignors_of(seat),
            instance_id=seat.instance_id,
            malformed=seat.malformed,
        )
        self.world.tell(f"{seat.reader.name} starts")

    # -- trouble

    def _trouble(self) -> None:
        if not self.chaos:
            return
        name = self.world.random.choice(self.options.troubles)
        self.world.tell(f"trouble: {name}")
        self.world.marks.add(name)
        self._trouble_of(name)()
        every_ms = self.options.trouble_every_ms
        self.world.later(self.world.between(every_ms // 2, 3 * every_ms // 2), self._trouble)

    def _trouble_of(self, name: str) -> Callable[[], None]:
        """Return the beginning of a trouble."""
        return partial(TROUBLE[name], self)

    def _span_ms(self) -> int:
        """Return the length of a trouble in ms: around a session's time-out."""
        return self.world.between(1, 3 * self.options.session_ms // 2)

    def _a_reader(self) -> Reader | None:
        readers = [seat.reader for seat in self.seats if seat.reader is not None and seat.reader.running]
        return self.world.random.choice(readers) if readers else None

    def _a_broker(self) -> int:
        return self.world.between(1, self.options.brokers)

    def _cut(self) -> None:
        """Cut some clients off from some brokers, in one direction or both."""
        random = self.world.random
        clients = [
            seat.reader.name for seat in self.seats if seat.reader is not None and random.random() < 0.5
        ]
        brokers = [number for number in self.cluster.brokers if random.random() < 0.7]
        links = {(client, broker) for client in clients for broker in brokers}
        requests, answers = random.choice(((True, True), (True, False), (False, True)))
        self.network.cut(links, requests=requests, answers=answers)
        self.world.later(self._span_ms(), self.network.heal, links)

    def _crash(self) -> None:
        self._bring_down(lambda number: self.cluster.crash(number, power=False))

    def _power(self) -> None:
        self._bring_down(lambda number: self.cluster.crash(number, power=True))

    def _stop(self) -> None:
        self._bring_down(self.cluster.stop)

    def _bring_down(self, end: Callable[[int], None], number: int = 0) -> None:
        number = number or self._a_broker()
        end(number)
        down_ms = self.world.between(1, self.options.session_ms // 2)
        self.world.later(down_ms, self.cluster.restart, number)

    def _move(self) -> None:
        partition = self.world.between(0, self.options.shards - 1)
        if self.options.brokers > 1:
            self.cluster.move(partition, self._a_broker())
        if self.options.data:
            self.cluster.data.move(self.world.random.choice(self.cluster.data.names()), self._a_broker())

    def _disk(self) -> None:
        number = self._a_broker()
        self.world.tell(f"a disk is ill: {ill(self.cluster.brokers[number].disk, self.world.random)}")
        # A marker that cannot be written is tried every 50 ms: not for hours.
        longest_ms = min(self.options.session_ms // 2, 20_000 if self.producers else self.options.session_ms)
        self.world.later(self.world.between(1, longest_ms), self.cluster.heal, number)

    def _pause(self) -> None:
        reader = self._a_reader()
        if reader is not None:
            reader.pause(self._span_ms())

    def _stall(self) -> None:
        reader = self._a_reader()
        if reader is not None:
            reader.stall(2 * self.options.rebalance_ms)

    def _suspend(self) -> None:
        reader = self._a_reader()
        if reader is not None:
            reader.suspend(self._span_ms())

    def _subscribe(self) -> None:
        """Have a reader want other topics, or all again."""
        reader = self._a_reader()
        topics = sorted(self.options.topics)
        if reader is not None and not reader.leaving:
            reader.awake(reader.subscribe, tuple(topics[: self.world.between(1, len(topics))]))

    def _rejoin(self) -> None:
        """Have an application demand a rebalance."""
        reader = self._a_reader()
        if reader is not None and not reader.leaving:
            reader.member.enforce_rebalance(None, reader.now_ms)

    def _jump(self) -> None:
        """Have a broker come back with its wall clock set to another time, before or behind (or forward only,
        where a transaction that is open would last so much longer).
        """
        far_ms = self.world.random.choice((100, 5_000, 3_600_000, 50_400_000))
        least_ms = 0 if self.producers else -far_ms
        number, jump_ms = self._a_broker(), self.world.between(least_ms, far_ms)
        self.cluster.brokers[number].ahead_ms += jump_ms
        self.world.marks.add("ahead" if jump_ms > 0 else "behind")
        self._bring_down(self.cluster.stop, number)

    def _kill(self) -> None:
        self._vacate(Reader.kill)

    def _leave(self) -> None:
        self._vacate(Reader.leave)

    def _vacate(self, end: Callable[[Reader], None]) -> None:
        seat = self.world.random.choice(self.seats)
        if seat.reader is not None and seat.reader.running:
            end(seat.reader)
            seat.empty_until = self.world.now_ms + self._span_ms()

    def _reset(self) -> None:
        """Have connections break more often for a while."""
        self.network.weather.reset_chance = 0.3
        self.world.later(self.world.between(1, self.options.session_ms // 4), self._clear_up)

    def _storm(self) -> None:
        """Have everything take long for a while."""
        self.network.weather.delay_ms = self.options.session_ms // 8
        self.world.later(self.world.between(1, self.options.session_ms), self._clear_up)

    def _clear_up(self) -> None:
        if self.chaos:
            self.network.weather = self._weather()

    def _grow(self) -> None:
        topic = self.world.random.choice(sorted(self.cluster.topics))
        if self.cluster.topics[topic] < 5:
            self.cluster.grow(topic)

    def _check_transactions(self) -> None:
        """A group that is committed for in transactions is where the last one that was granted left it."""
        for producer in self.producers:
            journal = self.checks.journals[self.cluster.partition_of(producer.group_id)]
            found = journal.offset(producer.key)
            if not producer.may_be(None if found is None else found.offset):
                known = f"{producer.granted} was granted, {sorted(producer.doubtful)} may be"
                raise Violation("commits last", f"{producer.group_id} has {found}; {known}")

    def _check_data(self) -> None:
        """The logs of users' partitions hold what was acknowledged and read."""
        for name in self.cluster.data.names() if self.options.data else ():
            log = self.cluster.data.log(name)
            assert log is not None, "it was read to the end"
            self.ledger.check(name, log)

    # -- healing

    def _heal(self) -> None:
        """End all trouble: every broker runs, every link and disk is well, nobody is rude any more."""
        self.world.tell("all is healed")
        self.chaos = False
        self.cluster.calm = True
        self.network.weather = Weather(delay_ms=min(10, self.options.delay_ms))
        self.network.heal()
        for broker in self.cluster.brokers.values():
            self.cluster.heal(broker.node_id)
            self.cluster.restart(broker.node_id)
        for raw in self.raw:
            raw.busy = False
            self.network.banned.add(raw.name)
        for producer in self.producers:
            producer.busy = False
            self.network.banned.add(producer.name)
        for client in self.data:
            client.busy = False
        for seat in self.seats:
            if seat.reader is not None:
                seat.reader.wake_up()
                self._refresh(seat.reader)
        self._part_twins()

    def _refresh(self, reader: Reader) -> None:
        """Have a reader want everything again, and its group hear of all the assignors that it knows."""
        if not reader.running or reader.leaving:
            return
        if self.options.mixed:
            reader.member.enforce_rebalance(None, reader.now_ms)
        reader.subscribe(tuple(self.options.topics))

    def _part_twins(self) -> None:
        """Leave each group.instance.id to one process."""
        seen: set[str | None] = set()
        for seat in tuple(self.seats):
            if seat.instance_id is not None and seat.instance_id in seen:
                if seat.reader is not None:
                    seat.reader.kill()
                self.seats.remove(seat)
            seen.add(seat.instance_id)

    @property
    def patience_ms(self) -> int:
        """How long the groups may take to get to work after all is healed.

        Somebody may wait out its request of the time before, join late, and lead to one more rebalance, each
        as long as the longest rebalance timeout.
        """
        options = self.options
        a_rebalance = 2 * options.rebalance_ms + options.session_ms + options.initial_delay_ms + 5_000
        return 3 * a_rebalance + 2 * options.request_timeout_ms + 10 * options.poll_ms + 60_000

    def _settle(self) -> None:
        self._await("groups get to work")
        if self.options.deaths_in_revocation:
            self._go_and_come_back()
            self._await("what is given up finds an owner")
        if self.unseen_growth:
            self.world.run(self.world.now_ms + self.options.session_ms + self.options.rebalance_ms)
            self._await("groups stay at work")
            self.unseen_growth = False
            self.cluster.grow(min(self.cluster.topics))
            self.world.run(self.world.now_ms + 20 * self.options.poll_ms)
            self._await("groups see that a topic has grown")
        self.world.run(self.world.now_ms + self.options.session_ms)
        why = self.pending()
        if why:
            raise Violation("groups stay at work", why)

    def _go_and_come_back(self) -> None:
        """Have a member stay away until its group has given its share to others, who give it back then: a
        static one may die of that, and come back to what it was left.
        """
        seat = self.world.random.choice(self.seats)
        assert seat.reader is not None
        self.cluster.deaths_in_revocation = self.options.deaths_in_revocation
        away_ms = self.options.session_ms + self.options.rebalance_ms
        seat.reader.kill()
        seat.empty_until = self.world.now_ms + away_ms
        self.world.run(seat.empty_until + 2 * self.options.poll_ms)

    def _await(self, rule: str) -> None:
        """Let time pass until nothing is pending; that may take so long and no longer."""
        until = self.world.now_ms + self.patience_ms
        pause = max(1, self.patience_ms // TRIES)
        why = self.pending()
        while why and self.world.now_ms < until:
            self.world.run(min(until, self.world.now_ms + pause))
            why = self.pending()
        if why:
            raise Violation(rule, why)
        self.settled = max(self.settled, 1 - (until - self.world.now_ms) / self.patience_ms)

    def pending(self) -> str:
        """Return why the groups are not all at work, "" if they are."""
        for seat in self.seats:
            if seat.reader is None or not seat.reader.running or seat.reader.leaving:
                return f"a seat of {seat.group_id} is empty"
            why = seat.reader.pending()
            if why:
                return why
        for group_id in self.groups:
            why = self._pending_group(group_id)
            if why:
                return why
        for client in self.data:
            why = client.behind()
            if why:
                return why
        open_groups = [one for journal in self.checks.journals.values() for one in journal.open_groups()]
        if open_groups:
            return f"a transaction is open for {min(open_groups)}"
        long_ago_ms = self.world.now_ms - 2 * self.options.landing_ms
        waiting = [call for call in self.checks.outstanding() if call.arrived_ms <= long_ago_ms]
        return f"{waiting[0]} is not answered" if waiting else ""

    def _pending_group(self, group_id: str) -> str:
        partition = self.cluster.partition_of(group_id)
        host = self.cluster.host_of(partition)
        group = None if host is None else host.shard.groups.get(group_id)
        if group is None:
            return f"no broker has group {group_id}; {self.cluster.led[partition].leader} leads {partition}"
        readers = [
            seat.reader for seat in self.seats if seat.reader is not None and seat.group_id == group_id
        ]
        members = {reader.member.generation.member_id for reader in readers}
        if group.state is not State.STABLE:
            return f"group {group_id} is {group.state} in generation {group.generation}"
        if members != group.members.keys():
            return f"group {group_id} has {sorted(group.members)}, and {sorted(members)} live"
        return self._pending_shares(group_id, readers)

    def _pending_shares(self, group_id: str, readers: list[Reader]) -> str:
        if all(reader.malformed for reader in readers) or self.unseen_growth:
            return ""
        owned = sorted(one for reader in readers for one in reader.member.owned)
        there = sorted(
            TopicPartition(topic, number)
            for topic, partitions in self.cluster.topics.items()
            for number in range(partitions)
        )
        return "" if owned == there else f"group {group_id} owns {owned} of {there}"


TROUBLE: Mapping[str, Callable[[Scenario], None]] = {
    "cut": Scenario._cut,
    "crash": Scenario._crash,
    "power": Scenario._power,
    "stop": Scenario._stop,
    "move": Scenario._move,
    "disk": Scenario._disk,
    "pause": Scenario._pause,
    "kill": Scenario._kill,
    "leave": Scenario._leave,
    "reset": Scenario._reset,
    "storm": Scenario._storm,
    "grow": Scenario._grow,
    "stall": Scenario._stall,
    "suspend": Scenario._suspend,
    "subscribe": Scenario._subscribe,
    "rejoin": Scenario._rejoin,
    "jump": Scenario._jump,
}


def place_of(mistake: BaseException) -> str:
    """Return the place in our code at which an exception was raised."""
    trace = mistake.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


@contextmanager
def listening() -> Iterator[Mistakes]:
    """Catch the broker's mistakes, and keep its other words from the terminal."""
    mistakes, log = Mistakes(), logging.getLogger("coterie")
    level, propagate, handlers = log.level, log.propagate, log.handlers[:]
    log.handlers[:] = [mistakes]
    log.propagate = False
    log.setLevel(logging.ERROR)
    try:
        yield mistakes
    finally:
        log.handlers[:] = handlers
        log.propagate = propagate
        log.setLevel(level)


def run(seed: int, *, data: bool = False, listener: Callable[[str], None] | None = None) -> Outcome:
    """Live through the scenario of one seed and return what came of it; with `data` of one that has any."""
    options = with_data(draw(World(seed))) if data else None
    return live(lambda mistakes: Scenario(seed, mistakes, options=options), listener)


def live(make: Callable[[Mistakes], Scenario], listener: Callable[[str], None] | None = None) -> Outcome:
    """Live through a scenario and return what came of it."""
    with listening() as mistakes:
        scenario = make(mistakes)
        world = scenario.world
        world.listener = listener
        violation = rule = ""
        try:
            scenario.run()
        except Violation as broken:
            violation, rule = str(broken), broken.rule
        except Exception as mistake:  # noqa: BLE001  # the scenario's root: whatever the code raises is a find
            rule = "no mistakes of ours"
            violation = f"{rule}: {type(mistake).__name__}: {mistake} {place_of(mistake)}"
    if violation:
        world.tell(violation)
    return Outcome(
        world.seed,
        violation,
        rule,
        world.trace_hash(),
        world.now_ms - START_MS,
        world.steps,
        tuple(world.told),
        frozenset(world.marks),
        scenario.settled,
        scenario.flag,
    )
