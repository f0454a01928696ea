"""Stores of brokers that lead, give away, die and are fenced, over a database that fails. What was said to
have landed is there once, and whoever opens a log has all of it.
"""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from store_rig import NOW, a_batch, a_config, records_in

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.storage.log.contract import AppendRefused
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.pretended import BROKEN, Fate, PretendedEngine, PretendedReader
from coterie.storage.remote.store import LogToOpen, RemoteStore
from examples import drawn
from unit.storage.remote_rig import Time

NAMES = (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("__consumer_offsets", 0))
IDS = {name: 10 + place for place, name in enumerate(NAMES)}
LANES, BROKERS = 3, 2
FATES = (
    Fate(effect_ms=1, failure=BROKEN),
    Fate(effect_ms=None, failure=BROKEN),
    Fate(effect_ms=400, answer_ms=5, failure=BROKEN),
    Fate(effect_ms=300, answer_ms=310),
    Fate(answer_ms=None),
    Fate(effect_ms=None, failure="53100"),
    Fate(effect_ms=None, failure="40001"),
)
WELL = {"read-logs": Fate(2, 12)}  # so that more happens meanwhile
STATEMENTS = ("append", "begin-life", "look", "read-logs")


class Broker:
    """A store, and what this broker believes that it leads: it may be behind the truth."""

    def __init__(self, world: Lives, broker_id: int) -> None:
        self.world, self.broker_id = world, broker_id
        self.store = RemoteStore(
            world.engine.new_session_of(broker_id),
            PretendedReader(world.engine),
            clock=world.time.clock,
            call_soon=world.time.soon.append,
            later=world.time.timer,
        )
        self.store.listener = self
        self.fenced_lanes = 0
        self.begin()

    def begin(self) -> None:
        """Register, and hear of what it leads."""
        self.store.begin(self.world.engine.tables.register(self.broker_id, LANES), self.world.engine.history)

    def lead(self, name: TopicPartition, epoch: int) -> None:
        wanted = LogToOpen(name, IDS[name], epoch, a_config())
        self.store.open([wanted], lambda name, log: self.world.opened(self, name, epoch, log))

    def fenced(self) -> None:
        self.fenced_lanes += 1

    def lost(self, names: frozenset[TopicPartition]) -> None:
        raise AssertionError("nothing is lost here")

    def conflicted(self, names: frozenset[TopicPartition]) -> None:
        raise AssertionError(f"two lead one of {names}")

    def full(self) -> None:
        raise AssertionError("so much is not written here")


