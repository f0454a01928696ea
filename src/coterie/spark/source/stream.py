"""The streaming readers: all partitions, as Spark's own source; or those that a group assigns to a member.

Both live in a process on the driver that lasts as long as the query. A second process makes them once more to
plan, and executors get a pickled copy: nothing is opened before the first question about offsets.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from coterie.client.blocking.loop import LoopThread
from coterie.spark.batch_ends import BatchEnds
from coterie.spark.guards import GUARDS
from coterie.spark.source.batch import groups_of, shared_by, tasks_for
from coterie.spark.source.group.pacing import LONGEST_WAIT_S
from coterie.spark.source.group.session import GroupSession
from coterie.spark.source.group.shared_group import SharedGroupCheck, jvm_of, starter_of
from coterie.spark.source.offsets import (
    GroupDocument,
    Report,
    mark_in,
    marked,
    read_plain,
    write_plain,
)
from coterie.spark.source.options import SourceOptions
from coterie.spark.source.planner import ApplicationGone, Planner
from coterie.spark.source.tasks import FetchSettings, TaskPartition, read_task
from coterie.spark.source.ungrouped import AllPartitions
from coterie.spark.watched import is_watched

log = logging.getLogger("coterie.spark")

FIRST_JOIN_S = 10.0
"""Longer than brokers wait for a new group's other members (group.initial.rebalance.delay.ms, 3 s)."""
STARTED_WITHIN_S = 15.0
"""So long it takes at most from when a listener hears that a query starts until its reader does."""
Document = dict[str, Any]
T = TypeVar("T")
P = TypeVar("P", bound=Planner)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both readers share: options, a thread with a loop, and the tasks' side."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.parent = os.getppid()
        self._thread: LoopThread | None = None
        self._asking = ""
        """What Spark waits for just now."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that executors need: the options."""
        return {**self.__dict__, "_thread": None}

    @property
    def thread(self) -> LoopThread:
        """The loop on which the driver's side runs."""
        if self._thread is None:
            self._thread = LoopThread("coterie")
        return self._thread

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result, run on the loop; raise ApplicationGone if the application dies."""
        if self._thread is None:
            for warning in self.options.warnings:
                log.warning("%s", warning)
        future = self.thread.submit(work)
        self._asking = getattr(work, "__qualname__", "an answer")
        while True:
            done, _ = wait([future], timeout=LONGEST_WAIT_S)
            if done:
                self._asking = ""
                return future.result()
            if orphaned(self.parent):
                future.cancel()
                raise ApplicationGone("the application is gone")

    def made(self, kind: Callable[..., P]) -> P:
        """Return the driver's side of the query, made on the loop."""
        parent = self.parent

        async def make() -> P:
            return kind(self.options, alive=lambda: not orphaned(parent))

        return self.ask(make())

    def report(self, planner: Planner | None) -> Document | None:
        """Return the report that goes with the batch that was planned last; None before there are ends. Where
        nothing is left, nothing is asked.
        """
        if planner is None or not planner.ends:
            return None
        return Report(planner.ends, self.ask(planner.unread_times()) if planner.left else {}).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the most that a batch takes."""
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's records. Runs on an executor."""
        return read_task(partition)

    def stop(self) -> None:
        """End the thread, if there is one."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


def rows_of(limit: ReadLimit | None) -> int | None:
    """Return the number of rows that a batch may have; None: all there are."""
    return limit.max_rows if isinstance(limit, ReadMaxRows) else None


def orphaned(parent: int) -> bool:
    """Return whether the process that started this one is gone: the application was killed."""
    return os.getppid() != parent


class MemberReader(StreamReader):
    """Reads what the group assigns to this query, and commits what Spark has finished."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        assert options.member is not None
        self.group = options.member.group_id
        self._session: GroupSession | None = None
        self._shared_group: SharedGroupCheck | None = None
        self._ends: BatchEnds | None = None
        self._had_time_to_join = False
        self._read: GroupDocument | None = None
        """The batch that Spark last asked the tasks of."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that executors need: the options."""
        return {**super().__getstate__(), "_session": None, "_shared_group": None, "_ends": None}

    @property
    def session(self) -> GroupSession:
        """The membership's side of the query, on its loop."""
        if self._session is None:
            name = uuid4().hex
            self._shared_group = SharedGroupCheck(
                self.options, starter=starter_of(os.getpid()), application=self.parent, name=name
            )
            self._shared_group.check()
            watches = partial(application_watches, time.time() - STARTED_WITHIN_S)
            self._session = session = self.made(partial(GroupSession, is_watched=watches))
            self._ends = BatchEnds(session.has_ended, session.batch_ended, self._refused)
            session.heard_at = name if self.ask(self._ends.open(name)) else ""
            leave_on_sigterm(self)
        return self._session

    def _refused(self, guard: str) -> None:
        """Have the query fail, before anything is committed, as the application's listener has found."""
        if self._session is not None and guard in GUARDS:
            topics = ", ".join(sorted(self._session.topics))
            self._session.verdict.refuses(GUARDS[guard](self.group, topics))

    def initialOffset(self) -> Document:  # noqa: N802
        """Return a document that reads nothing: the group knows where to start."""
        return GroupDocument(group=self.group).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note what is there now."""
        self.ask(self.session.prepare())

    def latestOffset(self, start: Document, limit: ReadLimit | None = None) -> Document:  # noqa: N802
        """Commit the batch that `start` describes, which is done, unless that was heard of and it is; return
        the next, or `start` if none.
        """
        last = GroupDocument.of(start, group=self.group)
        self.options.refuse_other_schema(mark_in(start))
        if not self._had_time_to_join:
            self._had_time_to_join = True
            self.ask(self.session.given_time_to_join(FIRST_JOIN_S))
        planned = self.ask(self.session.plan(last, rows_of(limit)))
        if self._shared_group is not None:  # a pattern's topics and the cluster are known by now
            self._shared_group.check(
                topics=self.session.topics, cluster=self.session.cluster.known.cluster_id or ""
            )
        return start if planned is None else replace(planned, values=self.options.schema_mark).to_json()

    def reportLatestOffset(self) -> Document | None:  # noqa: N802
        """Return the report of what is owned."""
        return self.report(self._session)

    def commit(self, end: Document) -> None:
        """Note that a batch begins, maybe of other sources. What is done is committed with the next plan."""
        if self._session is not None:
            self._session.other_sources.batch_began()

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        """Return the tasks that read what `end` describes, less what others did after a crash."""
        if start == end:
            return []
        document = GroupDocument.of_batch(start, end, group=self.group)
        self.options.refuse_other_schema(mark_in(end))
        groups = groups_of(document.ranges, self.options)
        pieces = [piece for group in groups for piece in group]
        left = dict(zip(pieces, self.ask(self.session.left_to_read(document, pieces)), strict=True))
        leaders = self.ask(self.session.leaders({piece.at for piece in pieces}))
        settings = FetchSettings.of(self.options, self.session.reader)
        # Spark asks once for each place in the plan that reads the stream: the second sees what others do.
        again, self._read = self._read == document, document
        shared = frozenset(piece.at for piece in pieces) if again else shared_by(groups)
        return [
            TaskPartition(
                [one for piece in group if (one := left[piece]) is not None], leaders, settings, shared=shared
            )
            for group in groups
        ]

    def stop(self) -> None:
        """Leave the group and end the thread. Spark's SIGTERM must not cut the leaving short."""
        if self._session is not None:
            # First of all: a signal that comes once the session is taken would find nothing to leave, and end
            # the process. Spark closes the connection and sends one at the same time.
            on_sigterm(signal.SIG_IGN)
        session, self._session = self._session, None
        try:
            if session is not None:
                if self._ends is not None:
                    self.ask(self._ends.close())
                self.ask(session.close())
        finally:
            if self._shared_group is not None:
                self._shared_group.close()
            super().stop()


