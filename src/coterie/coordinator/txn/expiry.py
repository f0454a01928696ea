"""Deadlines of a whole shard: transactions that hang are aborted, transactional ids out of use forgotten.

A shard looks through itself at Kafka's intervals instead of keeping a deadline a transaction: beginning and
ending one costs nothing for it. A look names what it finds and changes nothing; each of those is then seen to
by a command of its own. So none of them is in the way of another: they may be too many for one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.coordinator.machine import Decision
from coterie.coordinator.txn.apply import IDLE
from coterie.coordinator.txn.commands import Expire
from coterie.coordinator.txn.end import fence
from coterie.coordinator.txn.facts import IdForgotten
from coterie.coordinator.txn.model import Transaction

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Draft

TIMEOUTS, IDS = ("timeouts",), ("ids",)
TIMELESS_MS = 2**31 - 1  # the timeout of a transaction that another coordinator ends (KIP-939)


class TimeoutsDue:
    """Expire(("timeouts",)): it is time to look for transactions that hang."""


class TimeoutDue:
    """Expire(("timeouts", transactional id)): a look has found that its transaction hangs."""


class IdsDue:
    """Expire(("ids",)): it is time to look for transactional ids that nobody uses."""


class IdDue:
    """Expire(("ids", transactional id)): a look has found that nobody uses it."""


def completion_key(transactional_id: str) -> tuple[str, str]:
    """Return the key of the deadline at which a completion is tried again."""
    return ("complete", transactional_id)


def find_hanging_transactions(draft: Draft, _: None, command: Expire) -> Decision:
    """Find transactions that have been open for longer than their timeout; TimeoutDue then aborts each."""
    shard, now_ms = draft.shard, draft.now_ms
    draft.overdue = tuple(key for key in shard.ongoing if hangs(shard.transactions[key], now_ms))
    draft.arm(TIMEOUTS, now_ms + shard.settings.timeouts_interval_ms)
    return draft.decision("hanging-transactions-found" if draft.overdue else "no-transaction-hangs")


def abort_a_hanging_transaction(draft: Draft, txn: Transaction, command: Expire) -> Decision:
    """Abort the transaction and fence its producer, if it is still the one that timed out."""
    if not hangs(txn, draft.now_ms):
        return ignore_an_outdated_check(draft, txn, command)
    fence(draft, txn)
    return draft.decision("hanging-transaction-aborted")


def hangs(txn: Transaction, now_ms: int) -> bool:
    return txn.timeout_ms != TIMELESS_MS and txn.started_ms + txn.timeout_ms < now_ms


def find_unused_ids(draft: Draft, _: None, command: Expire) -> Decision:
    """Find the transactional ids that have been unused for too long; IdDue then removes each."""
    shard, limit_ms = draft.shard, unused_since_ms(draft)
    draft.overdue = tuple(
        txn.transactional_id
        for txn in shard.transactions.values()
        if txn.updated_ms <= limit_ms and txn.state in IDLE
    )
    draft.arm(IDS, draft.now_ms + shard.settings.ids_interval_ms)
    return draft.decision("unused-ids-found" if draft.overdue else "no-id-unused")


def forget_an_unused_id(draft: Draft, txn: Transaction, command: Expire) -> Decision:
    """Remove the transactional id, unless it has been used since."""
    if txn.updated_ms > unused_since_ms(draft):
        return ignore_an_outdated_check(draft, txn, command)
    draft.apply(IdForgotten(txn.transactional_id))
    return draft.decision("unused-id-forgotten")


def unused_since_ms(draft: Draft) -> int:
    """Return the time, in ms, since which an id must not have been used to go now.

    Nothing goes that is young by either clock: the wall's may be wrong, now or when the broker started.
    """
    shard = draft.shard
    return draft.now_ms + min(shard.wall_ahead_ms, 0) - shard.settings.id_expiration_ms


def ignore_an_outdated_check(draft: Draft, txn: Transaction, command: Expire) -> Decision:
    """Do nothing: the state has changed since the check."""
    return draft.decision("look-outdated")


def ignore_an_unknown_id(draft: Draft, _: None, command: Expire) -> Decision:
    """Do nothing: the transactional id has been removed."""
    return draft.decision("look-outdated")
