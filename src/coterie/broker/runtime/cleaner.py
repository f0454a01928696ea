"""Housekeeping of the logs. Of those in files: retention, flushing, late deletes, and compaction in a child
process.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from coterie.storage.compaction import discard, run_compaction
from coterie.storage.log.contract import StorageFailed
from coterie.storage.log.flushing import run_flush
from coterie.storage.log.partition import EXPIRY_INTERVAL_MS
from coterie.storage.log.retention import run_removal

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.broker.runtime.clock import Clock
    from coterie.storage.cleaning import Need
    from coterie.storage.compaction import CompactionPlan, CompactionResult
    from coterie.storage.directory import Store
    from coterie.storage.disk import Disk
    from coterie.storage.kind import Log
    from coterie.storage.log.partition import (
        PartitionLog,
    )

log = logging.getLogger("coterie.broker")

RETRY_MS = 60_000


class WorksBeside(Protocol):
    """Runs work on plain values elsewhere: in a thread when it only waits, in a process when it computes."""

    def __call__(
        self,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        finish: Callable[[Any], None],
        *,
        computes: bool,
    ) -> None:
        """Begin; `finish` gets the result in the caller's own thread, or None when the work failed."""


class Housekeeping(Protocol):
    """Sees to the logs from time to time."""

    def tick(self, now_ms: int) -> None:
        """Do what time asks for."""
        ...


def _remove(paths: list[str], trees: list[str], disk: Disk) -> None:
    run_removal(paths, disk)
    for path in trees:
        disk.remove_tree(path)


class Cleaner:
    """Asks every log from time to time what is due. One compaction at a time, as one Kafka cleaner thread."""

    def __init__(self, store: Store, clock: Clock, aside: WorksBeside) -> None:
        self._store = store
        self._clock = clock
        self._aside = aside
        self._compacting = False
        # When a log that could not be compacted may be tried again: the others are not to wait for it.
        self._not_before_ms: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()
        # Logs that are damaged where a compaction would read: left as they are until the next start.
        self._uncleanable: WeakSet[PartitionLog] = WeakSet()
        self._flushing: WeakSet[PartitionLog] = WeakSet()
        self._logged: WeakKeyDictionary[PartitionLog, str] = WeakKeyDictionary()

    def tick(self, now_ms: int) -> None:
        """Do what time asks for, and begin a compaction where one is due."""
        self._remove_doomed(now_ms)
        today_ms = self._today_ms(now_ms)
        for one in tuple(self._store.logs.values()):
            one.tick(now_ms, today_ms)
            self._flush_closed(one)
            self._tell(one)
        try:
            self._store.tick(now_ms)
        except OSError as error:
            log.warning("the data directory cannot be written: %s", error.strerror)
        if not self._compacting:
            self._compact_next(now_ms)

    def _today_ms(self, now_ms: int) -> int:
        """Return the time from which the age of records is counted: nothing goes while either clock takes it
        for young, since the wall's may have been set wrong by years, now or when the broker started.
        """
        return min(now_ms, self._clock.wall_ms())

    def _remove_doomed(self, now_ms: int) -> None:
        """Have what is due removed aside: to remove large files takes so long that a client would feel it."""
        store = self._store
        paths = [path for one in store.logs.values() for path in one.removal.take_due(now_ms)]
        trees = store.take_doomed(now_ms)
        if paths or trees:
            self._aside(_remove, (paths, trees, store.disk), lambda _: None, computes=False)

    def _tell(self, one: PartitionLog) -> None:
        """Say once what a disk refused, and once that it is well again."""
        if one.trouble != self._logged.get(one, ""):
            log.warning("%s: %s", one.directory, one.trouble or "well again")
            self._logged[one] = one.trouble

    def _flush_closed(self, one: PartitionLog) -> None:
        """Have segments that nobody writes to any more reach the disk: a crash will not read them again."""
        plan = None if one in self._flushing else one.flushing.plan()
        if plan is None:
            return
        self._flushing.add(one)

        def finish(flushed: Any) -> None:
            self._flushing.discard(one)
            if flushed is not None and not one.closed:
                one.flushing.finish(flushed)

        self._aside(run_flush, (plan, self._store.disk), finish, computes=False)

    def _compact_next(self, now_ms: int) -> None:
        """Begin the compaction that is needed most: what waits longest beyond its lag, else the dirtiest."""
        waiting = [(need, one) for one in self._store.logs.values() if (need := self._need(one, now_ms))]
        for _, one in sorted(waiting, key=lambda entry: entry[0], reverse=True):
            plan = one.compacting.plan(self._today_ms(now_ms), self._clock.wall_ms())
            if plan is not None:
                self._compacting = True
                disk = self._store.disk
                self._aside(run_compaction, (plan, disk), self._finish(one, plan), computes=True)
                return

    def _need(self, one: PartitionLog, now_ms: int) -> Need | None:
        """Return the need of a log for compaction; None if it has none, or cannot be compacted for now."""
        if not one.config.compacted or one in self._uncleanable:
            return None
        if self._not_before_ms.get(one, 0) > now_ms:
            return None
        try:
            return one.compacting.need(self._today_ms(now_ms))
        except StorageFailed as error:
            self._leave_uncleaned(one, str(error))
        except OSError as error:
            log.warning("%s cannot be looked at for compaction: %s", one.directory, error)
            self._not_before_ms[one] = now_ms + RETRY_MS
        return None

    def _leave_uncleaned(self, one: PartitionLog, why: str) -> None:
        """Pass a damaged log over from now on, and say so once. Its sound parts are read and written on."""
        self._uncleanable.add(one)
        log.error("%s is not compacted any more: %s", one.directory, why)

    def _finish(self, one: PartitionLog, plan: CompactionPlan) -> Callable[[Any], None]:
        def finish(result: CompactionResult | None) -> None:
            self._compacting = False
            now_ms = self._clock.now_ms()
            self._not_before_ms.pop(one, None)
            self._put_in_place(one, plan, result, now_ms)
            self._compact_next(now_ms)

        return finish

    def _put_in_place(
        self, one: PartitionLog, plan: CompactionPlan, result: CompactionResult | None, now_ms: int
    ) -> None:
        if one.closed:
            self._discard(plan)
            return
        if result is not None and result.damage:
            self._leave_uncleaned(one, result.damage)
            return
        before = one.size_bytes
        try:
            swapped = result is not None and one.compacting.finish(result, now_ms)
        except (OSError, StorageFailed) as error:
            log.warning("%s: compaction failed: %s", one.directory, error)
            swapped = False
        if swapped:
            log.info("compacted %s from %d to %d bytes", one.directory, before, one.size_bytes)
        else:
            self._not_before_ms[one] = now_ms + RETRY_MS

    def _discard(self, plan: CompactionPlan) -> None:
        """Remove what was written for a log that is gone: the next of its name may lie there by now."""
        with contextlib.suppress(OSError):
            discard(plan, self._store.disk)


