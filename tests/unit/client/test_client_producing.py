"""What a producer sends and when, and what it makes of each answer."""

from __future__ import annotations

from math import inf

import pytest

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.errors import Disconnected
from coterie.client.net.addresses import Address
from coterie.client.producer.accumulator import Accumulator, BatchAnswer
from coterie.client.producer.batcher import Identity, PackedBatch
from coterie.client.producer.errors import DeliveryTimeout, NotWritten, TransactionAborted
from coterie.client.producer.reports import QUIET_MS, LossReport
from coterie.client.producer.settings import ProducerSettings
from coterie.wire.records.batches import read_header, records_of
from coterie.wire.records.columns import Packed, pack_records
from coterie.wire.records.compression import compress

LEADER = Address("one", 1)
WHO = Identity(7, 0)
PLACE = TopicPartition("flights", 0)
GONE = Disconnected("gone")


def a_producer(*, identity: Identity | None = WHO, **settings) -> Accumulator:
    """A producer of small batches that do not linger, which knows who it is."""
    given = {"batch_size": 100, "linger_ms": 0, "retry_backoff_ms": 100, **settings}
    accumulator = Accumulator(ProducerSettings.of(bootstrap_servers="b:1", **given))
    if identity is not None:
        accumulator.identity = identity
    return accumulator


def hand_over(accumulator: Accumulator, *values: bytes, place: TopicPartition = PLACE, now_ms: float = 0):
    """Hand over records, each for a batch of its own, and return the batches."""
    batches = []
    for value in values:
        batch = accumulator.opened(accumulator.queue(place), size=100, now_ms=now_ms)
        batch.add(value, timestamp=1_000)
        batch.room = -1
        batches.append(batch)
    return batches


def collect(accumulator: Accumulator, *, now_ms: float = 0, leader=LEADER, most=1_000_000):
    return accumulator.collect(now_ms, leader_of=lambda place: leader, most=lambda address: most)


def sent(accumulator: Accumulator, *, now_ms: float = 0) -> list:
    """Send what can be sent and return the batches, in order."""
    batches = []
    while found := collect(accumulator, now_ms=now_ms).batches:
        batches += [batch for several in found.values() for batch in several]
    return batches


def answer(accumulator: Accumulator, batch, code: Code = Code.NONE, *, offset: int = -1, now_ms: float = 0):
    accumulator.answered(batch, BatchAnswer(code, offset), now_ms=now_ms)


def sequence(batch) -> tuple[int, int, int]:
    return (*batch.identity, batch.base_sequence)


def test_batches_are_numbered_in_their_order_and_at_most_five_fly():
    accumulator = a_producer()
    batches = hand_over(accumulator, *(b"%d" % number for number in range(7)))

    in_flight = sent(accumulator)

    assert in_flight == batches[:5]
    assert [sequence(batch) for batch in in_flight] == [(7, 0, number) for number in range(5)]


def test_a_batch_lingers_until_it_is_full_or_time_is_up():
    accumulator = a_producer(linger_ms=10)
    batch = accumulator.opened(accumulator.queue(PLACE), size=20, now_ms=0)
    batch.add(b"v", timestamp=1_000)

    too_early, foreseen = collect(accumulator, now_ms=9), accumulator.next_ms(9)
    in_time = collect(accumulator, now_ms=10)

    assert (too_early.batches, foreseen) == ({}, 10)
    assert in_time.batches == {LEADER: [batch]}


def test_nothing_lingers_while_somebody_flushes():
    accumulator = a_producer(linger_ms=10)
    accumulator.opened(accumulator.queue(PLACE), size=20, now_ms=0).add(b"v", timestamp=1_000)
    accumulator.urgent = 1

    assert len(sent(accumulator)) == 1


def test_nothing_is_sent_before_the_producer_knows_who_it_is():
    accumulator = a_producer(identity=None)
    hand_over(accumulator, b"v")

    before = sent(accumulator)
    needs = accumulator.needs_identity
    accumulator.identity = Identity(3, 0)

    assert (before, needs) == ([], True)
    assert len(sent(accumulator)) == 1


