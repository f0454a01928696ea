"""The store of a broker over a database: which logs are open when, and what lanes cannot settle alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from store_rig import NOW, a_batch, a_config, idempotent, offsets

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.cleaner import RemoteCleaner
from coterie.broker.runtime.clock import Clock
from coterie.storage.kind import Log, LogStore
from coterie.storage.log.contract import AppendRefused, StorageFailed
from coterie.storage.log.partition import PartitionLog
from coterie.storage.remote import pretended
from coterie.storage.remote import store as store_module
from coterie.storage.remote.lane import SILENCE_MS
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.pretended import BROKEN, Fate, PretendedEngine, PretendedReader
from coterie.storage.remote.reading import LogLed, LogWanted, StoredLog
from coterie.storage.remote.session import Broken
from coterie.storage.remote.store import LogToOpen, RemoteStore
from unit.storage.remote_rig import Time

ORDERS, OTHERS, GROUPS = (
    TopicPartition("orders", 0),
    TopicPartition("others", 0),
    TopicPartition("__consumer_offsets", 3),
)
IDS = {ORDERS: 10, OTHERS: 11, GROUPS: 12}
LANES = 3
SILENT = Fate(answer_ms=None)


class Brokers(Time):
    """An engine, and brokers of which each has a store."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: dict[str, list[Fate]] = {}
        self.asked: list[str] = []
        self.engine = PretendedEngine(self.choose, self.event)

    def choose(self, name: str) -> Fate:
        self.asked.append(name)
        planned = self.fates.get(name)
        return planned.pop(0) if planned else Fate()

    def broker(self, broker_id: int = 1, *, held_bytes_max: int = 1_000) -> Broker:
        return Broker(self, broker_id, held_bytes_max)

    def settle(self) -> None:
        """Have happen what takes a moment."""
        self.pass_ms(100)


class Broker:
    """A store, and what it has told."""

    def __init__(self, brokers: Brokers, broker_id: int, held_bytes_max: int) -> None:
        self.brokers, self.broker_id = brokers, broker_id
        self.opened: list[tuple[str, int]] = []
        self.told: list[tuple[str, frozenset[TopicPartition]]] = []
        self.landed: list[str] = []
        self.store = RemoteStore(
            brokers.engine.new_session_of(broker_id),
            PretendedReader(brokers.engine),
            clock=brokers.clock,
            call_soon=brokers.soon.append,
            later=brokers.timer,
            held_bytes_max=held_bytes_max,
        )
        self.store.listener = self
        self.begin()

    def begin(self) -> None:
        epoch = self.brokers.engine.tables.register(self.broker_id, LANES)
        self.store.begin(epoch, self.brokers.engine.history)

    def open(self, name: TopicPartition = ORDERS, epoch: int = 0, *, word: str = "") -> None:
        wanted = LogToOpen(name, IDS[name], epoch, a_config())
        self.store.open([wanted], lambda name, log: self.opened.append((word or str(name), log.latest_epoch)))

    def log(self, name: TopicPartition = ORDERS, epoch: int = 0) -> RemoteLog:
        """Return a log that is open."""
        if name not in self.store.logs:
            self.open(name, epoch)
            self.brokers.settle()
        return self.store.logs[name]

    def append(self, value: str, name: TopicPartition = ORDERS) -> None:
        log = self.log(name)
        appended = log.append(a_batch(value), now_ms=NOW)
        log.when_landed(
            appended.last_offset,
            lambda refused: self.landed.append(value if refused is None else f"{value}: {refused.code.name}"),
        )

    def fenced(self) -> None:
        self.told.append(("fenced", frozenset()))

    def lost(self, names: frozenset[TopicPartition]) -> None:
        self.told.append(("lost", names))

    def conflicted(self, names: frozenset[TopicPartition]) -> None:
        self.told.append(("conflicted", names))

    def full(self) -> None:
        self.told.append(("full", frozenset()))


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    made = brokers.broker()
    brokers.settle()
    return made


