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
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.fetch_state import FetchState
from coterie.client.consumer.fetcher import Fetcher
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.consumer.positions import Start, first_positions, offsets_at
from coterie.client.consumer.records import ConsumerRecord
from coterie.client.ending import begun, cut_short, ended, same_loop
from coterie.client.errors import ClientTimeout, Closed, NotAssigned, Undecodable, WrongUse
from coterie.client.member import GroupMetadata, MemberSettings
from coterie.client.member.runner import CLOSE_TIMEOUT_S, Membership, caller
from coterie.client.net import messages
from coterie.client.net.cluster import Cluster
from coterie.client.options import ConsumerOptions
from coterie.client.other_clients import CONSUMER_METHODS, HintsAtMethods
from coterie.client.partitions import Partitions, checked_stamp, checked_timeout_s, many, partition_of
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


class Consumer(HintsAtMethods):
    """A consumer: subscribed to topics as a member of a group, or assigned partitions by hand."""

    _called_here = CONSUMER_METHODS

    def __init__(self, *topics: str, **settings: Unpack[ConsumerOptions]) -> None:
        self.settings = ConsumerSettings.of(**settings)
        self._wish: tuple[str, ...] | re.Pattern[str] | None = None
        self._listener: RebalanceListener | None = None
        self._assigned: tuple[TopicPartition, ...] = ()
        self._membership: Membership | None = None
        self._parted: dict[asyncio.Task[None], Membership] = {}
        """Memberships that were given up, and what ends them."""
        self._memberships: WeakSet[Membership] = WeakSet()
        """All there were: a method of the listener may still run that one of them has called."""
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: Cluster | None = None
        self._fetcher_: Fetcher | None = None
        self._closed = False
        self._open: dict[TopicPartition, int] = {}
        """The first offset of what the application was handed last, by partition."""
        self._walk: Walk | None = None
        self._parting: dict[TopicPartition, OffsetAndMetadata] = {}
        """Where partitions stand that are not fetched any more and still ours: they can be committed."""
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
            self._fetcher_ = Fetcher(self._cluster, self.settings, locate=self._locate, finish=self._finish)
            if self.settings.decoder == "compiled":
                await self._fetcher.load_decoder()
            self._commit_at = time.monotonic() + self.settings.auto_commit_interval_ms / 1000
            self._apply_wishes()
        except BaseException:
            self._closed = True
            await self._hang_up()
            raise

    async def close(
        self, *, done: bool = True, leave: bool | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit (if auto commit is on), leave the group and close the connections (CV-4).

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
            if done and self._caller is None:
                self._settle()
            self._ending = begun(self._end(leave, timeout_s), name="closes the consumer")
        if self._caller is None:
            await ended(self._ending)

    async def _end(self, leave: bool | None, timeout_s: float) -> None:
        """End the memberships, whatever happens, and then all else."""
        until = time.monotonic() + timeout_s
        try:
            await self._commit_at_end(timeout_s)
            if self._membership is not None:
                await self._membership.close(leave=leave, timeout_s=max(0, until - time.monotonic()))
            if self._parted:
                await asyncio.wait(self._parted, timeout=max(0, until - time.monotonic()))
        finally:
            self._applied(frozenset())
            self._closed = True
            try:
                await cut_short(*self._parted)
                if self._membership is not None:
                    await self._membership.cut(leave)
            finally:
                await self._hang_up()

    @property
    def _caller(self) -> Membership | None:
        """The membership that waits for the listener's method which this is part of, if it is one of ours."""
        found = caller()
        return found if found is not None and found in self._memberships else None

    @property
    def in_listener(self) -> bool:
        """Whether this is part of what a method of the listener does, which the member waits for."""
        return self._caller is not None

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
                    await self._commit_quietly(self._progress())
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
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        for name in names:
            if not isinstance(name, str):  # Consumer(["orders"]) is easily written
                raise WrongUse(
                    f'a topic\'s name is text, not {name!r}: Consumer("a", "b"), subscribe(["a", "b"])'
                )
        if bool(names) == (pattern is not None):
            raise WrongUse("subscribe wants topics or a pattern, one of them")
        if not self.settings.group_id:
            raise WrongUse("subscribing needs a group_id; without one, assign partitions")
        if self._assigned:
            raise WrongUse("partitions are assigned by hand; unsubscribe() first")
        self._wish = names if pattern is None else compiled(pattern)
        if listener is not None and self._membership is not None and listener is not self._listener:
            raise WrongUse("unsubscribe() before another listener is given")
        self._listener = listener or self._listener
        if self._fetcher_ is not None:
            self._apply_wishes()

    def assign(self, partitions: Partitions) -> None:
        """Read these partitions, whoever else does; without a group, or to commit in its name (CP-6)."""
        if self._wish is not None:
            raise WrongUse("this consumer is subscribed; unsubscribe() first")
        self._assigned = many(partitions)
        if self._fetcher_ is not None:
            self._apply_wishes()

    async def unsubscribe(self) -> None:
        """Leave the group, or let go of what was assigned; what is done is committed by auto commit.

        In a method of the listener this returns at once, and is carried out when the method has returned;
        what the application has in its hands then is not done.
        """
        waited_for = self._caller is not None
        if not waited_for:
            self._settle()
        done, membership, by_itself = self._progress(), self._membership, self._commits_by_itself
        self._membership = None
        self._wish, self._assigned, self._listener = None, (), None
        self._applied(frozenset())
        if membership is not None:
            membership.part(done)
            parting = begun(membership.close(), name="leaves the group")
            self._parted[parting] = membership
            parting.add_done_callback(self._parted.pop)
            if waited_for:
                parting.add_done_callback(self._tell_parting)
            else:
                await ended(parting)
        elif by_itself:
            await self._commit_quietly(done)

    def _tell_parting(self, parting: "asyncio.Task[None]") -> None:
        if not parting.cancelled() and parting.exception() is not None:
            log.warning("group %s: leaving it: %s", self.settings.group_id, parting.exception())

    def _apply_wishes(self) -> None:
        """Do what subscribe or assign asked for."""
        if self._wish is None:
            self._applied(frozenset(self._assigned))
        elif self._membership is not None:
            self._membership.subscribe(self._wish)
        else:
            assert self._cluster is not None
            self._membership = Membership(
                self._cluster,
                member_settings(self.settings),
                self._wish,
                listener=self._listener,
                progress=self._progress if self.settings.enable_auto_commit else None,
                applied=self._applied,
                after=tuple(self._parted),
            )
            self._memberships.add(self._membership)

    def _applied(self, partitions: frozenset[TopicPartition]) -> None:
        """Fetch these from now on; what is in stock of others is not handed out any more."""
        if self._fetcher_ is None:
            return
        stand = {**self._parting, **self._fetched_to()}
        self._parting = {at: one for at, one in stand.items() if at not in partitions}
        walk = self._walk
        if walk is not None and walk.partition not in partitions:
            if walk.shown is not None:
                self._open[walk.partition] = walk.shown.offset
            self._walk = None
        self._fetcher_.set_partitions(partitions)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read now."""
        membership = self._caller or self._membership
        return frozenset(self._assigned) if membership is None else membership.owned

    def subscription(self) -> tuple[str, ...] | re.Pattern[str] | None:
        """Return the topics or the pattern subscribed to, None without a subscription."""
        return self._wish

    # Records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        walk = self._walk
        while walk is None or (record := next(walk.records, None)) is None:
            if walk is not None:
                walk.over = True
            walk = await self._next_walk()
        walk.shown = record
        if time.monotonic() >= self._call_at:
            self._called()
        return record

    async def _next_walk(self) -> "Walk":
        """Return some records of one partition, as soon as there are any.

        Tasks that iterate over one consumer share a walk: handed back by each, it would be fetched anew.
        """
        walks: list[Walk] = []
        while not walks:
            walks = await self._taken(self._take_walk, list, CALL_EVERY_S, walking=True)
        return walks[0]

    def _take_walk(self) -> "list[Walk]":
        if self._walk is not None and not self._walk.over:  # another task's, which has begun meanwhile
            return [self._walk]
        taken = self._intercepted(self._fetcher.take(self.settings.max_poll_records, partitions=1))
        for at, records in taken.items():
            self._walk = Walk(at, records, epoch=self._fetcher.states[at].epoch)
            return [self._walk]
        return []

    async def getone(self, *, timeout_ms: int | None = None) -> ConsumerRecord | None:
        """Return the next record, None after so long without one."""
        if timeout_ms is None:
            return await self.__anext__()
        found = await self.getmany(timeout_ms=timeout_ms, max_records=1)
        return next((records[0] for records in found.values()), None)

    @overload
    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None, columns: Literal[False] = False
    ) -> dict[TopicPartition, list[ConsumerRecord]]: ...

    @overload
    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None, columns: Literal[True]
    ) -> "pa.Table": ...

    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None, columns: bool = False
    ) -> "dict[TopicPartition, list[ConsumerRecord]] | pa.Table":
        """Return the records that have come, by partition in order; wait so long for the first.

        `max_records` is `max_poll_records` unless given. With `columns` all that came is returned as one
        Arrow table, keys and values as bytes; then there is no limit but `max_buffered_bytes`.
        """
        if columns:
            from coterie.client.consumer.columnar import table_of

            took = await self._taken(self._take_columns, list, timeout_ms / 1000)
            try:
                return table_of(took)
            except BaseException:  # as a batch that nobody can read: what came with it reaches nobody
                self.hand_back()
                raise
        most = self.settings.max_poll_records if max_records is None else max_records

        def take() -> dict[TopicPartition, list[ConsumerRecord]]:
            return self._intercepted(self._fetcher.take(most))

        return await self._taken(take, dict, timeout_ms / 1000)

    def _take_columns(self) -> list[Any]:
        taken = self._fetcher.take_fetched()
        for state, first, _ in taken:
            self._open.setdefault(state.at, first)
        return taken

    async def _taken(
        self, take: Callable[[], T], nothing: Callable[[], T], timeout_s: float, *, walking: bool = False
    ) -> T:
        """Return the result of `take` as soon as there is any, or nothing when the time is up.

        While the listener is told of new partitions nothing is handed out: it may seek in them first (CB-8).
        Unless one is `walking`, what others left of a walk goes back.
        """
        fetcher = self._fetcher
        await self._check_place()
        if not walking or self._walk is None or self._walk.over:
            self._settle()
        until = time.monotonic() + timeout_s
        # However much is in stock: the group's heartbeats and the next fetch get their turn.
        await asyncio.sleep(0)
        while True:
            if self._ending is not None:
                await self._check_place()
            self._called()
            group = self._membership
            telling = group is not None and bool(group.member.announced)
            if self._walk is not None and not walking:  # another task's, which has begun meanwhile
                self._walk_back(self._walk)
            found = nothing() if telling else take()
            left_s = until - time.monotonic()
            if found or left_s <= 0:
                return found
            wait = group.moved if group is not None and telling else fetcher.came
            await wait(min(left_s, CALL_EVERY_S))

    async def _check_place(self) -> None:
        """Raise what is wrong with asking for records here and now; at the end, when all is over."""
        if self._ending is not None:
            if self._caller is None:
                await asyncio.wait([self._ending])
            raise Closed("this consumer is closed; make another one")
        if self._caller is not None and self._caller.calls_in(asyncio.current_task()):
            raise WrongUse("a rebalance listener's method has to return before records are handed out")

    def _intercepted(self, taken: dict[TopicPartition, list[Any]]) -> dict[TopicPartition, list[Any]]:
        """Note what the application gets, and let the interceptors see it."""
        for at, records in taken.items():
            self._open.setdefault(at, records[0].offset)
        try:
            for intercept in self.settings.interceptors:
                seen = ((at, intercept(records)) for at, records in taken.items())
                taken = {at: records for at, records in seen if records}
        except BaseException:
            self.hand_back()
            raise
        return taken

    def hand_back(self) -> None:
        """Take back what was handed out last and has come to nobody: it is handed out again."""
        walk = self._walk
        if walk is not None and walk.shown is not None:
            self._walk = None
            self._fetcher.back(self._state_of(walk.partition), walk.shown.offset, epoch=walk.epoch)
            return
        for at, first in self._open.items():
            state = self._fetcher.states.get(at)
            if state is not None:
                self._fetcher.back(state, first, epoch=state.epoch)
        self._open.clear()

    def _settle(self) -> None:
        """What was handed out before is done; what is left of a walk goes back."""
        self._open.clear()
        if self._walk is not None:
            self._walk_back(self._walk)

    def _walk_back(self, walk: "Walk") -> None:
        self._walk = None
        state = self._fetcher.states.get(walk.partition)
        left = next(walk.records, None)
        if left is not None and state is not None:
            self._fetcher.back(state, left.offset, epoch=walk.epoch)

    def _called(self) -> None:
        """Show the group that the application lives, raise what it must know, commit if it is time (CC-1)."""
        now = time.monotonic()
        self._call_at = now + CALL_EVERY_S
        if self._membership is not None:
            self._membership.called()
        elif self._commits_by_itself and now >= self._commit_at and self._committing is None:
            self._commit_at = now + self.settings.auto_commit_interval_ms / 1000
            # Once: tried again later, it could come after a commit of the application's that is ahead of it.
            once = self._commit_quietly(self._progress(), retry=False)
            self._committing = asyncio.create_task(once, name="auto commit")
            self._committing.add_done_callback(self._committed_quietly)
        elif self._wish is None and not self._assigned:
            raise WrongUse("nothing to read: subscribe to topics or assign partitions first")

    def _finish(self, records: list[ConsumerRecord]) -> tuple[list[ConsumerRecord], CoterieError | None]:
        """Return the records with keys and values deserialised, up to the first that cannot be."""
        read_key, read_value = self.settings.key_deserializer, self.settings.value_deserializer
        if read_key is None and read_value is None:
            return records, None
        done: list[ConsumerRecord] = []
        for record in records:
            what = "key"
            try:
                key = deserialised(record.key, read_key)
                what = "value"
                value = deserialised(record.value, read_value)
            except Exception as error:  # noqa: BLE001  # the application's code: it may raise anything
                return done, Undecodable(record, what, error)
            done.append(record._replace(key=key, value=value))
        return done, None

    # Positions

    def _state_of(self, partition: TopicPartition | tuple[str, int]) -> FetchState:
        at = partition_of(partition)
        state = self._fetcher.states.get(at)
        if state is None:
            raise NotAssigned(at)
        return state

    def _states_of(self, partitions: Partitions) -> list[FetchState]:
        """Return these partitions, or all that are assigned."""
        return [self._state_of(one) for one in partitions] or [*self._fetcher.states.values()]

    def _position_now(self, state: FetchState) -> int | None:
        """Return the offset after the last record handed out, None where the first is not known yet."""
        if self._walk is not None and self._walk.partition == state.at:
            return self._walk.position
        return state.position

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return our partitions' positions, after the records that the application has in its hands."""
        owned = self.assignment()
        return {at: one for at, one in self._parting.items() if at in owned} | self._fetched_to()

    def _fetched_to(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of the partitions that are fetched."""
        found = {}
        for at, state in self._fetcher.states.items():
            position = self._position_now(state)
            if position is not None:
                found[at] = OffsetAndMetadata(position, state.epoch)
        return found

    def _progress(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offset up to which each partition is done, before what the application works on."""
        done = self._positions()
        for at, offset in self._open.items():
            if at in done:
                done[at] = done[at]._replace(offset=offset)
        walk = self._walk
        if walk is not None and walk.shown is not None and walk.partition in done:
            done[walk.partition] = OffsetAndMetadata(walk.shown.offset, walk.epoch)
        return done

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Return the offset of the next record; waits until the first one is known."""
        state = self._state_of(partition)
        until = time.monotonic() + self._brokers.api_timeout_s
        while (position := self._position_now(state)) is None:
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
        place = noted(offset)
        if place.offset > LAST_OFFSET:
            raise WrongUse(f"there is no offset {place.offset}: the last one is {LAST_OFFSET}")
        if place.offset < 0:
            raise WrongUse(f"there is no offset {offset}; seek_to_beginning and seek_to_end find the ends")
        if self._walk is not None and self._walk.partition == state.at:
            self._walk = None
        self._open.pop(state.at, None)
        self._fetcher.jump(state, place.offset, epoch=place.leader_epoch)

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
        states = self._states_of(partitions)
        if self._walk is not None and any(state.at == self._walk.partition for state in states):
            self._walk_back(self._walk)
        self._fetcher.pause(states, True)

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
            wanted = self._positions()
        else:
            wanted = {partition_of(at): noted(one) for at, one in offsets.items()}
        await self._commit(wanted)

    async def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, retry: bool = True
    ) -> None:
        group, membership = self._group, self._caller or self._membership
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
        return automatic and self._membership is None and bool(self._assigned)

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
        """Return the member's identity, for a producer that commits its offsets in a transaction."""
        if self._membership is None:
            raise WrongUse("only a subscribed consumer is a member of a group")
        return self._membership.group_metadata()

    def enforce_rebalance(self, reason: str = "rebalance enforced by user") -> None:
        """Have the group share its partitions out anew."""
        if self._membership is None:
            raise WrongUse("only a subscribed consumer is a member of a group")
        self._membership.enforce_rebalance(reason)

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


class Walk:
    """Records of one partition that are handed out one by one."""

    def __init__(self, partition: TopicPartition, records: list[ConsumerRecord], *, epoch: int) -> None:
        self.partition, self.epoch = partition, epoch
        self.records = iter(records)
        self.shown: ConsumerRecord | None = None
        """The one that the application has in its hands."""
        self.first = records[0].offset
        self.over = False
        """Whether somebody has asked for more than there was."""

    @property
    def position(self) -> int:
        """The offset after the one that was handed out last."""
        return self.first if self.shown is None else self.shown.offset + 1


def deserialised(data: Any, read: Callable[[bytes], Any] | None) -> Any:
    """Return the deserialiser's value of the bytes; None and, without a deserialiser, the bytes stay."""
    return data if read is None or data is None else read(data)


def compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return a pattern of Python's `re`, which topics' whole names are to match."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise WrongUse(f"{pattern!r} is no pattern: {error}; write it as Python's re has it") from None


def noted(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """Return an offset with what is known beside it, or raise WrongUse for what is none."""
    if isinstance(offset, OffsetAndMetadata):
        return offset
    if not isinstance(offset, int):
        raise WrongUse(f"an offset is a whole number, or an OffsetAndMetadata, not {offset!r}")
    return OffsetAndMetadata(offset)


def member_settings(settings: ConsumerSettings) -> MemberSettings:
    """Return the member's part of a consumer's settings."""
    assert settings.group_id is not None
    return MemberSettings(
        group_id=settings.group_id,
        instance_id=settings.group_instance_id,
        session_timeout_ms=settings.session_timeout_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        max_poll_interval_ms=settings.max_poll_interval_ms,
        assignors=settings.assignors(),
        retry_backoff_ms=settings.retry_backoff_ms,
        retry_backoff_max_ms=settings.retry_backoff_max_ms,
        auto_commit_interval_ms=settings.auto_commit_interval_ms,
        metadata_max_age_ms=settings.metadata_max_age_ms,
        rack=settings.client_rack or None,
    )
