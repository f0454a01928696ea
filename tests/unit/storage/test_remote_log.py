"""A log whose rows lie in a database: what lands later, what never does, and who takes over."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from store_rig import (
    NOW,
    ORDERS,
    TOPIC_ID,
    a_batch,
    a_config,
    a_marker,
    committed,
    everything,
    idempotent,
    offsets,
    records_in,
)

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.storage.log.contract import AppendRefused
from coterie.storage.remote.log import COMES_AGAIN_MS, RemoteLog
from coterie.storage.remote.pretended import BROKEN, Fate, Tables
from coterie.wire.records.batches import read_header
from examples import drawn
from unit.storage.remote_rig import BROKER, PARTITION, OneLog

LANDED = "landed"


def a_store(tables: Tables | None = None) -> OneLog:
    return OneLog(tables, a_config())


def a_log(store: OneLog) -> RemoteLog:
    return store.create_log(*ORDERS, TOPIC_ID, a_config())


class Told:
    """What is said of appends, in order."""

    def __init__(self) -> None:
        self.words: list[tuple[object, str]] = []

    def of(self, log: RemoteLog, what: object, last_offset: int) -> None:
        """Note what is said of an append."""
        log.when_landed(
            last_offset,
            lambda refused: self.words.append((what, LANDED if refused is None else refused.code.name)),
        )


def test_what_is_placed_is_seen_when_it_has_landed():
    store, told = a_store(), Told()
    log = a_log(store)

    appended = log.append(a_batch("a", "b"), now_ms=NOW)
    told.of(log, "a", appended.last_offset)

    assert (appended.base_offset, appended.last_offset, appended.landed) == (0, 1, False)
    assert (log.end_offset, log.high_watermark, log.last_stable_offset) == (2, 0, 0)
    assert log.read(0, max_bytes=1_000) == b""
    assert told.words == []
    store.settle()
    assert told.words == [("a", LANDED)]
    assert (log.high_watermark, offsets(log)) == (2, [0, 1])


def test_what_comes_while_a_round_is_under_way_is_one_row():
    store = a_store()
    log = a_log(store)
    for value in "abcd":
        log.append(a_batch(value), now_ms=NOW)
        if value == "a":
            store.step()

    store.settle()

    rows = store.engine.tables.rows(PARTITION)
    assert [(row.base_offset, row.last_offset, row.batches) for row in rows] == [(0, 0, 1), (1, 3, 3)]
    assert offsets(log) == [0, 1, 2, 3]


@pytest.mark.parametrize("effect_ms", [1, None], ids=["it was there", "it was not"])
def test_an_append_without_an_answer_is_there_once(effect_ms: int | None):
    store, told = a_store(), Told()
    log = a_log(store)
    store.fate = Fate(effect_ms=effect_ms, failure=BROKEN)
    told.of(log, "a", log.append(a_batch("a"), now_ms=NOW).last_offset)
    while not store.lane.suspended:
        store.step()
    assert told.words == []

    store.fate = Fate()
    store.settle()

    assert told.words == [("a", LANDED)]
    assert len(store.engine.tables.rows(PARTITION)) == 1
    assert offsets(log) == [0]


def test_a_refusal_takes_back_all_that_is_in_flight_newest_first():
    store, told = a_store(), Told()
    log = a_log(store)
    told.of(log, "first", log.append(idempotent(0), now_ms=NOW).last_offset)
    store.settle()
    store.fate = Fate(effect_ms=None, failure="53100")
    for sequence in (1, 2, 3):
        told.of(log, sequence, log.append(idempotent(sequence), now_ms=NOW).last_offset)

    store.settle()

    refused = Code.KAFKA_STORAGE_ERROR.name
    assert told.words == [("first", LANDED), (3, refused), (2, refused), (1, refused)]
    assert (log.end_offset, log.high_watermark) == (1, 1)
    with pytest.raises(AppendRefused) as caught:
        log.append(idempotent(4), now_ms=NOW)
    assert caught.value.code == Code.NOT_LEADER_OR_FOLLOWER, "those before it come again"
    store.fate = Fate()
    assert log.append(idempotent(1), now_ms=NOW).base_offset == 1


def test_once_a_lane_takes_nothing_a_producers_next_batch_is_not_called_out_of_order():
    """The batch before may be there, for the next leader to know: whoever hears that the next one is out of
    order takes the first for one that never was, and sends it anew.
    """
    store, told = a_store(), Told()
    log = a_log(store)
    told.of(log, 0, log.append(idempotent(0), now_ms=NOW).last_offset)
    store.settle()
    store.fate = Fate(failure=BROKEN)  # it is there, and the connection gone
    told.of(log, 1, log.append(idempotent(1), now_ms=NOW).last_offset)
    while not store.lane.suspended:
        store.step()
    store.engine.tables.register(BROKER, 3)
    store.fate = Fate()
    store.settle()
    assert store.lane.closed

    with pytest.raises(AppendRefused) as caught:
        log.append(idempotent(2), now_ms=NOW)

    assert told.words == [(0, LANDED), (1, Code.NOT_LEADER_OR_FOLLOWER.name)]
    assert len(store.engine.tables.rows(PARTITION)) == 2
    assert caught.value.code == Code.NOT_LEADER_OR_FOLLOWER


def test_a_batch_that_comes_again_waits_for_the_first():
    store, told = a_store(), Told()
    log = a_log(store)
    log.append(idempotent(0), now_ms=NOW)

    again = log.append(idempotent(0), now_ms=NOW)
    told.of(log, "again", again.last_offset)

    assert (again.duplicate, again.landed, told.words) == (True, False, [])
    store.settle()
    assert told.words == [("again", LANDED)]
    assert log.append(idempotent(0), now_ms=NOW).landed


def test_who_waits_for_an_earlier_append_hears_of_it_first():
    store, told = a_store(), Told()
    log = a_log(store)
    first = log.append(idempotent(0), now_ms=NOW)
    store.step()  # the round is under way with the first alone
    second = log.append(idempotent(1), now_ms=NOW)
    told.of(log, "second", second.last_offset)

    again = log.append(idempotent(0), now_ms=NOW)
    told.of(log, "first again", again.last_offset)

    assert again.last_offset == first.last_offset
    while not told.words:
        store.step()
    assert told.words == [("first again", LANDED)]
    store.settle()
    assert told.words == [("first again", LANDED), ("second", LANDED)]


def test_who_is_fenced_appends_nothing_and_its_next_leader_has_what_landed():
    store, told = a_store(), Told()
    log = a_log(store)
    told.of(log, "a", log.append(a_batch("a"), now_ms=NOW).last_offset)
    store.settle()
    told.of(log, "b", log.append(a_batch("b"), now_ms=NOW).last_offset)

    taken_over = a_store(store.engine.tables).logs[ORDERS]
    store.settle()

    assert told.words == [("a", LANDED), ("b", Code.NOT_LEADER_OR_FOLLOWER.name)]
    assert store.told == ["fenced"]
    with pytest.raises(AppendRefused) as caught:
        log.append(a_batch("c"), now_ms=NOW)
    assert caught.value.code == Code.NOT_LEADER_OR_FOLLOWER
    assert (log.end_offset, taken_over.end_offset, offsets(taken_over)) == (1, 1, [0])


def test_a_producers_first_batch_is_its_first_where_others_may_have_been_sent_away():
    """Of two in flight the first may be sent away, by a broker that is suspended for a moment or opens the
    log, and the second be taken: librdkafka takes the first for written then.
    """
    log = a_log(a_store())
    log.append(a_batch("of somebody else"), now_ms=NOW)

    def is_taken(sequence: int, pid: int, *, at_ms: int) -> bool:
        try:
            log.append(idempotent(sequence, pid=pid), now_ms=at_ms)
        except AppendRefused as refused:
            codes.append(refused.code)
            return False
        return True

    codes: list[Code] = []

    assert not is_taken(1, 7, at_ms=NOW + COMES_AGAIN_MS)
    assert is_taken(0, 7, at_ms=NOW + COMES_AGAIN_MS)
    assert is_taken(1, 7, at_ms=NOW + COMES_AGAIN_MS)
    later = NOW + COMES_AGAIN_MS + 1
    assert is_taken(5, 8, at_ms=later), "what it has sent before may have been deleted"
    log.expect_repeats()
    assert not is_taken(5, 9, at_ms=later)
    assert not is_taken(5, 9, at_ms=later + COMES_AGAIN_MS)
    assert is_taken(6, 8, at_ms=later + COMES_AGAIN_MS)
    assert is_taken(5, 9, at_ms=later + COMES_AGAIN_MS + 1)
    assert codes == 3 * [Code.NOT_LEADER_OR_FOLLOWER]


def test_behind_a_refusal_a_producers_first_batch_is_its_first_as_well():
    """A full disk may refuse the first and take the second, which was on its way already."""
    store = a_store()
    log = a_log(store)
    log.append(a_batch("of somebody else"), now_ms=NOW)
    store.settle()
    later = NOW + COMES_AGAIN_MS + 1
    store.fate = Fate(effect_ms=None, failure="53100")
    log.append(idempotent(0, pid=7), now_ms=later)
    store.settle()
    store.fate = Fate()

    with pytest.raises(AppendRefused) as caught:
        log.append(idempotent(1, pid=7), now_ms=later)

    assert caught.value.code == Code.NOT_LEADER_OR_FOLLOWER
    assert log.append(idempotent(0, pid=7), now_ms=later).base_offset == 1
    assert log.append(idempotent(1, pid=7), now_ms=later).base_offset == 2


def test_a_refusal_leaves_alone_what_coordinators_are_being_asked_about_the_producers_of_others():
    """Found on a full disk: a transaction was told that it had ended, as somebody else's batch failed."""
    store = a_store()
    log = a_log(store)
    begun, ended = (read_header(idempotent(0, pid=pid, transactional=True)) for pid in (7, 8))
    asked, asked_in_vain = (log.verification(one, joins=False, now_ms=NOW) for one in (begun, ended))
    store.fate = Fate(effect_ms=None, failure="53100")
    log.append(a_marker(commit=True, pid=8), now_ms=NOW, origin="coordinator")
    store.settle()
    store.fate = Fate()

    appended = log.append(idempotent(0, pid=7, transactional=True), now_ms=NOW, verified=asked)

    assert appended.base_offset == 0
    with pytest.raises(AppendRefused) as caught:
        log.append(idempotent(0, pid=8, transactional=True), now_ms=NOW, verified=asked_in_vain)
    assert caught.value.code == Code.INVALID_TXN_STATE


