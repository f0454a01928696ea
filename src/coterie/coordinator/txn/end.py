"""EndTxn: how a transaction ends is settled first, then markers are written, then it has ended.

`end_*` is version 5 of EndTxn, where each end bumps the epoch, so that what is late can do no harm (KIP-890).
`end_old_*` are the versions before, where a repeated request cannot be told from the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.machine import Decision
from coterie.coordinator.txn.commands import NO_PRODUCER, EndTransaction, MarkersWritten, ProducerAnswer
from coterie.coordinator.txn.facts import EndCompleted, EndPrepared
from coterie.coordinator.txn.model import (
    BUMPS_EPOCH_SINCE,
    EPOCH_MAX,
    NO_PRODUCER_ID,
    Producer,
    State,
    Transaction,
)

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Draft

COMMITS = {State.COMPLETE_COMMIT: True, State.COMPLETE_ABORT: False}


class EndTransactionBeforeV5:
    """EndTxn in the versions that bump no epoch."""


def refuse_end_of_an_unknown_id(draft: Draft, _: None, command: EndTransaction) -> Decision:
    """Refuse: no producer has initialized the transactional id, or it has expired."""
    return refused(draft, command, Code.INVALID_PRODUCER_ID_MAPPING, "no-such-transactional-id")


# -- version 5


def end_and_bump_the_epoch(draft: Draft, txn: Transaction, command: EndTransaction) -> Decision:
    """Decide on commit or abort, bump the epoch, and answer with the new one."""
    if command.producer.producer_id != txn.producer_id and not repeats_overflow(txn, command):
        return refused(draft, command, Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id")
    if command.producer.epoch != txn.epoch:
        return refused(draft, command, Code.PRODUCER_FENCED, "stale-epoch")
    return settle(draft, txn, command, txn.started_ms)


def abort_without_a_transaction(draft: Draft, txn: Transaction, command: EndTransaction) -> Decision:
    """Accept an abort, which fences batches that arrive late. Refuse a commit: there is nothing to commit."""
    if command.producer.producer_id != txn.producer_id and not repeats_overflow(txn, command):
        return refused(draft, command, Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id")
    if command.producer.epoch != txn.epoch:
        return refused(draft, command, Code.PRODUCER_FENCED, "stale-epoch")
    if command.commit:
        return refused(draft, command, Code.INVALID_TXN_STATE, "nothing-to-commit")
    return settle(draft, txn, command, draft.now_ms)


def repeat_the_answer_or_abort(draft: Draft, txn: Transaction, command: EndTransaction) -> Decision:
    """Repeat a lost answer, accept an abort without a transaction, refuse the opposite of the last end."""
    repeated = command.producer.epoch + 1 == txn.epoch
    overflowed = repeats_overflow(txn, command)
    if command.producer.producer_id != txn.producer_id and not overflowed:
        return refused(draft, command, Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id")
    repeated = repeated or overflowed
    if not repeated and command.producer.epoch != txn.epoch:
        return refused(draft, command, Code.PRODUCER_FENCED, "stale-epoch")
    if repeated and command.commit == COMMITS[txn.state]:
        return ended(draft, command, Producer(txn.producer_id, txn.epoch), "end-repeated")
    if repeated:
        return refused(draft, command, Code.INVALID_TXN_STATE, "ended-otherwise")
    if command.commit:
        return refused(draft, command, Code.INVALID_TXN_STATE, "nothing-to-commit")
    return settle(draft, txn, command, draft.now_ms)


def have_end_retried(draft: Draft, txn: Transaction, command: EndTransaction) -> Decision:
    """Answer CONCURRENT_TRANSACTIONS, to the owner and to any other: it is being ended."""
    return refused(draft, command, Code.CONCURRENT_TRANSACTIONS, "end-under-way")


def repeats_overflow(txn: Transaction, command: EndTransaction) -> bool:
    """Return whether this repeats an end that used up the last epoch: the producer has another id by now."""
    sender = command.producer
    return sender.producer_id == txn.previous_id and sender.epoch == EPOCH_MAX - 1 and txn.epoch == 0


def settle(draft: Draft, txn: Transaction, command: EndTransaction, started_ms: int) -> Decision:
    fact = prepare(draft, txn, commit=command.commit, started_ms=started_ms)
    overflows = fact.next_id != NO_PRODUCER_ID
    producer = Producer(fact.next_id, 0) if overflows else Producer(txn.producer_id, fact.epoch)
    why = "commit-settled" if command.commit else "abort-settled"
    if not txn.partitions:
        why = "empty-abort-settled"
    return ended(draft, command, producer, why)


def prepare(draft: Draft, txn: Transaction, *, commit: bool, started_ms: int) -> EndPrepared:
    """Return the EndPrepared of a transaction, its epoch bumped; after the last one another id follows."""
    fact = EndPrepared(
        txn.transactional_id,
        commit,
        epoch=min(txn.epoch + 1, EPOCH_MAX),
        last_epoch=txn.epoch,
        next_id=draft.shard.new_producer_id() if txn.exhausted else NO_PRODUCER_ID,
        client_version=BUMPS_EPOCH_SINCE,
        started_ms=started_ms,
        at_ms=draft.now_ms,
    )
    draft.settle(txn, fact)
    return fact


def fence(draft: Draft, txn: Transaction) -> None:
    """Abort a transaction whose producer did not ask for it."""
    prepare(draft, txn, commit=False, started_ms=txn.started_ms)


# -- before version 5


def old_mistake(draft: Draft, txn: Transaction, command: EndTransaction) -> Decision | None:
    if command.producer.producer_id != txn.producer_id:
        return refused(draft, command, Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id")
    if command.producer.epoch != txn.epoch:
        return refused(draft, command, Code.PRODUCER_FENCED, "stale-epoch")
    return None


def end_in_the_same_epoch(draft: Draft, txn: Transaction, command: EndTransaction) -> Decision:
    """Decide on commit or abort. The producer keeps its epoch."""
    mistake = old_mistake(draft, txn, command)
    if mistake is not None:
        return mistake
    fact = EndPrepared(
        txn.transactional_id,
        command.commit,
        epoch=txn.epoch,
        last_epoch=txn.last_epoch,
        next_id=NO_PRODUCER_ID,
        client_version=0,
        started_ms=txn.started_ms,
        at_ms=draft.now_ms,
    )
    draft.settle(txn, fact)
    why = "old-commit-settled" if command.commit else "old-abort-settled"
    return ended(draft, command, NO_PRODUCER, why)


def refuse_end_without_a_transaction(draft: Draft, txn: Transaction, command: EndTransaction) -> Decision:
    """Refuse: there is no transaction."""
    return old_mistake(draft, txn, command) or refused(
        draft, command, Code.INVALID_TXN_STATE, "no-transaction"
    )


def repeat_the_answer_to_the_same_end(draft: Draft, txn: Transaction, command: EndTransaction) -> Decision:
    """Answer NONE to a request that repeats the last end, and refuse the opposite one."""
    mistake = old_mistake(draft, txn, command)
    if mistake is not None:
        return mistake
    if command.commit == COMMITS[txn.state]:
        return ended(draft, command, NO_PRODUCER, "old-end-repeated")
    return refused(draft, command, Code.INVALID_TXN_STATE, "ended-otherwise")


def have_the_owners_end_retried(draft: Draft, txn: Transaction, command: EndTransaction) -> Decision:
    """Answer CONCURRENT_TRANSACTIONS to the owner: the transaction is being ended."""
    return old_mistake(draft, txn, command) or refused(
        draft, command, Code.CONCURRENT_TRANSACTIONS, "end-under-way"
    )


def ended(draft: Draft, command: EndTransaction, producer: Producer, why: str) -> Decision:
    draft.reply(command.call, ProducerAnswer(Code.NONE, producer))
    return draft.decision(why)


def refused(draft: Draft, command: EndTransaction, code: Code, why: str) -> Decision:
    draft.reply(command.call, ProducerAnswer(code))
    return draft.decision(why)


# -- markers


def complete_the_transaction(draft: Draft, txn: Transaction, command: MarkersWritten) -> Decision:
    """Write that the transaction is complete."""
    draft.apply(EndCompleted(txn.transactional_id, draft.now_ms))
    return draft.decision("transaction-ended")


def ignore_late_markers(draft: Draft, txn: Transaction, command: MarkersWritten) -> Decision:
    """Do nothing: the transaction is not being ended."""
    return draft.decision("markers-passed-over")


def ignore_markers_of_an_unknown_id(draft: Draft, _: None, command: MarkersWritten) -> Decision:
    """Do nothing: the transactional id has been removed."""
    return draft.decision("markers-passed-over")
