"""EndTxn, in the version that bumps the epoch and in those before (KIP-890)."""

from __future__ import annotations

import pytest
from txn_rig import (
    FLIGHTS,
    LAST_EPOCH,
    TOWERS,
    Rig,
    a_producer,
    a_worn_producer,
    an_ended_transaction,
    an_ending_transaction,
    an_open_transaction,
)

from coterie.base.codes import Code
from coterie.coordinator.machine import Markers
from coterie.coordinator.txn.commands import MarkersWritten, ProducerAnswer
from coterie.coordinator.txn.facts import IdForgotten
from coterie.coordinator.txn.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer, State

NONE, FENCED, ITS = Code.NONE, Code.PRODUCER_FENCED, Code.INVALID_TXN_STATE
UNMAPPED, BUSY = Code.INVALID_PRODUCER_ID_MAPPING, Code.CONCURRENT_TRANSACTIONS
COMMIT, ABORT = True, False
UNSAID = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def a_committed(rig: Rig) -> Producer:
    return an_ended_transaction(rig, commit=True)


def an_aborted(rig: Rig) -> Producer:
    return an_ended_transaction(rig, commit=False)


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_an_end_bumps_the_epoch_and_its_markers_carry_the_new_one(commit):
    rig = Rig(slow=True)
    owner = an_open_transaction(rig, FLIGHTS, TOWERS)

    asked = rig.end(owner, commit=commit)

    assert asked.why == ("commit-settled" if commit else "abort-settled")
    assert rig.answer(asked) == ProducerAnswer(NONE, Producer(100, 1))
    assert rig.state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
    assert rig.unmarked["tid"] == Markers("tid", Producer(100, 1), commit, (FLIGHTS, TOWERS), 2)


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_a_transaction_has_ended_when_its_markers_are_written(commit):
    rig = Rig()
    an_ending_transaction(rig, commit=commit)

    asked = rig.mark()

    assert asked.why == "transaction-ended"
    assert rig.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert not rig.txn.partitions


@pytest.mark.parametrize("make", [a_producer, an_open_transaction, an_ended_transaction])
def test_markers_of_an_end_that_is_not_under_way_change_nothing(make):
    rig = Rig()
    make(rig)
    before = rig.txn

    asked = rig.ask(MarkersWritten(transactional_id="tid"))

    assert asked.why == "markers-passed-over"
    assert rig.txn is before


def test_markers_of_a_transactional_id_that_is_gone_change_nothing():
    rig = Rig()
    an_ended_transaction(rig)
    rig.shard.apply(IdForgotten("tid"))

    assert rig.ask(MarkersWritten(transactional_id="tid")).why == "markers-passed-over"


# -- version 5, after the table of KIP-890: who asks is of the epoch before, or of the current one


@pytest.mark.parametrize(
    ("make", "commit", "current", "why", "code"),
    [
        (a_producer, ABORT, False, "stale-epoch", FENCED),
        (a_producer, ABORT, True, "empty-abort-settled", NONE),
        (a_producer, COMMIT, False, "stale-epoch", FENCED),
        (a_producer, COMMIT, True, "nothing-to-commit", ITS),
        (an_aborted, ABORT, False, "end-repeated", NONE),
        (an_aborted, ABORT, True, "empty-abort-settled", NONE),
        (an_aborted, COMMIT, False, "ended-otherwise", ITS),
        (an_aborted, COMMIT, True, "nothing-to-commit", ITS),
        (a_committed, ABORT, False, "ended-otherwise", ITS),
        (a_committed, ABORT, True, "empty-abort-settled", NONE),
        (a_committed, COMMIT, False, "end-repeated", NONE),
        (a_committed, COMMIT, True, "nothing-to-commit", ITS),
    ],
)
def test_an_end_without_an_open_transaction_is_answered_by_the_last_end(make, commit, current, why, code):
    rig = Rig()
    owner = make(rig)

    asked = rig.end(owner if current else owner._replace(epoch=owner.epoch - 1), commit=commit)

    assert asked.why == why
    settled = why == "empty-abort-settled"
    told = owner._replace(epoch=owner.epoch + settled) if code is NONE else UNSAID
    assert rig.answer(asked) == ProducerAnswer(code, told)
    assert (rig.state is State.COMPLETE_ABORT) == (settled or make is an_aborted)


@pytest.mark.parametrize("make", [a_producer, an_open_transaction, a_committed, an_aborted])
@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_another_producer_id_or_an_epoch_to_come_ends_nothing(make, commit):
    rig = Rig()
    owner = make(rig)
    before = rig.txn

    other = rig.end(owner._replace(producer_id=99), commit=commit)
    early = rig.end(owner._replace(epoch=owner.epoch + 1), commit=commit)

    assert (other.why, early.why) == ("other-producer-id", "stale-epoch")
    assert rig.answer(other) == ProducerAnswer(UNMAPPED)
    assert rig.answer(early) == ProducerAnswer(FENCED)
    assert rig.txn is before


