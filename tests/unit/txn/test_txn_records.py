"""Facts as records of `__transaction_state`, and records as facts: what a failover finds."""

from __future__ import annotations

import pytest
from txn_rig import (
    FLIGHTS,
    TOWERS,
    Rig,
    a_producer,
    a_worn_producer,
    an_ended_transaction,
    an_ending_transaction,
    an_open_transaction,
)

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.coordinator.txn.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer, State
from coterie.wire.payloads.transaction_state import (
    PartitionsOfTopic,
    TransactionLogKey,
    read_transaction_key,
    read_transaction_value,
    transaction_record,
)


def last_value(rig: Rig):
    key, value = rig.log[-1]
    assert read_transaction_key(key) == TransactionLogKey("tid")
    return read_transaction_value(value)


def test_an_empty_transactional_id_has_no_partitions_at_all():
    rig = Rig()
    a_producer(rig)

    value = last_value(rig)

    assert (value.transaction_status, value.transaction_partitions, value.start_timestamp) == (0, None, -1)
    assert (value.producer_id, value.previous_producer_id) == (100, 100)


def test_partitions_are_written_by_topic():
    rig = Rig()
    an_open_transaction(rig, FLIGHTS, TOWERS, TopicPartition("flights", 2))

    assert last_value(rig).transaction_partitions == (
        PartitionsOfTopic("flights", (0, 2)),
        PartitionsOfTopic("towers", (3,)),
    )


def test_an_end_that_uses_up_the_last_epoch_says_who_follows():
    rig = Rig(slow=True)
    worn = a_worn_producer(rig)
    rig.add(worn)
    rig.end(worn)
    settled = last_value(rig)
    rig.mark()
    ended = last_value(rig)

    assert (settled.transaction_status, settled.producer_epoch, settled.next_producer_id) == (
        2,
        2**15 - 1,
        100,
    )
    assert (ended.producer_id, ended.producer_epoch, ended.previous_producer_id) == (100, 0, 7)
    assert (ended.next_producer_id, ended.transaction_partitions) == (NO_PRODUCER_ID, ())
    assert (settled.client_transaction_version, ended.client_transaction_version) == (2, 2)


@pytest.mark.parametrize(
    "make", [a_producer, an_open_transaction, an_ended_transaction, an_ending_transaction]
)
def test_a_failover_finds_what_was_there(make):
    """But for the epoch that a producer may come back with, which no record keeps."""
    rig = Rig(slow=True)
    make(rig)
    before = rig.txn._replace(last_epoch=NO_PRODUCER_EPOCH)

    rig.failover()

    assert rig.txn == before
    assert set(rig.shard.ongoing) == ({"tid"} if before.state is State.ONGOING else set())


@pytest.mark.parametrize("commit", [True, False])
def test_a_failover_writes_the_markers_that_were_missing(commit):
    rig = Rig()
    owner = an_ending_transaction(rig, commit=commit)
    rig.slow = False

    rig.failover()

    assert rig.marked[0][1:] == (owner, commit, (FLIGHTS,), 2)
    assert rig.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)


def test_a_failover_still_repeats_the_answer_of_an_end():
    rig = Rig()
    owner = an_ended_transaction(rig)
    rig.failover()

    asked = rig.end(owner._replace(epoch=owner.epoch - 1))

    assert (asked.why, rig.answer(asked).producer) == ("end-repeated", owner)


def test_a_failover_forgets_who_may_ask_again_after_an_init():
    """As Kafka's does: last epochs are in no record."""
    rig = Rig()
    owner = a_producer(rig)
    rig.init(expected=owner)
    rig.failover()

    assert rig.answer(rig.init(expected=owner)).code is Code.PRODUCER_FENCED


def test_a_tombstone_takes_a_transactional_id_away():
    rig = Rig()
    a_producer(rig)
    rig.log.append(transaction_record("tid", None))
    rig.log.append(transaction_record("nobody", None))

    rig.failover()

    assert not rig.shard.transactions


def test_pieces_of_a_log_are_loaded_one_after_the_other():
    rig = Rig()
    owner = a_producer(rig)
    rig.end(owner, commit=False)
    shard = Rig().shard

    for record in rig.log:
        shard.load([record], rig.now_ms)
    tombstone = transaction_record("tid", None)
    loaded = dict(shard.transactions)
    shard.load([tombstone], rig.now_ms)

    assert loaded["tid"].state is State.COMPLETE_ABORT
    assert not shard.transactions


def test_keys_and_values_of_a_time_to_come_are_passed_over_and_counted():
    rig = Rig()
    a_producer(rig)
    key, value = rig.log[-1]
    rig.log += [(b"\0\7", b"whatever"), (key.replace(b"tid", b"new"), b"\0\2" + value[2:])]

    rig.failover()

    assert rig.shard.skipped == 2
    assert list(rig.shard.transactions) == ["tid"]


@pytest.mark.parametrize("bad", [b"", b"\0", b"\0\1", b"\0\1" + bytes(20)])
def test_bytes_that_cannot_be_read_are_corrupt(bad):
    with pytest.raises(Corrupt):
        Rig().shard.load([(b"\0\0\0\3tid", bad)], 0)


def test_a_state_that_there_is_not_is_corrupt():
    rig = Rig()
    a_producer(rig)
    value = last_value(rig)._replace(transaction_status=8)

    with pytest.raises(Corrupt, match="a state of 0 to 7"):
        rig.shard.load([transaction_record("tid", value)], rig.now_ms)


def test_what_old_brokers_wrote_is_read():
    """Version 0: no tagged fields."""
    raw = (
        "0000 0000000000000007 0003 0000ea60 01 00000001 0001 74 00000001 00000002"
        " 00000000000003e8 00000000000003e7"
    )
    rig = Rig()

    rig.shard.load([(b"\0\0\0\3tid", bytes.fromhex(raw))], rig.now_ms)

    assert rig.owner == Producer(7, 3)
    assert (rig.state, rig.txn.timeout_ms) == (State.ONGOING, 60_000)
    assert list(rig.txn.partitions) == [TopicPartition("t", 2)]
    assert (rig.txn.updated_ms, rig.txn.started_ms, rig.txn.previous_id) == (1000, 999, NO_PRODUCER_ID)
