"""Deadlines of a whole shard: transactions that hang are aborted, transactional ids out of use forgotten.

A shard looks through itself at Kafka's intervals instead of keeping a deadline a transaction: beginning and
ending one costs nothing for it. A look names what it finds and changes nothing; each of those is then seen to
by a command of its own. So none of them is in the way of another: they may be too many for one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.coordinator.txn.apply import IDLE
from coterie.coordinator.txn.commands import Expire
from coterie.coordinator.txn.decision import Decision, Wake
from coterie.coordinator.txn.end import fence
from coterie.coordinator.txn.facts import IdForgotten
from coterie.coordinator.txn.model import Transaction

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Shard

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


def timeouts_due(shard: Shard, _: None, command: Expire, now_ms: int) -> Decision:
    """Name every transaction that has been open for longer than its producer allowed."""
    hanging = tuple(key for key in shard.ongoing if hangs(shard.transactions[key], now_ms))
    return Decision(
        "hanging-transactions-found" if hanging else "no-transaction-hangs",
        wakes=(Wake(TIMEOUTS, now_ms + shard.settings.timeouts_interval_ms),),
        overdue=hanging,
    )


def abort_hanging(shard: Shard, txn: Transaction, command: Expire, now_ms: int) -> Decision:
    """Abort the transaction and fence its producer, unless it is another one by now."""
    if not hangs(txn, now_ms):
        return otherwise(shard, txn, command, now_ms)
    fact, markers = fence(shard, txn, now_ms)
    return Decision("hanging-transaction-aborted", (fact,), markers=(markers,))


def hangs(txn: Transaction, now_ms: int) -> bool:
    return txn.timeout_ms != TIMELESS_MS and txn.started_ms + txn.timeout_ms < now_ms


def ids_due(shard: Shard, _: None, command: Expire, now_ms: int) -> Decision:
    """Name the transactional ids that have been idle for too long."""
    limit_ms = unused_since_ms(shard, now_ms)
    unused = tuple(
        txn.transactional_id
        for txn in shard.transactions.values()
        if txn.updated_ms <= limit_ms and txn.state in IDLE
    )
    return Decision(
        "unused-ids-found" if unused else "no-id-unused",
        wakes=(Wake(IDS, now_ms + shard.settings.ids_interval_ms),),
        overdue=unused,
    )


def forget_unused(shard: Shard, txn: Transaction, command: Expire, now_ms: int) -> Decision:
    """Forget the transactional id, unless somebody has used it since."""
    if txn.updated_ms > unused_since_ms(shard, now_ms):
        return otherwise(shard, txn, command, now_ms)
    return Decision("unused-id-forgotten", (IdForgotten(txn.transactional_id),))


def unused_since_ms(shard: Shard, now_ms: int) -> int:
    """Return when an id has to have been used last to go now.

    Nothing goes that is young by either clock: the wall's may be wrong, now or when the broker started.
    """
    return now_ms + min(shard.wall_ahead_ms, 0) - shard.settings.id_expiration_ms


def otherwise(shard: Shard, txn: Transaction, command: Expire, now_ms: int) -> Decision:
    """Do nothing: it is otherwise by now."""
    return Decision("look-outdated")


def otherwise_nowhere(shard: Shard, _: None, command: Expire, now_ms: int) -> Decision:
    """Do nothing: the transactional id is gone."""
    return Decision("look-outdated")
