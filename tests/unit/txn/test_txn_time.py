"""Transactions that hang, transactional ids that nobody uses, appends that fail."""

from __future__ import annotations

import pytest
from txn_rig import (
    FLIGHTS,
    TIMEOUT_MS,
    Rig,
    a_producer,
    a_worn_producer,
    an_ended_transaction,
    an_ending_transaction,
    an_open_transaction,
)

from coterie.base.codes import Code
from coterie.coordinator.txn.commands import Expire, PartitionsAnswer, ProducerAnswer
from coterie.coordinator.txn.expiry import IDS, TIMEOUTS
from coterie.coordinator.txn.facts import TransactionLoaded
from coterie.coordinator.txn.model import Producer, State, Transaction
from coterie.coordinator.txn.settings import RETRY_MS

LOOK_MS = 10_000


# -- transactions that hang


def test_a_transaction_that_hangs_is_aborted_and_its_producer_fenced():
    rig = Rig()
    owner = an_open_transaction(rig)

    rig.run_to(rig.now_ms + TIMEOUT_MS + LOOK_MS)

    assert rig.whys[-3:] == [
        "hanging-transactions-found",
        "hanging-transaction-aborted",
        "transaction-ended",
    ]
    assert (rig.state, rig.owner) == (State.COMPLETE_ABORT, Producer(owner.producer_id, 1))
    assert not rig.marked[0].commit
    assert rig.answer(rig.end(owner, commit=True)).code is Code.INVALID_TXN_STATE
    assert rig.answer(rig.add(owner)).code is Code.PRODUCER_FENCED


def test_a_transaction_may_be_open_for_as_long_as_its_producer_said():
    rig = Rig()
    an_open_transaction(rig)
    rig.now_ms += TIMEOUT_MS

    asked = rig.ask(Expire(key=TIMEOUTS))

    assert asked.why == "no-transaction-hangs"
    assert rig.deadlines.at(TIMEOUTS) == rig.now_ms + LOOK_MS


@pytest.mark.parametrize("make", [a_producer, an_ended_transaction, an_ending_transaction])
def test_what_is_not_open_cannot_hang(make):
    rig = Rig()
    make(rig)
    state = rig.state

    rig.run_to(rig.now_ms + 10 * TIMEOUT_MS)

    assert rig.state is state


def test_a_transaction_that_another_coordinator_ends_never_hangs():
    """KIP-939: Kafka writes such ones, with the largest timeout there is."""
    rig = Rig()
    rig.shard.apply(
        TransactionLoaded(Transaction("tid", State.ONGOING, 7, 0, 2**31 - 1, 0, started_ms=-(2**40)))
    )

    rig.run_to(rig.now_ms + TIMEOUT_MS)

    assert rig.state is State.ONGOING


def test_what_a_look_finds_is_decided_one_by_one_and_no_other_look_comes_sooner_for_it():
    """All were one decision: too much for one batch, they failed together, at once again, and for good."""
    rig = Rig()
    for number in range(3):
        owner = rig.answer(rig.init(f"t{number}")).producer
        rig.add(owner, FLIGHTS, transactional_id=f"t{number}")
    rig.now_ms += TIMEOUT_MS + 1

    asked = rig.ask(Expire(key=TIMEOUTS))

    assert (asked.decision.facts, asked.decision.overdue) == ((), ("t0", "t1", "t2"))
    assert rig.whys.count("hanging-transaction-aborted") == 3
    assert rig.deadlines.at(TIMEOUTS) == rig.now_ms + LOOK_MS


@pytest.mark.parametrize("make", [a_producer, an_ended_transaction, an_ending_transaction])
def test_what_a_look_found_may_have_ended_by_the_time_it_is_seen_to(make):
    rig = Rig()
    make(rig)
    rig.now_ms += TIMEOUT_MS + 1

    assert rig.ask(Expire(key=(*TIMEOUTS, "tid"))).why == "look-outdated"


def test_a_transaction_that_began_since_a_look_is_left_alone():
    rig = Rig()
    an_open_transaction(rig)

    assert rig.ask(Expire(key=(*TIMEOUTS, "tid"))).why == "look-outdated"
    assert rig.ask(Expire(key=(*TIMEOUTS, "gone"))).why == "look-outdated"