class Lives(RuleBasedStateMachine):
    """Who leads in truth is what the metadata says; the brokers hear of it at once, or some time later."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.fates: dict[str, list[Fate]] = defaultdict(list)
        self.engine = PretendedEngine(self.choose, self.time.event)
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        self.values = 0
        self.landed: dict[TopicPartition, dict[int, bytes]] = {name: {} for name in NAMES}
        self.refused: set[bytes] = set()
        self.undecided: set[bytes] = set()
        self.brokers = [Broker(self, broker_id) for broker_id in range(BROKERS)]
        for place, name in enumerate(NAMES):
            self._elect(name, place % BROKERS)
        self.time.pass_ms(100)

    def choose(self, statement: str) -> Fate:
        planned = self.fates[statement]
        return planned.pop(0) if planned else WELL.get(statement, Fate(1, 2))

    def _elect(self, name: TopicPartition, leader: int) -> None:
        _, epoch = self.leaders.get(name, (0, -1))
        self.leaders[name] = leader, epoch + 1
        self.brokers[leader].lead(name, epoch + 1)

    def opened(self, broker: Broker, name: TopicPartition, epoch: int, log: RemoteLog) -> None:
        """Check a log that was opened: by whoever may believe to lead it, and with all that has landed."""
        leader, newest = self.leaders[name]
        if (broker.broker_id, epoch) != (leader, newest):
            return  # it has not heard of the election yet
        assert log.latest_epoch == epoch
        written = self._written(name)
        assert [record.value for record in records_in(log.read(0, max_bytes=1 << 20))] == written
        assert log.end_offset == len(written)

    def _written(self, name: TopicPartition) -> list[bytes | None]:
        rows = self.engine.tables.rows(IDS[name])
        records = [record for row in rows for record in records_in(bytes(row.data))]
        assert [record.offset for record in records] == [*range(len(records))]
        return [record.value for record in records]

    # -- what happens

    @rule(name=st.sampled_from(NAMES), astray=st.sampled_from((False, False, True)))
    def append(self, name: TopicPartition, astray: bool) -> None:
        """Whoever leads appends, or whoever does not, if it has the log open."""
        leader, _ = self.leaders[name]
        log = self.brokers[1 - leader if astray else leader].store.logs.get(name)
        if log is None:
            return
        self.values += 1
        value = b"%d" % self.values
        try:
            appended = log.append(a_batch(value), now_ms=NOW)
        except AppendRefused:
            return
        self.undecided.add(value)

        def decided(refused: AppendRefused | None) -> None:
            self.undecided.remove(value)  # which is told once
            if refused is None:
                assert self.landed[name].setdefault(appended.base_offset, value) == value
            elif refused.code is not Code.NOT_LEADER_OR_FOLLOWER:
                self.refused.add(value)

        log.when_landed(appended.last_offset, decided)

    @rule(statement=st.sampled_from(STATEMENTS), fates=st.lists(st.sampled_from(FATES), max_size=3))
    def plan(self, statement: str, fates: list[Fate]) -> None:
        self.fates[statement] = fates

    @rule(span_ms=st.sampled_from((0, 1, 2, 5, 20, 20, 400)))
    def pass_ms(self, span_ms: int) -> None:
        self.time.pass_ms(span_ms)

    @rule(name=st.sampled_from(NAMES), anew=st.booleans())
    def give(self, name: TopicPartition, anew: bool) -> None:
        """A leader gives a partition away, with nothing in flight: it may be about to open it."""
        leader, epoch = self.leaders[name]
        broker = self.brokers[leader]
        log = broker.store.logs.get(name)
        idle = IDS[name] not in broker.store._undecided
        if idle and (log is None or log.end_offset == log.high_watermark) and not broker.fenced_lanes:
            if anew:
                broker.store.drop(name)
                broker.lead(name, epoch)
            broker.store.drop(name)
            self._elect(name, 1 - leader)

    @rule(name=st.sampled_from(NAMES))
    def lead_on(self, name: TopicPartition) -> None:
        """A leader hears of another epoch of its own, whatever is in flight."""
        self._elect(name, self.leaders[name][0])

    @rule(name=st.sampled_from(NAMES))
    def resign_and_open(self, name: TopicPartition) -> None:
        """Whoever leads loads anew."""
        leader, epoch = self.leaders[name]
        self.brokers[leader].store.drop(name)
        self.brokers[leader].lead(name, epoch)

    @rule(victim=st.integers(0, BROKERS - 1), hears=st.booleans(), anew=st.booleans())
    def take_over(self, victim: int, hears: bool, anew: bool) -> None:
        """A broker is fenced, and the other leads what it led. It may hear of that before it appends, and be
        about to open what it has led.
        """
        for name, (leader, _) in self.leaders.items():
            if anew and leader == victim:
                self._elect(name, victim)
        self.engine.tables.fence(victim)
        for name, (leader, _) in self.leaders.items():
            if leader == victim:
                self._elect(name, 1 - victim)
        self.brokers[victim].fenced_lanes += 1
        if hears:
            self.brokers[victim].store.end()

    @rule(broker=st.integers(0, BROKERS - 1))
    def begin_again(self, broker: int) -> None:
        """A broker that was fenced, or was not, registers anew, and leads what it led in the next epochs."""
        one = self.brokers[broker]
        one.begin()
        one.fenced_lanes = 0
        for name, (leader, _) in self.leaders.items():
            if leader == broker:
                self._elect(name, leader)

    @rule(span_ms=st.sampled_from((1, 50, 2_000)))
    def go_away(self, span_ms: int) -> None:
        self.engine.go_away()
        self.time.pass_ms(span_ms)
        self.engine.come_back()

    # -- what holds

    @invariant()
    def what_has_landed_is_there_and_what_was_refused_is_not(self) -> None:
        for name in NAMES:
            written = self._written(name)
            assert len(written) == len(set(written))
            assert self.refused.isdisjoint(written)
            for offset, value in self.landed[name].items():
                assert written[offset] == value

    @invariant()
    def epochs_begin_in_their_order(self) -> None:
        for name in NAMES:
            starts = [start for _, start in sorted(self.engine.tables.epochs(IDS[name]))]
            assert starts == sorted(starts)
            epochs = dict(self.engine.tables.epochs(IDS[name]))
            for row in self.engine.tables.rows(IDS[name]):
                assert epochs[row.leader_epoch] <= row.base_offset

    def teardown(self) -> None:
        """In the end all is well: each partition is open at its leader, and takes what comes."""
        self.fates.clear()
        for broker in range(BROKERS):
            if self.brokers[broker].fenced_lanes:
                self.begin_again(broker)
        self.time.pass_ms(30_000)
        for name, (leader, epoch) in self.leaders.items():
            log = self.brokers[leader].store.logs[name]
            assert log.latest_epoch == epoch
            self.append(name, astray=False)
        self.time.pass_ms(1_000)
        assert not self.undecided
        assert all(self.landed[name][max(self.landed[name])] == self._written(name)[-1] for name in NAMES)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=drawn(60), stateful_step_count=30, deadline=None)
