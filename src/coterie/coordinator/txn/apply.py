"""How each fact changes the state: every change goes into the shard's journal, which knows the way back.

`APPLY[type(fact)](before, fact)` returns the transactional id as the fact leaves it, None for gone. Nothing
but `apply_fact` writes to transactional ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from coterie.base.journal import Journal
from coterie.coordinator.txn import facts
from coterie.coordinator.txn.facts import Fact
from coterie.coordinator.txn.model import BUMPS_EPOCH_SINCE, NO_PRODUCER_ID, State, Transaction

IDLE = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
NO_PARTITIONS: Mapping[Any, None] = MappingProxyType({})


class World(Protocol):
    """What facts change. `ongoing` names, in no order that matters, those with a transaction open."""

    journal: Journal
    transactions: dict[str, Transaction]
    ongoing: dict[str, None]


# Which fact moves a transactional id to which state, and from where; None is one that is not there.
# docs/transactions.md draws its diagram from this.
MOVES: Mapping[tuple[type, State], frozenset[State | None]] = MappingProxyType(
    {
        (facts.ProducerInitialized, State.EMPTY): IDLE | {None},
        (facts.PartitionsAdded, State.ONGOING): IDLE | {State.ONGOING},
        (facts.EndPrepared, State.PREPARE_COMMIT): frozenset({State.ONGOING}),
        (facts.EndPrepared, State.PREPARE_ABORT): IDLE | {State.ONGOING},
        (facts.EndCompleted, State.COMPLETE_COMMIT): frozenset({State.PREPARE_COMMIT}),
        (facts.EndCompleted, State.COMPLETE_ABORT): frozenset({State.PREPARE_ABORT}),
    }
)
ARRIVES_FROM: Mapping[State, frozenset[State | None]] = MappingProxyType(
    {to: sources for (_, to), sources in MOVES.items()}
)


def producer_initialized(before: Transaction | None, fact: facts.ProducerInitialized) -> Transaction:
    producer_id, epoch = fact.producer
    return Transaction(
        fact.transactional_id,
        State.EMPTY,
        producer_id,
        epoch,
        fact.timeout_ms,
        fact.at_ms,
        last_epoch=fact.last_epoch,
        previous_id=producer_id if before is None else before.producer_id,
        client_version=0 if before is None else before.client_version,
    )


def partitions_added(before: Transaction | None, fact: facts.PartitionsAdded) -> Transaction:
    assert before is not None
    began = before.state is not State.ONGOING
    return before._replace(
        state=State.ONGOING,
        partitions={**before.partitions, **dict.fromkeys(fact.partitions)},
        started_ms=fact.at_ms if began else before.started_ms,
        updated_ms=fact.at_ms,
        client_version=fact.client_version,
        previous_id=before.producer_id,
    )


def end_prepared(before: Transaction | None, fact: facts.EndPrepared) -> Transaction:
    assert before is not None
    return before._replace(
        state=State.PREPARE_COMMIT if fact.commit else State.PREPARE_ABORT,
        epoch=fact.epoch,
        last_epoch=fact.last_epoch,
        next_id=fact.next_id,
        client_version=fact.client_version,
        started_ms=fact.started_ms,
        updated_ms=fact.at_ms,
        previous_id=before.producer_id,
    )


def end_completed(before: Transaction | None, fact: facts.EndCompleted) -> Transaction:
    """Where the end used up the last epoch, another producer id begins at epoch 0 (KIP-890)."""
    assert before is not None
    producer_id, epoch = before.producer_id, before.epoch
    if before.client_version >= BUMPS_EPOCH_SINCE and before.next_id != NO_PRODUCER_ID:
        producer_id, epoch = before.next_id, 0
    committed = before.state is State.PREPARE_COMMIT
    return before._replace(
        state=State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT,
        producer_id=producer_id,
        epoch=epoch,
        next_id=NO_PRODUCER_ID,
        partitions=NO_PARTITIONS,
        updated_ms=fact.at_ms,
        previous_id=before.producer_id,
    )


def id_forgotten(before: Transaction | None, fact: facts.IdForgotten) -> None:
    assert before is not None


def transaction_loaded(before: Transaction | None, fact: facts.TransactionLoaded) -> Transaction:
    return fact.transaction


APPLY: Mapping[type, Callable[[Any, Any], Transaction | None]] = MappingProxyType(
    {
        facts.ProducerInitialized: producer_initialized,
        facts.PartitionsAdded: partitions_added,
        facts.EndPrepared: end_prepared,
        facts.EndCompleted: end_completed,
        facts.IdForgotten: id_forgotten,
        facts.TransactionLoaded: transaction_loaded,
    }
)
assert set(APPLY) == set(Fact.__args__)


def apply_fact(world: World, fact: Fact) -> None:
    """Change the state as the fact says."""
    transactional_id = fact.transactional_id
    before = world.transactions.get(transactional_id)
    after = APPLY[type(fact)](before, fact)
    if fact.durable and after is not None:
        came_from = None if before is None else before.state
        assert came_from in MOVES[type(fact), after.state], (
            f"{transactional_id}: {came_from} to {after.state}"
        )
    keep(world.journal, world.transactions, transactional_id, after)
    ongoing = after is not None and after.state is State.ONGOING
    if ongoing != (transactional_id in world.ongoing):
        if ongoing:
            world.journal.put(world.ongoing, transactional_id, None)
        else:
            world.journal.drop(world.ongoing, transactional_id)


def keep(
    journal: Journal, transactions: dict[str, Transaction], name: str, transaction: Transaction | None
) -> None:
    """Have a transactional id be this, or be gone."""
    if transaction is not None:
        journal.put(transactions, name, transaction)
    elif name in transactions:
        journal.drop(transactions, name)
