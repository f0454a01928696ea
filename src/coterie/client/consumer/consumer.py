"""The consumer: records of a group's or of chosen partitions, on asyncio.

async with Consumer("orders", bootstrap_servers="localhost:9092", group_id="billing") as consumer:
    async for record in consumer:
        print(record.offset, record.value)

`getmany` hands out batches instead. What was handed out counts as done when the next is asked for: auto
commit never commits a record that the application still has in its hands.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Self, TypeVar, Unpack, overload

from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.fetch_state import FetchedFrom, FetchState
from coterie.client.consumer.fetcher import Fetcher
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.consumer.positions import Start, first_positions, offsets_at
from coterie.client.consumer.progress import Progress, Walk
from coterie.client.consumer.records import ConsumerRecord, K, V, deserialized
from coterie.client.consumer.subscription import Subscription
from coterie.client.documented import lists_settings
from coterie.client.ending import begun, ended, same_loop
from coterie.client.errors import ClientTimeout, Closed, WrongUse
from coterie.client.member import GroupMetadata
from coterie.client.member.runner import CLOSE_TIMEOUT_S
from coterie.client.net import messages
from coterie.client.net.cluster import Cluster
from coterie.client.options import ConsumerOptions
from coterie.client.other_clients import CONSUMER_METHODS, HintsAtMethods, refuse_mapping
from coterie.client.partitions import (
    Partitions,
    checked_stamp,
    checked_timeout_s,
    many,
    offset_and_metadata,
    partition_of,
)
from coterie.client.settings import ConsumerSettings

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("coterie.client")

T = TypeVar("T")

LAST_OFFSET = 2**63 - 1
# How often the group hears that the application lives, while it waits or works through a batch.
CALL_EVERY_S = 1.0


class OffsetAndTimestamp(NamedTuple):
    """The first record that is not older than was asked for."""

    offset: int
    timestamp: int


class Consumer(HintsAtMethods, Generic[K, V]):
    """A consumer: subscribed to topics as a member of a group, or assigned partitions by hand."""

    _called_here = CONSUMER_METHODS

    @lists_settings(ConsumerSettings)
    def __init__(
        self,
        *topics: str,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        **settings: Unpack[ConsumerOptions],
    ) -> None:
        """Make a consumer, subscribed to `topics` if there are any; `start` or `async with` connects it."""
        refuse_mapping("Consumer", *topics)
        self.settings = ConsumerSettings.of(
            key_deserializer=key_deserializer, value_deserializer=value_deserializer, **settings
        )
        self._progress = Progress(lambda: self._fetcher, self.settings.interceptors)
        self._subscription = Subscription(self.settings, done=self._done, applied=self._applied)
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: Cluster | None = None
        self._fetcher_: Fetcher | None = None
        self._closed = False
        self._call_at = 0.0
        self._commit_at = 0.0
        self._committing: asyncio.Task[None] | None = None
        if topics:
            self.subscribe(topics)

    # Beginning and end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error, what was in the application's hands is not done.
        await self.close(done=error is None)

    async def start(self) -> None:
        """Connect to one of the bootstrap servers; raises Disconnected or AuthenticationFailed."""
        if self._closed:
            raise Closed("this consumer is closed; make another one")
        if self._cluster is not None:
            raise WrongUse("this consumer was started before")
        self._loop = asyncio.get_running_loop()
        self._cluster = Cluster.of(self.settings)
        try:
            await self._cluster.reach()
            finish = partial(
                deserialized, key=self.settings.key_deserializer, value=self.settings.value_deserializer
            )
            self._fetcher_ = Fetcher(self._cluster, self.settings, locate=self._locate, finish=finish)
            if self.settings.decoder == "compiled":
                await self._fetcher.load_decoder()
            self._commit_at = time.monotonic() + self.settings.auto_commit_interval_ms / 1000
            self._apply()
        except BaseException:
            self._closed = True
            await self._hang_up()
            raise

    async def close(
        self, *, done: bool = True, leave: bool | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit (if auto commit is on), leave the group and close the connections.

        For so long it is tried to commit and to leave, 30 s by default, as in Java, and for 2 s more to leave
        where that is left. Where brokers do not answer, the log says what is not known to be committed.

        `done` says whether what was handed out last is to be committed; `leave` overrules that dynamic
        members leave and static ones stay. In a method of the listener this returns at once, and is carried
        out when the method has returned; what the application has in its hands then is not done. Cut short
        by cancellation, it waits for nothing but that the member has left, for a moment.
        """
        if self._closed or self._cluster is None or self._loop is None:
            self._closed = True
            return
        same_loop(self._loop, "consumer")
        if self._ending is None:
            timeout_s = CLOSE_TIMEOUT_S if timeout_ms is None else checked_timeout_s(timeout_ms)
            if done and not self.in_listener:
                self._progress.settle()
            self._ending = begun(self._end(leave, timeout_s), name="closes the consumer")
        if not self.in_listener:
            await ended(self._ending)

    async def _end(self, leave: bool | None, timeout_s: float) -> None:
        """End the memberships, whatever happens, and then all else (CV-4)."""
        until = time.monotonic() + timeout_s
        try:
            await self._commit_at_end(timeout_s)
            await self._subscription.close(leave, until)
        finally:
            self._applied(frozenset())
            self._closed = True
            try:
                await self._subscription.cut(leave)
            finally:
                await self._hang_up()

    @property
    def in_listener(self) -> bool:
        """Whether this is part of what a method of the listener does, which the member waits for."""
        return self._subscription.caller is not None

    async def _hang_up(self) -> None:
        """End all tasks and connections."""
        try:
            if self._fetcher_ is not None:
                await self._fetcher_.close()
        finally:
            if self._cluster is not None:
                await self._cluster.close()

    async def _commit_at_end(self, timeout_s: float) -> None:
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.gather(self._committing, return_exceptions=True)
        if self._commits_by_itself:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._commit_quietly(self._done())
            except TimeoutError:
                log.warning("group %s: the last commit was not answered in time", self._group)

    @property
    def _fetcher(self) -> Fetcher:
        if self._closed:
            raise Closed("this consumer is closed; make another one")
        if self._fetcher_ is None or self._loop is None:
            raise WrongUse('this consumer is not started: use "async with", or await start()')
        same_loop(self._loop, "consumer")
        return self._fetcher_

    @property
    def _brokers(self) -> Cluster:
        return self._fetcher.cluster

    # Which partitions

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Join the group for these topics, or for all whose whole name matches the pattern."""
        self._subscription.subscribe(topics, pattern, listener)
        self._apply()

    def assign(self, partitions: Partitions) -> None:
        """Read these partitions, whoever else does; without a group, or to commit in its name."""
        # CP-6: whoever has no member in a group may commit for it.
        self._subscription.assign(partitions)
        self._apply()

    async def unsubscribe(self) -> None:
        """Leave the group, or let go of what was assigned; what is done is committed by auto commit.

        In a method of the listener this returns at once, and is carried out when the method has returned;
        what the application has in its hands then is not done.
        """
        if not self.in_listener:
            self._progress.settle()
        done, by_itself = self._done(), self._commits_by_itself
        parting = self._subscription.give_up(done)
        self._applied(frozenset())
        if parting is None:
            if by_itself:
                await self._commit_quietly(done)
        elif self.in_listener:
            parting.add_done_callback(self._subscription.report)
        else:
            await ended(parting)

    def _apply(self) -> None:
        """Do what subscribe or assign asked for, once there is a cluster."""
        if self._fetcher_ is not None:
            self._subscription.apply(self._brokers)

    def _applied(self, partitions: frozenset[TopicPartition]) -> None:
        """Fetch these from now on; what is in stock of others is not handed out any more."""
        self._call_at = 0.0  # the next record of a walk is of another generation
        if self._fetcher_ is not None:
            self._progress.set_partitions(partitions)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read now."""
        return self._subscription.owned()

    def subscription(self) -> tuple[str, ...] | re.Pattern[str] | None:
        """Return the topics or the pattern subscribed to, None without a subscription."""
        return self._subscription.topics

    # Records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        walk = self._progress.walk
        while walk is None or (record := next(walk.records, None)) is None:
            if walk is not None:
                walk.over = True
            walk = await self._next_walk()
        walk.shown = record
        if time.monotonic() >= self._call_at:
            try:
                self._called()
            except BaseException:  # the record reaches nobody
                self._progress.hand_back()
                raise
            self._subscription.handed_out()
        return record

    async def _next_walk(self) -> Walk:
        """Return some records of one partition, as soon as there are any.

        Tasks that iterate over one consumer share a walk: handed back by each, it would be fetched anew.
        """
        take = partial(self._progress.take_walk, self.settings.max_poll_records)
        walks: list[Walk] = []
        while not walks:
            walks = await self._taken(take, list, CALL_EVERY_S, walking=True)
        return walks[0]

    @overload
    async def getone(self, *, timeout_ms: None = None) -> ConsumerRecord[K, V]: ...

    @overload
    async def getone(self, *, timeout_ms: int) -> ConsumerRecord[K, V] | None: ...

    async def getone(self, *, timeout_ms: int | None = None) -> ConsumerRecord[K, V] | None:
        """Return the next record, None after so long without one."""
        if timeout_ms is None:
            return await self.__anext__()
        found = await self.getmany(timeout_ms=timeout_ms, max_records=1)
        return next((records[0] for records in found.values()), None)

    @overload
    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None, columns: Literal[False] = False
    ) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]: ...

    @overload
    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None, columns: Literal[True]
    ) -> "pa.Table": ...

    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None, columns: bool = False
    ) -> "dict[TopicPartition, list[ConsumerRecord[K, V]]] | pa.Table":
        """Return the records that have come, by partition in order; wait so long for the first.

        `max_records` is `max_poll_records` unless given. With `columns` all that came is returned as one
        Arrow table, keys and values as bytes; then there is no limit but `max_buffered_bytes`.
        """
        if columns:
            from coterie.client.consumer.columnar import table_of

            taken: list[FetchedFrom] = await self._taken(self._progress.take_columns, list, timeout_ms / 1000)
            try:
                return table_of(taken)
            except BaseException:  # as a batch that nobody can read: what came with it reaches nobody
                self._progress.hand_back()
                raise
        most = self.settings.max_poll_records if max_records is None else max_records
        return await self._taken(partial(self._progress.take, most), dict, timeout_ms / 1000)

    async def _taken(
        self, take: Callable[[], T], nothing: Callable[[], T], timeout_s: float, *, walking: bool = False
    ) -> T:
        """Return the result of `take` as soon as there is any, or nothing when the time is up.

        While the listener is told of new partitions nothing is handed out: it may seek in them first (CB-8).
        Unless one is `walking`, what others left of a walk goes back.
        """
        fetcher = self._fetcher
        await self._check_place()
        progress = self._progress
        if not walking or progress.walk is None or progress.walk.over:
            progress.settle()
        until = time.monotonic() + timeout_s
        # However much is in stock: the group's heartbeats and the next fetch get their turn.
        await asyncio.sleep(0)
        while True:
            if self._ending is not None:
                await self._check_place()
            self._called()
            group = self._subscription.membership
            telling = group is not None and bool(group.member.announced)
            if not walking:  # what is walked now is another task's, which has begun meanwhile
                progress.end_walk()
            found = nothing() if telling else take()
            left_s = until - time.monotonic()
            if found or left_s <= 0:
                self._subscription.handed_out()
                return found
            wait = group.moved if group is not None and telling else fetcher.came
            await wait(min(left_s, CALL_EVERY_S))

    async def _check_place(self) -> None:
        """Raise what is wrong with asking for records here and now; at the end, when all is over."""
        if self._ending is not None:
            if not self.in_listener:
                await asyncio.wait([self._ending])
            raise Closed("this consumer is closed; make another one")
        caller = self._subscription.caller
        if caller is not None and caller.calls_in(asyncio.current_task()):
            raise WrongUse("a rebalance listener's method has to return before records are handed out")

    def hand_back(self) -> None:
        """Take back what was handed out last and has come to nobody: it is handed out again."""
        self._progress.hand_back()

    def _called(self) -> None:
        """Show the group that the application lives, raise what it must know, commit if it is time (CC-1)."""
        now = time.monotonic()
        self._call_at = now + CALL_EVERY_S
        if self._subscription.membership is not None:
            self._subscription.membership.called()
        elif self._commits_by_itself and now >= self._commit_at and self._committing is None:
            self._commit_at = now + self.settings.auto_commit_interval_ms / 1000
            # Once: tried again later, it could come after a commit of the application's that is ahead of it.
            once = self._commit_quietly(self._done(), retry=False)
            self._committing = asyncio.create_task(once, name="auto commit")
            self._committing.add_done_callback(self._committed_quietly)
        elif self._subscription.topics is None and not self._subscription.assigned:
            raise WrongUse("nothing to read: subscribe to topics or assign partitions first")

    # Positions

    def _state_of(self, partition: TopicPartition | tuple[str, int]) -> FetchState:
        return self._progress.state_of(partition_of(partition))

    def _states_of(self, partitions: Partitions) -> list[FetchState]:
        """Return these partitions, or all that are assigned."""
        return [self._state_of(one) for one in partitions] or [*self._fetcher.states.values()]

    def _done(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offset up to which each partition is done, before what the application works on."""
        return self._progress.done(self._subscription.owned())

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Return the offset of the next record; waits until the first one is known."""
        state = self._state_of(partition)
        until = time.monotonic() + self._brokers.api_timeout_s
        while (position := self._progress.position(state)) is None:
            self._fetcher.check_tasks()
            if state.failure is not None:
                raise state.failure
            if time.monotonic() >= until:
                raise ClientTimeout(f"no position of {state.at} within {self._brokers.api_timeout_s:g} s")
            await self._fetcher.placed(CALL_EVERY_S)
            state = self._state_of(partition)  # raises where it is ours no more: it would never be placed
        return position

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Go on at this offset; what was fetched of the partition is dropped.

        If the leader epoch is given with it, the leader is asked first whether it has what stands before.
        """
        state = self._state_of(partition)
        place = offset_and_metadata(offset)
        if place.offset > LAST_OFFSET:
            raise WrongUse(f"there is no offset {place.offset}: the last one is {LAST_OFFSET}")
        if place.offset < 0:
            raise WrongUse(f"there is no offset {offset}; seek_to_beginning and seek_to_end find the ends")
        self._progress.seek(state, place.offset, epoch=place.leader_epoch)

    async def seek_to_beginning(self, partitions: Partitions = ()) -> None:
        """Go on at the first record of these partitions, or of all that are assigned."""
        await self._seek_to(partitions, messages.EARLIEST)

    async def seek_to_end(self, partitions: Partitions = ()) -> None:
        """Go on after the last record of these partitions, or of all that are assigned."""
        await self._seek_to(partitions, messages.LATEST)

    async def seek_to_time(self, timestamp_ms: int, partitions: Partitions = ()) -> None:
        """Go on at the first record that is not older; at the end where all are."""
        await self._seek_to(partitions, checked_stamp(timestamp_ms))

    async def _seek_to(self, partitions: Partitions, stamp: int) -> None:
        wanted = [state.at for state in self._states_of(partitions)]
        isolation = self.settings.isolation
        found = await offsets_at(self._brokers, dict.fromkeys(wanted, stamp), isolation=isolation)
        for at, offset in found.items():
            self.seek(at, offset)

    def pause(self, partitions: Partitions = ()) -> None:
        """Hand out nothing of these partitions, or of all, until they are resumed; they stay assigned."""
        self._progress.pause(self._states_of(partitions))

    def resume(self, partitions: Partitions = ()) -> None:
        """Go on with these partitions, or with all."""
        self._fetcher.pause(self._states_of(partitions), False)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return frozenset(at for at, state in self._fetcher.states.items() if state.paused)

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, assigned or not."""
        return await self._offsets(partitions, messages.EARLIEST)

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the offset after the last record that this consumer's isolation level lets it see."""
        return await self._offsets(partitions, messages.LATEST)

    async def _offsets(self, partitions: Partitions, stamp: int) -> dict[TopicPartition, int]:
        stamps = dict.fromkeys(many(partitions), stamp)
        found = await self._brokers.list_offsets(stamps, isolation=self.settings.isolation)
        return {at: listed.offset for at, listed in found.items()}

    async def offsets_for_times(
        self, stamps: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each partition that is not older than its timestamp, None if all are."""
        wanted = {partition_of(at): checked_stamp(stamp) for at, stamp in stamps.items()}
        found = await self._brokers.list_offsets(wanted, isolation=self.settings.isolation)
        return {
            at: OffsetAndTimestamp(one.offset, one.timestamp) if one.offset >= 0 else None
            for at, one in found.items()
        }

    async def lag(self, partitions: Partitions = ()) -> dict[TopicPartition, int]:
        """Return the count of offsets beyond our position in each partition, by end offsets asked for now."""
        states = self._states_of(partitions)
        ends = await self.end_offsets([state.at for state in states])
        return {state.at: max(0, ends[state.at] - await self.position(state.at)) for state in states}

    # The group

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit these offsets, or the positions: all that was handed out. Raises RefusedBy if refused."""
        if offsets is None:
            wanted = self._progress.positions(self._subscription.owned())
        else:
            wanted = {partition_of(at): offset_and_metadata(one) for at, one in offsets.items()}
        await self._commit(wanted)

    async def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, retry: bool = True
    ) -> None:
        group, membership = self._group, self._subscription.current
        if membership is not None:
            code = await membership.commit(offsets, retry=retry)
        else:
            code = await self._brokers.commit(group, offsets, retry=retry)
        if code:
            raise RefusedBy(code, f"OffsetCommit of group {group}")

    @property
    def _group(self) -> str:
        if self.settings.group_id is None:
            raise WrongUse("there is no group to commit for; set group_id")
        return self.settings.group_id

    @property
    def _commits_by_itself(self) -> bool:
        """Whether auto commit is the consumer's business, as no membership does it."""
        automatic = self.settings.enable_auto_commit and self.settings.group_id is not None
        return automatic and self._subscription.membership is None and bool(self._subscription.assigned)

    async def _commit_quietly(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, retry: bool = True
    ) -> None:
        """Commit; what goes wrong is told to the log: the next one will carry it."""
        try:
            await self._commit(offsets, retry=retry)
        except CoterieError as error:
            log.warning("auto commit: %s", error)

    def _committed_quietly(self, task: "asyncio.Task[None]") -> None:
        self._committing = None

    @overload
    async def committed(
        self, partitions: Partitions = (), *, metadata: Literal[False] = False
    ) -> dict[TopicPartition, int | None]: ...

    @overload
    async def committed(
        self, partitions: Partitions = (), *, metadata: Literal[True]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    async def committed(
        self, partitions: Partitions = (), *, metadata: bool = False
    ) -> dict[TopicPartition, int | None] | dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets of these, or of all assigned; None where there is none.

        With `metadata` each comes with the leader epoch and the text that were committed beside it.
        """
        wanted = many(partitions) or tuple(self._fetcher.states)
        if metadata:
            return await self._brokers.committed_notes(self._group, wanted)
        return await self._brokers.committed(self._group, wanted)

    def group_metadata(self) -> GroupMetadata:
        """Return the member's identity, for a producer that commits its offsets in a transaction.

        Its generation is the one in which records were handed out last, or there were none: rebalances go on
        while the application works, and offsets of a generation that is over are refused, since others may
        have the partitions. Before the first records, and in a method of the listener, it is that of now.
        """
        return self._subscription.member.group_metadata()

    def enforce_rebalance(self, reason: str = "rebalance enforced by user") -> None:
        """Have the group share its partitions out anew."""
        self._subscription.member.enforce_rebalance(reason)

    async def _locate(self, lost: Mapping[TopicPartition, str | None]) -> Mapping[TopicPartition, Start]:
        return await first_positions(
            self._brokers, self.settings, lost, now_ms=lambda: int(time.time() * 1000)
        )

    # The cluster

    async def topics(self) -> frozenset[str]:
        """Return the names of the topics that there are."""
        return frozenset((await self._brokers.metadata(None)).topics)

    async def partitions_for(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of a topic, none if there is no such topic."""
        found = (await self._brokers.metadata([topic])).topics.get(topic)
        return tuple(TopicPartition(topic, one) for one in sorted(found.leaders)) if found else ()
