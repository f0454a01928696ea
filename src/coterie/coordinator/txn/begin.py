"""How a transaction begins: somebody owns the transactional id, and partitions join or are looked for.

Who asks with InitProducerId becomes the owner, and whoever had it is fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.machine import Decision
from coterie.coordinator.txn.commands import (
    AddPartitions,
    InitProducerId,
    PartitionsAnswer,
    ProducerAnswer,
    VerifyAnswer,
    VerifyPartitions,
)
from coterie.coordinator.txn.end import fence
from coterie.coordinator.txn.facts import PartitionsAdded, ProducerInitialized
from coterie.coordinator.txn.model import NO_PRODUCER_EPOCH, Producer, Transaction, is_exhausted

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Draft

# -- InitProducerId


def give_a_new_producer_id(draft: Draft, _: None, command: InitProducerId) -> Decision:
    """Assign a new producer id, whichever id the client sends: nothing is known about it here."""
    producer = Producer(draft.shard.new_producer_id(), 0)
    return initialized(draft, command, producer, NO_PRODUCER_EPOCH, "transactional-id-created")


def bump_the_epoch(draft: Draft, txn: Transaction, command: InitProducerId) -> Decision:
    """Bump the epoch, assign another producer id if no epoch is left, or repeat a lost answer (KIP-360)."""
    expected = command.expected
    if not may_ask(txn, expected):
        return refused(draft, command, Code.PRODUCER_FENCED, "other-producer-id")
    if txn.exhausted:
        return rotate(draft, txn, command)
    bumped = Producer(txn.producer_id, txn.epoch + 1)
    if expected is None:
        return initialized(draft, command, bumped, NO_PRODUCER_EPOCH, "producer-replaced")
    if expected.epoch == txn.epoch:
        return initialized(draft, command, bumped, txn.epoch, "epoch-bumped")
    if expected.epoch == txn.last_epoch:
        current = Producer(txn.producer_id, txn.epoch)
        return initialized(draft, command, current, txn.last_epoch, "init-repeated")
    return refused(draft, command, Code.PRODUCER_FENCED, "stale-epoch")


def may_ask(txn: Transaction, expected: Producer | None) -> bool:
    """Return whether a producer has the id it believes to have, or lost it with its last epoch just now."""
    if expected is None or expected.producer_id == txn.producer_id:
        return True
    return expected.producer_id == txn.previous_id and is_exhausted(expected.epoch)


def rotate(draft: Draft, txn: Transaction, command: InitProducerId) -> Decision:
    """Go on with another producer id. Apache Kafka has no better answer for a stale producer here."""
    if command.expected is not None and command.expected.epoch != txn.epoch:
        return refused(draft, command, Code.UNKNOWN_SERVER_ERROR, "stale-epoch-of-many")
    last_epoch = NO_PRODUCER_EPOCH if command.expected is None else txn.epoch
    producer = Producer(draft.shard.new_producer_id(), 0)
    return initialized(draft, command, producer, last_epoch, "producer-id-rotated")


def abort_the_open_transaction(draft: Draft, txn: Transaction, command: InitProducerId) -> Decision:
    """Abort the transaction that the earlier producer left open, and answer CONCURRENT_TRANSACTIONS."""
    if not may_ask(txn, command.expected):
        return refused(draft, command, Code.PRODUCER_FENCED, "other-producer-id")
    fence(draft, txn)
    return refused(draft, command, Code.CONCURRENT_TRANSACTIONS, "open-transaction-fenced")


def have_init_retried(draft: Draft, txn: Transaction, command: InitProducerId) -> Decision:
    """Answer CONCURRENT_TRANSACTIONS: the last transaction is still being ended."""
    return refused(draft, command, Code.CONCURRENT_TRANSACTIONS, "end-under-way")


def initialized(
    draft: Draft, command: InitProducerId, producer: Producer, last_epoch: int, why: str
) -> Decision:
    name, timeout_ms = command.transactional_id, command.timeout_ms
    draft.apply(ProducerInitialized(name, producer, last_epoch, timeout_ms, draft.now_ms))
    draft.reply(command.call, ProducerAnswer(Code.NONE, producer))
    return draft.decision(why)


def refused(draft: Draft, command: InitProducerId, code: Code, why: str) -> Decision:
    draft.reply(command.call, ProducerAnswer(code))
    return draft.decision(why)


# -- partitions


def mistaken(txn: Transaction, producer: Producer) -> tuple[Code, str] | None:
    """Return why a producer is not the owner of the transactional id, None if it is."""
    if producer.producer_id != txn.producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id"
    if producer.epoch != txn.epoch:
        return Code.PRODUCER_FENCED, "stale-epoch"
    return None


# -- adding


def refuse_partitions_of_an_unknown_id(draft: Draft, _: None, command: AddPartitions) -> Decision:
    """Refuse: no producer has initialized the transactional id, or it has expired."""
    return added(draft, command, Code.INVALID_PRODUCER_ID_MAPPING, "no-such-transactional-id")


def begin_a_transaction(draft: Draft, txn: Transaction, command: AddPartitions) -> Decision:
    """Begin a transaction with these partitions."""
    mistake = mistaken(txn, command.producer)
    if mistake is not None:
        return added(draft, command, *mistake)
    return joined(draft, command, "transaction-begun")


def add_the_partitions(draft: Draft, txn: Transaction, command: AddPartitions) -> Decision:
    """Add these partitions to the transaction. If all are in it already, nothing is written."""
    mistake = mistaken(txn, command.producer)
    if mistake is not None:
        return added(draft, command, *mistake)
    if txn.has(command.partitions):
        return added(draft, command, Code.NONE, "partitions-there")
    return joined(draft, command, "partitions-joined")


def have_partitions_retried(draft: Draft, txn: Transaction, command: AddPartitions) -> Decision:
    """Answer CONCURRENT_TRANSACTIONS, to the owner and to any other: a transaction is being ended."""
    return added(draft, command, Code.CONCURRENT_TRANSACTIONS, "end-under-way")


def joined(draft: Draft, command: AddPartitions, why: str) -> Decision:
    name, version = command.transactional_id, command.client_version
    draft.apply(PartitionsAdded(name, command.partitions, version, draft.now_ms))
    return added(draft, command, Code.NONE, why)


def added(draft: Draft, command: AddPartitions, code: Code, why: str) -> Decision:
    draft.reply(command.call, PartitionsAnswer(code))
    return draft.decision(why)


# -- verifying


def refuse_to_verify_an_unknown_id(draft: Draft, _: None, command: VerifyPartitions) -> Decision:
    """Refuse: no producer has initialized the transactional id, or it has expired."""
    return verified_none(draft, command, Code.INVALID_PRODUCER_ID_MAPPING, "no-such-transactional-id")


def verify_the_partitions(draft: Draft, txn: Transaction, command: VerifyPartitions) -> Decision:
    """Answer for each partition whether it is in the transaction. If one is not, the client has to abort."""
    mistake = mistaken(txn, command.producer)
    if mistake is not None:
        return verified_none(draft, command, *mistake)
    held = txn.partitions
    codes = tuple(Code.NONE if one in held else Code.TRANSACTION_ABORTABLE for one in command.partitions)
    why = "partitions-there" if txn.has(command.partitions) else "partitions-missing"
    draft.reply(command.call, VerifyAnswer(codes))
    return draft.decision(why)


def have_verification_retried(draft: Draft, txn: Transaction, command: VerifyPartitions) -> Decision:
    """Answer CONCURRENT_TRANSACTIONS to the owner: the transaction is being ended."""
    mistake = mistaken(txn, command.producer)
    return verified_none(draft, command, *(mistake or (Code.CONCURRENT_TRANSACTIONS, "end-under-way")))


def verified_none(draft: Draft, command: VerifyPartitions, code: Code, why: str) -> Decision:
    answer = VerifyAnswer((code,) * len(command.partitions))
    draft.reply(command.call, answer)
    return draft.decision(why)
