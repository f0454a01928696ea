"""Each reason in the catalogue is one that a decision can have: here is how each comes about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shard_rig import ShardRig
from txn_rig import (
    FLIGHTS,
    TIMEOUT_MS,
    TOWERS,
    Rig,
    a_producer,
    a_worn_producer,
    an_ended_transaction,
    an_ending_transaction,
    an_open_transaction,
)

from coterie.base.codes import Code
from coterie.base.reasons import TRANSACTION, reasons
from coterie.coordinator.txn.commands import Expire, MarkersWritten
from coterie.coordinator.txn.expiry import IDS, TIMEOUTS
from coterie.coordinator.txn.facts import TransactionLoaded
from coterie.coordinator.txn.model import Producer, State


def dead(rig: Rig) -> None:
    a_producer(rig)
    rig.shard.apply(TransactionLoaded(rig.txn._replace(state=State.DEAD)))
    rig.init()


def without_ids(rig: Rig) -> None:
    rig.out_of_ids = True
    rig.init()


def failing(rig: Rig) -> None:
    rig.hold()
    rig.init()
    rig.fail(Code.KAFKA_STORAGE_ERROR)


def again(rig: Rig) -> None:
    owner = a_producer(rig)
    rig.init(expected=owner)
    rig.init(expected=owner)


def hanging(rig: Rig, look: Callable[..., Any] = Rig.ask) -> None:
    rig.slow = True
    an_open_transaction(rig)
    rig.now_ms += TIMEOUT_MS + 1
    look(rig, Expire(key=TIMEOUTS))


def unused(rig: Rig, look: Callable[..., Any] = Rig.ask) -> None:
    a_producer(rig)
    rig.now_ms += rig.settings.id_expiration_ms
    look(rig, Expire(key=IDS))


def ended(rig: Rig) -> None:
    an_ending_transaction(rig)
    rig.mark()


def slowly(act: Callable[[Rig], object]) -> Callable[[Rig], None]:
    """Markers are not written: the last reason is the end's own."""

    def acted(rig: Rig) -> None:
        rig.slow = True
        act(rig)

    return acted


def before(producer: Producer) -> Producer:
    return producer._replace(epoch=producer.epoch - 1)


COMES_ABOUT: dict[str, Callable[[Rig], object]] = {
    "no-such-transactional-id": lambda rig: rig.add(Producer(1, 0)),
    "other-producer-id": lambda rig: rig.add(a_producer(rig)._replace(producer_id=1)),
    "stale-epoch": lambda rig: rig.add(before(a_producer(rig))),
    "end-under-way": lambda rig: rig.end(an_ending_transaction(rig)),
    "state-of-nobody": dead,
    "no-producer-id": without_ids,
    "append-failed": failing,
    "loaded": Rig.failover,
    "transactional-id-created": Rig.init,
    "producer-replaced": lambda rig: (a_producer(rig), rig.init()),
    "epoch-bumped": lambda rig: rig.init(expected=a_producer(rig)),
    "init-repeated": again,
    "producer-id-rotated": lambda rig: (a_worn_producer(rig), rig.init()),
    "stale-epoch-of-many": lambda rig: rig.init(expected=before(a_worn_producer(rig))),
    "open-transaction-fenced": slowly(lambda rig: (an_open_transaction(rig), rig.init())),
    "transaction-begun": an_open_transaction,
    "partitions-joined": lambda rig: rig.add(an_open_transaction(rig), TOWERS),
    "partitions-there": lambda rig: rig.add(an_open_transaction(rig), FLIGHTS),
    "partitions-missing": lambda rig: rig.verify(an_open_transaction(rig), TOWERS),
    "commit-settled": an_ending_transaction,
    "abort-settled": lambda rig: an_ending_transaction(rig, commit=False),
    "empty-abort-settled": slowly(lambda rig: rig.end(a_producer(rig), commit=False)),
    "end-repeated": lambda rig: rig.end(before(an_ended_transaction(rig))),
    "ended-otherwise": lambda rig: rig.end(before(an_ended_transaction(rig)), commit=False),
    "nothing-to-commit": lambda rig: rig.end(a_producer(rig)),
    "old-commit-settled": lambda rig: an_ending_transaction(rig, client_version=0),
    "old-abort-settled": lambda rig: an_ending_transaction(rig, commit=False, client_version=0),
    "old-end-repeated": lambda rig: rig.old_end(an_ended_transaction(rig, client_version=0)),
    "no-transaction": lambda rig: rig.old_end(a_producer(rig)),
    "transaction-ended": ended,
    "markers-passed-over": lambda rig: rig.ask(MarkersWritten(transactional_id="tid")),
    "hanging-transactions-found": lambda rig: hanging(rig, look=ShardRig.ask),
    "hanging-transaction-aborted": hanging,
    "no-transaction-hangs": lambda rig: rig.ask(Expire(key=TIMEOUTS)),
    "unused-ids-found": lambda rig: unused(rig, look=ShardRig.ask),
    "unused-id-forgotten": unused,
    "look-outdated": lambda rig: rig.ask(Expire(key=(*IDS, "tid"))),
    "no-id-unused": lambda rig: rig.ask(Expire(key=IDS)),
    "described": lambda rig: (a_producer(rig), rig.describe()),
}


@pytest.mark.parametrize("why", reasons(TRANSACTION))
def test_each_reason_comes_about(why):
    rig = Rig()

    COMES_ABOUT[why](rig)

    assert rig.whys[-1] == why


def test_no_reason_comes_about_that_is_not_in_the_catalogue():
    assert set(COMES_ABOUT) == set(reasons(TRANSACTION))
