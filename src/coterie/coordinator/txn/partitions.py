"""Partitions join a transaction, or are looked for in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.txn.commands import AddPartitions, VerifyPartitions
from coterie.coordinator.txn.decision import Decision, PartitionsAnswer, Reply, VerifyAnswer
from coterie.coordinator.txn.facts import PartitionsAdded
from coterie.coordinator.txn.model import Producer, Transaction

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Shard


def mistaken(txn: Transaction, producer: Producer) -> tuple[Code, str] | None:
    """Return why a producer is not the owner of the transactional id, None if it is."""
    if producer.producer_id != txn.producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id"
    if producer.epoch != txn.epoch:
        return Code.PRODUCER_FENCED, "stale-epoch"
    return None


# -- adding


def add_nowhere(shard: Shard, _: None, command: AddPartitions, now_ms: int) -> Decision:
    """Refuse: nobody has initialized the transactional id, or it has expired."""
    return added(command, Code.INVALID_PRODUCER_ID_MAPPING, "no-such-transactional-id")


def add_idle(shard: Shard, txn: Transaction, command: AddPartitions, now_ms: int) -> Decision:
    """Begin a transaction with these."""
    mistake = mistaken(txn, command.producer)
    if mistake is not None:
        return added(command, *mistake)
    return joined(command, now_ms, "transaction-begun")


def add_ongoing(shard: Shard, txn: Transaction, command: AddPartitions, now_ms: int) -> Decision:
    """Let these join; those that are there already cost nothing."""
    mistake = mistaken(txn, command.producer)
    if mistake is not None:
        return added(command, *mistake)
    if txn.has(command.partitions):
        return added(command, Code.NONE, "partitions-there")
    return joined(command, now_ms, "partitions-joined")


def add_ending(shard: Shard, txn: Transaction, command: AddPartitions, now_ms: int) -> Decision:
    """Have the producer ask again, whoever it is: the end of a transaction is under way."""
    return added(command, Code.CONCURRENT_TRANSACTIONS, "end-under-way")


def joined(command: AddPartitions, now_ms: int, why: str) -> Decision:
    fact = PartitionsAdded(command.transactional_id, command.partitions, command.client_version, now_ms)
    return Decision(why, (fact,), (Reply(command.call, PartitionsAnswer(Code.NONE)),))


def added(command: AddPartitions, code: Code, why: str) -> Decision:
    return Decision(why, replies=(Reply(command.call, PartitionsAnswer(code)),))


# -- verifying


def verify_nowhere(shard: Shard, _: None, command: VerifyPartitions, now_ms: int) -> Decision:
    """Refuse: nobody has initialized the transactional id, or it has expired."""
    return verified_none(command, Code.INVALID_PRODUCER_ID_MAPPING, "no-such-transactional-id")


def verify(shard: Shard, txn: Transaction, command: VerifyPartitions, now_ms: int) -> Decision:
    """Say of each partition whether it is in the transaction; outside of it the client has to abort."""
    mistake = mistaken(txn, command.producer)
    if mistake is not None:
        return verified_none(command, *mistake)
    held = txn.partitions
    codes = tuple(Code.NONE if one in held else Code.TRANSACTION_ABORTABLE for one in command.partitions)
    why = "partitions-there" if txn.has(command.partitions) else "partitions-missing"
    return Decision(why, replies=(Reply(command.call, VerifyAnswer(codes)),))


def verify_ending(shard: Shard, txn: Transaction, command: VerifyPartitions, now_ms: int) -> Decision:
    """Have the owner ask again: the end of the transaction is under way."""
    mistake = mistaken(txn, command.producer)
    return verified_none(command, *(mistake or (Code.CONCURRENT_TRANSACTIONS, "end-under-way")))


def verified_none(command: VerifyPartitions, code: Code, why: str) -> Decision:
    answer = VerifyAnswer((code,) * len(command.partitions))
    return Decision(why, replies=(Reply(command.call, answer),))
