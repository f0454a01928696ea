"""Fetches ahead while the application works, so many bytes at most, and says where each partition stands.

One task a broker keeps one fetch under way; one more finds out leaders and first positions. What they bring
is taken by the consumer between two of their steps: everything runs on one loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import Corrupt, CoterieError, RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.fetch_session import SESSION_CODES, Ask, FetchSession, Place
from coterie.client.consumer.fetch_state import Ends, Fetched, Finish, Intake
from coterie.client.consumer.positions import Start
from coterie.client.consumer.records import Decode, PlainRows, compiled_rows
from coterie.client.consumer.truncation import epoch_ends, settle
from coterie.client.errors import RETRIABLE, ClientTimeout, Closed, Disconnected, MissingLibrary
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.settings import ConsumerSettings
from coterie.security.sasl import AuthenticationFailed
from coterie.wire.api.apis import ApiKey
from coterie.wire.records.visible import AbortedTransaction

log = logging.getLogger("coterie.client")

Locate = Callable[[Mapping[TopicPartition, str | None]], Awaitable[Mapping[TopicPartition, Start]]]
"""Finds first positions; the value says that the committed offset does not count, but this policy."""

LEADER_CODES = RETRIABLE | {Code.UNKNOWN_SERVER_ERROR}
NODE_IDLE_S = 1.0
LAST_WORD_S = 1.0
# So often the log's end is asked for news while there is other work: such a fetch does not wait there.
ENDS_EVERY_S = 0.1
# Reading so many records one by one in Python has cost what loading the compiled reader would.
COMPILED_AFTER = 1_000_000
# The largest block that glibc learns from, but for what it puts around it.
LARGEST_BLOCK = (32 << 20) - 65_536


class Node:
    """A broker that partitions are fetched from, and the task that does it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.session = FetchSession[Place]()
        self.stirred = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.ends_asked_at = 0.0
        """When those at their ends were last asked for, on the loop's clock."""


class Wanted(NamedTuple):
    """What to ask a broker for."""

    partitions: dict[TopicPartition, Intake]
    more_soon: bool
    """Whether others are left out until some of their stock is gone: an answer must not be long then."""
    at_ends: bool
    """Whether all are known to have nothing now."""


