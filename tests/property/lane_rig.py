"""Brokers without sockets whose lanes append to one pretended database, and what must hold of it.

Time is a number; what becomes of the next statements is planned, and all others go well. A broker may be
paused, killed and fenced; whatever a log has put is looked for in the database when it is called back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count, pairwise

from coterie.base.codes import Code
from coterie.storage.log.contract import AppendRefused
from coterie.storage.remote.chunk import Chunk, PendingAppend
from coterie.storage.remote.lane import Lane
from coterie.storage.remote.pretended import Fate, PretendedEngine, PretendedSession, Tables

BROKERS = 3
LANES = 2
PARTITIONS = 6
ROUND_BYTES = 64
VALUE_BYTES = 8
RELOAD_MS = 3
LONG_MS = 60_000
STEPS_MOST = 1_500
"""In one passing of time: several times what there can be to do."""

Values = dict[int, tuple[int, int]]
"""Value -> (partition, offset)."""


class WatchedTables(Tables):
    """Notes each state that the database was in, and refuses to hold what no database of ours may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.fenced_epochs: set[tuple[int, int]] = set()
        self.values: Values = {}
        self.ever: Values = {}
        """Those, too, that the database has forgotten by going back."""
        self.states: list[int] = []
        """Marks of the journal that the database may go back to: none from before a change of leaders."""

    def append(self, broker_id: int, lane: int, broker_epoch: int, life: int, chunks: Sequence[Chunk]) -> int:
        self.states.append(self.journal.mark())
        ends = {chunk.partition_id: self.end(chunk.partition_id) for chunk in chunks}
        inserted = super().append(broker_id, lane, broker_epoch, life, chunks)
        if inserted:
            assert (broker_id, broker_epoch) not in self.fenced_epochs, "a fenced broker has appended"
        for chunk in chunks[:inserted]:
            assert chunk.base_offset == ends[chunk.partition_id], "a gap, or one row over another"
            ends[chunk.partition_id] = chunk.last_offset + 1
            for value, offset in values_of(chunk):
                assert value not in self.values, f"{value} is there twice"
                self.journal.put(self.values, value, (chunk.partition_id, offset))
                self.ever[value] = (chunk.partition_id, offset)
        return inserted

    def fence(self, broker_id: int) -> None:
        self.fenced_epochs |= {
            (broker_id, row.broker_epoch) for key, row in self.lanes.items() if key[0] == broker_id
        }
        super().fence(broker_id)
        self.states.clear()

    def lead(self, partition_id: int, leader_epoch: int) -> int:
        end = super().lead(partition_id, leader_epoch)
        self.states.clear()
        return end

    def delete(self, partition_id: int, before_offset: int) -> int:
        deleted = super().delete(partition_id, before_offset)
        self.states.clear()
        return deleted


