"""Where queries stand, and what their memberships are doing, for whoever watches: from Spark's progress,
where the application runs.

    listener = GroupListener(on_rebalance=print)
    spark.streams.addListener(listener)
    listener.latest[query.id]

It also refuses what a source cannot see: that a query in a group keeps state, which follows no partition.
And it tells readers which of their batches are done, so that these are committed at once. A
`BatchEndListener` does these two, and keeps nothing.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQueryManager

from coterie.spark.batch_ends import tell_end, tell_refusal
from coterie.spark.guards import QueryRefused, refusal_of
from coterie.spark.progress import (
    GroupProgress,
    QueryProgress,
    documents_of,
    is_members,
    json_of,
    progress_of,
)
from coterie.spark.watched import jvm_of_session, mark_watched

log = logging.getLogger("coterie.spark")

FAILS_WITHIN_S = 5.0
"""So long a query that is refused has to fail by itself, which it does when it asks for its next batch."""

Callback = Callable[[Any], object]
"""Takes a QueryProgress; of a rebalance always a GroupProgress."""


class BatchEndListener(StreamingQueryListener):
    """Tells readers which of their batches are done: those are committed before the next is planned. A query
    that must not be in its group (`coterie.spark.guards`) is refused instead, and commits nothing.
    """

    def __init__(self) -> None:
        self._refused: set[UUID] = set()
        """Runs of queries that were refused, and have not ended yet."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Have the query's readers know that somebody looks at its first batch."""
        note_that_queries_are_watched()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Tell whoever has planned the batch, and wait for nothing; or that the query is refused."""
        documents = [*documents_of(event.progress)]
        refusal = refusal_of(documents, stateful=bool(event.progress.stateOperators))
        if refusal is None:
            for document in documents:
                tell_end(document)
        else:
            self._refuse(event.progress, documents, refusal)

    def _refuse(
        self, progress: StreamingQueryProgress, documents: Sequence[Mapping[str, Any]], refusal: QueryRefused
    ) -> None:
        """Have the query fail when it asks for its next batch; or stop it, if that takes long."""
        heard = [tell_refusal(document, refusal.guard) for document in documents]
        if progress.runId not in self._refused:
            self._refused.add(progress.runId)
            log.error("query %s is refused: %s", progress.name or progress.id, refusal)
            run = [self.spark, str(progress.id), str(progress.runId)]
            # No reader that hears of it, over Spark Connect from another machine, fails by itself.
            timer = threading.Timer(FAILS_WITHIN_S if any(heard) else 0, stop_run, run)
            timer.daemon = True
            timer.start()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: Spark logs no offsets while a query is idle."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the query: whoever read for it is gone."""
        self._refused.discard(event.runId)


def note_that_queries_are_watched() -> None:
    """Have readers on this machine wait for what is found of their first batch."""
    with suppress(Exception):  # it is Spark's inside: without it the listener is heard all the same
        mark_watched(jvm_of_session())


def over_connect(session: Any) -> bool:
    """Return whether a session is a client's of Spark Connect, which has no JVM."""
    try:
        return session._jsparkSession is None
    except (AttributeError, PySparkException):
        return True


def stop_run(session: Any, query: str, run: str) -> None:
    """Stop a run of a query that has not ended by itself; a later one may be well."""
    try:
        if session is not None and over_connect(session):
            there = session.streams.get(query)
            if there is not None and there.runId == run:
                there.stop()
            return
        session = SparkSession._instantiatedSession
        query_id = session._jvm.java.util.UUID.fromString(query)
        running = session._jsparkSession.sharedState().activeStreamingQueries().get(query_id)
        if running is not None and str(running.runId()) == run:
            running.stop()
    except Exception as error:  # noqa: BLE001  as above; a server that is gone has no query
        log.debug("query %s is not stopped: %r", query, error)


WATCHED: set[str] = set()
"""Sessions of which progress is told to readers, by their ids."""


def watch(spark: SparkSession) -> None:
    """Have the batches of all queries of a session committed as soon as they are done. Once is enough."""
    own: Any = spark
    session = own.session_id if over_connect(own) else str(own._jsparkSession.sessionUUID())
    note_that_queries_are_watched()
    if session not in WATCHED:
        spark.streams.addListener(BatchEndListener())
        WATCHED.add(session)


def watch_query(batch: DataFrame, query: str | None, *, stateful: Callable[[], bool]) -> None:
    """Watch the session whose query a batch of `foreachBatch` is of: the batch's own is a copy, whose
    listeners hear nothing. Raise `QueryRefused` if the query must not be in its group, before it has written
    anything; whether it is `stateful` is asked of members alone. Over Spark Connect that is not known yet.
    """
    if over_connect(batch.sparkSession):
        note_that_queries_are_watched()
        return
    documents: list[Mapping[str, Any]] = []
    try:
        own: Any = batch.sparkSession
        query_id = own._jvm.java.util.UUID.fromString(query)
        running = own._jsparkSession.sharedState().activeStreamingQueries().get(query_id)
        session = running.sparkSession()
        note_that_queries_are_watched()
        if (session_id := str(session.sessionUUID())) not in WATCHED:
            StreamingQueryManager(session.streams()).addListener(BatchEndListener())
            WATCHED.add(session_id)
        documents += members_of(running)
    except Exception as error:  # noqa: BLE001  it is Spark's inside, which others may have built otherwise
        log.debug("batches are committed with the next plan: no session is found to listen to (%r)", error)
    refusal = refusal_of(documents, stateful=bool(documents) and stateful())
    if refusal is not None:
        raise refusal


def members_of(running: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the offset documents of the batch under way, of each source that is a member of a group."""
    offsets = running.availableOffsets().valuesIterator()
    while offsets.hasNext():
        document = json_of(offsets.next().json())
        if document is not None and is_members(document):
            yield document


class GroupListener(BatchEndListener):
    """Keeps the latest of every query, logs the rebalances of members, and tells whoever asked.

    Queries without a group have no generation and no rebalances; all else is the same.
    """

    def __init__(self, *, on_progress: Callback | None = None, on_rebalance: Callback | None = None) -> None:
        super().__init__()
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
        super().onQueryTerminated(event)
        self.latest.pop(event.id, None)

    def _compare(self, before: QueryProgress | None, now: GroupProgress) -> None:
        if before is None or before.generation == now.generation:
            return
        log.info("%s", now)
        if now.stateful and before.owned != now.owned:
            moved = ", ".join(map(str, sorted(before.owned ^ now.owned)))
            log.warning("query %s keeps state, and %s moved without it", now.name or now.query, moved)
        if self._on_rebalance is not None:
            self._on_rebalance(now)
