"""The partitions that this broker has: their logs, and appending to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from coterie.base.ids import TopicPartition

if TYPE_CHECKING:
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.pieces import Scheduler
    from coterie.broker.runtime.purgatory import Purgatory
    from coterie.storage.kind import Log
    from coterie.storage.log.contract import Appended, AppendRefused, Landed
    from coterie.storage.log.producers import Verification
    from coterie.storage.log.validate import Prepared

SLEWED_MS = 1_000  # by less than this the wall's clock is brought in step, and not set


class ReplicaManager:
    """The logs by TopicPartition, as Kafka's class of this name has them.

    Who makes and deletes them is the TopicManager.
    """

    def __init__(
        self,
        logs: Mapping[TopicPartition, Log],
        purgatory: Purgatory,
        clock: Clock,
        scheduler: Scheduler,
        when_writable: Callable[[TopicPartition, Callable[[], None]], object],
    ) -> None:
        """`when_writable` is told of a partition with records to append, and of what appends them, which it
        calls as soon as what is appended would be written.
        """
        self.logs = logs
        self.when_writable = when_writable
        self._purgatory = purgatory
        self._clock = clock
        self._scheduler = scheduler
        self._wall_ahead_ms = 0

    def log_of(self, topic: str, partition: int) -> Log | None:
        """Return the log of a partition that exists."""
        return self.logs.get(TopicPartition(topic, partition))

    def dated_ms(self, now_ms: int) -> int:
        """Return the time by which to date the records of what is decided now.

        It is the wall's, but for what that is slewed by: a transaction that goes on keeps its start to the
        millisecond.
        """
        ahead_ms = self._clock.wall_ms() - now_ms
        if abs(ahead_ms - self._wall_ahead_ms) >= SLEWED_MS:
            self._wall_ahead_ms = ahead_ms
        return now_ms + self._wall_ahead_ms

    def append(
        self,
        topic: str,
        partition: int,
        records: bytes | Prepared,
        *,
        now_ms: int,
        leader_epoch: int = 0,
        origin: str = "client",
        verified: Verification | None = None,
        transaction_version: int = 0,
        promptly: bool = False,
        wakes: bool = True,
    ) -> Appended:
        """Append to a partition that exists and, if this `wakes`, wake who waits for it when it has landed,
        mostly at once: who is woken may have the next request answered within. Raises `AppendRefused`.

        `verified` comes with what a client writes in a transaction, `transaction_version` with its marker;
        `promptly` as with the log, which may raise `TakesLong`.
        """
        watched = TopicPartition(topic, partition)
        appended = self.logs[watched].append(
            records,
            now_ms=now_ms,
            wall_ms=self._clock.wall_ms(),
            leader_epoch=leader_epoch,
            origin=origin,
            verified=verified,
            transaction_version=transaction_version,
            promptly=promptly,
        )
        if wakes and appended.landed:
            self._purgatory.changed(watched)
        elif wakes:
            self.when_landed(watched, appended, lambda refused: self._purgatory.changed(watched))
        return appended

    def when_landed(self, watched: TopicPartition, appended: Appended, done: Landed) -> None:
        """Have `done` called once an append lasts, at once if it does already, or never will.

        Whoever hears of a refusal here may answer: all that was refused with it is undone by then.
        """
        if appended.landed:
            done(None)
            return

        def decided(refused: AppendRefused | None) -> None:
            if refused is None:
                done(None)
            else:
                self._scheduler.call_soon(partial(done, refused))

        self.logs[watched].when_landed(appended.last_offset, decided)