def test_where_batches_were_sent_away_none_is_called_out_of_order_while_the_one_before_may_come():
    """It was sent away while the log was being opened, and may be there: whoever hears that the next one is
    out of order takes it for one that never was, and sends it anew.
    """
    store = a_store()
    a_log(store).append(idempotent(0), now_ms=NOW)
    store.settle()
    log = a_store(store.engine.tables).logs[ORDERS]
    log.append(a_batch("of somebody else"), now_ms=NOW)

    def code_of(sequence: int, *, at_ms: int, **producer: int) -> Code:
        with pytest.raises(AppendRefused) as caught:
            log.append(idempotent(sequence, **producer), now_ms=at_ms)
        return caught.value.code

    assert code_of(2, at_ms=NOW) == Code.NOT_LEADER_OR_FOLLOWER
    assert code_of(2, at_ms=NOW + COMES_AGAIN_MS) == Code.NOT_LEADER_OR_FOLLOWER
    assert code_of(2, at_ms=NOW + COMES_AGAIN_MS + 1) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(2, at_ms=NOW, epoch=1) == Code.NOT_LEADER_OR_FOLLOWER
    assert log.append(idempotent(0), now_ms=NOW).base_offset == 0, "it is known"
    assert log.append(idempotent(1), now_ms=NOW).base_offset == 2
    assert code_of(3, at_ms=NOW) == Code.NOT_LEADER_OR_FOLLOWER, "2 comes again"
    assert code_of(3, at_ms=NOW + COMES_AGAIN_MS + 1) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.expect_repeats()  # the broker was suspended, and goes on
    assert code_of(3, at_ms=NOW) == Code.NOT_LEADER_OR_FOLLOWER
    assert log.append(idempotent(2), now_ms=NOW).base_offset == 3
    assert code_of(4, at_ms=NOW) == Code.NOT_LEADER_OR_FOLLOWER, "3 comes again"
    assert log.append(idempotent(0, pid=8), now_ms=NOW).base_offset == 4
    assert code_of(2, at_ms=NOW, pid=8) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "nothing of it was sent away"