class Compacts(Protocol):
    """Has logs compacted."""

    def tick(self, today_ms: int, wall_ms: int, again: Callable[[], None]) -> None:
        """Begin what is due: things are as old as they are by `today_ms`, and `wall_ms` is the time to write
        down. `again` is called once that is done.
        """
        ...


class Retains(Protocol):
    """Deletes what logs need not keep."""

    def tick(self, now_ms: int, today_ms: int) -> None:
        """See to the logs of which something is due; records are as old as they are by `today_ms`."""
        ...


class RetainingStore(Protocol):
    """A store of which logs need not keep everything."""

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs that are open."""
        ...

    @property
    def retention(self) -> Retains:
        """What deletes the rest."""
        ...

    @property
    def compaction(self) -> Compacts:
        """What keeps the newest record of each key."""
        ...


class RemoteCleaner:
    """Housekeeping of logs in a database that brokers share: retention, compaction, and producers are
    forgotten in time.
    """

    def __init__(self, store: RetainingStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._next_expiry_ms = 0

    def tick(self, now_ms: int) -> None:
        """Have logs forget what their topics' settings say: records, and the producers that wrote nothing for
        so long.
        """
        wall_ms = self._clock.wall_ms()
        self._store.retention.tick(now_ms, min(now_ms, wall_ms))
        self._compact()
        if now_ms < self._next_expiry_ms:
            return
        self._next_expiry_ms = now_ms + EXPIRY_INTERVAL_MS
        today_ms = self._clock.wall_ms()
        for one in tuple(self._store.logs.values()):
            one.expire_producers(today_ms - one.config.producer_id_expiration_ms)

    def _compact(self) -> None:
        wall_ms = self._clock.wall_ms()
        self._store.compaction.tick(min(self._clock.now_ms(), wall_ms), wall_ms, self._compact)