def test_both_kinds_of_log_and_of_store_are_what_a_broker_asks_of_them():
    def kinds(log: RemoteLog, in_files: PartitionLog, store: RemoteStore) -> tuple[Log, Log, LogStore]:
        return log, in_files, store  # which the type checker looks at

    assert kinds


# -- opening


def test_internal_topics_have_a_lane_of_their_own_and_data_goes_by_the_partition(broker: Broker):
    lanes = [broker.log(name).lane for name in (GROUPS, ORDERS, OTHERS)]

    assert lanes == list(broker.store.lanes)


def test_logs_of_internal_topics_are_opened_first(
    brokers: Brokers, broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_module, "LOGS_READ_AT_ONCE", 1)
    broker.open(OTHERS)
    broker.open(ORDERS)
    broker.open(GROUPS)

    brokers.settle()

    assert [name for name, _ in broker.opened] == [str(OTHERS), str(GROUPS), str(ORDERS)]


def test_a_leader_epoch_is_in_the_database_before_its_log_is_open(brokers: Brokers, broker: Broker):
    broker.append("a")
    brokers.settle()
    broker.store.drop(ORDERS)

    broker.open(epoch=4)

    assert broker.opened == [("orders-0", 0)]
    brokers.settle()
    assert broker.opened == [("orders-0", 0), ("orders-0", 4)]
    assert brokers.engine.tables.leader_epochs == {(10, 0): 0, (10, 4): 1}


def test_nothing_is_opened_before_there_is_a_broker_epoch(brokers: Brokers, broker: Broker):
    broker.store.end()

    broker.open()
    brokers.settle()

    assert broker.opened == []


def test_who_asks_again_while_a_log_is_being_opened_is_not_called(brokers: Brokers, broker: Broker):
    broker.open(word="first")
    broker.open(word="again")
    brokers.settle()
    broker.open(word="when it is open")
    brokers.settle()

    assert broker.opened == [("first", 0)]


def test_of_two_that_open_a_log_the_one_with_the_later_epoch_is_called(brokers: Brokers, broker: Broker):
    broker.open(epoch=1, word="first")
    broker.open(epoch=2, word="later")
    broker.open(epoch=1, word="too late")

    brokers.settle()

    assert broker.opened == [("later", 2)]
    assert brokers.engine.tables.epochs(10) == [(1, 0), (2, 0)]


def test_a_log_that_is_open_is_opened_anew_in_a_later_epoch(brokers: Brokers, broker: Broker):
    before = broker.log()
    broker.append("a")

    broker.open(epoch=1)
    brokers.settle()

    assert before.closed
    log = broker.log()
    assert log is not before
    assert (log.latest_epoch, offsets(log)) == (1, [0])


def test_a_log_that_is_resigned_from_while_it_is_opened_is_not(brokers: Brokers, broker: Broker):
    broker.open()
    broker.store.drop(ORDERS)
    brokers.settle()

    assert (broker.opened, broker.store.logs) == ([], {})


def test_a_log_that_is_opened_again_while_the_read_before_is_under_way_is_read_again(
    brokers: Brokers, broker: Broker
):
    broker.open(epoch=1, word="before")
    broker.store.drop(ORDERS)
    broker.open(epoch=2, word="after")
    brokers.settle()

    assert broker.opened == [("after", 2)]


def test_a_log_whose_broker_epoch_ends_while_it_is_opened_is_not(brokers: Brokers, broker: Broker):
    broker.open(word="in the epoch before")
    broker.begin()
    brokers.settle()
    assert (broker.opened, broker.store.logs) == ([], {})

    broker.open(epoch=1, word="in the next")
    brokers.settle()

    assert broker.opened == [("in the next", 1)]
    broker.append("a")
    brokers.settle()
    assert broker.landed == ["a"]


def test_whoever_is_called_may_end_the_broker_epoch(brokers: Brokers, broker: Broker):
    told = []

    def opened(name: TopicPartition, log: RemoteLog) -> None:
        told.append(name)
        broker.store.end()

    broker.store.open([LogToOpen(name, IDS[name], 0, a_config()) for name in (ORDERS, OTHERS)], opened)
    brokers.settle()

    assert (told, broker.store.logs) == ([ORDERS], {})