def test_partitions_of_one_leader_go_in_one_request_as_far_as_they_fit():
    accumulator = a_producer()
    places = [TopicPartition("flights", number) for number in range(3)]
    for place in places:
        hand_over(accumulator, b"v", place=place)

    first = collect(accumulator, most=200).batches[LEADER]
    second = collect(accumulator, most=200).batches[LEADER]

    assert [batch.place for batch in first] == places[:2]
    assert [batch.place for batch in second] == places[2:]


def test_a_topic_without_a_known_leader_is_told_of():
    accumulator = a_producer()
    hand_over(accumulator, b"v")

    found = collect(accumulator, leader=None)

    assert (found.batches, found.lost) == ({}, {"flights"})


def test_an_acknowledged_batch_is_settled_and_its_memory_is_free():
    accumulator = a_producer()
    (batch,) = hand_over(accumulator, b"v")
    told = []
    batch.waiters.append(lambda: told.append(batch.outcome.base_offset))
    used = accumulator.memory.used

    sent(accumulator)
    answer(accumulator, batch, offset=42)

    assert (used, accumulator.memory.used, told) == (100, 0, [42])


def test_memory_has_a_limit():
    accumulator = a_producer(buffer_memory=250)
    hand_over(accumulator, b"1", b"2")

    refused = accumulator.opened(accumulator.queue(PLACE), size=100, now_ms=0)
    answer(accumulator, sent(accumulator)[0])
    granted = accumulator.opened(accumulator.queue(PLACE), size=100, now_ms=0)

    assert refused is None
    assert granted is not None


def test_a_repetition_that_the_broker_knows_counts_as_written():
    accumulator = a_producer()
    (batch,) = hand_over(accumulator, b"v")

    sent(accumulator)
    answer(accumulator, batch, Code.DUPLICATE_SEQUENCE_NUMBER)

    assert batch.outcome.error is None


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT, Code.CORRUPT_MESSAGE])
def test_what_may_pass_is_tried_again_later_under_the_same_number(code):
    accumulator = a_producer()
    (batch,) = hand_over(accumulator, b"v")
    sent(accumulator)
    number = sequence(batch)
    answer(accumulator, batch, code)

    assert sent(accumulator, now_ms=99) == []
    assert sent(accumulator, now_ms=100) == [batch]
    assert sequence(batch) == number


def test_the_wait_before_another_try_doubles_up_to_its_limit():
    accumulator = a_producer(retry_backoff_max_ms=300)
    (batch,) = hand_over(accumulator, b"v")
    waits, now_ms = [], 0.0
    for _ in range(4):
        sent(accumulator, now_ms=now_ms)
        answer(accumulator, batch, Code.REQUEST_TIMED_OUT, now_ms=now_ms)
        waits.append(batch.retry_at_ms - now_ms)
        now_ms = batch.retry_at_ms

    assert waits == [100, 200, 300, 300]


@pytest.mark.parametrize(("factor", "waits"), [(0.8, [80, 160, 320, 500]), (1.2, [120, 240, 480, 500])])
def test_producers_that_failed_together_try_again_apart(factor: float, waits: list[int]):
    """KIP-580: each wait is a fifth longer or shorter by chance, and none is longer than the longest."""
    settings = ProducerSettings.of(bootstrap_servers="b:1", retry_backoff_ms=100, retry_backoff_max_ms=500)
    accumulator = Accumulator(settings, jitter=lambda: factor)
    accumulator.identity = WHO
    (batch,) = hand_over(accumulator, b"v")
    waited, now_ms = [], 0.0
    for _ in waits:
        sent(accumulator, now_ms=now_ms)
        answer(accumulator, batch, Code.REQUEST_TIMED_OUT, now_ms=now_ms)
        waited.append(round(batch.retry_at_ms - now_ms))
        now_ms = batch.retry_at_ms

    assert waited == waits


