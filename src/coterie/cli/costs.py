"""What a rebalance cost, in the words that `coterie history` and `coterie groups story` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coterie.base.plain import counted

if TYPE_CHECKING:
    from coterie.story.cost import Cost


def still_text(cost: Cost, span: Callable[[int], str]) -> str:
    """Return the words for what stood still before a rebalance; `span` writes times."""
    text = "no partition stood still"
    if cost.partitions:
        text = f"{counted(cost.partitions, 'partition')} stood still, up to {span(cost.longest_ms)}"
    if cost.silent_ms:
        text += f" ({span(cost.unowned_ms)} of it without an owner)"
    return f"the group was empty for {span(cost.empty_ms)}: {text}" if cost.empty_ms else text
