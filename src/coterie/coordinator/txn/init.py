"""InitProducerId: who asks becomes the owner of the transactional id, and whoever had it is fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.txn.commands import InitProducerId
from coterie.coordinator.txn.decision import Decision, ProducerAnswer, Reply
from coterie.coordinator.txn.end import fence
from coterie.coordinator.txn.facts import ProducerInitialized
from coterie.coordinator.txn.model import NOBODY, Producer, Transaction, is_exhausted

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Shard


def init_nowhere(shard: Shard, _: None, command: InitProducerId, now_ms: int) -> Decision:
    """Hand out a new producer id, whatever the producer believes to be: nothing is known of it here."""
    producer = Producer(shard.new_producer_id(), 0)
    return initialized(command, producer, NOBODY, now_ms, "transactional-id-created")


def init_idle(shard: Shard, txn: Transaction, command: InitProducerId, now_ms: int) -> Decision:
    """Bump the epoch; give another producer id when none is left; repeat a lost answer (KIP-360)."""
    expected = command.expected
    if not may_ask(txn, expected):
        return refused(command, Code.PRODUCER_FENCED, "other-producer-id")
    if txn.exhausted:
        return rotate(shard, txn, command, now_ms)
    bumped = Producer(txn.producer_id, txn.epoch + 1)
    if expected is None:
        return initialized(command, bumped, NOBODY, now_ms, "producer-replaced")
    if expected.epoch == txn.epoch:
        return initialized(command, bumped, txn.epoch, now_ms, "epoch-bumped")
    if expected.epoch == txn.last_epoch:
        current = Producer(txn.producer_id, txn.epoch)
        return initialized(command, current, txn.last_epoch, now_ms, "init-repeated")
    return refused(command, Code.PRODUCER_FENCED, "stale-epoch")


def may_ask(txn: Transaction, expected: Producer | None) -> bool:
    """Return whether a producer has the id it believes to have, or lost it with its last epoch just now."""
    if expected is None or expected.producer_id == txn.producer_id:
        return True
    return expected.producer_id == txn.previous_id and is_exhausted(expected.epoch)


def rotate(shard: Shard, txn: Transaction, command: InitProducerId, now_ms: int) -> Decision:
    """Go on with another producer id. Apache Kafka has no better answer for a stale producer here."""
    if command.expected is not None and command.expected.epoch != txn.epoch:
        return refused(command, Code.UNKNOWN_SERVER_ERROR, "stale-epoch-of-many")
    last_epoch = NOBODY if command.expected is None else txn.epoch
    producer = Producer(shard.new_producer_id(), 0)
    return initialized(command, producer, last_epoch, now_ms, "producer-id-rotated")


def init_ongoing(shard: Shard, txn: Transaction, command: InitProducerId, now_ms: int) -> Decision:
    """Abort what the producer before left open, and have the new one ask again."""
    if not may_ask(txn, command.expected):
        return refused(command, Code.PRODUCER_FENCED, "other-producer-id")
    fact, markers = fence(shard, txn, now_ms)
    reply = Reply(command.call, ProducerAnswer(Code.CONCURRENT_TRANSACTIONS))
    return Decision("open-transaction-fenced", (fact,), (reply,), markers=(markers,))


def init_ending(shard: Shard, txn: Transaction, command: InitProducerId, now_ms: int) -> Decision:
    """Have the producer ask again: the end of a transaction is under way."""
    return refused(command, Code.CONCURRENT_TRANSACTIONS, "end-under-way")


def initialized(
    command: InitProducerId, producer: Producer, last_epoch: int, now_ms: int, why: str
) -> Decision:
    fact = ProducerInitialized(command.transactional_id, producer, last_epoch, command.timeout_ms, now_ms)
    return Decision(why, (fact,), (Reply(command.call, ProducerAnswer(Code.NONE, producer)),))


def refused(command: InitProducerId, code: Code, why: str) -> Decision:
    return Decision(why, replies=(Reply(command.call, ProducerAnswer(code)),))