def test_a_transaction_ends_for_readers_when_its_marker_has_landed():
    store = a_store()
    log = a_log(store)
    log.append(idempotent(0, transactional=True), now_ms=NOW)
    store.settle()

    log.append(a_marker(commit=False), now_ms=NOW, origin="coordinator")

    assert (log.last_stable_offset, log.high_watermark, log.end_offset) == (0, 1, 2)
    store.settle()
    assert log.last_stable_offset == 2
    assert committed(log) == []
    again = a_store(store.engine.tables).logs[ORDERS]
    assert (committed(again), again.last_stable_offset) == ([], 2)


FATES = (
    Fate(),
    Fate(effect_ms=1, failure=BROKEN),
    Fate(effect_ms=None, failure=BROKEN),
    Fate(effect_ms=1, failure="57014"),
    Fate(effect_ms=None, failure="40001"),
    Fate(effect_ms=None, failure="53100"),
)


def test_what_is_appended_when_a_refusal_is_heard_of_goes_behind_what_landed_in_any_log():
    """Whoever hears of it may append to another log of the lane, which the lane has refused as well."""
    store, told = a_store(), Told()
    log = a_log(store)
    other = RemoteLog(
        TopicPartition("others", 0),
        PARTITION + 1,
        a_config(),
        store.lane,
        epochs=[(0, 0)],
        read_rows=lambda wanted, done: None,
        recalls=store.store.recalls,
    )
    store.fate = Fate(effect_ms=None, failure="53100")

    def again(refused: AppendRefused | None) -> None:
        store.fate = Fate()
        told.of(other, "again", other.append(a_batch("again"), now_ms=NOW).last_offset)

    told.of(other, "other", other.append(a_batch("other"), now_ms=NOW).last_offset)
    log.when_landed(log.append(a_batch("a"), now_ms=NOW).last_offset, again)

    store.settle()

    assert told.words == [("other", Code.KAFKA_STORAGE_ERROR.name), ("again", LANDED)]
    assert [record.value for record in everything(other)] == [b"again"]