class Fetcher:
    """Partitions to fetch, and what was fetched. Used from one loop."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, *, locate: Locate, finish: Finish
    ) -> None:
        self.cluster, self.settings = cluster, settings
        self.intakes: dict[TopicPartition, Intake] = {}
        self.buffered = 0
        self.decode: Decode = PlainRows
        self._locate, self._finish = locate, finish
        self._clock = asyncio.get_running_loop()
        self._arrived: deque[Intake] = deque()
        """Lanes that have something, each once, oldest first."""
        self._listed: set[TopicPartition] = set()
        self._came = asyncio.Event()
        self._moved = asyncio.Event()
        self._placed = asyncio.Event()
        self._nodes: dict[Address, Node] = {}
        self._leaderless: list[TopicPartition] = []
        """What nothing could be read of when leaders were last looked for."""
        self._failure: BaseException | None = None
        """What ended a task: raised again and again."""
        self._trouble: CoterieError | None = None
        """What a task could not do and tries again: raised once."""
        self._tedious = 0
        self._loading: asyncio.Task[None] | None = None
        keep_blocks(settings.max_buffered_bytes)
        self._closed = False
        self._placer = self._begun(self._place(), name="places of partitions")

    # What the consumer says

    def set_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these and no others; those that stay go on as they are."""
        wanted = set(partitions)
        for gone in self.intakes.keys() - wanted:
            self.buffered -= self.intakes.pop(gone).buffered
            self._listed.discard(gone)
        self._arrived = deque(intake for intake in self._arrived if intake.at in self.intakes)
        for new in wanted - self.intakes.keys():
            self.intakes[new] = Intake(new)
        self._stir()

    def jump(self, intake: Intake, offset: int | None, *, epoch: int = -1, reset: str | None = None) -> None:
        """Go on at this offset, or (None) where the committed offset or the policy `reset` says."""
        self.buffered -= intake.buffered
        intake.jump(offset, epoch)
        intake.reset = reset
        self._stir()

    def back(self, intake: Intake, offset: int, *, epoch: int) -> None:
        """Go on at an offset that was passed before: the leader that had what followed it has it, too."""
        checked_in = intake.checked_in
        self.jump(intake, offset, epoch=epoch)
        intake.checked_in = checked_in

    def pause(self, intakes: Iterable[Intake], paused: bool) -> None:
        """Stop or go on handing out these partitions; what was fetched stays."""
        for intake in intakes:
            intake.paused = paused
            if not paused and intake.waiting:
                self._list(intake)
        self._stir()

    def take(self, most: int, *, partitions: int | None = None) -> dict[TopicPartition, list[Any]]:
        """Return up to so many records, of so many partitions. Raises what is in the way of the next one."""
        self._check()
        taken: dict[TopicPartition, list[Any]] = {}
        try:
            while self._arrived and most > 0 and (partitions is None or len(taken) < partitions):
                intake = self._arrived[0]
                records = self._take_of(intake, most, taken)
                if records is None:
                    break
                if records:
                    most -= len(records)
                    held = taken.get(intake.at)
                    taken[intake.at] = records if held is None else held + records
                if intake.paused or not intake.waiting:
                    self._unlist(intake)
        except BaseException:  # as Ctrl-C in a deserialiser: what came before it reaches nobody
            for at, records in taken.items():
                intake = self.intakes[at]
                self.back(intake, records[0].offset, epoch=intake.epoch)
            raise
        return taken

    def _take_of(self, intake: Intake, most: int, taken: Mapping[TopicPartition, object]) -> list[Any] | None:
        """Return the next records, None where something is wrong with them: what came before goes first."""
        if intake.paused:
            return []
        before, tedious = intake.buffered, intake.tedious
        try:
            return intake.take(most, self.decode, self._finish, check=self.settings.check_crcs)
        except CoterieError:
            if taken:
                return None
            raise
        finally:
            self._freed(before - intake.buffered)
            self._count(intake.tedious - tedious)

    def _count(self, tedious: int) -> None:
        """Load the compiled reader, beside everything else, once it is going to pay."""
        self._tedious += tedious
        wanted = self.settings.decoder == "auto" and self._tedious >= COMPILED_AFTER
        if wanted and self._loading is None:
            self._loading = asyncio.create_task(self._load(), name="loads the compiled reader")

    async def load_decoder(self) -> None:
        """Load the compiled reader now, or raise MissingLibrary."""
        found = await asyncio.to_thread(compiled_rows)
        if found is None:
            raise MissingLibrary("the decoder 'compiled' needs numba; pip install coterie[fast]")
        self.decode = found

    async def _load(self) -> None:
        found = await asyncio.to_thread(compiled_rows)
        if found is not None:
            self.decode = found

    def take_fetched(self) -> list[tuple[Intake, int, Fetched]]:
        """Return all that came, undecoded, and from which offset on it is wanted."""
        self._check()
        taken = []
        for intake in list(self._arrived):
            if intake.paused:
                continue
            before, first = intake.buffered, intake.position or 0
            while intake.queue:
                taken.append((intake, first, intake.take_fetched()))
            self._freed(before - intake.buffered)
            self._arrived.remove(intake)
            self._listed.discard(intake.at)
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
        running = (self._placer, self._loading, *(node.task for node in self._nodes.values()))
        tasks = [task for task in running if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._came.set()
        await asyncio.gather(*(self._end_session(node) for node in self._nodes.values()))

    async def _end_session(self, node: Node) -> None:
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
            or any(intake.failure is not None for intake in self.intakes.values())
        )

    def _check(self) -> None:
        """Raise what is wrong with a task, or what a partition waits for somebody to put right."""
        self.check_tasks()
        for intake in self.intakes.values():
            if intake.failure is not None and not intake.waiting:
                raise intake.failure

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
            self._stir_nodes()

    def _list(self, intake: Intake) -> None:
        if intake.at not in self._listed and not intake.paused:
            self._listed.add(intake.at)
            self._arrived.append(intake)
        self._came.set()

    def _unlist(self, intake: Intake) -> None:
        self._arrived.popleft()
        self._listed.discard(intake.at)

    def _stir(self) -> None:
        self._moved.set()
        self._stir_nodes()

    def _stir_nodes(self) -> None:
        for node in self._nodes.values():
            node.stirred.set()

    # Where partitions are, and where they begin

    async def _place(self) -> None:
        """Find leaders and first positions for whoever has none; the task's root."""
        pace = self.cluster.pace()
        try:
            while True:
                self._moved.clear()
                if await self._places():
                    pace.reset()
                    await self._moved.wait()
                else:
                    await asyncio.sleep(pace.next_ms() / 1000)
        except Exception as error:  # noqa: BLE001  # the task's root: the next call of the consumer raises it
            self._fail(error)

    async def _places(self) -> bool:
        """Find what is to be found; return whether nothing is left of it."""
        try:
            done = await self._find_leaders()
            done = await self._find_positions() and done
            done = await self._check_epochs() and done
        except CoterieError as error:  # as a password that counts no more: who is told of it may mend it
            self._stumble(error)
            done = False
        self._start_nodes()
        return done

    def _stumble(self, error: CoterieError) -> None:
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
        lost = [
            intake for intake in self.intakes.values() if intake.leader is None and intake.failure is None
        ]
        if not lost:
            return True
        topics = {intake.at.topic for intake in lost}
        try:
            found = await self.cluster.metadata(topics)
        except (ClientTimeout, Disconnected, RefusedBy) as error:
            log.warning("no leaders of %s: %s", ", ".join(sorted(topics)), error)
            return False
        leaders = self.cluster.known_leaders(intake.at for intake in lost)
        for intake in lost:
            intake.leader = leaders.get(intake.at)
            intake.leader_epoch = self.cluster.leader_epoch(intake.at)
            topic = found.topics.get(intake.at.topic)
            if topic is not None and topic.code and topic.code not in RETRIABLE:
                self._refuse(intake, RefusedBy(topic.code, f"metadata of topic {intake.at.topic}"))
        missing = [intake.at for intake in lost if intake.leader is None and intake.failure is None]
        if missing and missing != self._leaderless:
            log.warning("nothing is read now of %s", "; ".join(unled(at, found.topics) for at in missing))
        self._leaderless = missing
        return not missing

    async def _find_positions(self) -> bool:
        """Find the first position of whoever has none; return whether nothing is left to find."""
        lost = {
            intake.at: (intake, intake.turn)
            for intake in self.intakes.values()
            if intake.position is None and intake.failure is None and intake.leader is not None
        }
        if not lost:
            return True
        try:
            found = await self._locate({at: intake.reset for at, (intake, _) in lost.items()})
        except (ClientTimeout, Disconnected) as error:
            log.warning("no positions of %s: %s", ", ".join(map(str, lost)), error)
            return False
        except AuthenticationFailed:  # nothing is wrong with the partitions
            raise
        except CoterieError as error:
            found = dict.fromkeys(lost, error)
        for at, (intake, turn) in lost.items():
            if self.intakes.get(at) is not intake or intake.turn != turn:
                continue
            match found[at]:
                case CoterieError() as refusal:
                    self._refuse(intake, refusal)
                case OffsetAndMetadata(offset=offset, leader_epoch=epoch):
                    intake.jump(offset, epoch)
                case int(offset):
                    intake.jump(offset)
        self._placed.set()
        return True

    async def _check_epochs(self) -> bool:
        """Ask new leaders if they have what was read (KIP-320); return whether nothing is left to ask."""
        asked = {
            intake: intake.turn
            for intake in self.intakes.values()
            if intake.doubtful and intake.leader is not None and intake.failure is None
        }
        if not asked:
            return True
        found = await epoch_ends(self.cluster, asked)
        well = True
        for intake, turn in asked.items():
            if self.intakes.get(intake.at) is not intake or intake.turn != turn:
                continue
            end = found.get(intake.at)
            if end is None or end.code in LEADER_CODES:
                well = False
                self._look_again(intake)
            elif end.code:
                self._refuse(intake, RefusedBy(end.code, f"OffsetForLeaderEpoch of {intake.at}"))
            else:
                self.buffered -= intake.buffered
                settle(intake, end, policy=self.settings.auto_offset_reset)
                self.buffered += intake.buffered
                well = well and intake.position is not None and not intake.doubtful
        self._came.set()
        return well

    def _look_again(self, intake: Intake) -> None:
        """Find out the leader anew: what was known of it proved wrong."""
        intake.leader = intake.replica = None
        self.cluster.forget([intake.at.topic])
        self._moved.set()

    def _refuse(self, intake: Intake, error: CoterieError) -> None:
        intake.failure = error
        self._came.set()

    def _start_nodes(self) -> None:
        """Have a task for each broker that something is to be fetched from."""
        for address in {intake.source for intake in self.intakes.values()}:
            if address is None:
                continue
            node = self._nodes.get(address)
            if node is None or node.task is None or node.task.done():
                node = self._nodes[address] = Node(address)
                node.task = self._begun(self._serve(node), name=f"fetches from {address}")
        self._stir_nodes()

    # Fetching

    async def _serve(self, node: Node) -> None:
        """Fetch from one broker as long as a partition is there; the task's root."""
        pace = self.cluster.pace()
        try:
            while any(intake.source == node.address for intake in self.intakes.values()):
                node.stirred.clear()
                wanted = self._wanted(node.address)
                idle_s = self._idle_s(node, wanted)
                if idle_s > 0:
                    await self._idle(node, idle_s)
                elif await self._fetch(node, wanted):
                    pace.reset()
                else:
                    await asyncio.sleep(pace.next_ms() / 1000)
        except Exception as error:  # noqa: BLE001  # the task's root: the next call of the consumer raises it
            self._fail(error)

    def _idle_s(self, node: Node, wanted: Wanted) -> float:
        """Return how long to ask for nothing unless something moves.

        A broker that has nothing waits with its answer, and what is drunk up meanwhile could not be asked
        for: so those at their ends are asked for with the others, or without waiting and not often.
        """
        if not wanted.partitions:
            return NODE_IDLE_S
        if not (wanted.more_soon and wanted.at_ends):
            return 0
        return node.ends_asked_at + ENDS_EVERY_S - self._clock.time()

    async def _idle(self, node: Node, most_s: float) -> None:
        """Wait until there may be something to fetch."""
        try:
            async with asyncio.timeout(most_s):
                await node.stirred.wait()
        except TimeoutError:
            pass

    def _wanted(self, address: Address) -> Wanted:
        """Return what to ask this broker for: what has less than a fetch in stock, if there is room."""
        wanted: dict[TopicPartition, Intake] = {}
        if self.buffered >= self.settings.max_buffered_bytes:
            return Wanted(wanted, more_soon=True, at_ends=False)
        now = self._clock.time()
        enough = self.settings.max_partition_fetch_bytes
        more_soon, at_ends = False, True
        for at, intake in self.intakes.items():
            if intake.replica is not None and intake.replica_until < now:
                intake.replica = None
                self._moved.set()
            known = intake.position is not None and not intake.doubtful
            if not known or intake.paused or intake.failure is not None or intake.source != address:
                continue
            if intake.buffered < enough:
                wanted[at] = intake
                at_ends = at_ends and intake.at_end(committed=bool(self.settings.isolation))
            else:
                more_soon = True
        return Wanted(wanted, more_soon, at_ends)

    async def _fetch(self, node: Node, wanted: Wanted) -> bool:
        """Ask for these partitions and take the answer; return whether there was one."""
        partitions = wanted.partitions
        places = {at: Place(intake.fetch_at, intake.leader_epoch) for at, intake in partitions.items()}
        asked = {intake: (intake.turn, places[at]) for at, intake in partitions.items()}
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
            return False
        except CoterieError as error:
            self._lost(node)
            self._stumble(error)
            return False
        code = Code(answer.error_code)
        if code:
            node.session.failed(code)
            if code in SESSION_CODES or code in LEADER_CODES:
                log.info("fetch from %s: %s", node.address, code.name)
                return code in SESSION_CODES
            self._stumble(RefusedBy(code, f"Fetch from {node.address}"))
            return False
        node.session.answered(answer.session_id)
        return self._received(node, answer, asked)

    def _request_of(self, ask: Ask[Place], max_wait_ms: int) -> Callable[[int], Any]:
        """Return what makes the request."""
        settings = self.settings
        room = max(1, settings.max_buffered_bytes - self.buffered)

        def make(version: int) -> Any:
            return messages.fetch(
                version,
                {at: place.offset for at, place in ask.positions.items()},
                max_wait_ms=max_wait_ms,
                min_bytes=settings.fetch_min_bytes,
                max_bytes=min(settings.fetch_max_bytes, room),
                partition_max_bytes=settings.max_partition_fetch_bytes,
                isolation=settings.isolation,
                session=ask.session,
                forgotten=ask.forgotten,
                rack=settings.client_rack,
                epochs={at: place.leader_epoch for at, place in ask.positions.items()},
            )

        return make

    def _lost(self, node: Node) -> None:
        """Look for the leaders anew: the connection broke."""
        node.session.failed()
        self.cluster.drop(node.address, purpose="fetch")
        for intake in self.intakes.values():
            if intake.replica == node.address:
                intake.replica = None
            elif intake.leader == node.address:
                intake.leader = None
        self._moved.set()

    def _received(self, node: Node, answer: Any, asked: Mapping[Intake, tuple[int, Place]]) -> bool:
        """Take each partition's part of an answer; return whether no part must wait for another try."""
        well = True
        for topic in answer.responses:
            for part in topic.partitions:
                at = TopicPartition(topic.topic, part.partition_index)
                intake = self.intakes.get(at)
                # What was asked before a jump is not wanted any more. Nor what was asked for a partition that
                # has gone and come back since: what lay undelivered then, and is dropped, is before that. Nor
                # what another broker is asked for by now: it may have answered first, and knows better.
                if intake is None or intake.source != node.address:
                    continue
                if asked.get(intake) != (intake.turn, Place(intake.fetch_at, intake.leader_epoch)):
                    continue
                code = Code(part.error_code)
                if code:
                    well = self._refused(intake, code) and well
                else:
                    self._add(intake, part)
        return well

    def _add(self, intake: Intake, part: Any) -> None:
        """Queue a partition's batches, undecoded."""
        intake.ends = Ends(part.log_start_offset, part.last_stable_offset, part.high_watermark)
        if part.preferred_read_replica >= 0:
            self._prefer(intake, part.preferred_read_replica)
        if not part.records:
            return
        aborted = None
        if self.settings.isolation:
            aborted = [
                AbortedTransaction(one.producer_id, one.first_offset)
                for one in part.aborted_transactions or ()
            ]
        try:
            fetched = Fetched(part.records, first=intake.fetch_at, aborted=aborted)
        except Corrupt as error:
            self._refuse(intake, Corrupt(f"{intake.at} from offset {intake.fetch_at} on: {error}"))
            return
        if fetched.next_offset == intake.fetch_at:  # not one whole batch: no broker since 0.10.1 answers so
            self._refuse(
                intake, Corrupt(f"{intake.at} at offset {intake.fetch_at}", expected="a whole batch")
            )
            return
        intake.add(fetched)
        self.buffered += len(part.records)
        self._list(intake)

    def _prefer(self, intake: Intake, node_id: int) -> None:
        """Fetch from the replica that the leader names, as nearer to client_rack, for a while."""
        address = self.cluster.known.brokers.get(node_id)
        if address is not None and address != intake.leader:
            intake.replica = address
            intake.replica_until = self._clock.time() + self.settings.metadata_max_age_ms / 1000
            self._moved.set()

    def _refused(self, intake: Intake, code: Code) -> bool:
        """React to a partition's error; return False where the broker should be left alone for a moment."""
        if code is Code.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(intake)
        if code in LEADER_CODES:
            log.info("fetch of %s: %s", intake.at, code.name)
            self._look_again(intake)
            return False
        self._refuse(intake, RefusedBy(code, f"Fetch of {intake.at} at offset {intake.fetch_at}"))
        return True

    def _out_of_range(self, intake: Intake) -> bool:
        """Begin again where the policy says, once what was fetched before is handed out."""
        log.info("%s has no offset %d", intake.at, intake.fetch_at)
        if intake.replica is not None:  # only the leader knows for sure
            intake.replica = None
            self._moved.set()
        elif intake.waiting:
            return False
        else:
            self.jump(intake, None, reset=self.settings.auto_offset_reset)
        return True


def unled(at: TopicPartition, topics: Mapping[str, messages.TopicInfo]) -> str:
    """Return why nothing can be read of a partition that has no known leader."""
    topic = topics.get(at.topic)
    if topic is None or not topic.leaders:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if topic is None or not topic.code else topic.code
        return f"{at}: {RefusedBy(code)}"
    if at.partition not in topic.leaders:
        return f"{at}: the topic has {len(topic.leaders)} partitions, from 0 on; more may be added to it"
    return f"{at}: {RefusedBy(Code.LEADER_NOT_AVAILABLE)}"


def keep_blocks(most: int) -> None:
    """Let the process keep freed memory, so many bytes at most, for the next fetches: where glibc allocates.

    It hands large blocks back to the system at once, and new ones come page by page: a fourth of what reading
    records of 1 kB takes. When a block was freed it keeps those of up to that size, and twice as much in all
    (mallopt(3), M_MMAP_THRESHOLD). No page of this one is touched: bytes are zero as they come.
    """
    bytes(min(most // 2, LARGEST_BLOCK))
