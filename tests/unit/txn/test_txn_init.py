"""InitProducerId: new ids, bumped epochs, lost answers, fenced producers, epochs that run out."""

from __future__ import annotations

import pytest
from txn_rig import (
    FLIGHTS,
    LAST_EPOCH,
    TIMEOUT_MS,
    Rig,
    a_producer,
    a_worn_producer,
    an_ended_transaction,
    an_ending_transaction,
    an_open_transaction,
)

from coterie.base.codes import Code
from coterie.coordinator.txn.commands import ProducerAnswer
from coterie.coordinator.txn.facts import TransactionLoaded
from coterie.coordinator.txn.model import NO_PRODUCER_ID, NO_TIME, Producer, State

FENCED = ProducerAnswer(Code.PRODUCER_FENCED)


def test_the_first_producer_of_a_transactional_id_begins_at_epoch_0():
    rig = Rig()

    asked = rig.init()

    assert asked.why == "transactional-id-created"
    assert rig.answer(asked) == ProducerAnswer(Code.NONE, Producer(100, 0))
    assert (rig.state, rig.txn.timeout_ms, rig.txn.started_ms) == (State.EMPTY, TIMEOUT_MS, NO_TIME)


def test_a_producer_that_nothing_is_known_of_gets_a_new_id_whatever_it_believes_to_be():
    """KIP-360: what it had has expired."""
    rig = Rig()

    asked = rig.init(expected=Producer(55, 9))

    assert rig.answer(asked).producer == Producer(100, 0)


def test_another_producer_takes_over_with_the_next_epoch():
    rig = Rig()
    first = a_producer(rig)

    asked = rig.init(timeout_ms=5_000)

    assert asked.why == "producer-replaced"
    assert rig.answer(asked).producer == Producer(100, 1)
    assert rig.txn.timeout_ms == 5_000
    assert rig.answer(rig.add(first)).code is Code.PRODUCER_FENCED


def test_the_same_producer_goes_on_with_the_next_epoch():
    rig = Rig()
    owner = a_producer(rig)

    asked = rig.init(expected=owner)

    assert asked.why == "epoch-bumped"
    assert rig.answer(asked).producer == Producer(100, 1)
    assert rig.txn.last_epoch == 0


def test_a_lost_answer_is_given_again():
    rig = Rig()
    owner = a_producer(rig)
    rig.init(expected=owner)

    asked = rig.init(expected=owner)

    assert asked.why == "init-repeated"
    assert rig.answer(asked).producer == Producer(100, 1)


def test_a_producer_of_an_epoch_long_gone_is_fenced():
    rig = Rig()
    owner = a_producer(rig)
    rig.init(expected=owner)
    rig.init(expected=Producer(100, 1))

    asked = rig.init(expected=owner)

    assert asked.why == "stale-epoch"
    assert rig.answer(asked) == FENCED


def test_the_lost_answer_of_a_producer_that_was_replaced_is_not_given_again():
    rig = Rig()
    owner = a_producer(rig)
    rig.init()

    assert rig.answer(rig.init(expected=owner)) == FENCED


@pytest.mark.parametrize("make", [a_producer, an_open_transaction])
def test_a_producer_with_another_id_is_fenced(make):
    rig = Rig()
    make(rig)

    asked = rig.init(expected=Producer(99, 0))

    assert asked.why == "other-producer-id"
    assert rig.answer(asked) == FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_a_producer_takes_over_after_an_end(commit):
    rig = Rig()
    owner = an_ended_transaction(rig, commit=commit)

    assert rig.answer(rig.init()).producer == Producer(owner.producer_id, owner.epoch + 1)
    assert rig.state is State.EMPTY


# -- what is under way