def test_an_epoch_that_began_behind_what_is_refused_begins_where_the_log_goes_on():
    store = a_store()
    log = a_log(store)
    log.append(a_batch("a"), now_ms=NOW)
    store.settle()
    store.fate = Fate(effect_ms=None, failure="53100")
    log.append(a_batch("b"), now_ms=NOW)
    log.lead(1)

    store.settle()

    store.fate = Fate()
    assert log.append(a_batch("c"), now_ms=NOW).base_offset == 1
    store.settle()
    assert log.end_of_epoch(0) == (0, 1)


def test_who_closes_the_lane_when_an_append_has_landed_leaves_nobody_without_word():
    """The rest of its round has landed as well, and what comes behind is refused."""
    store, told = a_store(), Told()
    log = a_log(store)
    first = log.append(idempotent(0), now_ms=NOW)
    log.when_landed(first.last_offset, lambda refused: store.lane.close())
    told.of(log, "same round", log.append(idempotent(1), now_ms=NOW).last_offset)
    store.step()
    told.of(log, "next round", log.append(idempotent(2), now_ms=NOW).last_offset)

    while store.soon or store.events:
        store.step()

    assert told.words == [("same round", LANDED), ("next round", Code.NOT_LEADER_OR_FOLLOWER.name)]
    assert log.end_offset == log.high_watermark == 2