def test_a_look_that_needs_producer_ids_and_has_none_comes_again():
    rig = Rig()
    a_worn_producer(rig)
    rig.add(rig.owner)
    rig.out_of_ids = True
    rig.now_ms += TIMEOUT_MS + 1

    rig.ask(Expire(key=TIMEOUTS))

    assert rig.whys[-1] == "no-producer-id"
    assert rig.deadlines.at(TIMEOUTS) == rig.now_ms + LOOK_MS
    assert rig.state is State.ONGOING


# -- transactional ids that nobody uses


@pytest.mark.parametrize("make", [a_producer, an_ended_transaction])
def test_a_transactional_id_out_of_use_is_forgotten(make):
    rig = Rig(id_expiration_ms=1_000)
    make(rig)
    rig.now_ms += 1_000

    asked = rig.ask(Expire(key=IDS))

    assert [asked.why, rig.whys[-1]] == ["unused-ids-found", "unused-id-forgotten"]
    assert not rig.shard.transactions
    assert rig.log[-1][1] is None
    assert rig.deadlines.at(IDS) == rig.now_ms + 3_600_000


@pytest.mark.parametrize(("make", "waited_ms"), [(a_producer, 999), (an_open_transaction, 10_000)])
def test_a_transactional_id_in_use_is_kept(make, waited_ms):
    rig = Rig(id_expiration_ms=1_000)
    make(rig)
    rig.now_ms += waited_ms

    assert rig.ask(Expire(key=IDS)).why == "no-id-unused"
    assert "tid" in rig.shard.transactions


@pytest.mark.parametrize("make", [a_producer, an_open_transaction, an_ending_transaction])
def test_a_transactional_id_that_somebody_has_used_since_a_look_is_kept(make):
    rig = Rig(id_expiration_ms=1_000)
    make(rig)

    assert rig.ask(Expire(key=(*IDS, "tid"))).why == "look-outdated"
    assert "tid" in rig.shard.transactions


# -- appends that fail


@pytest.mark.parametrize(
    ("of_the_log", "told"),
    [
        (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_COORDINATOR),
        (Code.KAFKA_STORAGE_ERROR, Code.NOT_COORDINATOR),
        (Code.NOT_ENOUGH_REPLICAS, Code.COORDINATOR_NOT_AVAILABLE),
        (Code.MESSAGE_TOO_LARGE, Code.UNKNOWN_SERVER_ERROR),
        (Code.INVALID_RECORD, Code.INVALID_RECORD),
    ],
)
def test_what_could_not_be_appended_has_not_happened(of_the_log, told):
    rig = Rig()
    owner = an_open_transaction(rig)
    before = rig.txn, dict(rig.shard.ongoing)
    rig.hold()
    asked = [rig.end(owner), rig.init(), rig.init("another"), rig.add(owner)]

    rig.fail(of_the_log)

    assert [rig.answer(one) for one in asked] == [
        ProducerAnswer(told),
        ProducerAnswer(told),
        ProducerAnswer(told),
        PartitionsAnswer(told),
    ]
    assert (rig.txn, dict(rig.shard.ongoing)) == before
    assert list(rig.shard.transactions) == ["tid"]
    assert not rig.marked


def test_who_only_looks_is_none_the_worse_for_a_failed_append():
    rig = Rig()
    owner = an_open_transaction(rig)
    rig.hold()
    rig.end(owner)
    seen, verified = rig.describe(), rig.verify(owner)

    rig.fail(Code.KAFKA_STORAGE_ERROR)

    assert rig.answer(seen).state == "Ongoing"
    assert rig.answer(verified).codes == (Code.NONE,)


def test_an_end_that_could_not_be_noted_is_noted_later():
    rig = Rig()
    an_ending_transaction(rig)
    rig.hold()
    rig.mark()
    rig.fail(Code.KAFKA_STORAGE_ERROR)
    assert rig.state is State.PREPARE_COMMIT
    rig.hold()
    rig.run_to(rig.now_ms + RETRY_MS)
    rig.fail(Code.KAFKA_STORAGE_ERROR)

    rig.run_to(rig.now_ms + RETRY_MS)

    assert rig.state is State.COMPLETE_COMMIT


def test_a_look_that_could_not_be_appended_comes_again_by_itself():
    rig = Rig()
    an_open_transaction(rig)
    rig.now_ms += TIMEOUT_MS + 1
    rig.hold()
    rig.ask(Expire(key=TIMEOUTS))
    rig.fail(Code.KAFKA_STORAGE_ERROR)
    assert rig.state is State.ONGOING

    rig.run_to(rig.now_ms + LOOK_MS)

    assert rig.state is State.COMPLETE_ABORT