def test_a_broker_that_takes_nothing_of_what_there_is_lags():
    """PT-8: by the time between when there was something for it, and when it last took something."""
    accumulator = a_producer(partitioner_availability_timeout_ms=100)
    hand_over(accumulator, b"v")
    for now_ms in (0, 50, 100):
        assert collect(accumulator, now_ms=now_ms, most=0).batches == {}
    assert not accumulator.waits.slow(LEADER)

    collect(accumulator, now_ms=101, most=0)
    assert accumulator.waits.slow(LEADER)

    assert collect(accumulator, now_ms=200).batches != {}
    assert not accumulator.waits.slow(LEADER)


def test_after_a_refusal_those_behind_follow_one_by_one_in_their_order():
    accumulator = a_producer()
    batches = hand_over(accumulator, b"1", b"2", b"3", b"4")
    sent(accumulator)
    answer(accumulator, batches[0], Code.NOT_LEADER_OR_FOLLOWER)
    answer(accumulator, batches[1], Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

    while_some_fly = sent(accumulator, now_ms=500)
    answer(accumulator, batches[2], Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    answer(accumulator, batches[3], Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    order = []
    while going := sent(accumulator, now_ms=1_000):
        order.append(going)
        answer(accumulator, going[0], now_ms=1_000)

    assert while_some_fly == []
    assert order == [[batch] for batch in batches]
    assert [batch.base_sequence for batch in batches] == [0, 1, 2, 3]


def test_a_gap_that_the_log_has_is_told_to_the_sender_and_the_rest_begins_again_in_the_next_epoch():
    accumulator = a_producer()
    written, lost, *behind = hand_over(accumulator, b"0", b"1", b"2", b"3")
    sent(accumulator)
    answer(accumulator, written, Code.NONE)
    for batch in (lost, *behind):
        answer(accumulator, batch, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

    again = sent(accumulator)

    assert isinstance(lost.outcome.error, NotWritten)
    assert again == behind
    assert [sequence(batch) for batch in behind] == [(7, 1, 0), (7, 1, 1)]


def test_what_is_in_doubt_behind_a_gap_is_asked_about_under_its_old_number_first():
    accumulator = a_producer()
    refused, doubtful, last = hand_over(accumulator, b"1", b"2", b"3")
    sent(accumulator)
    accumulator.lost(doubtful, GONE, now_ms=0)
    answer(accumulator, last, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    answer(accumulator, refused, Code.INVALID_RECORD)

    asked = sent(accumulator, now_ms=1_000)
    number = sequence(doubtful)
    answer(accumulator, doubtful, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, now_ms=1_000)
    again = sent(accumulator, now_ms=2_000)

    assert (asked, number) == ([doubtful], (7, 0, 1))
    assert again == [doubtful, last]
    assert [sequence(batch) for batch in again] == [(7, 1, 0), (7, 1, 1)]


def test_a_producer_that_the_broker_has_forgotten_begins_again_in_the_next_epoch():
    accumulator = a_producer()
    batches = hand_over(accumulator, b"1", b"2")
    sent(accumulator)
    for batch in batches:
        answer(accumulator, batch, Code.UNKNOWN_PRODUCER_ID)

    assert sent(accumulator) == batches
    assert [sequence(batch) for batch in batches] == [(7, 1, 0), (7, 1, 1)]


def test_a_first_batch_that_comes_after_the_second_goes_on_under_the_next_epoch():
    """A partition that is led meanwhile takes any number of a producer that it does not know."""
    accumulator = a_producer()
    first, second = hand_over(accumulator, b"1", b"2")
    sent(accumulator)
    answer(accumulator, first, Code.NOT_LEADER_OR_FOLLOWER)
    answer(accumulator, second, Code.NONE)
    assert sent(accumulator, now_ms=1_000) == [first]

    answer(accumulator, first, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, now_ms=1_000)

    assert first.outcome is None
    assert sent(accumulator, now_ms=5_000) == [first]
    assert sequence(first) == (7, 1, 0)


@pytest.mark.parametrize("how", ["in a transaction", "in doubt"])
def test_a_first_batch_of_which_more_may_be_wrong_is_given_up(how: str):
    settings = {"transactional_id": "mine"} if how == "in a transaction" else {}
    accumulator = a_producer(**settings)
    first, second = hand_over(accumulator, b"1", b"2")
    sent(accumulator)
    if how == "in doubt":
        accumulator.lost(first, Disconnected("gone"), now_ms=0)
    else:
        answer(accumulator, first, Code.NOT_LEADER_OR_FOLLOWER)
    answer(accumulator, second, Code.NONE)
    sent(accumulator, now_ms=1_000)

    answer(accumulator, first, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, now_ms=1_000)

    assert first.outcome is not None
    assert first.outcome.error is not None


def test_after_the_last_epoch_another_producer_id_is_asked_for():
    accumulator = a_producer(identity=Identity(7, 32_767))
    batches = hand_over(accumulator, b"1", b"2")
    sent(accumulator)
    answer(accumulator, batches[0], Code.INVALID_RECORD)
    answer(accumulator, batches[1], Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

    before = sent(accumulator)
    needs = accumulator.needs_identity
    accumulator.identity = Identity(8, 0)

    assert (before, needs) == ([], True)
    assert sent(accumulator) == [batches[1]]
    assert sequence(batches[1]) == (8, 0, 0)


def test_a_batch_that_is_too_large_is_halved_and_its_records_keep_their_numbers():
    accumulator = a_producer()
    batch = accumulator.opened(accumulator.queue(PLACE), size=100, now_ms=0)
    for number in range(3):
        batch.add(b"%d" % number, timestamp=1_000 + number)
    batch.room = -1
    sent(accumulator)
    answer(accumulator, batch, Code.MESSAGE_TOO_LARGE)

    (first,) = sent(accumulator)
    answer(accumulator, first, offset=10)
    (second,) = sent(accumulator)
    answer(accumulator, second, offset=20)

    assert [half.base_sequence for half in (first, second)] == [0, 1]
    assert [record.value for record in records_of(second.encoded("none", transactional=False))] == [
        b"1",
        b"2",
    ]
    assert [batch.holding(index)[0].outcome.base_offset for index in range(3)] == [10, 20, 20]
    assert batch.outcome is not None
    assert accumulator.memory.used == 0


def test_a_record_that_is_too_large_alone_is_given_up():
    accumulator = a_producer()
    (batch,) = hand_over(accumulator, b"v")
    sent(accumulator)
    answer(accumulator, batch, Code.MESSAGE_TOO_LARGE)

    assert batch.outcome.error.code is Code.MESSAGE_TOO_LARGE


def test_what_is_not_acknowledged_in_time_is_given_up():
    accumulator = a_producer(delivery_timeout_ms=30_000)
    in_doubt, waiting = hand_over(accumulator, b"1", b"2")
    sent(accumulator)
    accumulator.lost(in_doubt, GONE, now_ms=0)
    answer(accumulator, waiting, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

    collect(accumulator, now_ms=30_000, most=0)

    assert isinstance(in_doubt.outcome.error, DeliveryTimeout)
    assert isinstance(waiting.outcome.error, DeliveryTimeout)


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_flies_is_given_up_in_time_too_and_those_behind_go_when_it_is_back(idempotent):
    accumulator = a_producer(
        delivery_timeout_ms=4_000, request_timeout_ms=3_000, enable_idempotence=idempotent
    )
    (old,) = hand_over(accumulator, b"1")
    sent(accumulator)
    foreseen_ms = accumulator.next_ms(0)
    collect(accumulator, now_ms=4_000)
    (young,) = hand_over(accumulator, b"2", now_ms=4_000)
    early = sent(accumulator, now_ms=4_000)
    answer(accumulator, old, offset=5, now_ms=5_000)

    assert foreseen_ms == 4_000
    assert isinstance(old.outcome.error, DeliveryTimeout)
    assert (early, sent(accumulator, now_ms=5_000)) == ([], [young])


def test_what_flies_in_a_transaction_is_waited_for():
    accumulator = a_producer(delivery_timeout_ms=30_000, transactional_id="t")
    (batch,) = hand_over(accumulator, b"1")
    sent(accumulator)
    collect(accumulator, now_ms=30_000)

    assert batch.outcome is None
    assert accumulator.next_ms(29_000) == 60_000, "it is only said how long it waits"


def test_what_is_given_up_in_time_says_what_the_last_try_came_to():
    accumulator = a_producer(delivery_timeout_ms=30_000)
    (batch,) = hand_over(accumulator, b"1")
    sent(accumulator)
    full = BatchAnswer(Code.KAFKA_STORAGE_ERROR, said="/data/flights-0: No space left on device")
    accumulator.answered(batch, full, now_ms=0)

    collect(accumulator, now_ms=30_000, most=0)

    assert "/data/flights-0: No space left on device" in str(batch.outcome.error)


def test_what_is_given_up_for_one_reason_is_told_in_two_lines_however_much_it_is(caplog):
    accumulator = a_producer(delivery_timeout_ms=30_000)
    hand_over(accumulator, *(b"%d" % number for number in range(70)))

    collect(accumulator, now_ms=30_000)
    accumulator.say_all()

    first, rest = caplog.messages
    assert first.startswith("1 record for flights-0 not acknowledged")
    assert rest.startswith("69 more records not acknowledged")


def test_what_was_given_up_is_told_in_time_though_nothing_more_is(caplog):
    accumulator = a_producer(delivery_timeout_ms=30_000)
    hand_over(accumulator, b"1", b"2")
    collect(accumulator, now_ms=30_000)

    told_ms = accumulator.next_ms(30_000)
    collect(accumulator, now_ms=told_ms)

    assert told_ms == 30_000 + QUIET_MS
    assert [message[:6] for message in caplog.messages] == ["1 reco", "1 more"]
    assert accumulator.next_ms(told_ms) == inf


def test_what_is_given_up_does_not_name_what_came_of_a_try_before_it_was_sent():
    accumulator = a_producer(delivery_timeout_ms=30_000)
    (early,) = hand_over(accumulator, b"1")
    sent(accumulator)
    accumulator.answered(early, BatchAnswer(Code.KAFKA_STORAGE_ERROR), now_ms=5)
    collect(accumulator, now_ms=30_000, most=0)
    (late,) = hand_over(accumulator, b"2", now_ms=30_000)

    collect(accumulator, now_ms=60_000, most=0)

    assert "the last try: KAFKA_STORAGE_ERROR" in str(early.outcome.error)
    assert str(late.outcome.error).endswith("not acknowledged within 30000 ms")


def test_what_is_given_up_for_another_reason_is_told_by_itself(caplog):
    losses = LossReport()
    for place in (0, 1, 2):
        where = TopicPartition("flights", place)
        losses.add(1, where, RefusedBy(Code.TOPIC_AUTHORIZATION_FAILED), place)
        losses.add(1, where, RefusedBy(Code.POLICY_VIOLATION), place)
    losses.add(1, where, RefusedBy(Code.POLICY_VIOLATION), QUIET_MS)
    losses.say_rest()
    losses.say_rest()

    told = [message.split(";")[0] for message in caplog.messages]
    assert told == [
        "1 record for flights-0 not acknowledged: TOPIC_AUTHORIZATION_FAILED",
        "1 record for flights-0 not acknowledged: POLICY_VIOLATION",
        "2 more records not acknowledged, the last: POLICY_VIOLATION",
        "1 record for flights-2 not acknowledged: POLICY_VIOLATION",
        "2 more records not acknowledged, the last: TOPIC_AUTHORIZATION_FAILED",
    ]


def test_a_batch_that_waits_for_its_leader_expires_too_and_that_is_foreseen():
    accumulator = a_producer(delivery_timeout_ms=4_000, request_timeout_ms=3_000)
    (batch,) = hand_over(accumulator, b"1")

    collect(accumulator, leader=None)
    foreseen = accumulator.next_ms(0)
    collect(accumulator, now_ms=foreseen, leader=None)

    assert foreseen == 4_000
    assert isinstance(batch.outcome.error, DeliveryTimeout)


def test_tries_are_counted():
    accumulator = a_producer(retries=1, acks=1)
    (batch,) = hand_over(accumulator, b"v")
    sent(accumulator)
    accumulator.lost(batch, GONE, now_ms=0)
    sent(accumulator, now_ms=1_000)
    accumulator.lost(batch, GONE, now_ms=1_000)

    assert batch.outcome.error is GONE


def test_what_is_abandoned_fails_at_once_or_when_it_comes_back():
    accumulator = a_producer(max_in_flight_requests_per_connection=1)
    flies, waits = hand_over(accumulator, b"1", b"2")
    sent(accumulator)
    aborted = TransactionAborted("over")

    accumulator.abandon(aborted)
    outcomes = flies.outcome, waits.outcome.error
    accumulator.lost(flies, GONE, now_ms=0)

    assert outcomes == (None, aborted)
    assert flies.outcome.error is GONE
    assert accumulator.memory.used == 0


def test_the_bytes_of_a_batch_say_who_sends_it():
    accumulator = a_producer()
    (batch,) = hand_over(accumulator, b"v")
    sent(accumulator)

    header = read_header(batch.encoded("none", transactional=True))

    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 0)
    assert header.transactional


def packed(*records: tuple[bytes | None, bytes, int], codec: str = "none") -> PackedBatch:
    """A batch of records, key, value and time, that somebody else has encoded."""
    keys, values, stamps = zip(*records, strict=True)
    body = compress(codec, pack_records(values, list(enumerate(stamps)), keys=keys))
    return PackedBatch(PLACE, Packed(0, body, len(records), stamps[0], max(stamps)), codec=codec, now_ms=0)


def test_a_packed_batch_goes_out_after_what_was_there_and_has_numbers_like_any():
    accumulator = a_producer(linger_ms=1_000)
    (before,) = hand_over(accumulator, b"before")
    begun = accumulator.opened(accumulator.queue(PLACE), size=20, now_ms=0)
    begun.add(b"begun", timestamp=1_000)
    batch = packed((None, b"1", 5), (b"k", b"2", 9))

    assert accumulator.accepted(accumulator.queue(PLACE), batch)
    in_flight = sent(accumulator)

    assert in_flight[:2] == [before, begun]
    assert [sequence(one) for one in in_flight] == [(7, 0, 0), (7, 0, 1), (7, 0, 2)]
    header = read_header(batch.encoded("none", transactional=False))
    assert (header.count, header.base_timestamp, header.max_timestamp) == (2, 5, 9)


def test_a_packed_batch_waits_for_memory_and_gives_it_back():
    accumulator = a_producer(buffer_memory=30)
    first, second = packed((None, b"v" * 10, 0)), packed((None, b"v" * 20, 0))
    queue = accumulator.queue(PLACE)

    assert accumulator.accepted(queue, first)
    assert not accumulator.accepted(queue, second)
    (in_flight,) = sent(accumulator)
    answer(accumulator, in_flight)

    assert accumulator.accepted(queue, second)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_packed_batch_that_is_too_large_goes_in_halves(codec):
    accumulator = a_producer(compression_type=codec)
    records = [(b"a", b"1", 7), (None, b"2", 5), (b"c", b"3", 9)]
    batch = packed(*records, codec=codec)
    accumulator.accepted(accumulator.queue(PLACE), batch)
    sent(accumulator)

    answer(accumulator, batch, Code.MESSAGE_TOO_LARGE)
    halves = sent(accumulator, now_ms=1_000)
    for half in batch.halves:
        answer(accumulator, half)

    assert [one.base_sequence for one in batch.halves] == [0, 1]
    assert halves[0] is batch.halves[0]
    found = [one for half in batch.halves for one in records_of(half.encoded(codec, transactional=False))]
    assert [(one.key, one.value, one.timestamp) for one in found] == records
    assert batch.outcome.error is None