def values_of(chunk: Chunk) -> list[tuple[int, int]]:
    """Return (value, offset) of the records of a row."""
    data = bytes(chunk.data)
    return [
        (int.from_bytes(data[at : at + VALUE_BYTES], "big"), chunk.base_offset + at // VALUE_BYTES)
        for at in range(0, len(data), VALUE_BYTES)
    ]


class World:
    """Time, the database, the brokers, and who leads what in truth."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.steps = 0
        self.fates: dict[str, deque[Fate]] = {"append": deque(), "begin-life": deque(), "look": deque()}
        """What becomes of the next statements of each kind."""
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.values = count(1)
        self.engine = PretendedEngine(self.choose, self.later)
        self.tables = WatchedTables()
        self.engine.tables = self.tables
        self.leader_epochs: Counter[int] = Counter()
        self.acknowledged: dict[int, tuple[Lane, int]] = {}
        """Value -> the lane that it landed through, and its partition."""
        self.excused: set[int] = set()
        """Acknowledged values that are lost, as whoever leads the partition knows."""
        self.never: set[int] = set()
        """Values that were refused, and are not to be there."""
        self.seen: Counter[str] = Counter()
        """What came about, so that a test can say whether enough did."""
        self.brokers = [Broker(self, number) for number in range(BROKERS)]
        for partition in range(PARTITIONS):
            self.brokers[partition % BROKERS].lead(partition)
        self.pass_time(10)

    # -- time

    def clock(self) -> int:
        return self.now_ms

    def choose(self, name: str) -> Fate:
        if self.fates[name]:
            self.seen[f"{name} by fate"] += 1
            return self.fates[name].popleft()
        return Fate(1, 2)

    def later(self, delay_ms: int, do: Callable[[], None]) -> None:
        heappush(self._agenda, (self.now_ms + delay_ms, next(self._numbers), do))

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass; do what is due, and tick the lanes that want it."""
        until_ms = self.now_ms + milliseconds
        steps_most = self.steps + STEPS_MOST
        while True:
            assert self.steps < steps_most, "somebody asks again and again"
            lane = min(self._ticking(), key=lambda lane: lane.next_ms() or 0, default=None)
            tick_ms = until_ms + 1 if lane is None else lane.next_ms() or 0
            event_ms = self._agenda[0][0] if self._agenda else until_ms + 1
            if min(tick_ms, event_ms) > until_ms:
                break
            self.steps += 1
            self.now_ms = max(self.now_ms, min(tick_ms, event_ms))
            if event_ms <= tick_ms:
                heappop(self._agenda)[2]()
            else:
                assert lane is not None
                lane.tick()
        self.now_ms = until_ms

    def _ticking(self) -> list[Lane]:
        return [
            lane
            for broker in self.brokers
            if not broker.paused
            for lane in broker.lanes
            if lane.next_ms() is not None
        ]

    # -- what is done to brokers and the database

    def take_over(self, victim: int, successor: int) -> None:
        """Fence a broker, whether it lives or not, and have another lead what it led."""
        other = self.brokers[successor]
        led = sorted(self.brokers[victim].leads)
        self.tables.fence(victim)
        self.brokers[victim].leads.clear()
        for partition in led:
            other.lead(partition)
        self.seen["takeovers"] += 1

    def go_away(self, milliseconds: int, *, back: int | None) -> None:
        """Have the database go away for so long, and come back as it was so many appends ago, or as many as
        there were since leaders moved.
        """
        states = self.tables.states
        mark = None if back is None or not states else states[max(0, len(states) - back)]
        if mark is not None:
            del states[states.index(mark) :]
        self.engine.go_away(to=mark)
        self.later(milliseconds, self.engine.come_back)
        self.seen["outages" if mark is None else "falls back"] += 1

    # -- what must hold

    def landed(self, lane: Lane, append: PendingAppend) -> None:
        """Check an acknowledgement: it is there, and so is all that this lane has acknowledged before, unless
        the database has gone back and the lane cannot know yet.
        """
        for value, offset in values_of_append(append):
            assert self.tables.ever.get(value) == (append.partition_id, offset), f"{value} is not there"
            self.acknowledged[value] = lane, append.partition_id
        connection = lane.session.connection  # type: ignore[attr-defined]
        if connection.incarnation == self.engine.incarnation:
            missing = self.missing(lane)
            assert not missing, f"{missing} were acknowledged, and are gone; nobody was told"

    def missing(self, lane: Lane) -> set[int]:
        """Return the values that a lane has acknowledged and that are gone."""
        return {value for value in self._gone() if self.acknowledged[value][0] is lane}

    def _gone(self) -> set[int]:
        return self.acknowledged.keys() - self.tables.values.keys() - self.excused

    def excuse(self, partition: int) -> None:
        """Have it be known that acknowledged values of a partition are gone: it is led anew without them."""
        self.excused |= {value for value in self._gone() if self.acknowledged[value][1] == partition}

    def check(self) -> None:
        """Check what holds at any time."""
        assert not self.never & self.tables.values.keys(), "what was refused is there"
        for broker in self.brokers:
            for log in broker.logs.values():
                assert not (log.lane.closed and log.flights), "a closed lane keeps something"

    def settle(self) -> None:
        """Let all be well for a while, and check that nothing waits and everybody agrees."""
        for fates in self.fates.values():
            fates.clear()
        self.engine.come_back()
        for broker in self.brokers:
            broker.resume()
        self.pass_time(LONG_MS)
        self.check()
        for broker in self.brokers:
            broker.check()
        assert not self._gone(), f"{self._gone()} were acknowledged, and are gone"
        self._check_places()

    def _check_places(self) -> None:
        for partition in range(PARTITIONS):
            rows = self.tables.rows(partition)
            for before, row in pairwise(rows):
                assert row.base_offset == before.last_offset + 1
            for row in rows:
                for value, offset in values_of(row):
                    assert self.tables.values[value] == (partition, offset)


class Broker:
    """One broker: its lanes, its logs, and what it has not heard while it was paused."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.paused = False
        self._unheard: deque[Callable[[], None]] = deque()
        self.leads: set[int] = set()
        """What it leads in truth."""
        self.logs: dict[int, Log] = {}
        self.lanes: list[Lane] = []
        self.orders: dict[Lane, Order] = {}
        self.broker_epoch = -1
        self.start()

    def start(self) -> None:
        """Register; what nobody else leads by now, it leads again."""
        self.kill()
        self.broker_epoch = self.world.tables.register(self.number, LANES)
        self.lanes = [self._new_lane(lane) for lane in range(LANES)]
        self.orders = {lane: Order(self.world) for lane in self.lanes}
        for lane in self.lanes:
            lane.open()
        for partition in sorted(self.leads):
            self.lead(partition)

    def kill(self) -> None:
        """End it: what it has sent may still happen, and it hears of nothing."""
        self.broker_epoch = -1
        self.paused = False
        self._unheard.clear()
        self.logs = {}
        self.lanes = []

    @property
    def works(self) -> bool:
        """Whether it lives, and could lead more."""
        return self.broker_epoch > 0 and not self.paused and not self.fenced()

    def _new_lane(self, number: int) -> Lane:
        place = (self.number, number, self.broker_epoch)
        epoch = self.broker_epoch

        def answered(life: int, answer: object) -> None:
            self._hear(epoch, partial(lane.answered, life, answer))

        lane = Lane(
            PretendedSession(self.world.engine, place, answered),
            Listener(self, number),
            name=f"lane {number} of broker {self.number}",
            clock=self.world.clock,
            call_soon=lambda callback: self.world.later(0, partial(self._hear, epoch, callback)),
            round_bytes=ROUND_BYTES,
        )
        return lane

    def _hear(self, epoch: int, what: Callable[[], None]) -> None:
        if epoch != self.broker_epoch:
            return  # it was meant for a process that is dead
        if self.paused:
            self._unheard.append(what)
        else:
            what()

    def soon(self, delay_ms: int, do: Callable[[], None]) -> None:
        self.world.later(delay_ms, partial(self._hear, self.broker_epoch, do))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        while self._unheard and not self.paused:
            self._unheard.popleft()()

    def fenced(self) -> bool:
        """Return whether it is fenced in truth."""
        return (self.number, self.broker_epoch) in self.world.tables.fenced_epochs

    # -- leading

    def lead(self, partition: int) -> None:
        """Lead a partition from now on, as the database has it."""
        world = self.world
        world.excuse(partition)
        world.leader_epochs[partition] += 1
        epoch = world.leader_epochs[partition]
        end = world.tables.lead(partition, epoch)
        lane = self.lanes[partition % LANES]
        self.logs[partition] = Log(self, lane, partition, epoch, end)
        self.leads.add(partition)

    def give(self, partition: int, successor: Broker) -> None:
        """Hand a partition over once all that was put into its lane is decided."""
        log = self.logs[partition]
        if log.retiring:
            return
        log.retiring = True

        def decided() -> None:
            assert not log.flights
            if log.lane.closed or self.logs.get(partition) is not log or partition not in self.leads:
                return
            if not successor.works:
                log.retiring = False
                return
            del self.logs[partition]
            self.leads.discard(partition)
            log.lane.forget(partition)
            successor.lead(partition)
            self.world.seen["given"] += 1

        log.lane.when_decided(decided)

    def delete(self, partition: int) -> None:
        """Delete of a partition what has landed, and may have been lost unnoticed."""
        log, world = self.logs[partition], self.world
        world.excuse(partition)
        log.lane.forget(partition, log.landed)
        world.tables.delete(partition, log.landed)

    def cut(self, lane: int) -> None:
        """Break the connection of a lane, if it has one."""
        connection = self.lanes[lane].session.connection  # type: ignore[attr-defined]
        if connection is not None:
            connection.cut("a cut")

    def check(self) -> None:
        """Check a broker that has had time to settle."""
        fenced = self.fenced()
        for lane in self.lanes:
            assert lane.idle, f"{lane} still holds something"
            assert lane.held_bytes == 0
            assert lane.closed or lane.state == Lane.IDLE
            assert fenced or not lane.closed
        for log in self.logs.values():
            assert not log.flights
            assert log.end == log.landed
            if not fenced:
                assert log.end == self.world.tables.end(log.partition), "leader and database differ"


class Listener:
    """The shell of a lane: it does what a broker does when a lane cannot go on by itself."""

    def __init__(self, broker: Broker, number: int) -> None:
        self.broker = broker
        self.number = number

    @property
    def lane(self) -> Lane:
        return self.broker.lanes[self.number]

    def fenced(self) -> None:
        assert self.broker.fenced(), "the lane takes itself for fenced, and is not"
        assert self.lane.closed
        self.broker.soon(RELOAD_MS, self._retire)  # until then logs go on, and are refused
        self.broker.world.seen["fenced"] += 1

    def _retire(self) -> None:
        for log in self.broker.logs.values():
            log.retiring = True

    def conflicted(self, partitions: frozenset[int]) -> None:
        raise AssertionError(f"rows of another leader are in partitions {sorted(partitions)}")

    def lost(self, partitions: frozenset[int]) -> None:
        world = self.broker.world
        logs = {log.partition: log for log in self.broker.logs.values() if log.lane is self.lane}
        shorter = {number for number, log in logs.items() if world.tables.end(number) < log.landed}
        assert shorter <= partitions or self.broker.fenced()
        if not self.broker.fenced():
            assert shorter, "rows are said to be lost, and are not"
        world.seen["lost"] += 1
        for partition in logs:
            world.excuse(partition)
        self.broker.soon(RELOAD_MS, self._lead_on)

    def _lead_on(self) -> None:
        broker, lane = self.broker, self.lane
        if not broker.fenced():
            for partition, log in [*broker.logs.items()]:
                if log.lane is lane:
                    assert not log.flights
                    log.retiring = True
                    broker.lead(partition)
        lane.go_on()


class Log:
    """A partition's log at its leader: where it ends, what has landed, and what is under way."""

    def __init__(self, broker: Broker, lane: Lane, partition: int, epoch: int, end: int) -> None:
        self.broker = broker
        self.world = broker.world
        self.lane = lane
        self.partition = partition
        self.epoch = epoch
        self.end = self.landed = end
        self.flights: list[PendingAppend] = []
        self.retiring = False
        """It is not led here any more, or soon: it places nothing."""
        self.to_say = 0
        self.echoes = 0
        """So many more puts follow from within being called back."""

    def ask(self, values: int) -> None:
        """Have something to say when the lane is free."""
        self.to_say += values
        if self.to_say == values:
            self.lane.ask(self._hand_over)

    def _hand_over(self) -> None:
        values, self.to_say = self.to_say, 0
        self.put(values)

    def put(self, values: int) -> None:
        """Place so many records, and put them into the lane as one append."""
        if self.retiring or not values:
            return
        base, self.end = self.end, self.end + values
        parts = [next(self.world.values).to_bytes(VALUE_BYTES, "big") for _ in range(values)]
        calls: list[AppendRefused | None] = []
        append = PendingAppend(
            self.partition,
            base,
            self.end - 1,
            self.epoch,
            self.world.now_ms,
            1,
            values * VALUE_BYTES,
            parts,
            b"",
            lambda refusal: self._done(append, calls, refusal),
        )
        self.flights.append(append)
        self.broker.orders[self.lane].put(append)
        self.lane.put(append)

    def _done(
        self, append: PendingAppend, calls: list[AppendRefused | None], refusal: AppendRefused | None
    ) -> None:
        assert not calls, "called back twice"
        calls.append(refusal)
        order = self.broker.orders[self.lane]
        if refusal is None:
            order.land(append)
            assert self.flights.pop(0) is append
            self.landed = append.last_offset + 1
            self.world.landed(self.lane, append)
            if self.broker.fenced():  # it was answered before; whoever leads by now leads on without it
                self.world.excuse(self.partition)
        else:
            order.undo(append)
            assert self.flights.pop() is append
            self.end = append.base_offset
            self._refused(append, refusal)
        if self.echoes and not self.flights:
            self.echoes -= 1
            self.put(1)

    def _refused(self, append: PendingAppend, refusal: AppendRefused) -> None:
        assert refusal.code in (Code.KAFKA_STORAGE_ERROR, Code.NOT_LEADER_OR_FOLLOWER)
        values = {value for value, _ in values_of_append(append)}
        there = values & self.world.tables.values.keys()
        assert not there or refusal.code is Code.NOT_LEADER_OR_FOLLOWER, (
            f"{there} were refused, and are there"
        )
        self.world.never |= values - there
        self.world.seen[refusal.code.name] += 1


class Order:
    """What a lane was given and has not called back, in that order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._puts: list[tuple[int, PendingAppend]] = []
        self._numbers = count()
        self._undoing = (-1, -1)
        """The step of the world in which something was undone last, and the number when that began."""

    def put(self, append: PendingAppend) -> None:
        self._puts.append((next(self._numbers), append))

    def land(self, append: PendingAppend) -> None:
        assert self._puts.pop(0)[1] is append, "not in the order of the puts"

    def undo(self, append: PendingAppend) -> None:
        step, began = self._undoing
        if step != self.world.steps:
            began = next(self._numbers)
            self._undoing = (self.world.steps, began)
        place = next(place for place, (_, other) in enumerate(self._puts) if other is append)
        behind = self._puts[place + 1 :]
        assert all(number > began for number, _ in behind), "not the newest first"
        del self._puts[place]


def values_of_append(append: PendingAppend) -> list[tuple[int, int]]:
    """Return (value, offset) of the records of an append."""
    return [
        (int.from_bytes(bytes(part), "big"), append.base_offset + at) for at, part in enumerate(append.parts)
    ]
