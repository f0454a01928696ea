"""InitProducerId: who asks becomes the owner of the transactional id, and whoever had it is fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.machine.decision import Decision
from coterie.coordinator.txn.commands import InitProducerId
from coterie.coordinator.txn.decision import Draft, ProducerAnswer
from coterie.coordinator.txn.end import fence
from coterie.coordinator.txn.facts import ProducerInitialized
from coterie.coordinator.txn.model import NO_PRODUCER_ID, Producer, Transaction, is_exhausted

if TYPE_CHECKING:
    pass


def give_a_new_producer_id(draft: Draft, _: None, command: InitProducerId) -> Decision:
    """Hand out a new producer id, whatever the producer believes to be: nothing is known of it here."""
    producer = Producer(draft.shard.new_producer_id(), 0)
    return initialized(draft, command, producer, NO_PRODUCER_ID, "transactional-id-created")


def bump_the_epoch(draft: Draft, txn: Transaction, command: InitProducerId) -> Decision:
    """Bump the epoch; give another producer id when none is left; repeat a lost answer (KIP-360)."""
    expected = command.expected
    if not may_ask(txn, expected):
        return refused(draft, command, Code.PRODUCER_FENCED, "other-producer-id")
    if txn.exhausted:
        return rotate(draft, txn, command)
    bumped = Producer(txn.producer_id, txn.epoch + 1)
    if expected is None:
        return initialized(draft, command, bumped, NO_PRODUCER_ID, "producer-replaced")
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
    last_epoch = NO_PRODUCER_ID if command.expected is None else txn.epoch
    producer = Producer(draft.shard.new_producer_id(), 0)
    return initialized(draft, command, producer, last_epoch, "producer-id-rotated")


def abort_what_is_open(draft: Draft, txn: Transaction, command: InitProducerId) -> Decision:
    """Abort what the producer before left open, and have the new one ask again."""
    if not may_ask(txn, command.expected):
        return refused(draft, command, Code.PRODUCER_FENCED, "other-producer-id")
    fence(draft, txn)
    return refused(draft, command, Code.CONCURRENT_TRANSACTIONS, "open-transaction-fenced")


def put_init_off(draft: Draft, txn: Transaction, command: InitProducerId) -> Decision:
    """Have the producer ask again: the end of a transaction is under way."""
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