def test_a_log_that_another_leads_in_a_later_epoch_is_not_opened(brokers: Brokers, broker: Broker):
    brokers.engine.tables.lead(10, 5)

    broker.open(epoch=4)
    brokers.settle()

    assert (broker.opened, broker.store.logs) == ([], {})
    assert brokers.engine.tables.epochs(10) == [(5, 0)]


@pytest.mark.parametrize("fate", [Fate(failure=BROKEN), Fate(effect_ms=None, failure="53300"), SILENT])
def test_a_read_that_fails_or_is_not_answered_is_tried_again(brokers: Brokers, broker: Broker, fate: Fate):
    brokers.fates["read-logs"] = [fate, fate]

    broker.open()
    brokers.pass_ms(3 * SILENCE_MS)

    assert broker.opened == [("orders-0", 0)]
    assert brokers.engine.tables.epochs(10) == [(0, 0)]


class SlowReader(PretendedReader):
    """One connection for all: each read takes a while, and begins when the one before is over. It reads so
    many logs at once at most.
    """

    at_once = 100

    def __init__(self, brokers: Brokers, read_ms: int) -> None:
        super().__init__(brokers.engine)
        self.brokers, self.read_ms = brokers, read_ms
        self.free_ms = 0
        self.reads: list[list[int]] = []

    def read_logs(
        self,
        wanted: Sequence[LogWanted],
        done: Callable[[Sequence[StoredLog] | Broken], None],
        *,
        history: str,
    ) -> None:
        self.reads.append([one.partition_id for one in wanted])
        self.free_ms = max(self.free_ms, self.brokers.clock()) + self.read_ms
        some = wanted[: self.at_once]
        read = lambda: super(SlowReader, self).read_logs(some, done, history=history)  # noqa: E731
        self.brokers.event(self.free_ms - self.brokers.clock(), read)


def test_logs_that_take_long_to_read_are_opened_and_are_read_once(brokers: Brokers, broker: Broker):
    reader = broker.store._reader = SlowReader(brokers, 3 * SILENCE_MS)

    broker.open()
    brokers.pass_ms(4 * SILENCE_MS)

    assert (broker.opened, reader.reads) == ([("orders-0", 0)], [[10]])


def test_what_a_reader_leaves_for_later_is_asked_for_again(brokers: Brokers, broker: Broker):
    reader = broker.store._reader = SlowReader(brokers, 5)
    reader.at_once = 1

    for name in (GROUPS, ORDERS, OTHERS):
        broker.open(name)
    brokers.settle()

    assert [word for word, _ in broker.opened] == ["__consumer_offsets-3", "orders-0", "others-0"]
    assert reader.reads == [[12], [10, 11], [11]]


def fill(brokers: Brokers, broker: Broker, batches: int, *names: TopicPartition) -> None:
    """Have logs with so many batches, one in a row, that are not open."""
    for name in names:
        for value in range(batches):
            broker.append(str(value), name)
            brokers.settle()
        broker.store.drop(name)
    broker.opened.clear()


