"""The consumer-group coordinator as a pure core: commands in, decisions out, facts the only way state moves.

A `Shard` holds the groups and offsets of one partition of `__consumer_offsets`. A shell drives it:

    decision = shard.perform(command, now_ms)     facts are applied as they are drafted
    ... set decision.timers, append decision.records, then send decision.replies
    shard.journal.settle(shard.journal.mark())                    what is appended lasts

An append that fails is undone with `undo_to(mark)`, and `append_failed` says what everybody is answered.
`loaded` follows `load`; `unload` answers everybody who waits. The state table is in `table`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.coordinator.group.settings import GroupSettings
    from coterie.coordinator.group.shard import Shard

__all__ = ["GroupSettings", "Shard"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: who wants the settings need not load the machine."""
    if name == "Shard":
        from coterie.coordinator.group.shard import Shard

        return Shard
    if name == "GroupSettings":
        from coterie.coordinator.group.settings import GroupSettings

        return GroupSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
