"""What the logs still know of a transactional id whose coordinator has lost the end of its own log."""

from __future__ import annotations

from itertools import product

import pytest
from txn_rig import FLIGHTS, TOWERS

from coterie.base.ids import TopicPartition
from coterie.coordinator.txn.model import EPOCH_MAX, NO_PRODUCER_ID, State, Transaction
from coterie.coordinator.txn.records import recalled, strays

IDLE = [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT]
ENDING = [State.PREPARE_COMMIT, State.PREPARE_ABORT]


def known(state: State = State.EMPTY, epoch: int = 3, *partitions: object, version: int = 2) -> Transaction:
    held = dict.fromkeys(partitions)
    return Transaction(
        "tid",
        state,
        100,
        epoch,
        60_000,
        0,
        2,
        client_version=version,
        partitions=held,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("state", IDLE)
def test_nothing_changes_where_the_logs_know_no_more(state: State):
    txn = known(state)

    assert recalled(txn, 3, {}) is txn
    assert recalled(txn, 2, {}) is txn


@pytest.mark.parametrize("state", IDLE)
def test_an_epoch_that_was_given_out_is_not_given_out_again(state: State):
    after = recalled(known(state), 7, {})

    assert (after.state, after.epoch, after.last_epoch) == (state, 7, NO_PRODUCER_ID)


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize(("newest", "epoch"), [(3, 4), (7, 8), (2, 3), (EPOCH_MAX, EPOCH_MAX)])
def test_what_is_open_and_unknown_is_aborted_under_an_epoch_that_no_log_has(
    state: State, newest: int, epoch: int
):
    after = recalled(known(state, version=0), newest, {FLIGHTS: newest})

    assert (after.state, after.epoch) == (State.PREPARE_ABORT, epoch)
    assert tuple(after.partitions) == (FLIGHTS,)


def test_what_is_open_of_the_transaction_that_was_committed_last_is_committed_there_too():
    after = recalled(known(State.COMPLETE_COMMIT), 2, {FLIGHTS: 2, TOWERS: 2})

    assert (after.state, after.epoch) == (State.PREPARE_COMMIT, 3)
    assert tuple(after.partitions) == (FLIGHTS, TOWERS)


@pytest.mark.parametrize("older", [1, 0])
def test_what_may_be_of_an_older_one_is_not(older: int):
    assert recalled(known(State.COMPLETE_COMMIT), 2, {FLIGHTS: 2, TOWERS: older}).state is State.PREPARE_ABORT


def test_who_goes_on_in_an_open_transaction_has_all_its_partitions_in_it():
    after = recalled(known(State.ONGOING, 3, FLIGHTS), 3, {FLIGHTS: 3, TOWERS: 3})

    assert (after.state, after.epoch) == (State.ONGOING, 3)
    assert tuple(after.partitions) == (FLIGHTS, TOWERS)


def test_an_open_transaction_that_the_logs_have_left_behind_is_aborted():
    after = recalled(known(State.ONGOING, 3, FLIGHTS), 5, {TOWERS: 5})

    assert (after.state, after.epoch) == (State.PREPARE_ABORT, 6)
    assert tuple(after.partitions) == (FLIGHTS, TOWERS)


@pytest.mark.parametrize("state", ENDING)
def test_what_is_about_to_end_goes_on_as_it_was_settled(state: State):
    txn = known(state, 3, FLIGHTS)

    assert recalled(txn, 3, {FLIGHTS: 2}) is txn


@pytest.mark.parametrize(
    ("txn", "newest", "opened", "expected"),
    [
        (known(State.ONGOING, 3, FLIGHTS), 3, {FLIGHTS: 3, TOWERS: 2}, [TOWERS]),
        (known(State.ONGOING, 3, FLIGHTS), 5, {FLIGHTS: 3, TOWERS: 2}, []),  # all of it is aborted
        (known(State.COMPLETE_COMMIT, 3), 3, {TOWERS: 2}, []),  # likewise, or committed
        (known(State.PREPARE_COMMIT, 3, FLIGHTS), 3, {FLIGHTS: 2, TOWERS: 2}, [TOWERS]),
        (known(State.PREPARE_COMMIT, 3, FLIGHTS), 3, {FLIGHTS: 1}, [FLIGHTS]),
        (known(State.PREPARE_COMMIT, 3, FLIGHTS), 3, {FLIGHTS: 3}, [FLIGHTS]),  # the next transaction's
        (known(State.PREPARE_COMMIT, 3, FLIGHTS, version=0), 3, {FLIGHTS: 3}, []),
    ],
)
def test_what_no_marker_of_the_transaction_will_end_is_told(
    txn: Transaction, newest: int, opened: dict[TopicPartition, int], expected: list[TopicPartition]
):
    assert list(strays(txn, newest, opened)) == expected


def test_an_end_that_the_logs_have_left_behind_is_marked_where_the_next_has_not_begun():
    after = recalled(known(State.PREPARE_COMMIT, 3, FLIGHTS, TOWERS), 5, {FLIGHTS: 5})

    assert (after.state, after.epoch) == (State.PREPARE_COMMIT, 6)
    assert tuple(after.partitions) == (TOWERS,)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("state", [State.ONGOING, *ENDING])
def test_whoever_goes_on_has_a_later_epoch_than_any_that_is_aborted_by_itself(state: State, version: int):
    """So the epoch is enough to know such an abort's transaction by, also where it does not grow with each:
    who had that epoch is fenced, and can open no other in it until the abort is written.
    """
    epochs = range(5)
    for epoch, flights, towers, elsewhere in product(epochs, repeat=4):
        for held in ((), (FLIGHTS,), (FLIGHTS, TOWERS)):
            txn = known(state, epoch, *held, version=version)
            opened = {FLIGHTS: flights, TOWERS: towers}
            newest = max(flights, towers, elsewhere)

            after = recalled(txn, newest, opened)

            assert all(opened[one] < after.epoch for one in strays(txn, newest, opened))