def test_the_epoch_before_is_fenced_where_a_transaction_is_open():
    rig = Rig()
    owner = an_ended_transaction(rig)
    rig.add(owner)

    assert rig.answer(rig.end(owner._replace(epoch=owner.epoch - 1))).code is FENCED


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_whoever_ends_while_markers_are_written_has_to_come_again(commit):
    rig = Rig()
    owner = an_ending_transaction(rig, commit=commit)

    for producer in (owner, owner._replace(epoch=owner.epoch - 1), Producer(99, 0)):
        asked = rig.end(producer, commit=commit)
        assert (asked.why, rig.answer(asked).code) == ("end-under-way", BUSY)


def test_an_end_of_nobody_is_not_mapped():
    rig = Rig()

    for asked in (rig.end(Producer(1, 0)), rig.old_end(Producer(1, 0))):
        assert (asked.why, rig.answer(asked).code) == ("no-such-transactional-id", UNMAPPED)


# -- epochs that run out


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_the_end_that_uses_up_the_last_epoch_brings_another_producer_id(commit):
    rig = Rig(slow=True)
    owner = a_worn_producer(rig)
    rig.add(owner)

    asked = rig.end(owner, commit=commit)

    assert rig.answer(asked) == ProducerAnswer(NONE, Producer(100, 0))
    assert rig.unmarked["tid"].producer == Producer(7, LAST_EPOCH + 1)
    assert rig.txn.next_id == 100
    rig.mark()
    assert (rig.owner, rig.txn.previous_id, rig.txn.next_id) == (Producer(100, 0), 7, NO_PRODUCER_ID)


def test_its_lost_answer_is_given_again_until_the_next_transaction():
    rig = Rig()
    worn = a_worn_producer(rig)
    rig.add(worn)
    rig.end(worn)

    again, otherwise = rig.end(worn), rig.end(worn, commit=ABORT)

    assert (again.why, otherwise.why) == ("end-repeated", "ended-otherwise")
    assert rig.answer(again) == ProducerAnswer(NONE, Producer(100, 0))
    rig.add(rig.owner)
    assert rig.answer(rig.end(worn)).code is UNMAPPED


def test_before_the_next_partition_an_overflowed_producer_is_fenced_and_not_unmapped():
    """The answer may be repeated only of an end; after InitProducerId it can be no repetition."""
    rig = Rig()
    worn = a_worn_producer(rig)
    rig.init(expected=worn)

    asked = rig.end(worn, commit=ABORT)

    assert (asked.why, rig.answer(asked).code) == ("stale-epoch", FENCED)


def test_without_a_new_producer_id_the_end_is_put_off():
    rig = Rig()
    worn = a_worn_producer(rig)
    rig.add(worn)
    rig.out_of_ids = True

    asked = rig.end(worn)

    assert asked.why == "no-producer-id"
    assert rig.answer(asked) == ProducerAnswer(Code.COORDINATOR_LOAD_IN_PROGRESS)
    assert rig.state is State.ONGOING


# -- before version 5


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_an_old_end_leaves_the_epoch_as_it_is(commit):
    rig = Rig()
    owner = an_open_transaction(rig, client_version=0)

    asked = rig.old_end(owner, commit=commit)

    assert asked.why == ("old-commit-settled" if commit else "old-abort-settled")
    assert rig.answer(asked) == ProducerAnswer(NONE)
    assert rig.marked == [Markers("tid", owner, commit, (FLIGHTS,), 0)]
    assert rig.owner == owner


@pytest.mark.parametrize(
    ("make", "commit", "why", "code"),
    [
        (a_producer, COMMIT, "no-transaction", ITS),
        (a_producer, ABORT, "no-transaction", ITS),
        (a_committed, COMMIT, "old-end-repeated", NONE),
        (a_committed, ABORT, "ended-otherwise", ITS),
        (an_aborted, COMMIT, "ended-otherwise", ITS),
        (an_aborted, ABORT, "old-end-repeated", NONE),
    ],
)
def test_an_old_end_is_the_same_as_the_last_or_none(make, commit, why, code):
    rig = Rig()
    owner = make(rig)

    asked = rig.old_end(owner, commit=commit)

    assert (asked.why, rig.answer(asked)) == (why, ProducerAnswer(code))


@pytest.mark.parametrize("make", [a_producer, an_open_transaction, a_committed, an_ending_transaction])
def test_an_old_end_is_for_the_owner_only(make):
    rig = Rig()
    owner = make(rig)

    assert rig.answer(rig.old_end(owner._replace(producer_id=99))).code is UNMAPPED
    assert rig.answer(rig.old_end(owner._replace(epoch=owner.epoch - 1))).code is FENCED


def test_an_old_end_while_markers_are_written_comes_again():
    rig = Rig()
    owner = an_ending_transaction(rig, client_version=0)

    asked = rig.old_end(owner)

    assert (asked.why, rig.answer(asked).code) == ("end-under-way", BUSY)


def test_a_client_may_change_its_version_between_transactions():
    rig = Rig()
    owner = an_open_transaction(rig, client_version=0)
    rig.old_end(owner)
    rig.add(owner)

    rig.end(owner)

    assert (rig.owner, rig.txn.client_version) == (Producer(100, 1), 2)