def application_watches(since_s: float) -> bool:
    """Return whether a listener of the application looks at this process's query, which began after that."""
    return is_watched(jvm_of(os.getpid()) or os.getppid(), since_s)


def leave_on_sigterm(reader: MemberReader) -> None:
    """Leave the group when Spark ends this process, which it may do without calling `stop`."""

    def leave(signum: int, _: FrameType | None) -> None:
        if reader._asking:
            # What Spark says of it is that the answer did not come (an EOFException).
            log.warning(
                "group %s: this reader was ended from outside (SIGTERM) while Spark waited for %s; it leaves",
                reader.group,
                reader._asking,
            )
        else:
            log.info("group %s: Spark has ended this reader (SIGTERM); it leaves", reader.group)
        reader.stop()
        on_sigterm(signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    on_sigterm(leave)


def on_sigterm(action: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """Say what SIGTERM does; only the main thread may."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, action)


class PlainReader(StreamReader):
    """Reads all partitions that the options select, as Spark's own source does: no group, no commits."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._all: AllPartitions | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that executors need: the options."""
        return {**super().__getstate__(), "_all": None}

    @property
    def all(self) -> AllPartitions:
        """The partitions' side of the query, on its loop."""
        if self._all is None:
            self._all = self.made(AllPartitions)
        return self._all

    def initialOffset(self) -> Document:  # noqa: N802
        """Return the offsets at which the options start."""
        return marked(write_plain(self.ask(self.all.initial())), self.options.schema_mark)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note what is there now."""
        self.ask(self.all.prepare())

    def latestOffset(self, start: Document, limit: ReadLimit | None = None) -> Document:  # noqa: N802
        """Return the end of the next batch, or `start` if there is nothing to read."""
        self.options.refuse_other_schema(mark_in(start))
        before = read_plain(start)
        end = self.ask(self.all.latest(before, rows_of(limit)))
        return start if end == before else marked(write_plain(end), self.options.schema_mark)

    def reportLatestOffset(self) -> Document | None:  # noqa: N802
        """Return the report of all partitions."""
        return self.report(self._all)

    def commit(self, end: Document) -> None:
        """Note that a batch begins, maybe of other sources."""
        if self._all is not None:
            self._all.other_sources.batch_began()

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        """Return the tasks that read from `start` to `end`."""
        self.options.refuse_other_schema(mark_in(end))
        ranges = self.ask(self.all.between(read_plain(start), read_plain(end)))
        leaders = self.ask(self.all.cluster.leaders({one.at for one in ranges}))
        return tasks_for(ranges, leaders, self.options)
