"""Produces of one connection are begun while those before them wait for their batches to last (decision 34).

What a client sees is what it sees of a broker that begins each when the one before it is answered.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.net.behind import OVERLAPPING_MOST
from coterie.broker.net.large import LARGE_BYTES, ROOM_FROM
from unit.broker.group_api_rig import BEAT
from unit.broker.late_rig import LateRig
from unit.broker.rig import Client
from unit.broker.test_landing import PRODUCE, part, produce, produced

METADATA, READ_BYTES = 3, 1 << 18
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def rig() -> LateRig:
    return LateRig()


def offsets(client: Client) -> list[tuple[Code, int]]:
    return [produced(answer) for answer in client.answers()]


def end_of(rig: LateRig) -> int:
    return rig.node.replica_manager.logs[ORDERS].end_offset


def test_produces_behind_one_that_waits_are_placed_and_answered_in_their_order(rig):
    producer = rig.client()

    for value in (b"one", b"two", b"three"):
        produce(producer, value)

    assert (end_of(rig), producer.answers()) == (3, [])
    rig.land()
    assert offsets(producer) == [(Code.NONE, 0)]
    rig.land()
    assert offsets(producer) == [(Code.NONE, 1), (Code.NONE, 2)]
    assert rig.rounds == []


def test_those_that_come_with_one_read_overlap_too(rig):
    producer, sent = rig.client(), []
    connection, producer.connection = producer.connection, SimpleNamespace(data_received=sent.append)
    for value in (b"one", b"two"):
        produce(producer, value)

    connection.data_received(b"".join(sent))
    rig.settle()

    assert end_of(rig) == 2
    rig.land()  # they have gone with one round
    assert offsets(producer) == [(Code.NONE, 0), (Code.NONE, 1)]


def test_one_that_is_refused_at_once_is_answered_behind_those_before_it(rig):
    producer = rig.client()
    produce(producer, b"one")

    data = part(PRODUCE, 9, "PartitionProduceData", index=0, records=b"")
    topic = part(PRODUCE, 9, "TopicProduceData", name="nowhere", partition_data=(data,))
    producer.send(PRODUCE, 9, acks=-1, timeout=1_000, topic_data=(topic,))
    produce(producer, b"three")

    assert producer.answers() == []
    rig.land()
    assert offsets(producer) == [(Code.NONE, 0), (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    rig.land()
    assert offsets(producer) == [(Code.NONE, 1)]


def test_what_is_refused_late_is_refused_in_order_with_all_behind_it(rig):
    producer = rig.client()
    for value in (b"one", b"two", b"three"):
        produce(producer, value)

    rig.refuse()

    assert offsets(producer) == [(Code.NOT_LEADER_OR_FOLLOWER, -1)] * 3
    assert end_of(rig) == 0
    produce(producer, b"again")
    rig.land()
    assert offsets(producer) == [(Code.NONE, 0)]


def test_batches_of_one_producer_follow_one_another_though_none_has_landed(rig):
    producer = rig.client()

    for sequence in range(3):
        produce(producer, b"v", sequence=sequence)
    rig.land()
    rig.land()

    assert offsets(producer) == [(Code.NONE, 0), (Code.NONE, 1), (Code.NONE, 2)]


def test_another_kind_of_request_waits_for_all_of_them_and_those_behind_it_for_that(rig):
    producer = rig.client()
    produce(producer, b"one")
    produce(producer, b"two")
    producer.send(BEAT, 4, group_id="g", generation_id=1, member_id="nobody")
    produce(producer, b"three")

    rig.land()

    assert (offsets(producer), end_of(rig)) == ([(Code.NONE, 0)], 2)
    rig.land()
    second, beat = producer.answers()
    assert (produced(second), beat.error_code) == ((Code.NONE, 1), Code.UNKNOWN_MEMBER_ID)
    assert end_of(rig) == 3
    rig.land()
    assert offsets(producer) == [(Code.NONE, 2)]


def test_one_that_wants_no_answer_overlaps_and_gets_none(rig):
    producer = rig.client()
    produce(producer, b"one")
    produce(producer, b"two", acks=0)
    produce(producer, b"three")
    assert end_of(rig) == 3

    rig.land()
    rig.land()

    assert [correlation for correlation, _ in answers_by_number(producer)] == [1, 3]


def answers_by_number(client: Client) -> list[tuple[int, Any]]:
    """The correlation ids of the answers that have come, and the bytes behind them."""
    found, rest = [], client.line.written
    while rest:
        size = int.from_bytes(rest[:4], "big")
        found.append((int.from_bytes(rest[4:8], "big"), rest[8 : 4 + size]))
        rest = rest[4 + size :]
    return found


def test_a_large_one_that_has_come_whole_behind_one_is_looked_at_when_that_is_answered(rig):
    producer, sent = rig.client(), []
    produce(producer, b"one")
    connection, producer.connection = producer.connection, SimpleNamespace(data_received=sent.append)
    produce(producer, bytes(LARGE_BYTES))
    (large,) = sent

    for at in range(0, len(large), READ_BYTES):
        connection.data_received(large[at : at + READ_BYTES])
    rig.settle()
    rig.land()

    assert offsets(producer) == [(Code.NONE, 0), (Code.MESSAGE_TOO_LARGE, -1)]


def test_only_so_many_are_begun(rig):
    producer = rig.client()

    for _ in range(OVERLAPPING_MOST + 5):
        produce(producer, b"v")

    assert end_of(rig) == OVERLAPPING_MOST + 1
    rig.land()
    assert end_of(rig) == OVERLAPPING_MOST + 2
    while rig.rounds:
        rig.land()
    assert offsets(producer) == [(Code.NONE, at) for at in range(OVERLAPPING_MOST + 5)]


def test_a_client_that_hangs_up_is_answered_nothing_and_what_was_placed_lands(rig):
    producer = rig.client()
    produce(producer, b"one")
    produce(producer, b"two")

    producer.connection.connection_lost(None)
    rig.land()
    rig.land()

    assert producer.line.written == b""
    assert rig.node.replica_manager.logs[ORDERS].high_watermark == 2


def test_a_connection_waits_as_long_as_one_of_them_is_not_answered(rig):
    """It is not idle, and a stop does not close it."""
    producer = rig.client()
    produce(producer, b"one")
    produce(producer, b"two")
    rig.land()
    assert offsets(producer) == [(Code.NONE, 0)]

    assert producer.connection.waits
    rig.land()
    assert not producer.connection.waits


def test_metadata_that_are_asked_for_behind_one_come_behind_its_answer(rig):
    producer = rig.client()
    produce(producer, b"one")
    producer.send(METADATA, 9, topics=None)

    assert producer.answers() == []
    rig.land()
    first, second = producer.answers()
    assert produced(first) == (Code.NONE, 0)
    assert second.topics


@pytest.mark.parametrize("what", ["what cannot be read", "what is refused by hanging up"])
def test_those_before_a_request_that_ends_the_connection_are_answered_first(rig, what: str):
    """As if it had been looked at when they were: a producer sends again what it has no answer to."""
    producer = rig.client()
    produce(producer, b"one")
    produce(producer, b"two")

    if what == "what cannot be read":
        producer.connection.data_received((6).to_bytes(4, "big") + b"\0\0\x7f\xff\0\0")
    else:
        produce(producer, bytes(2 * ROOM_FROM), acks=0)
    produce(producer, b"behind it")

    assert not producer.line.closed
    rig.land()
    rig.land()
    assert offsets(producer) == [(Code.NONE, 0), (Code.NONE, 1)]
    assert producer.line.closed
    assert end_of(rig) == 2
