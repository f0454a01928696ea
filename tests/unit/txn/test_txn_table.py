"""The table that runs, its page, its reasons, and what can be seen from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from txn_rig import (
    FLIGHTS,
    TIMEOUT_MS,
    Rig,
    a_producer,
    an_ended_transaction,
    an_open_transaction,
)

from coterie.base.codes import Code
from coterie.coordinator.txn.apply import APPLY, ARRIVES_FROM, IDLE, MOVES
from coterie.coordinator.txn.commands import AddPartitions, Describe, DescribeAnswer, InitProducerId
from coterie.coordinator.txn.facts import EndCompleted, TransactionLoaded
from coterie.coordinator.txn.failures import unfit
from coterie.coordinator.txn.model import NUMBERS, STATES, Producer, State
from coterie.coordinator.txn.settings import TransactionSettings
from coterie.coordinator.txn.table import ABSENT, ANSWERS, printed
from coterie.coordinator.txn.views import Filter, listed

PAGE = Path(__file__).parents[3] / "docs" / "transactions.md"


def test_every_state_answers_everything():
    assert ANSWERS.keys() == set(State)
    assert {frozenset(row) for row in ANSWERS.values()} == {frozenset(ABSENT)}


def test_the_page_is_what_the_table_prints():
    assert PAGE.read_text(encoding="utf-8") == printed()


def test_states_arrive_from_where_kafka_lets_them():
    """But for the two that Kafka passes through without writing them: Dead and PrepareEpochFence."""
    assert {
        State.EMPTY: IDLE | {None},
        State.ONGOING: IDLE | {State.ONGOING},
        State.PREPARE_COMMIT: {State.ONGOING},
        State.PREPARE_ABORT: IDLE | {State.ONGOING},
        State.COMPLETE_COMMIT: {State.PREPARE_COMMIT},
        State.COMPLETE_ABORT: {State.PREPARE_ABORT},
    } == ARRIVES_FROM


def test_states_have_kafkas_numbers():
    assert [str(state) for state in STATES] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
    assert NUMBERS[State.PREPARE_EPOCH_FENCE] == 7


def test_a_move_that_is_not_in_the_table_is_our_mistake():
    rig = Rig()
    an_ended_transaction(rig)
    rig.shard.apply(TransactionLoaded(rig.txn._replace(state=State.DEAD)))

    with pytest.raises((AssertionError, KeyError)):
        rig.shard.apply(EndCompleted("tid", 0))


def test_only_facts_move_states():
    assert {fact for fact, _ in MOVES} <= set(APPLY)


# -- what is refused before anybody looks


@pytest.mark.parametrize(
    ("timeout_ms", "code"),
    [
        (1, Code.NONE),
        (900_000, Code.NONE),
        (0, Code.INVALID_TRANSACTION_TIMEOUT),
        (-1, Code.INVALID_TRANSACTION_TIMEOUT),
        (900_001, Code.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_a_timeout_has_to_be_within_what_the_broker_allows(timeout_ms, code):
    asked = InitProducerId(transactional_id="tid", call=1, timeout_ms=timeout_ms)

    assert unfit(asked, TransactionSettings()) is code


def test_a_transactional_id_has_to_have_a_letter():
    producer = Producer(1, 0)
    add = AddPartitions(transactional_id="", call=1, producer=producer, partitions=(), client_version=2)

    for asked in (
        add,
        Describe(transactional_id="", call=1),
        InitProducerId(transactional_id="", call=1, timeout_ms=0),
    ):
        assert unfit(asked, TransactionSettings()) is Code.INVALID_REQUEST


# -- views


def test_describe_shows_the_transaction():
    rig = Rig()
    owner = an_open_transaction(rig)

    asked = rig.describe()

    assert asked.why == "described"
    assert rig.answer(asked) == DescribeAnswer(
        Code.NONE, "Ongoing", TIMEOUT_MS, rig.now_ms, owner, (FLIGHTS,)
    )


def test_describe_of_nobody_is_all_zeros():
    rig = Rig()

    asked = rig.describe()

    assert asked.why == "no-such-transactional-id"
    assert rig.answer(asked) == DescribeAnswer(Code.TRANSACTIONAL_ID_NOT_FOUND, "", 0, 0, Producer(0, 0), ())


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), {"empty", "open", "old"}),
        (Filter(states=frozenset({"Ongoing"})), {"open"}),
        (Filter(states=frozenset({"Bogus"})), set()),
        (Filter(producer_ids=frozenset({100, 102})), {"empty", "old"}),
        (Filter(longer_than_ms=49), {"empty", "open", "old"}),
        (Filter(longer_than_ms=50), {"empty", "old"}),
        (Filter(states=frozenset({"Ongoing"}), producer_ids=frozenset({100})), set()),
    ],
)
def test_a_list_holds_what_passes_every_filter(wanted, found):
    """What has never been open is as old as time: it began at -1, as Kafka reckons."""
    rig = Rig()
    rig.init("empty")
    rig.add(rig.answer(rig.init("open")).producer, FLIGHTS, transactional_id="open")
    rig.init("old")
    a_producer(rig)
    rig.shard.apply(TransactionLoaded(rig.txn._replace(state=State.DEAD)))

    listing = listed([rig.shard], wanted, rig.now_ms + 50)

    assert {txn.transactional_id for txn in listing} == found
