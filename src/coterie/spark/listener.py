"""What a query's membership is doing, for whoever watches: from Spark's progress, where the application runs.

    listener = GroupListener(on_rebalance=print)
    spark.streams.addListener(listener)
    listener.latest[query.id]

It also warns of what a source cannot see: that a query in a group keeps state, which follows no partition.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from coterie.base.ids import TopicPartition
from coterie.spark.source.offsets import GroupDocument, Rebalance

log = logging.getLogger("coterie.spark")

Callback = Callable[["GroupProgress"], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """Where a query and its group stand after a batch."""

    query: UUID
    name: str | None
    batch: int
    document: GroupDocument
    stateful: bool = False

    @property
    def group(self) -> str:
        """The group."""
        return self.document.group

    @property
    def generation(self) -> int:
        """The generation in which the batch was planned."""
        return self.document.generation

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What the query owned then."""
        return frozenset(self.document.owned)

    @property
    def lag(self) -> int:
        """How many offsets of what it owned were left."""
        return sum(self.document.lag.values())

    @property
    def rebalance(self) -> Rebalance:
        """When the generation began for the query, and why it had joined."""
        return self.document.rebalance

    def __str__(self) -> str:
        owned = ", ".join(map(str, sorted(self.owned))) or "nothing"
        who = self.document.instance or self.document.member
        return (
            f"group {self.group} generation {self.generation} since {self.rebalance.at}"
            f" ({self.rebalance.why}): {who} owns {owned}, lag {self.lag}"
        )


def groups_of(progress: StreamingQueryProgress) -> list[GroupProgress]:
    """Return the progress of each group that a query is a member of, as Spark reports it."""
    return [
        GroupProgress(
            query=progress.id,
            name=progress.name,
            batch=progress.batchId,
            document=GroupDocument.of(found, group=found["group"]),
            stateful=bool(progress.stateOperators),
        )
        for source in progress.sources
        if (found := document_of(source.endOffset)) is not None
    ]


def document_of(offset: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the offset document of a member; None for any other source's offset."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
    except json.JSONDecodeError:
        return None
    a_members = isinstance(found, Mapping) and {"group", "ranges", "owned"} <= found.keys()
    return found if a_members else None


class GroupListener(StreamingQueryListener):
    """Keeps the latest of every query that is a member, logs its rebalances, and tells whoever asked."""

    def __init__(self, *, on_progress: Callback | None = None, on_rebalance: Callback | None = None) -> None:
        self.latest: dict[UUID, list[GroupProgress]] = {}
        """By query; one entry for each of its sources that is in a group."""
        self._on_progress, self._on_rebalance = on_progress, on_rebalance

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: the query has not joined yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take note of a batch."""
        found = groups_of(event.progress)
        if not found:
            return
        before = {one.group: one for one in self.latest.get(event.progress.id, ())}
        self.latest[event.progress.id] = found
        for one in found:
            self._compare(before.get(one.group), one)
            if self._on_progress is not None:
                self._on_progress(one)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: Spark logs no offsets while a query is idle."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the query."""
        self.latest.pop(event.id, None)

    def _compare(self, before: GroupProgress | None, now: GroupProgress) -> None:
        if before is None and now.stateful and now.document.instance is None:
            log.warning(
                "query %s keeps state and is a member of group %s: state does not follow a partition to"
                " another application. Let this be the group's only application and make it a static member"
                " (group.instance.id), or leave group.id out",
                now.name or now.query,
                now.group,
            )
        if before is None or before.generation == now.generation:
            return
        log.info("%s", now)
        if now.stateful and before.owned != now.owned:
            moved = ", ".join(map(str, sorted(before.owned ^ now.owned)))
            log.warning("query %s keeps state, and %s moved without it", now.name or now.query, moved)
        if self._on_rebalance is not None:
            self._on_rebalance(now)
