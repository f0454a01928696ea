"""Fetches ahead while the application works, so many bytes at most, and says where each partition stands.

One task a broker keeps one fetch under way; one more finds out leaders and first positions. What they bring
is taken by the consumer between two of their steps: everything runs on one loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from coterie.base.codes import Code
from coterie.base.errors import Corrupt, CoterieError, RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.blocks import keep_blocks
from coterie.client.consumer.broker_fetch import BrokerFetch, Fetchable, request_of
from coterie.client.consumer.fetch_session import SESSION_CODES, Ask, FetchPosition
from coterie.client.consumer.fetch_state import Ends, Fetched, FetchedFrom, FetchState, Finish
from coterie.client.consumer.positions import Start, unled
from coterie.client.consumer.records import Decode, PlainRows, compiled_rows
from coterie.client.consumer.truncation import epoch_ends, settle, tell_of_reset
from coterie.client.consumer.unread import Unread, refusal
from coterie.client.errors import RETRIABLE, ClientTimeout, Closed, Disconnected, MissingLibrary
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.settings import ConsumerSettings
from coterie.security.sasl import AuthenticationFailed
from coterie.wire.api.apis import ApiKey

log = logging.getLogger("coterie.client")

Locate = Callable[[Mapping[TopicPartition, str | None]], Awaitable[Mapping[TopicPartition, Start]]]
"""Finds first positions; the value says that the committed offset does not count, but this policy."""

LEADER_CODES = RETRIABLE | {Code.UNKNOWN_SERVER_ERROR}
LAST_WORD_S = 1.0
# Reading so many records one by one in Python, of batches that the compiled reader would take, has cost what
# loading that would.
COMPILED_AFTER = 1_000_000


class Fetcher:
    """Partitions to fetch, and what was fetched. Used from one loop."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, *, locate: Locate, finish: Finish
    ) -> None:
        self.cluster, self.settings = cluster, settings
        self.states: dict[TopicPartition, FetchState] = {}
        self.buffered = 0
        self.decode: Decode = PlainRows
        self._locate, self._finish = locate, finish
        self._clock = asyncio.get_running_loop()
        self._arrived: deque[FetchState] = deque()
        """Partitions of which something has come, each once, oldest first."""
        self._listed: set[TopicPartition] = set()
        self._came, self._moved, self._placed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._brokers: dict[Address, BrokerFetch] = {}
        self._unread = Unread(self._clock.time)
        self._failure: BaseException | None = None
        """What ended a task: raised again and again."""
        self._trouble: CoterieError | None = None
        """What a task could not do and tries again: raised once."""
        self._slow_records = 0
        self._loading: asyncio.Task[None] | None = None
        keep_blocks(settings.max_buffered_bytes)
        self._closed = False
        self._placer = self._begun(self._place(), name="places of partitions")

    # What the consumer says

    def set_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these and no others; those that stay go on as they are."""
        wanted = set(partitions)
        for gone in self.states.keys() - wanted:
            self.buffered -= self.states.pop(gone).buffered
            self._listed.discard(gone)
            self._unread.forget([gone])
        self._arrived = deque(state for state in self._arrived if state.at in self.states)
        for new in wanted - self.states.keys():
            self.states[new] = FetchState(new)
        self._wake()

    def jump(
        self, state: FetchState, offset: int | None, *, epoch: int = -1, reset: str | None = None
    ) -> None:
        """Go on at this offset, or (None) where the committed offset or the policy `reset` says."""
        self.buffered -= state.buffered
        state.jump(offset, epoch)
        state.reset = reset
        self._wake()

    def back(self, state: FetchState, offset: int, *, epoch: int) -> None:
        """Go on at an offset that was passed before: the leader that had what followed it has it, too."""
        checked_in = state.checked_in
        self.jump(state, offset, epoch=epoch)
        state.checked_in = checked_in

    def pause(self, states: Iterable[FetchState], paused: bool) -> None:
        """Stop or go on handing out these partitions; what was fetched stays."""
        for state in states:
            state.paused = paused
            if not paused and state.waiting:
                self._list(state)
        self._wake()

    def take(self, most: int, *, partitions: int | None = None) -> dict[TopicPartition, list[Any]]:
        """Return up to so many records, of so many partitions. Raises what is in the way of the next one."""
        self._check()
        taken: dict[TopicPartition, list[Any]] = {}
        try:
            while self._arrived and most > 0 and (partitions is None or len(taken) < partitions):
                state = self._arrived[0]
                records = self._take_of(state, most, taken)
                if records is None:
                    break
                if records:
                    most -= len(records)
                    held = taken.get(state.at)
                    taken[state.at] = records if held is None else held + records
                if state.paused or not state.waiting:
                    self._unlist(state)
        except BaseException:  # as Ctrl-C in a deserialiser: what came before it reaches nobody
            for at, records in taken.items():
                state = self.states[at]
                self.back(state, records[0].offset, epoch=state.epoch)
            raise
        return taken

    def _take_of(
        self, state: FetchState, most: int, taken: Mapping[TopicPartition, object]
    ) -> list[Any] | None:
        """Return the next records, None where something is wrong with them: what came before goes first."""
        if state.paused:
            return []
        before, slow_records = state.buffered, state.slow_records
        try:
            return state.take(most, self.decode, self._finish, check=self.settings.check_crcs)
        except CoterieError:
            if taken:
                return None
            raise
        finally:
            self._freed(before - state.buffered)
            self._count(state.slow_records - slow_records)

    def _count(self, slow_records: int) -> None:
        """Load the compiled reader, beside everything else, once it is going to pay."""
        self._slow_records += slow_records
        wanted = self.settings.decoder == "auto" and self._slow_records >= COMPILED_AFTER
        if wanted and self._loading is None:
            self._loading = asyncio.create_task(self._load(), name="loads the compiled reader")

    async def load_decoder(self) -> None:
        """Load the compiled reader now, or raise MissingLibrary."""
        found = await asyncio.to_thread(compiled_rows)
        if found is None:
            raise MissingLibrary(
                "the decoder 'compiled' needs pyarrow and numba; pip install 'coterie[spark]'"
            )
        self.decode = found

    async def _load(self) -> None:
        found = await asyncio.to_thread(compiled_rows)
        if found is not None:
            self.decode = found

    def take_fetched(self) -> list[FetchedFrom]:
        """Return all that came, undecoded, and from which offset on it is wanted."""
        self._check()
        taken = []
        for state in list(self._arrived):
            if state.paused:
                continue
            before, first = state.buffered, state.position or 0
            while state.queue:
                taken.append((state, first, state.take_fetched()))
            self._freed(before - state.buffered)
            self._arrived.remove(state)
            self._listed.discard(state.at)
        return taken

    async def came(self, timeout_s: float) -> None:
        """Wait until something may be there to take, so long at most."""
        if self._arrived or self._failed():
            return
        self._came.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._came.wait()
        except TimeoutError:
            pass

    async def placed(self, timeout_s: float) -> None:
        """Wait until a first position may have been found, so long at most."""
        self._placed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._placed.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        """End the tasks, and the fetch sessions at the brokers."""
        self._closed = True
        running = (self._placer, self._loading, *(node.task for node in self._brokers.values()))
        tasks = [task for task in running if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._came.set()
        await asyncio.gather(*(self._end_session(node) for node in self._brokers.values()))

    async def _end_session(self, node: BrokerFetch) -> None:
        """Have the broker forget the session, so that its place is free; it does so by itself in the end."""
        ask = node.session.last()
        if ask is None:
            return
        try:
            # On the connection for fetches, the one that was parked last would hold this up.
            async with asyncio.timeout(LAST_WORD_S):
                connection = await self.cluster.connection(node.address)
                await connection.call(ApiKey.FETCH, self._request_of(ask, 0), LAST_WORD_S)
        except (CoterieError, TimeoutError) as error:
            log.info("the fetch session of %s is not closed: %s", node.address, error)

    def _failed(self) -> bool:
        return (
            self._failure is not None
            or self._trouble is not None
            or any(state.failure is not None for state in self.states.values())
        )

    def _check(self) -> None:
        """Raise what is wrong with a task, or what a partition waits for somebody to put right."""
        self.check_tasks()
        for state in self.states.values():
            if state.failure is not None and not state.waiting:
                raise state.failure

    def check_tasks(self) -> None:
        """Raise what ended a task, or once what stopped one."""
        if self._failure is not None:
            raise self._failure
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble

    def _freed(self, size: int) -> None:
        if size:
            self.buffered -= size
            self._wake_brokers()

    def _list(self, state: FetchState) -> None:
        if state.at not in self._listed and not state.paused:
            self._listed.add(state.at)
            self._arrived.append(state)
        self._came.set()

    def _unlist(self, state: FetchState) -> None:
        self._arrived.popleft()
        self._listed.discard(state.at)

    def _wake(self) -> None:
        self._moved.set()
        self._wake_brokers()

    def _wake_brokers(self) -> None:
        for node in self._brokers.values():
            node.woken.set()

    # Where partitions are, and where they begin

    async def _place(self) -> None:
        """Find leaders and first positions for whoever has none; the task's root."""
        backoff = self.cluster.backoff()
        try:
            while True:
                self._moved.clear()
                if await self._places():
                    backoff.reset()
                    await self._moved.wait()
                else:
                    await asyncio.sleep(backoff.next_ms() / 1000)
        except Exception as error:  # noqa: BLE001  # the task's root: the next call of the consumer raises it
            self._fail(error)

    async def _places(self) -> bool:
        """Find what is to be found; return whether nothing is left of it."""
        try:
            done = await self._find_leaders()
            done = await self._find_positions() and done
            done = await self._check_epochs() and done
        except CoterieError as error:  # as a password that counts no more: who is told of it may mend it
            self._report(error)
            done = False
        self._start_brokers()
        return done

    def _report(self, error: CoterieError) -> None:
        self._trouble = error
        self._came.set()
        self._placed.set()

    def _begun(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Return a task that nothing comes without: who cancels whatever runs is told of it."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and not self._closed:
            self._fail(Closed(f"the consumer's task '{task.get_name()}' was cancelled: close it"))

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._came.set()
        self._placed.set()

    async def _find_leaders(self) -> bool:
        """Ask who leads the partitions whose leader is not known; return whether nothing is left to ask."""
        lost = [state for state in self.states.values() if state.leader is None and state.failure is None]
        if not lost:
            return True
        topics = {state.at.topic for state in lost}
        try:
            found = await self.cluster.metadata(topics)
        except (ClientTimeout, Disconnected, RefusedBy) as error:
            log.warning("no leaders of %s: %s", ", ".join(sorted(topics)), error)
            return False
        leaders = self.cluster.known_leaders(state.at for state in lost)
        for state in lost:
            state.leader = leaders.get(state.at)
            state.leader_epoch = self.cluster.leader_epoch(state.at)
            topic = found.topics.get(state.at.topic)
            if topic is not None and topic.code and topic.code not in RETRIABLE:
                self._refuse(state, RefusedBy(topic.code, f"metadata of topic {state.at.topic}"))
        missing = [state for state in lost if state.leader is None and state.failure is None]
        why = {state: unled(state.at, found.topics) for state in missing}
        unknown = {found.why_without_leader(state.at) for state in missing} - {Code.LEADER_NOT_AVAILABLE}
        self._unread.lacks(why, at_once=bool(unknown))
        return not missing

    async def _find_positions(self) -> bool:
        """Find the first position of whoever has none; return whether nothing is left to find."""
        lost = {
            state.at: (state, state.jumps)
            for state in self.states.values()
            if state.position is None and state.failure is None and state.leader is not None
        }
        if not lost:
            return True
        try:
            found = await self._locate({at: state.reset for at, (state, _) in lost.items()})
        except (ClientTimeout, Disconnected) as error:
            log.warning("no positions of %s: %s", ", ".join(map(str, lost)), error)
            return False
        except AuthenticationFailed:  # nothing is wrong with the partitions
            raise
        except CoterieError as error:
            found = dict.fromkeys(lost, error)
        for at, (state, jumps) in lost.items():
            if self.states.get(at) is not state or state.jumps != jumps:
                continue
            match found[at]:
                case CoterieError() as refusal:
                    self._refuse(state, refusal)
                case OffsetAndMetadata(offset=offset, leader_epoch=epoch):
                    state.jump(offset, epoch)
                case int(offset):
                    tell_of_reset(state, offset)
                    state.jump(offset)
        self._placed.set()
        return True

    async def _check_epochs(self) -> bool:
        """Ask new leaders if they have what was read (KIP-320); return whether nothing is left to ask."""
        asked = {
            state: state.jumps
            for state in self.states.values()
            if state.needs_epoch_check and state.leader is not None and state.failure is None
        }
        if not asked:
            return True
        found = await epoch_ends(self.cluster, asked)
        well, unread = True, dict[FetchState, str]()
        for state, jumps in asked.items():
            if self.states.get(state.at) is not state or state.jumps != jumps:
                continue
            end = found.get(state.at)
            if end is None or end.code in LEADER_CODES:
                well = False
                if end is not None:
                    unread[state] = refusal(end.code)
                self._look_again(state)
            elif end.code:
                self._refuse(state, RefusedBy(end.code, f"OffsetForLeaderEpoch of {state.at}"))
            else:
                self.buffered -= state.buffered
                settle(state, end, policy=self.settings.auto_offset_reset)
                self.buffered += state.buffered
                well = well and state.position is not None and not state.needs_epoch_check
        self._unread.lacks(unread)
        self._came.set()
        return well

    def _look_again(self, state: FetchState) -> None:
        """Find out the leader anew: what was known of it proved wrong."""
        state.leader = state.replica = None
        self.cluster.forget([state.at.topic])
        self._moved.set()

    def _refuse(self, state: FetchState, error: CoterieError) -> None:
        state.failure = error
        self._came.set()

    def _start_brokers(self) -> None:
        """Have a task for each broker that something is to be fetched from."""
        for address in {state.source for state in self.states.values()}:
            if address is None:
                continue
            node = self._brokers.get(address)
            if node is None or node.task is None or node.task.done():
                node = self._brokers[address] = BrokerFetch(address)
                node.task = self._begun(self._serve(node), name=f"fetches from {address}")
        self._wake_brokers()

    # Fetching

    async def _serve(self, node: BrokerFetch) -> None:
        """Fetch from one broker as long as a partition is there; the task's root."""
        backoff = self.cluster.backoff()
        try:
            while any(state.source == node.address for state in self.states.values()):
                node.woken.clear()
                wanted = self._wanted(node.address)
                idle_s = node.idle_s(wanted, self._clock.time())
                if idle_s > 0:
                    await node.idle(idle_s)
                elif await self._fetch(node, wanted):
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next_ms() / 1000)
        except Exception as error:  # noqa: BLE001  # the task's root: the next call of the consumer raises it
            self._fail(error)

    def _wanted(self, address: Address) -> Fetchable:
        """Return the partitions to ask this broker for: with less than a fetch in stock, if there is room."""
        wanted: dict[TopicPartition, FetchState] = {}
        if self.buffered >= self.settings.max_buffered_bytes:
            return Fetchable(wanted, more_soon=True, at_ends=False)
        now = self._clock.time()
        enough = self.settings.max_partition_fetch_bytes
        more_soon, at_ends = False, True
        for at, state in self.states.items():
            if state.replica is not None and state.replica_until < now:
                state.replica = None
                self._moved.set()
            known = state.position is not None and not state.needs_epoch_check
            if not known or state.paused or state.failure is not None or state.source != address:
                continue
            if state.buffered < enough:
                wanted[at] = state
                at_ends = at_ends and state.at_end(committed=bool(self.settings.isolation))
            else:
                more_soon = True
        return Fetchable(wanted, more_soon, at_ends)

    async def _fetch(self, node: BrokerFetch, wanted: Fetchable) -> bool:
        """Ask for these partitions and take the answer; return whether there was one."""
        partitions = wanted.partitions
        places = {at: FetchPosition(state.fetch_at, state.leader_epoch) for at, state in partitions.items()}
        asked = {state: (state.jumps, places[at]) for at, state in partitions.items()}
        ask = node.session.ask(places)
        max_wait_ms = 0 if wanted.more_soon else self.settings.fetch_max_wait_ms
        node.ends_asked_at = self._clock.time()
        try:
            connection = await self.cluster.connection(node.address, purpose="fetch")
            answer = await connection.call(
                ApiKey.FETCH,
                self._request_of(ask, max_wait_ms),
                self.cluster.request_timeout_s + max_wait_ms / 1000,
            )
        except (Disconnected, ClientTimeout) as error:
            log.info("fetch: %s", error)
            self._lost(node)
            self._unread.lacks(dict.fromkeys(partitions.values(), str(error)))
            return False
        except CoterieError as error:
            self._lost(node)
            self._report(error)
            return False
        code = Code(answer.error_code)
        if code:
            node.session.failed(code)
            if code in SESSION_CODES or code in LEADER_CODES:
                log.info("fetch from %s: %s", node.address, code.name)
                if code not in SESSION_CODES:
                    self._unread.lacks(dict.fromkeys(partitions.values(), refusal(code)))
                return code in SESSION_CODES
            self._report(RefusedBy(code, f"Fetch from {node.address}"))
            return False
        node.session.answered(answer.session_id)
        return self._received(node, answer, asked)

    def _request_of(self, ask: Ask[FetchPosition], max_wait_ms: int) -> Callable[[int], Any]:
        room = max(1, self.settings.max_buffered_bytes - self.buffered)
        return request_of(self.settings, ask, max_wait_ms=max_wait_ms, room=room)

    def _lost(self, node: BrokerFetch) -> None:
        """Look for the leaders anew: the connection broke."""
        node.session.failed()
        self.cluster.drop(node.address, purpose="fetch")
        for state in self.states.values():
            if state.replica == node.address:
                state.replica = None
            elif state.leader == node.address:
                state.leader = None
        self._moved.set()

    def _received(
        self, node: BrokerFetch, answer: Any, asked: Mapping[FetchState, tuple[int, FetchPosition]]
    ) -> bool:
        """Take each partition's part of an answer; return whether no part must wait for another try."""
        well, unread = True, dict[FetchState, str]()
        for topic in answer.responses:
            for part in topic.partitions:
                at = TopicPartition(topic.topic, part.partition_index)
                state = self.states.get(at)
                # What was asked before a jump is not wanted any more. Nor what was asked for a partition that
                # has gone and come back since: what lay undelivered then, and is dropped, is before that. Nor
                # what another broker is asked for by now: it may have answered first, and knows better.
                if state is None or state.source != node.address:
                    continue
                if asked.get(state) != (state.jumps, FetchPosition(state.fetch_at, state.leader_epoch)):
                    continue
                code = Code(part.error_code)
                if code:
                    well = self._refused(state, code) and well
                    if code in LEADER_CODES:
                        unread[state] = refusal(code)
                else:
                    self._add(state, part)
        self._unread.lacks(unread)
        self._unread.reads(state.at for state in asked if state.source == node.address)
        return well

    def _add(self, state: FetchState, part: Any) -> None:
        """Queue a partition's batches, undecoded."""
        state.ends = Ends(part.log_start_offset, part.last_stable_offset, part.high_watermark)
        if part.preferred_read_replica >= 0:
            self._prefer(state, part.preferred_read_replica)
        if not part.records:
            return
        try:
            fetched = Fetched.of(part, first=state.fetch_at, committed=bool(self.settings.isolation))
        except Corrupt as error:
            self._refuse(state, Corrupt(f"{state.at} from offset {state.fetch_at} on: {error}"))
            return
        if fetched.next_offset == state.fetch_at:  # not one whole batch: no broker since 0.10.1 answers so
            self._refuse(state, Corrupt(f"{state.at} at offset {state.fetch_at}", expected="a whole batch"))
            return
        state.add(fetched)
        self.buffered += len(part.records)
        self._list(state)

    def _prefer(self, state: FetchState, node_id: int) -> None:
        """Fetch from the replica that the leader names, as nearer to client_rack, for a while."""
        address = self.cluster.known.brokers.get(node_id)
        if address is not None and address != state.leader:
            state.replica = address
            state.replica_until = self._clock.time() + self.settings.metadata_max_age_ms / 1000
            self._moved.set()

    def _refused(self, state: FetchState, code: Code) -> bool:
        """React to a partition's error; return False where the broker should be left alone for a moment."""
        if code is Code.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(state)
        if code in LEADER_CODES:
            log.info("fetch of %s: %s", state.at, code.name)
            self._look_again(state)
            return False
        self._refuse(state, RefusedBy(code, f"Fetch of {state.at} at offset {state.fetch_at}"))
        return True

    def _out_of_range(self, state: FetchState) -> bool:
        """Begin again where the policy says, once what was fetched before is handed out."""
        log.info("%s has no offset %d", state.at, state.fetch_at)
        if state.replica is not None:  # only the leader knows for sure
            state.replica = None
            self._moved.set()
        elif state.waiting:
            return False
        else:
            lacking = f"its log has no offset {state.fetch_at}"
            self.jump(state, None, reset=self.settings.auto_offset_reset)
            state.lacking = lacking
        return True
