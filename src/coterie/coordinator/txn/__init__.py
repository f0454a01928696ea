"""The transaction coordinator as a pure core, built like that of groups: commands in, decisions out.

A `Shard` holds the transactional ids of one partition of `__transaction_state`. A shell drives it:

    decision = shard.perform(command, now_ms)     facts are applied as they are drafted
    ... set decision.timers, append decision.records, then send decision.replies, write decision.markers
    shard.journal.settle(shard.journal.mark())                    what is appended lasts

Once the markers of a transaction are in every partition's log, the shell says so with `MarkersWritten`. An
append that fails is undone with `undo_to(mark)`, and `append_failed` says what everybody is answered.
`loaded` follows `load`. The state table is `coterie.coordinator.txn.table`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.coordinator.txn.settings import TransactionSettings
    from coterie.coordinator.txn.shard import Shard

__all__ = ["Shard", "TransactionSettings"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: who wants the settings need not load the machine."""
    if name == "Shard":
        from coterie.coordinator.txn.shard import Shard

        return Shard
    if name == "TransactionSettings":
        from coterie.coordinator.txn.settings import TransactionSettings

        return TransactionSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
