"""Partitions that join a transaction, or are looked for in it."""

from __future__ import annotations

import pytest
from txn_rig import (
    FLIGHTS,
    TOWERS,
    Rig,
    a_producer,
    an_ended_transaction,
    an_ending_transaction,
    an_open_transaction,
)

from coterie.base.codes import Code
from coterie.coordinator.txn.model import Producer, State

MAKERS = [a_producer, an_open_transaction, an_ended_transaction]


def test_the_first_partition_begins_a_transaction():
    rig = Rig()
    owner = a_producer(rig)

    asked = rig.add(owner, FLIGHTS)

    assert asked.why == "transaction-begun"
    assert rig.answer(asked).code is Code.NONE
    assert (rig.state, list(rig.txn.partitions)) == (State.ONGOING, [FLIGHTS])
    assert (rig.txn.started_ms, rig.txn.client_version) == (rig.now_ms, 2)


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_transaction_begins_where_the_last_has_ended(commit):
    rig = Rig()
    owner = an_ended_transaction(rig, commit=commit)
    rig.now_ms += 5

    rig.add(owner, TOWERS)

    assert (rig.state, list(rig.txn.partitions), rig.txn.started_ms) == (
        State.ONGOING,
        [TOWERS],
        rig.now_ms,
    )


def test_more_partitions_join_and_the_transaction_is_as_old_as_it_was():
    rig = Rig()
    owner = an_open_transaction(rig)
    began_ms = rig.now_ms
    rig.now_ms += 5

    asked = rig.add(owner, TOWERS, FLIGHTS)

    assert asked.why == "partitions-joined"
    assert (list(rig.txn.partitions), rig.txn.started_ms, rig.txn.updated_ms) == (
        [FLIGHTS, TOWERS],
        began_ms,
        rig.now_ms,
    )


def test_a_partition_that_is_there_costs_no_record():
    rig = Rig()
    owner = an_open_transaction(rig, FLIGHTS, TOWERS)

    asked = rig.add(owner, TOWERS)

    assert asked.why == "partitions-there"
    assert rig.answer(asked).code is Code.NONE
    assert not asked.decision.facts


@pytest.mark.parametrize("ask", [Rig.add, Rig.verify])
def test_without_an_owner_the_producer_id_is_not_mapped(ask):
    rig = Rig()

    asked = ask(rig, Producer(100, 0))

    assert asked.why == "no-such-transactional-id"
    assert codes(rig, asked) == {Code.INVALID_PRODUCER_ID_MAPPING}


@pytest.mark.parametrize("ask", [Rig.add, Rig.verify])
@pytest.mark.parametrize("make", MAKERS)
def test_another_producer_id_is_not_mapped(make, ask):
    rig = Rig()
    owner = make(rig)

    asked = ask(rig, owner._replace(producer_id=99))

    assert asked.why == "other-producer-id"
    assert codes(rig, asked) == {Code.INVALID_PRODUCER_ID_MAPPING}


@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize("ask", [Rig.add, Rig.verify])
@pytest.mark.parametrize("make", MAKERS)
def test_another_epoch_is_fenced(make, ask, step):
    rig = Rig()
    owner = make(rig)

    asked = ask(rig, owner._replace(epoch=owner.epoch + step))

    assert asked.why == "stale-epoch"
    assert codes(rig, asked) == {Code.PRODUCER_FENCED}


@pytest.mark.parametrize("commit", [True, False])
def test_whoever_asks_while_markers_are_written_has_to_come_again(commit):
    rig = Rig()
    owner = an_ending_transaction(rig, commit=commit)

    for producer in (owner, Producer(99, 0)):
        asked = rig.add(producer)
        assert asked.why == "end-under-way"
        assert codes(rig, asked) == {Code.CONCURRENT_TRANSACTIONS}


# -- verifying


def test_verifying_says_of_each_partition_whether_it_is_there():
    rig = Rig()
    owner = an_open_transaction(rig, FLIGHTS)

    there, missing = rig.verify(owner, FLIGHTS), rig.verify(owner, FLIGHTS, TOWERS)

    assert (there.why, missing.why) == ("partitions-there", "partitions-missing")
    assert rig.answer(there).codes == (Code.NONE,)
    assert rig.answer(missing).codes == (Code.NONE, Code.TRANSACTION_ABORTABLE)
    assert list(rig.txn.partitions) == [FLIGHTS]


def test_verifying_while_markers_are_written_looks_at_who_asks_first():
    rig = Rig()
    owner = an_ending_transaction(rig)

    assert codes(rig, rig.verify(Producer(99, 0))) == {Code.INVALID_PRODUCER_ID_MAPPING}
    assert codes(rig, rig.verify(owner._replace(epoch=0))) == {Code.PRODUCER_FENCED}
    assert codes(rig, rig.verify(owner)) == {Code.CONCURRENT_TRANSACTIONS}


def codes(rig, asked):
    answer = rig.answer(asked)
    return set(answer.codes) if hasattr(answer, "codes") else {answer.code}
