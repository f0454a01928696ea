"""Where in its life a kill hits a task, as the cluster and the checkpoint tell; waiting for such a moment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from enum import Enum

from coterie.base.ids import TopicPartition
from coterie.client.blocking.admin import BlockingAdmin
from interop.spark_kills.copying import Copier

__all__ = ["Moment", "Watch", "demand"]

UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Moment(Enum):
    """Where a batch is."""

    IDLE = "between batches"
    BEFORE = "before a transaction"
    OPEN = "in a transaction"
    WRITTEN = "after its end, before Spark knows"


class Watch:
    """Looks at the copiers' transactions, and at what their group has committed."""

    def __init__(self, admin: BlockingAdmin, *, group: str) -> None:
        self._admin, self._group = admin, group

    def opened(self) -> set[str]:
        """Return the queries that have a transaction under way."""
        found = self._admin.list_transactions(states=UNDER_WAY)
        return {one.transactional_id.removeprefix("coterie-").rpartition("-")[0] for one in found}

    def caught(self, moment: Moment, copiers: Sequence[Copier], *, within_s: float) -> Copier | None:
        """Wait until one of them begins a transaction, or ends one; return which, or None if none did."""
        until, by_query, before = time.monotonic() + within_s, {one.query: one for one in copiers}, set[str]()
        while time.monotonic() < until:
            now = self.opened() & by_query.keys()
            for query in now - before if moment is Moment.OPEN else before - now:
                return by_query[query]
            before = now
        return None

    def moment(self, copier: Copier) -> Moment:
        """Return where it stopped."""
        if copier.query in self.opened():
            return Moment.OPEN
        ranges = copier.under_way()
        if not ranges:
            return Moment.IDLE
        committed = self._admin.list_group_offsets(self._group)
        reached = {one: committed.get(TopicPartition(one[0], one[1]), 0) for one in ranges}
        return Moment.WRITTEN if all(reached[one] >= one[3] for one in ranges) else Moment.BEFORE


def demand(hits: Counter[Moment]) -> None:
    """Raise AssertionError unless the kills hit tasks wherever they can be hit."""
    told = ", ".join(f"{hits[moment]} {moment.value}" for moment in Moment)
    print(f"  kills hit {told}", flush=True)
    assert hits[Moment.OPEN], "no kill left a transaction open"
    for moment in (Moment.BEFORE, Moment.OPEN, Moment.WRITTEN):
        assert hits[moment] >= hits.total() // 25, f"too few kills hit a task {moment.value}"