def test_an_open_transaction_is_aborted_first():
    """The epoch of the abort is nobody's: who comes again gets the next one."""
    rig = Rig(slow=True)
    owner = an_open_transaction(rig)

    asked = rig.init()

    assert asked.why == "open-transaction-fenced"
    assert rig.answer(asked) == ProducerAnswer(Code.CONCURRENT_TRANSACTIONS)
    assert rig.state is State.PREPARE_ABORT
    rig.mark()
    assert rig.marked[0].producer == Producer(owner.producer_id, 1)
    assert not rig.marked[0].commit
    assert rig.answer(rig.init()).producer == Producer(owner.producer_id, 2)


@pytest.mark.parametrize("commit", [True, False])
def test_nobody_takes_over_while_markers_are_written(commit):
    rig = Rig()
    an_ending_transaction(rig, commit=commit)

    asked = rig.init(expected=Producer(99, 0))  # who asks is not even looked at

    assert asked.why == "end-under-way"
    assert rig.answer(asked) == ProducerAnswer(Code.CONCURRENT_TRANSACTIONS)


# -- epochs that run out


def test_when_no_epoch_is_left_another_producer_id_follows():
    rig = Rig()
    a_worn_producer(rig)

    asked = rig.init()

    assert asked.why == "producer-id-rotated"
    assert rig.answer(asked).producer == Producer(100, 0)
    assert (rig.txn.previous_id, rig.txn.last_epoch) == (7, NO_PRODUCER_ID)


def test_the_last_epoch_but_one_is_followed_by_the_last():
    rig = Rig()
    a_worn_producer(rig, epoch=LAST_EPOCH - 1)

    assert rig.answer(rig.init()).producer == Producer(7, LAST_EPOCH)


def test_a_producer_that_goes_on_gets_another_id_and_may_ask_again():
    rig = Rig()
    owner = a_worn_producer(rig)

    first, again = rig.init(expected=owner), rig.init(expected=owner)

    assert (first.why, again.why) == ("producer-id-rotated", "init-repeated")
    assert rig.answer(first) == rig.answer(again) == ProducerAnswer(Code.NONE, Producer(100, 0))


def test_a_stale_producer_whose_epochs_are_used_up_gets_no_better_answer_than_kafkas():
    rig = Rig()
    owner = a_worn_producer(rig)

    asked = rig.init(expected=owner._replace(epoch=5))

    assert asked.why == "stale-epoch-of-many"
    assert rig.answer(asked).code is Code.UNKNOWN_SERVER_ERROR


def test_fencing_an_open_transaction_may_use_up_the_last_epoch():
    rig = Rig()
    a_worn_producer(rig, epoch=LAST_EPOCH)
    rig.add(rig.owner)

    rig.init()

    assert rig.marked[0].producer == Producer(7, LAST_EPOCH + 1)
    assert rig.owner == Producer(100, 0)
    assert rig.answer(rig.init()).producer == Producer(100, 1)


def test_without_a_new_producer_id_the_client_is_asked_to_come_back():
    rig = Rig()
    rig.out_of_ids = True

    asked = rig.init()

    assert asked.why == "no-producer-id"
    assert rig.answer(asked) == ProducerAnswer(Code.COORDINATOR_LOAD_IN_PROGRESS)
    assert not rig.shard.transactions


@pytest.mark.parametrize("state", [State.DEAD, State.PREPARE_EPOCH_FENCE])
def test_a_state_that_nobody_writes_is_a_servers_error(state):
    rig = Rig()
    a_producer(rig)
    rig.shard.apply(TransactionLoaded(rig.txn._replace(state=state, partitions={FLIGHTS: None})))

    for asked in (rig.init(), rig.add(rig.owner), rig.end(rig.owner), rig.old_end(rig.owner)):
        assert asked.why == "state-of-nobody"
        assert rig.answer(asked).code is Code.UNKNOWN_SERVER_ERROR
    assert rig.answer(rig.verify(rig.owner)).codes == (Code.UNKNOWN_SERVER_ERROR,)
    seen = Code.TRANSACTIONAL_ID_NOT_FOUND if state is State.DEAD else Code.NONE
    assert rig.answer(rig.describe()).code is seen
