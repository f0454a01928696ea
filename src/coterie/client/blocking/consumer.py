"""The consumer for scripts that block: the asyncio one on a loop in a thread of its own.

with BlockingConsumer("orders", bootstrap_servers="localhost:9092", group_id="billing") as consumer:
    for record in consumer:
        print(record.offset, record.value)

Heartbeats and fetches go on in that thread while the script works. A listener's plain methods run in a
thread of their own and may call the consumer; its async ones run on the loop.
"""

import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.blocking.face import BlockingFace, calling, waiting
from coterie.client.blocking.loop import beside
from coterie.client.consumer.consumer import (
    Consumer,
)
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.consumer.records import ConsumerRecord, K, V
from coterie.client.documented import lists_settings
from coterie.client.errors import ListenerFailed, WrongUse
from coterie.client.options import ConsumerOptions
from coterie.client.other_clients import CONSUMER_METHODS
from coterie.client.partitions import Partitions, checked_timeout_s
from coterie.client.settings import ConsumerSettings

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

WAIT_MS = 1_000


class BlockingConsumer(BlockingFace[Consumer[K, V]], Generic[K, V]):
    """A consumer whose calls return when they are done. Used from one thread at a time."""

    _called_here = CONSUMER_METHODS

    @lists_settings(ConsumerSettings)
    def __init__(
        self,
        *topics: str,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        **settings: Unpack[ConsumerOptions],
    ) -> None:
        """Make a consumer, subscribed to `topics` if there are any; it connects in `start` or `with`."""
        inner = Consumer(
            *topics, key_deserializer=key_deserializer, value_deserializer=value_deserializer, **settings
        )
        super().__init__(inner, name="consumer")
        self._aside: Aside | None = None
        self._given = self._got = 0
        """How often the loop has handed something out, and how often that has come to the script."""

    # Beginning and end

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(done=error is None)

    def close(self, *, done: bool = True, leave: bool | None = None, timeout_ms: float | None = None) -> None:
        """Commit, leave the group, close the connections and end the thread; see Consumer.close.

        In a method of the listener this returns at once, and is carried out when the method has returned.
        """
        if timeout_ms is not None:
            checked_timeout_s(timeout_ms)  # before the thread ends with nothing done
        if self._inner.in_listener:
            self._run(self._inner.close(done=done, leave=leave, timeout_ms=timeout_ms))
        else:
            self._end(lambda: self._inner.close(done=done, leave=leave, timeout_ms=timeout_ms))

    def _last(self) -> Coroutine[Any, Any, object]:
        return self._inner.close(done=False)

    # Which partitions

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the group for these topics, or for all whose whole name matches the pattern."""
        if listener is not None and (self._aside is None or self._aside.listener is not listener):
            self._aside = Aside(listener)
        aside = None if listener is None else self._aside
        self._call(self._inner.subscribe, topics, pattern=pattern, listener=aside)

    assign = calling(Consumer.assign)
    unsubscribe = waiting(Consumer.unsubscribe)
    assignment = calling(Consumer.assignment)
    subscription = calling(Consumer.subscription)

    # Records

    @overload
    def getone(self, *, timeout_ms: None = None) -> ConsumerRecord[K, V]: ...

    @overload
    def getone(self, *, timeout_ms: int) -> ConsumerRecord[K, V] | None: ...

    def getone(self, *, timeout_ms: int | None = None) -> ConsumerRecord[K, V] | None:
        """Return the next record, None after so long without one."""
        if timeout_ms is None:
            return self._taken(self._inner.getone)
        return self._taken(lambda: self._inner.getone(timeout_ms=timeout_ms))

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Yield records for ever, `max_poll_records` at a time from the other thread."""
        while True:
            for records in self.getmany(timeout_ms=WAIT_MS).values():
                yield from records

    def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        """Return the records that have come, by partition in order; wait so long for the first."""
        return self._taken(lambda: self._inner.getmany(timeout_ms=timeout_ms, max_records=max_records))

    def getcolumns(self, *, timeout_ms: int = 0) -> "pa.Table":
        """Return all that has come as one Arrow table."""
        return self._taken(lambda: self._inner.getmany(timeout_ms=timeout_ms, columns=True))

    def _taken(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return records; what came as the call was interrupted is handed out by the next one."""
        if self._inner.in_listener:
            raise WrongUse("a rebalance listener's method has to return before records are handed out")

        async def counted() -> T:
            found = await ask()
            self._given += 1
            return found

        try:
            found = self._run(counted())
        except BaseException:
            if self._thread is not None:
                self._call(self._recover)
            raise
        self._got += 1
        return found

    def _recover(self) -> None:
        """Have what was given, and has not come to the script, given again."""
        if self._given > self._got:
            self._given = self._got
            self._inner.hand_back()

    # Positions

    position = waiting(Consumer.position)

    seek = calling(Consumer.seek)
    seek_to_beginning = waiting(Consumer.seek_to_beginning)
    seek_to_end = waiting(Consumer.seek_to_end)
    seek_to_time = waiting(Consumer.seek_to_time)

    pause = calling(Consumer.pause)
    resume = calling(Consumer.resume)
    paused = calling(Consumer.paused)

    beginning_offsets = waiting(Consumer.beginning_offsets)
    end_offsets = waiting(Consumer.end_offsets)
    offsets_for_times = waiting(Consumer.offsets_for_times)
    lag = waiting(Consumer.lag)

    # The group

    commit = waiting(Consumer.commit)

    group_metadata = calling(Consumer.group_metadata)
    enforce_rebalance = calling(Consumer.enforce_rebalance)

    @overload
    def committed(
        self, partitions: Partitions = (), *, metadata: Literal[False] = False
    ) -> dict[TopicPartition, int | None]: ...

    @overload
    def committed(
        self, partitions: Partitions = (), *, metadata: Literal[True]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def committed(self, partitions: Partitions = (), *, metadata: bool = False) -> Any:
        """Return the group's committed offsets of these, or of all assigned; see Consumer.committed."""
        if metadata:
            return self._run(self._inner.committed(partitions, metadata=True))
        return self._run(self._inner.committed(partitions))

    # The cluster

    topics = waiting(Consumer.topics)
    partitions_for = waiting(Consumer.partitions_for)


class Aside(RebalanceListener):
    """Calls a script's listener where it may call the consumer: plain methods in a thread of their own."""

    def __init__(self, listener: RebalanceListener) -> None:
        self.listener = listener

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._call("on_partitions_revoked", partitions)

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await self._call("on_partitions_assigned", partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._call("on_partitions_lost", partitions)

    async def _call(self, name: str, partitions: Sequence[TopicPartition]) -> None:
        method = getattr(self.listener, name)
        try:
            asynchronous = inspect.iscoroutinefunction(method)
            answer = method(partitions) if asynchronous else await beside(method, partitions)
            if inspect.isawaitable(answer):
                await answer
        except (SystemExit, KeyboardInterrupt) as error:  # no business of the consumer's thread
            raise ListenerFailed(f"{name} raised {error!r}; the member goes on") from error