class Lives(RuleBasedStateMachine):
    """A partition that is led by one broker after the other, over a database and connections that fail."""

    def __init__(self) -> None:
        super().__init__()
        self.store = a_store()
        self.log = a_log(self.store)
        self.before: list[OneLog] = []
        self.values = 0
        self.landed: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self.waiting: set[bytes] = set()

    def _append(self, log: RemoteLog, batch: bytes) -> None:
        (value, *_) = [record.value or b"" for record in records_in(batch)]
        try:
            appended = log.append(batch, now_ms=NOW)
        except AppendRefused:
            return
        if appended.duplicate:
            assert appended.landed == (appended.last_offset < log.high_watermark)
            return
        self.waiting.add(value)

        def decided(refused: AppendRefused | None) -> None:
            self.waiting.remove(value)  # which it is told once
            if refused is None:
                assert appended.base_offset not in self.landed
                self.landed[appended.base_offset] = value
            elif refused.code is not Code.NOT_LEADER_OR_FOLLOWER:  # else the next leader knows
                self.refused.add(value)

        log.when_landed(appended.last_offset, decided)

    @rule()
    def append(self) -> None:
        self.values += 1
        self._append(self.log, a_batch(f"v{self.values}"))

    @rule(pid=st.integers(1, 2), ahead=st.sampled_from((0, 0, 0, 1, -1)))
    def append_in_sequence(self, pid: int, ahead: int) -> None:
        known = self.log.producers.producers.get(pid)
        following = 0 if known is None else known.last_sequence + 1
        self.values += 1
        sequence = max(0, following + ahead)
        batch = a_batch(f"v{self.values}", producer_id=pid, producer_epoch=0, base_sequence=sequence)
        self._append(self.log, batch)

    @rule(fate=st.sampled_from(FATES))
    def choose(self, fate: Fate) -> None:
        self.store.fate = fate

    @rule(steps=st.integers(1, 6))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.store.step()

    @rule()
    def take_over(self) -> None:
        """Another broker leads; the one before goes on as if nothing had happened, a little."""
        self.before.append(self.store)
        before, self.store = self.log, a_store(self.store.engine.tables)
        self.log = self.store.logs[ORDERS]
        self.values += 1
        self._append(before, a_batch(f"late{self.values}"))

    @rule()
    def those_before_go_on(self) -> None:
        for store in self.before:
            store.fate = Fate()
            store.settle()

    @invariant()
    def what_has_landed_is_in_the_database_and_nothing_that_was_refused(self) -> None:
        rows = self.store.engine.tables.rows(PARTITION)
        written = {record.offset: record.value for row in rows for record in records_in(bytes(row.data))}
        assert sorted(written) == list(range(len(written)))
        for offset, value in self.landed.items():
            assert written.get(offset) == value
        assert self.refused.isdisjoint(written.values())

    @invariant()
    def a_reader_sees_what_is_there_for_good(self) -> None:
        rows = self.store.engine.tables.rows(PARTITION)
        written = b"".join(bytes(row.data) for row in rows)
        seen = self.log.read(0, max_bytes=1 << 20)
        assert written.startswith(seen)
        assert len(offsets(self.log)) == self.log.high_watermark

    def teardown(self) -> None:
        for store in (*self.before, self.store):
            store.fate = Fate()
            store.settle()
        assert not self.waiting
        there = a_store(self.store.engine.tables).logs[ORDERS]
        assert there.read(0, max_bytes=1 << 20) == self.log.read(0, max_bytes=1 << 20)
        assert there.producers.snapshot() == self.log.producers.snapshot()
        without_data = OneLog(self.store.engine.tables, a_config(), tail_bytes=0).logs[ORDERS]
        assert (without_data.tail.size, without_data.size_bytes) == (0, there.size_bytes)
        assert what_is_known(without_data) == what_is_known(there)


def what_is_known(log: RemoteLog) -> tuple[object, ...]:
    """Return what a log knows without its data."""
    stable = log.last_stable_offset
    return log.producers.snapshot(), log.start_offset, log.end_offset, stable, log._state.epochs[:-1]


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=drawn(100), stateful_step_count=30, deadline=None)
