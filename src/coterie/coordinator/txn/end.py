"""EndTxn: how a transaction ends is settled first, then markers are written, then it has ended.

`end_*` is version 5 of EndTxn, where each end bumps the epoch, so that what is late can do no harm (KIP-890).
`end_old_*` are the versions before, where a repeated request cannot be told from the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.txn.commands import EndTransaction, MarkersWritten
from coterie.coordinator.txn.decision import Decision, Markers, ProducerAnswer, Reply
from coterie.coordinator.txn.facts import EndCompleted, EndPrepared
from coterie.coordinator.txn.model import (
    BUMPS_EPOCH_SINCE,
    EPOCH_MAX,
    NOBODY,
    Producer,
    State,
    Transaction,
)

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Shard

COMMITS = {State.COMPLETE_COMMIT: True, State.COMPLETE_ABORT: False}


class EndTransactionBeforeV5:
    """EndTxn in the versions that bump no epoch."""


def end_nowhere(shard: Shard, _: None, command: EndTransaction, now_ms: int) -> Decision:
    """Refuse: nobody has initialized the transactional id, or it has expired."""
    return refused(command, Code.INVALID_PRODUCER_ID_MAPPING, "no-such-transactional-id")


# -- version 5


def end_ongoing(shard: Shard, txn: Transaction, command: EndTransaction, now_ms: int) -> Decision:
    """Settle the end, bump the epoch, and tell the producer its new one."""
    if command.producer.producer_id != txn.producer_id and not repeats_overflow(txn, command):
        return refused(command, Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id")
    if command.producer.epoch != txn.epoch:
        return refused(command, Code.PRODUCER_FENCED, "stale-epoch")
    return settle(shard, txn, command, txn.started_ms, now_ms)


def end_empty(shard: Shard, txn: Transaction, command: EndTransaction, now_ms: int) -> Decision:
    """Let a producer abort what never began, which fences whatever it sent; there is nothing to commit."""
    if command.producer.producer_id != txn.producer_id and not repeats_overflow(txn, command):
        return refused(command, Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id")
    if command.producer.epoch != txn.epoch:
        return refused(command, Code.PRODUCER_FENCED, "stale-epoch")
    if command.commit:
        return refused(command, Code.INVALID_TXN_STATE, "nothing-to-commit")
    return settle(shard, txn, command, now_ms, now_ms)


def end_complete(shard: Shard, txn: Transaction, command: EndTransaction, now_ms: int) -> Decision:
    """Repeat a lost answer, abort what never began, and refuse whatever contradicts the last end."""
    repeated = command.producer.epoch + 1 == txn.epoch
    overflowed = repeats_overflow(txn, command)
    if command.producer.producer_id != txn.producer_id and not overflowed:
        return refused(command, Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id")
    repeated = repeated or overflowed
    if not repeated and command.producer.epoch != txn.epoch:
        return refused(command, Code.PRODUCER_FENCED, "stale-epoch")
    if repeated and command.commit == COMMITS[txn.state]:
        return told(command, Producer(txn.producer_id, txn.epoch), "end-repeated")
    if repeated:
        return refused(command, Code.INVALID_TXN_STATE, "ended-otherwise")
    if command.commit:
        return refused(command, Code.INVALID_TXN_STATE, "nothing-to-commit")
    return settle(shard, txn, command, now_ms, now_ms)


def end_ending(shard: Shard, txn: Transaction, command: EndTransaction, now_ms: int) -> Decision:
    """Have the producer ask again, whoever it is: the end is under way."""
    return refused(command, Code.CONCURRENT_TRANSACTIONS, "end-under-way")


def repeats_overflow(txn: Transaction, command: EndTransaction) -> bool:
    """Return whether this repeats an end that used up the last epoch: the producer has another id by now."""
    sender = command.producer
    return sender.producer_id == txn.previous_id and sender.epoch == EPOCH_MAX - 1 and txn.epoch == 0


def settle(shard: Shard, txn: Transaction, command: EndTransaction, started_ms: int, now_ms: int) -> Decision:
    fact, markers = prepare(shard, txn, commit=command.commit, started_ms=started_ms, now_ms=now_ms)
    overflows = fact.next_id != NOBODY
    producer = Producer(fact.next_id, 0) if overflows else Producer(txn.producer_id, fact.epoch)
    why = "commit-settled" if command.commit else "abort-settled"
    if not txn.partitions:
        why = "empty-abort-settled"
    reply = Reply(command.call, ProducerAnswer(Code.NONE, producer))
    return Decision(why, (fact,), (reply,), markers=(markers,))


def prepare(
    shard: Shard, txn: Transaction, *, commit: bool, started_ms: int, now_ms: int
) -> tuple[EndPrepared, Markers]:
    """Return the end of a transaction under a bumped epoch; the last one has another producer id follow."""
    fact = EndPrepared(
        txn.transactional_id,
        commit,
        epoch=min(txn.epoch + 1, EPOCH_MAX),
        last_epoch=txn.epoch,
        next_id=shard.new_producer_id() if txn.exhausted else NOBODY,
        client_version=BUMPS_EPOCH_SINCE,
        started_ms=started_ms,
        at_ms=now_ms,
    )
    return fact, markers_of(txn, fact)


def markers_of(txn: Transaction, fact: EndPrepared) -> Markers:
    producer = Producer(txn.producer_id, fact.epoch)
    return Markers(txn.transactional_id, producer, fact.commit, tuple(txn.partitions), fact.client_version)


def fence(shard: Shard, txn: Transaction, now_ms: int) -> tuple[EndPrepared, Markers]:
    """Return the abort of a transaction that its producer did not ask for."""
    return prepare(shard, txn, commit=False, started_ms=txn.started_ms, now_ms=now_ms)


# -- before version 5


def old_mistake(txn: Transaction, command: EndTransaction) -> Decision | None:
    if command.producer.producer_id != txn.producer_id:
        return refused(command, Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id")
    if command.producer.epoch != txn.epoch:
        return refused(command, Code.PRODUCER_FENCED, "stale-epoch")
    return None


def end_old_ongoing(shard: Shard, txn: Transaction, command: EndTransaction, now_ms: int) -> Decision:
    """Settle the end; the producer goes on with its epoch."""
    mistake = old_mistake(txn, command)
    if mistake is not None:
        return mistake
    fact = EndPrepared(
        txn.transactional_id,
        command.commit,
        epoch=txn.epoch,
        last_epoch=txn.last_epoch,
        next_id=NOBODY,
        client_version=0,
        started_ms=txn.started_ms,
        at_ms=now_ms,
    )
    why = "old-commit-settled" if command.commit else "old-abort-settled"
    reply = Reply(command.call, ProducerAnswer(Code.NONE))
    return Decision(why, (fact,), (reply,), markers=(markers_of(txn, fact),))


def end_old_empty(shard: Shard, txn: Transaction, command: EndTransaction, now_ms: int) -> Decision:
    """Refuse: there is no transaction."""
    return old_mistake(txn, command) or refused(command, Code.INVALID_TXN_STATE, "no-transaction")


def end_old_complete(shard: Shard, txn: Transaction, command: EndTransaction, now_ms: int) -> Decision:
    """Agree with who asks for the end that there was, and refuse the other."""
    mistake = old_mistake(txn, command)
    if mistake is not None:
        return mistake
    if command.commit == COMMITS[txn.state]:
        return told(command, Producer(NOBODY, NOBODY), "old-end-repeated")
    return refused(command, Code.INVALID_TXN_STATE, "ended-otherwise")


def end_old_ending(shard: Shard, txn: Transaction, command: EndTransaction, now_ms: int) -> Decision:
    """Have the owner ask again: the end is under way."""
    return old_mistake(txn, command) or refused(command, Code.CONCURRENT_TRANSACTIONS, "end-under-way")


def told(command: EndTransaction, producer: Producer, why: str) -> Decision:
    return Decision(why, replies=(Reply(command.call, ProducerAnswer(Code.NONE, producer)),))


def refused(command: EndTransaction, code: Code, why: str) -> Decision:
    return Decision(why, replies=(Reply(command.call, ProducerAnswer(code)),))


# -- markers


def complete(shard: Shard, txn: Transaction, command: MarkersWritten, now_ms: int) -> Decision:
    """Note that the transaction has ended."""
    return Decision("transaction-ended", (EndCompleted(txn.transactional_id, now_ms),))


def pass_over(shard: Shard, txn: Transaction, command: MarkersWritten, now_ms: int) -> Decision:
    """Do nothing: no end is under way."""
    return Decision("markers-passed-over")


def marked_nowhere(shard: Shard, _: None, command: MarkersWritten, now_ms: int) -> Decision:
    """Do nothing: the transactional id is gone."""
    return Decision("markers-passed-over")