def test_others_are_heard_while_logs_that_are_large_are_opened(
    brokers: Brokers, broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    fill(brokers, broker, 7, ORDERS, OTHERS)
    monkeypatch.setattr(store_module, "BATCHES_AT_ONCE", 3)
    monkeypatch.setattr(store_module, "BATCHES_A_LOG", 0)
    monkeypatch.setattr(pretended, "PIECE_BYTES", 1)
    broker.open(ORDERS, 1)
    broker.open(OTHERS, 1)
    stops: list[int] = []
    call_soon = broker.store._call_soon

    def stop(act: Callable[[], None]) -> object:
        stops.append(len(broker.opened))
        return call_soon(act)

    broker.store._call_soon = stop
    brokers.settle()

    assert broker.opened == [("orders-0", 1), ("others-0", 1)]
    assert stops == [0, 0, 1, 1]
    assert [offsets(broker.log(name)) for name in (ORDERS, OTHERS)] == [[*range(7)]] * 2
    broker.append("more")
    brokers.settle()
    assert offsets(broker.log()) == [*range(8)]


def test_others_are_heard_while_many_logs_are_opened_that_hold_nothing(brokers: Brokers, broker: Broker):
    most = store_module.BATCHES_AT_ONCE // store_module.BATCHES_A_LOG
    names = [TopicPartition("wide", number) for number in range(2 * most)]
    stops: list[int] = []
    call_soon = broker.store._call_soon

    def stop(act: Callable[[], None]) -> object:
        stops.append(len(broker.opened))
        return call_soon(act)

    broker.store._call_soon = stop
    wanted = [LogToOpen(name, 1_000 + name.partition, 1, a_config()) for name in names]
    broker.store.open(wanted, lambda name, log: broker.opened.append((str(name), log.latest_epoch)))
    brokers.settle()

    assert len(broker.opened) == len(names)
    assert max(after - before for before, after in pairwise([0, *stops, len(names)])) <= most


@pytest.mark.parametrize("what", ["drop", "end", "later", "configure"])
def test_a_log_that_is_being_opened_can_still_be_dropped_and_configured(
    brokers: Brokers, broker: Broker, monkeypatch: pytest.MonkeyPatch, what: str
):
    fill(brokers, broker, 7, ORDERS)
    monkeypatch.setattr(store_module, "BATCHES_AT_ONCE", 3)
    monkeypatch.setattr(store_module, "BATCHES_A_LOG", 0)
    monkeypatch.setattr(pretended, "PIECE_BYTES", 1)
    broker.open(ORDERS, 1)
    stops: list[int] = []
    call_soon = broker.store._call_soon

    def meddle(act: Callable[[], None]) -> object:
        stops.append(1)
        if len(stops) == 2:
            match what:
                case "drop":
                    broker.store.drop(ORDERS)
                case "end":
                    broker.store.end()
                case "later":
                    broker.open(ORDERS, 2)
                case _:
                    broker.store.configure(ORDERS, a_config(retention_ms=7))
        return call_soon(act)

    broker.store._call_soon = meddle
    brokers.settle()

    assert broker.store.cache.count == sum(len(log.tail._pieces) for log in broker.store.logs.values())
    opened = {"later": [("orders-0", 2)], "configure": [("orders-0", 1)]}.get(what, [])
    assert broker.opened == opened
    assert [*broker.store.logs] == [ORDERS] * len(opened)
    if what == "configure":
        assert broker.log().config == a_config(retention_ms=7)


def test_a_log_that_is_dropped_with_something_in_flight_is_read_when_that_is_decided(
    brokers: Brokers, broker: Broker
):
    brokers.fates["append"] = [Fate(effect_ms=50, answer_ms=60)]
    broker.append("a")
    brokers.pass_ms(5)

    broker.store.drop(ORDERS)
    broker.open(epoch=1)
    brokers.pass_ms(30)
    assert broker.opened == [("orders-0", 0)]
    brokers.settle()

    assert (broker.landed, offsets(broker.log())) == (["a"], [0])
    broker.append("b")
    brokers.settle()
    assert broker.landed == ["a", "b"]


def test_settings_that_change_while_a_log_is_opened_are_its_own(brokers: Brokers, broker: Broker):
    broker.open()
    broker.store.configure(ORDERS, a_config(max_message_bytes=10))
    brokers.settle()
    with pytest.raises(AppendRefused):
        broker.log().append(a_batch("too long by far"), now_ms=NOW)

    broker.store.configure(ORDERS, a_config())

    broker.append("now it is not")


# -- what lanes cannot settle


def test_who_is_fenced_is_told_by_every_lane_and_takes_nothing_more(brokers: Brokers, broker: Broker):
    broker.log(OTHERS)
    broker.append("a")
    broker.append("b", OTHERS)
    brokers.engine.tables.fence(1)

    brokers.settle()

    assert broker.told == [("fenced", frozenset())] * 2
    refused = Code.NOT_LEADER_OR_FOLLOWER.name
    assert broker.landed == [f"a: {refused}", f"b: {refused}"]


def test_the_end_of_an_epoch_refuses_what_has_not_landed(brokers: Brokers, broker: Broker):
    log = broker.log()
    broker.append("a")

    broker.store.end()
    brokers.settle()

    assert (broker.landed, broker.told) == ([f"a: {Code.NOT_LEADER_OR_FOLLOWER.name}"], [])
    assert (log.closed, broker.store.logs) == (True, {})


def test_a_log_that_is_open_in_the_place_of_another_leaders_rows_is_opened_anew(
    brokers: Brokers, broker: Broker
):
    log = broker.log()
    other = brokers.broker(2)
    other.append("theirs")
    brokers.settle()

    log.append(a_batch("ours"), now_ms=NOW)
    brokers.settle()
    assert broker.told == [("conflicted", frozenset({ORDERS}))]
    broker.store.drop(ORDERS)

    assert offsets(broker.log()) == [0]


def test_rows_that_were_lost_are_told_and_the_lanes_go_on_when_logs_are_opened_anew(
    brokers: Brokers, broker: Broker
):
    broker.append("kept")
    brokers.settle()
    mark = brokers.engine.tables.journal.mark()
    broker.append("lost")
    brokers.settle()
    brokers.engine.go_away(to=mark)
    brokers.engine.come_back()
    broker.append("too early")

    brokers.pass_ms(5_000)
    assert broker.told == []
    assert broker.landed == ["kept", "lost"]
    broker.store.go_on(brokers.engine.history)
    brokers.settle()

    assert broker.told == [("lost", frozenset({ORDERS}))]
    assert broker.landed[2:] == [f"too early: {Code.NOT_LEADER_OR_FOLLOWER.name}"]
    broker.open(epoch=1)
    brokers.settle()
    broker.store.go_on(brokers.engine.history)
    brokers.settle()
    broker.append("again")
    brokers.settle()
    assert broker.landed[3:] == ["again"]
    assert broker.log().end_of_epoch(0) == (0, 1)


def test_logs_may_be_dropped_and_opened_by_whoever_is_told_that_rows_are_lost(
    brokers: Brokers, broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    def lost(names: frozenset[TopicPartition]) -> None:
        for name in names:
            broker.store.drop(name)
            broker.open(name, epoch=1)

    monkeypatch.setattr(broker, "lost", lost)
    mark = brokers.engine.tables.journal.mark()
    broker.append("lost")
    brokers.settle()
    brokers.engine.go_away(to=mark)
    brokers.engine.come_back()
    broker.append("behind it")
    broker.store.go_on(brokers.engine.history)

    brokers.settle()

    assert broker.opened == [("orders-0", 0), ("orders-0", 1)]
    assert broker.log().end_offset == 0


def test_it_is_drained_when_all_lanes_have_looked_at_an_engine_that_may_have_gone_back(
    brokers: Brokers, broker: Broker
):
    """Their connections may be with the one before, and not know."""
    lives = [lane.life for lane in broker.store.lanes]
    looked: list[list[int]] = []

    broker.store.go_on(brokers.engine.history)
    broker.store.drained(lambda: looked.append([lane.life for lane in broker.store.lanes]))
    brokers.run()
    assert looked == []
    brokers.settle()

    assert looked == [[life + 1 for life in lives]]


def test_a_log_is_lost_whose_leader_epoch_has_not_begun_in_the_engine_that_goes_on(
    brokers: Brokers, broker: Broker
):
    """All of it was written by the leader before, so no lane of this one misses a row."""
    other = brokers.broker(2)
    other.append("kept")
    brokers.settle()
    mark = brokers.engine.tables.journal.mark()
    other.append("lost")
    brokers.settle()
    broker.log(OTHERS)
    assert offsets(broker.log(epoch=1)) == [0, 1]
    brokers.engine.go_away(to=mark)
    brokers.engine.come_back()
    brokers.engine.tables.lead(IDS[OTHERS], 0)
    brokers.fates["find-lacking"] = [Fate(effect_ms=None, failure=BROKEN)]
    drained: list[str] = []
    broker.append("behind what is lost")

    broker.store.go_on(brokers.engine.history)
    broker.store.drained(lambda: drained.append("drained"))
    brokers.settle()

    assert broker.told == [("lost", frozenset({ORDERS}))]
    assert broker.landed == [f"behind what is lost: {Code.NOT_LEADER_OR_FOLLOWER.name}"]
    assert drained == []
    broker.open(epoch=2)
    brokers.settle()
    broker.store.go_on(brokers.engine.history)
    brokers.settle()
    assert (drained, offsets(broker.log())) == (["drained"], [0])


def test_no_log_is_opened_on_an_engine_that_has_gone_back_before_its_history_is_known(
    brokers: Brokers, broker: Broker
):
    mark = brokers.engine.tables.journal.mark()
    brokers.engine.go_away(to=mark)
    brokers.engine.come_back()

    broker.open()
    brokers.pass_ms(20_000)
    assert brokers.engine.tables.epochs(10) == []
    broker.store.go_on(brokers.engine.history)
    brokers.pass_ms(5)

    assert broker.opened == [("orders-0", 0)]


class CountingReader(PretendedReader):
    """A reader that counts the looks for leader epochs."""

    looks = 0

    def find_lacking(
        self, led: Sequence[LogLed], done: Callable[[Sequence[int] | Broken], None], *, history: str
    ) -> None:
        self.looks += 1
        super().find_lacking(led, done, history=history)


def test_where_a_database_that_went_back_goes_away_again_it_is_asked_ever_more_seldom(
    brokers: Brokers, broker: Broker
):
    reader = broker.store._reader = CountingReader(brokers.engine)
    broker.log()
    brokers.engine.go_away(to=brokers.engine.tables.journal.mark())
    broker.store.go_on(brokers.engine.history)
    drained: list[bool] = []
    broker.store.drained(lambda: drained.append(True))

    brokers.pass_ms(60_000)
    assert 50 < reader.looks < 70
    assert drained == []
    brokers.engine.come_back()
    brokers.pass_ms(2_100)

    assert drained == [True]


def test_a_lane_that_is_not_answered_is_given_up_in_time(brokers: Brokers, broker: Broker):
    brokers.fates["append"] = [SILENT]
    broker.append("a")

    brokers.pass_ms(SILENCE_MS - 1)
    assert broker.landed == []
    brokers.pass_ms(100)

    assert broker.landed == ["a"]


def test_timers_do_not_gather_with_the_rounds(brokers: Brokers, broker: Broker):
    for value in range(200):
        broker.append(str(value))
        brokers.pass_ms(5)

    assert len(broker.landed) == 200
    assert len(brokers.timers) < 10


# -- appending


def test_who_asks_is_called_when_the_lane_is_free(brokers: Brokers, broker: Broker):
    broker.append("first")
    brokers.run()
    calls: list[list[str]] = []

    broker.store.ask(ORDERS, lambda: calls.append([*broker.landed]))
    brokers.run()
    assert calls == []
    brokers.settle()

    assert calls == [["first"]]


def test_who_asks_without_a_log_is_called_soon(brokers: Brokers, broker: Broker):
    calls: list[int] = []

    broker.store.ask(ORDERS, lambda: calls.append(1))
    assert calls == []
    brokers.run()

    assert calls == [1]


def test_it_is_drained_when_all_lanes_have_decided(brokers: Brokers, broker: Broker):
    broker.log(OTHERS)
    brokers.fates["append"] = [Fate(effect_ms=50, answer_ms=60), Fate(effect_ms=20, answer_ms=30)]
    broker.append("a")
    broker.append("b", OTHERS)
    at: list[int] = []

    broker.store.drained(lambda: at.append(len(broker.landed)))
    brokers.settle()

    assert at == [2]


def test_a_partition_is_drained_however_slow_the_lanes_of_others_are(brokers: Brokers, broker: Broker):
    broker.log(OTHERS), broker.log(GROUPS)
    brokers.fates["append"] = [Fate(effect_ms=5_000, answer_ms=5_000), Fate(effect_ms=20, answer_ms=30)]
    broker.append("slow")
    brokers.run()
    broker.append("a", OTHERS)
    at: list[list[str]] = []

    broker.store.drained(lambda: at.append([*broker.landed]), [OTHERS])
    broker.store.drained(lambda: at.append([*broker.landed]), [OTHERS, ORDERS])
    brokers.settle()
    assert at == [["a"]]
    brokers.pass_ms(5_000)

    assert at == [["a"], ["a", "slow"]]


def test_a_partition_whose_log_is_not_open_is_drained_once_nothing_of_the_one_before_is_in_flight(
    brokers: Brokers, broker: Broker
):
    broker.log(OTHERS)
    brokers.fates["append"] = [Fate(effect_ms=50, answer_ms=60)]
    broker.append("a")
    brokers.run()
    broker.store.drop(ORDERS)
    broker.open(epoch=1)
    at: list[list[str]] = []

    broker.store.drained(lambda: at.append([*broker.landed]), [ORDERS])
    brokers.settle()

    assert at == [["a"]]


def test_no_partition_is_drained_without_waiting_for_what_is_under_way(brokers: Brokers, broker: Broker):
    calls: list[str] = []
    brokers.fates["append"] = [Fate(effect_ms=50, answer_ms=60)]
    broker.append("a")

    broker.store.drained(lambda: calls.append("drained"), [])
    assert calls == [], "not from within"
    brokers.run()

    assert (calls, broker.landed) == (["drained"], [])


def test_what_has_no_lanes_is_drained(brokers: Brokers, broker: Broker):
    broker.store.end()
    calls: list[int] = []

    broker.store.drained(lambda: calls.append(1))
    brokers.run()

    assert calls == [1]


def test_a_store_is_full_until_the_lane_that_holds_too_much_holds_half_of_it(
    brokers: Brokers, broker: Broker
):
    broker.log(OTHERS)
    brokers.fates["append"] = [Fate(effect_ms=50, answer_ms=60)]
    for value in "xyz":
        broker.append(value * 400)
        assert broker.store.is_full == (value == "z")
    broker.append("a little", OTHERS)
    rooms: list[int] = []

    assert broker.told == [("full", frozenset())]
    broker.store.when_room(lambda: rooms.append(broker.store.held_bytes))
    brokers.run()
    assert rooms == []
    brokers.settle()

    assert not broker.store.is_full
    assert len(rooms) == 1
    assert rooms[0] <= 600
    assert broker.store.held_bytes == 0


def test_whoever_waits_for_room_hears_of_the_end(brokers: Brokers, broker: Broker):
    broker.append("x" * 2_000)
    rooms: list[int] = []
    broker.store.when_room(lambda: rooms.append(1))

    broker.store.end()

    assert rooms == [1]


# -- starts


def test_a_start_that_was_saved_is_where_the_next_leader_starts(brokers: Brokers, broker: Broker):
    for value in "abc":
        broker.append(value)
    brokers.settle()
    said: list[object] = []

    broker.store.save_starts({ORDERS: 2}, said.append)
    assert said == []
    brokers.settle()
    assert said == [frozenset()]
    assert broker.log().delete_before(2, NOW, save=False) == 2

    assert (broker.log().start_offset, offsets(broker.log())) == (2, [2])
    other = brokers.broker(2).log(epoch=1)
    assert (other.start_offset, offsets(other), other.earliest_epoch) == (2, [2], 0)


def test_a_start_is_saved_when_the_database_can_and_the_log_says_once_why_it_could_not(
    brokers: Brokers, broker: Broker, caplog: pytest.LogCaptureFixture
):
    broker.append("a")
    brokers.settle()
    brokers.fates["save-starts"] = [Fate(effect_ms=None, failure=BROKEN), Fate(failure="53300")]
    said: list[object] = []

    broker.store.save_starts({ORDERS: 1}, said.append)
    brokers.pass_ms(5_000)

    assert said == [frozenset()]
    assert brokers.engine.tables.start_offsets == {10: 1}
    assert caplog.messages == ["where logs start cannot be written down for now: the connection is gone"]


def test_of_whoever_was_taken_over_from_no_start_is_saved(brokers: Brokers, broker: Broker):
    for value in ("a", "b"):
        broker.append(value)
    brokers.settle()
    other = brokers.broker(2).log(epoch=1)
    said: list[object] = []

    broker.store.save_starts({ORDERS: 1}, said.append)
    brokers.settle()

    assert said == [{ORDERS}]
    assert brokers.engine.tables.start_offsets == {}
    assert other.start_offset == 0


@pytest.mark.parametrize("taken_over_first", [True, False])
def test_a_start_that_is_late_moves_before_the_next_leader_reads_it_or_not_at_all(
    brokers: Brokers, broker: Broker, taken_over_first: bool
):
    for value in ("a", "b"):
        broker.append(value)
    brokers.settle()
    said: list[object] = []
    late_ms = 50 if taken_over_first else 5
    brokers.fates["save-starts"] = [Fate(late_ms, late_ms)]
    brokers.fates["read-logs"] = [Fate(20, 20)]

    broker.store.save_starts({ORDERS: 1}, said.append)
    other = brokers.broker(2).log(epoch=1)
    brokers.settle()

    assert said == [{ORDERS} if taken_over_first else frozenset()]
    assert other.start_offset == brokers.engine.tables.start_offsets.get(10, 0)


def test_who_saves_a_start_hears_that_the_epoch_is_over(brokers: Brokers, broker: Broker):
    broker.append("a")
    brokers.settle()
    brokers.fates["save-starts"] = [Fate(effect_ms=None, failure=BROKEN)]
    said: list[object] = []
    broker.store.save_starts({ORDERS: 1}, said.append)

    broker.store.end()
    brokers.settle()

    assert isinstance(said[0], StorageFailed)


def test_the_start_of_a_log_that_was_deleted_meanwhile_is_not_tried_again_and_nothing_is_said(
    brokers: Brokers, broker: Broker, caplog: pytest.LogCaptureFixture
):
    broker.append("a")
    brokers.settle()
    brokers.fates["save-starts"] = [Fate(effect_ms=None, failure="55P03")]
    said: list[object] = []
    broker.store.save_starts({ORDERS: 1}, said.append)

    brokers.engine.tables.delete_partitions([IDS[ORDERS]])
    broker.store.drop(ORDERS)
    brokers.pass_ms(5_000)

    assert said == [frozenset()]
    assert (brokers.asked.count("save-starts"), caplog.messages) == (1, [])


def test_of_logs_one_of_which_is_deleted_while_starts_wait_the_other_starts_are_saved(
    brokers: Brokers, broker: Broker
):
    broker.append("a")
    broker.append("b", OTHERS)
    brokers.settle()
    brokers.fates["save-starts"] = [Fate(effect_ms=None, failure="55P03")]
    said: list[object] = []
    broker.store.save_starts({ORDERS: 1, OTHERS: 1}, said.append)
    brokers.engine.tables.delete_partitions([IDS[ORDERS]])
    broker.store.drop(ORDERS)

    brokers.pass_ms(5_000)

    assert said == [frozenset()]
    assert brokers.engine.tables.start_offsets == {IDS[OTHERS]: 1}


def test_the_start_of_a_log_whose_topic_is_deleted_is_left_as_it_is(brokers: Brokers, broker: Broker):
    broker.append("a")
    brokers.settle()
    said: list[object] = []

    brokers.engine.tables.delete_partitions([IDS[ORDERS]])
    broker.store.save_starts({ORDERS: 1}, said.append)
    brokers.settle()

    assert (said, brokers.engine.tables.start_offsets) == ([frozenset()], {})


def test_nothing_is_saved_of_logs_that_are_not_open(broker: Broker):
    said: list[object] = []

    broker.store.save_starts({ORDERS: 1}, said.append)

    assert said == [frozenset()]


def test_producers_are_forgotten_in_time(brokers: Brokers, broker: Broker):
    log = broker.log()
    log.append(idempotent(0), now_ms=NOW)
    brokers.settle()

    now_ms = [NOW]
    cleaner = RemoteCleaner(broker.store, Clock(lambda: now_ms[0]))
    kept = []
    for days in (0, 0, 30):
        now_ms[0] += days * 86_400_000
        cleaner.tick(now_ms[0])
        kept.append(len(log.active_producers()))

    assert kept == [1, 1, 0]
