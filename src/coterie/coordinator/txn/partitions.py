"""Partitions join a transaction, or are looked for in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.machine.decision import Decision
from coterie.coordinator.txn.commands import AddPartitions, VerifyPartitions
from coterie.coordinator.txn.decision import Draft, PartitionsAnswer, VerifyAnswer
from coterie.coordinator.txn.facts import PartitionsAdded
from coterie.coordinator.txn.model import Producer, Transaction

if TYPE_CHECKING:
    pass


def mistaken(txn: Transaction, producer: Producer) -> tuple[Code, str] | None:
    """Return why a producer is not the owner of the transactional id, None if it is."""
    if producer.producer_id != txn.producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING, "other-producer-id"
    if producer.epoch != txn.epoch:
        return Code.PRODUCER_FENCED, "stale-epoch"
    return None


# -- adding


def refuse_partitions_of_an_unknown_id(draft: Draft, _: None, command: AddPartitions) -> Decision:
    """Refuse: nobody has initialized the transactional id, or it has expired."""
    return added(draft, command, Code.INVALID_PRODUCER_ID_MAPPING, "no-such-transactional-id")


def begin_a_transaction(draft: Draft, txn: Transaction, command: AddPartitions) -> Decision:
    """Begin a transaction with these."""
    mistake = mistaken(txn, command.producer)
    if mistake is not None:
        return added(draft, command, *mistake)
    return joined(draft, command, "transaction-begun")


def add_the_partitions(draft: Draft, txn: Transaction, command: AddPartitions) -> Decision:
    """Let these join; those that are there already cost nothing."""
    mistake = mistaken(txn, command.producer)
    if mistake is not None:
        return added(draft, command, *mistake)
    if txn.has(command.partitions):
        return added(draft, command, Code.NONE, "partitions-there")
    return joined(draft, command, "partitions-joined")


def put_partitions_off(draft: Draft, txn: Transaction, command: AddPartitions) -> Decision:
    """Have the producer ask again, whoever it is: the end of a transaction is under way."""
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
    """Refuse: nobody has initialized the transactional id, or it has expired."""
    return verified_none(draft, command, Code.INVALID_PRODUCER_ID_MAPPING, "no-such-transactional-id")


def verify_the_partitions(draft: Draft, txn: Transaction, command: VerifyPartitions) -> Decision:
    """Say of each partition whether it is in the transaction; outside of it the client has to abort."""
    mistake = mistaken(txn, command.producer)
    if mistake is not None:
        return verified_none(draft, command, *mistake)
    held = txn.partitions
    codes = tuple(Code.NONE if one in held else Code.TRANSACTION_ABORTABLE for one in command.partitions)
    why = "partitions-there" if txn.has(command.partitions) else "partitions-missing"
    draft.reply(command.call, VerifyAnswer(codes))
    return draft.decision(why)


def put_verification_off(draft: Draft, txn: Transaction, command: VerifyPartitions) -> Decision:
    """Have the owner ask again: the end of the transaction is under way."""
    mistake = mistaken(txn, command.producer)
    return verified_none(draft, command, *(mistake or (Code.CONCURRENT_TRANSACTIONS, "end-under-way")))


def verified_none(draft: Draft, command: VerifyPartitions, code: Code, why: str) -> Decision:
    answer = VerifyAnswer((code,) * len(command.partitions))
    draft.reply(command.call, answer)
    return draft.decision(why)
