"""Where queries stand, and what their memberships are doing, for whoever watches: from Spark's progress,
where the application runs.

    listener = GroupListener(on_rebalance=print)
    spark.streams.addListener(listener)
    listener.latest[query.id]

It also warns of what a source cannot see: that a query in a group keeps state, which follows no partition.
And it tells readers which of their batches are done, so that these are committed at once; a
`BatchEndListener` does nothing else.
"""

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQueryManager

from coterie.spark.batch_ends import tell_end
from coterie.spark.progress import GroupProgress, QueryProgress, documents_of, progress_of

log = logging.getLogger("coterie.spark")

Callback = Callable[[Any], object]
"""Takes a QueryProgress; of a rebalance always a GroupProgress."""


class BatchEndListener(StreamingQueryListener):
    """Tells readers which of their batches are done: those are committed before the next is planned."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: no batch is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Tell whoever has planned the batch, and wait for nothing."""
        for document in documents_of(event.progress):
            tell_end(document)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: Spark logs no offsets while a query is idle."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: whoever read for the query is gone."""


WATCHED: set[str] = set()
"""Sessions of which progress is told to readers, by their ids."""


def watch(spark: SparkSession) -> None:
    """Have the batches of all queries of a session committed as soon as they are done. Once is enough."""
    try:
        session = str(spark._jsparkSession.sessionUUID())
    except (AttributeError, PySparkException):  # over Spark Connect
        session = str(getattr(spark, "session_id", id(spark)))
    if session not in WATCHED:
        spark.streams.addListener(BatchEndListener())
        WATCHED.add(session)


def watch_query(batch: DataFrame, query: str | None) -> None:
    """Watch the session whose query a batch of `foreachBatch` is of: the batch's own is a copy, whose
    listeners hear nothing. Over Spark Connect nothing is done.
    """
    try:
        own: Any = batch.sparkSession
        query_id = own._jvm.java.util.UUID.fromString(query)
        session = own._jsparkSession.sharedState().activeStreamingQueries().get(query_id).sparkSession()
        if (session_id := str(session.sessionUUID())) not in WATCHED:
            StreamingQueryManager(session.streams()).addListener(BatchEndListener())
            WATCHED.add(session_id)
    except Exception as error:  # noqa: BLE001  it is Spark's inside, which others may have built otherwise
        log.debug("batches are committed with the next plan: no session is found to listen to (%r)", error)


class GroupListener(BatchEndListener):
    """Keeps the latest of every query, logs the rebalances of members, and tells whoever asked.

    Queries without a group have no generation and no rebalances; all else is the same.
    """

    def __init__(self, *, on_progress: Callback | None = None, on_rebalance: Callback | None = None) -> None:
        self.latest: dict[UUID, list[QueryProgress]] = {}
        """By query; one entry for each of its sources that is ours, a `GroupProgress` if it is in a group."""
        self._on_progress, self._on_rebalance = on_progress, on_rebalance

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take note of a batch, and tell whoever has planned it."""
        super().onQueryProgress(event)
        found = progress_of(event.progress)
        if not found:
            return
        before = {one.group: one for one in self.latest.get(event.progress.id, ())}
        self.latest[event.progress.id] = found
        for one in found:
            if isinstance(one, GroupProgress):
                self._compare(before.get(one.group), one)
            if self._on_progress is not None:
                self._on_progress(one)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the query."""
        self.latest.pop(event.id, None)

    def _compare(self, before: QueryProgress | None, now: GroupProgress) -> None:
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
