"""DescribeTransactions and ListTransactions: what can be seen from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.machine import Decision
from coterie.coordinator.txn.commands import Describe, DescribeAnswer
from coterie.coordinator.txn.model import Producer, State, Transaction
from coterie.coordinator.txn.records import dated

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Draft, Shard


def describe_an_unknown_id(draft: Draft, _: Transaction | None, command: Describe) -> Decision:
    """Answer TRANSACTIONAL_ID_NOT_FOUND."""
    answer = DescribeAnswer(Code.TRANSACTIONAL_ID_NOT_FOUND)
    draft.reply(command.call, answer)
    return draft.decision("no-such-transactional-id")


def describe_the_transaction(draft: Draft, txn: Transaction, command: Describe) -> Decision:
    """Answer with the state, the producer and the partitions of the transactional id."""
    answer = DescribeAnswer(
        Code.NONE,
        txn.state.value,
        txn.timeout_ms,
        dated(txn.started_ms, draft.shard.wall_ahead_ms),
        Producer(txn.producer_id, txn.epoch),
        tuple(txn.partitions),
    )
    draft.reply(command.call, answer)
    return draft.decision("described")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What ListTransactions asks for. Nothing in a set, and a negative duration, means anything goes."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = -1

    def passes(self, txn: Transaction, now_ms: int) -> bool:
        """Return whether the transactional id is asked for."""
        if txn.state is State.DEAD:
            return False
        if self.producer_ids and txn.producer_id not in self.producer_ids:
            return False
        if self.states and txn.state.value not in self.states:
            return False
        return self.longer_than_ms < 0 or now_ms - txn.started_ms > self.longer_than_ms


def listed(shards: Iterable[Shard], wanted: Filter, now_ms: int) -> Iterator[Transaction]:
    """Yield the transactional ids that a filter lets through."""
    for shard in shards:
        yield from (txn for txn in shard.transactions.values() if wanted.passes(txn, now_ms))
