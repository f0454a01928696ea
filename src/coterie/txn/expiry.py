"""Deadlines of a whole shard: transactions that hang are aborted, transactional ids out of use forgotten.

A shard looks through itself at Kafka's intervals instead of keeping a deadline a transaction: beginning and
ending one costs nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.txn.apply import IDLE
from coterie.txn.commands import Expire
from coterie.txn.decision import Decision, Wake
from coterie.txn.end import fence
from coterie.txn.facts import IdForgotten
from coterie.txn.model import Transaction

if TYPE_CHECKING:
    from coterie.txn.shard import Shard

__all__ = ["IDS", "TIMEOUTS", "IdsDue", "TimeoutsDue", "completion_key", "ids_due", "timeouts_due"]

TIMEOUTS, IDS = ("timeouts",), ("ids",)
TIMELESS_MS = 2**31 - 1  # the timeout of a transaction that another coordinator ends (KIP-939)
AT_ONCE = 1_000  # how many transactional ids one look takes care of; what is left waits for the next


class TimeoutsDue:
    """Expire(("timeouts",)): it is time to look for transactions that hang."""


class IdsDue:
    """Expire(("ids",)): it is time to look for transactional ids that nobody uses."""


def completion_key(transactional_id: str) -> tuple[str, str]:
    """Return the key of the deadline at which a completion is tried again."""
    return ("complete", transactional_id)


def timeouts_due(shard: Shard, _: None, command: Expire, now_ms: int) -> Decision:
    """Abort every transaction that has been open for longer than its producer allowed."""
    hanging = [txn for key in shard.ongoing if (txn := shard.transactions[key]) and hangs(txn, now_ms)][
        :AT_ONCE
    ]
    aborted = [fence(shard, txn, now_ms) for txn in hanging]
    again_ms = 0 if len(hanging) == AT_ONCE else shard.settings.timeouts_interval_ms
    return Decision(
        "hanging-transactions-aborted" if aborted else "no-transaction-hangs",
        tuple(fact for fact, _ in aborted),
        wakes=(Wake(TIMEOUTS, now_ms + again_ms),),
        markers=tuple(markers for _, markers in aborted),
    )


def hangs(txn: Transaction, now_ms: int) -> bool:
    return txn.timeout_ms != TIMELESS_MS and txn.started_ms + txn.timeout_ms < now_ms


def ids_due(shard: Shard, _: None, command: Expire, now_ms: int) -> Decision:
    """Forget the transactional ids that have been idle for too long.

    Nothing goes that is young by either clock: the wall's may be wrong, now or when the broker started.
    """
    limit_ms = now_ms + min(shard.wall_ahead_ms, 0) - shard.settings.id_expiration_ms
    unused = [
        txn.transactional_id
        for txn in shard.transactions.values()
        if txn.updated_ms <= limit_ms and txn.state in IDLE
    ][:AT_ONCE]
    again_ms = 0 if len(unused) == AT_ONCE else shard.settings.ids_interval_ms
    return Decision(
        "unused-ids-forgotten" if unused else "no-id-unused",
        tuple(IdForgotten(transactional_id) for transactional_id in unused),
        wakes=(Wake(IDS, now_ms + again_ms),),
    )
