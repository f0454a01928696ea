"""Carries out what `accumulator` wants on a running loop: requests, answers, timers, metadata.

There is no task for a record or a request. `wake` has everything looked at once, after the callbacks that
are due now; connections, metadata and the producer id are learnt by tasks of their own, one of each at most.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from math import inf
from typing import Any

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.base.plain import counted
from coterie.client.errors import ClientTimeout, Disconnected
from coterie.client.member.backoff import Backoff
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.net.connection import Connection
from coterie.client.net.messages import Rpc
from coterie.client.producer import messages as asks
from coterie.client.producer.accumulator import WRONG_LEADER, Accumulator, BatchAnswer
from coterie.client.producer.batcher import NO_IDENTITY, Batch, Identity
from coterie.client.producer.errors import ProducerClosed
from coterie.client.producer.settings import ProducerSettings
from coterie.security.sasl import AuthenticationFailed
from coterie.wire.api.apis import ApiKey

log = logging.getLogger("coterie.client")

PURPOSE = "produce"
AFTER_CANCEL_S = 0.1
# Of a topic that nothing was sent to for so long nothing is kept up to date: Kafka's metadata.max.idle.ms.
IDLE_MS = 300_000
Work = Callable[[], Coroutine[Any, Any, None]]

SETTLED_UNKNOWN = BatchAnswer(Code.NONE)


class Sender:
    """Sends batches until it is stopped."""

    def __init__(self, settings: ProducerSettings, cluster: Cluster, accumulator: Accumulator) -> None:
        self.settings, self.cluster, self.accumulator = settings, cluster, accumulator
        self.loop = asyncio.get_running_loop()
        self.version_2 = True
        """Whether transactions are those of KIP-890."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Those who wait for room, first come first served."""
        self._links: dict[Address, Connection] = {}
        self._in_flight: Counter[Address] = Counter()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._backoffs: dict[str, Backoff] = {}
        """How long to wait before that is tried again which did not go well."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0
        self._wake_due = False
        self._learning: set[str] = set()
        """Topics whose leaders are needed now, and which are created if they are not there."""
        self._aging: set[str] = set()
        """Topics of which it is looked again what was known."""
        self._refreshed = self.loop.time()
        self.stopped = False

    def now_ms(self) -> float:
        """Return the loop's time in milliseconds."""
        return self.loop.time() * 1000

    def wake(self) -> None:
        """Have everything looked at soon."""
        if not self._wake_due and not self.stopped:
            self._wake_due = True
            self.loop.call_soon(self._look)

    # -- what is to be done now

    def _look(self) -> None:
        """Do what is to be done; if that fails, it is our mistake, and nobody is to wait in vain."""
        self._wake_due = False
        if self.stopped:
            return
        try:
            self._send_due()
        except Exception as error:
            self._break(error)
            raise

    def _break(self, error: BaseException) -> None:
        """Fail all there is, and all that is to come: something was raised that nothing here expects."""
        broken = ProducerClosed(f"the producer broke: {error!r}; please report it")
        self.accumulator.abandon(broken)
        for batch in list(self.accumulator.batches()):  # those too that count as under way, and may not be
            self.accumulator.fail(batch, broken)
        self._woken()

    def _send_due(self) -> None:
        """Send what is due, ask for what is missing, and wake up for what is due next."""
        if self.accumulator.needs_identity and self.settings.transactional_id is None:
            self.start("producer id", self._identify)
        more = True
        while more:
            now_ms = self.now_ms()
            found = self.accumulator.collect(now_ms, leader_of=self._leader_of, most=self._most)
            for address, batches in found.batches.items():
                self._request(address, batches)
            self._learning |= found.lost
            more = found.more
        if self.loop.time() - self._refreshed > self.settings.metadata_max_age_ms / 1000:
            self._refresh()
        if self._learning or self._aging:
            self.start("metadata", self._learn)
        self._wake_at(self.accumulator.next_ms(now_ms))  # by a later one, what is due since would wait on

    def _refresh(self) -> None:
        """Have it looked again who leads the topics that are written to; forget the others."""
        self._refreshed = self.loop.time()
        since_ms = self.now_ms() - IDLE_MS
        queues = self.accumulator.queues
        self._aging = {place.topic for place, queue in queues.items() if queue or queue.used_ms > since_ms}
        idle = self.cluster.known.topics.keys() & {place.topic for place in queues} - self._aging
        if idle:
            self.cluster.forget(idle)

    def _wake_at(self, at_ms: float) -> None:
        """Look again at that time, or earlier: to look once too often does no harm."""
        if self.now_ms() < self._timer_ms <= at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = None if at_ms == inf else self.loop.call_at(at_ms / 1000, self.wake)

    def _leader_of(self, place: TopicPartition) -> Address | None:
        known = self.cluster.known
        topic = known.topics.get(place.topic)
        return None if topic is None else known.brokers.get(topic.leaders.get(place.partition, -1))

    def _most(self, address: Address) -> int:
        """Return the bytes that may go to a broker now; open the connection if there is none."""
        link = self._links.get(address)
        if link is None or link.closed:
            self.start(f"connection to {address}", partial(self._connect, address))
            return 0
        if self._in_flight[address] >= self.settings.max_in_flight_requests_per_connection:
            return 0
        if not link.fresh:
            self.start(f"session with {address}", partial(link.renewed, self.cluster.request_timeout_s))
            return 0
        if not self.settings.acks_number and not link.writable:  # nothing else says that the broker is slow
            self.start(f"room for {address}", link.wait_writable)
            return 0
        return self.settings.max_request_size

    # -- requests and answers

    def _request(self, address: Address, batches: list[Batch]) -> None:
        """Send the batches, whose answer `_answered` will take."""
        settings, link = self.settings, self._links[address]
        transactional = settings.transactional_id is not None
        data = [
            (batch.place, batch.encoded(settings.codec, transactional=transactional)) for batch in batches
        ]

        def make(version: int) -> Any:
            return asks.produce(
                version,
                data,
                transactional_id=settings.transactional_id,
                acks=settings.acks_number,
                timeout_ms=settings.request_timeout_ms,
            )

        most = asks.MOST_BEFORE_V2[ApiKey.PRODUCE] if transactional and not self.version_2 else None
        if not settings.acks_number:
            link.post(ApiKey.PRODUCE, make, most=most)
            self._settle(batches, dict.fromkeys((batch.place for batch in batches), SETTLED_UNKNOWN))
            return
        answer = link.send(ApiKey.PRODUCE, make, most=most)  # it is open: `_most` has looked
        self._in_flight[address] += 1
        patience_s = settings.request_timeout_ms / 1000
        timer = self.loop.call_later(patience_s, self._give_up, address, link, answer)
        answer.add_done_callback(partial(self._answered, address, batches, timer))

    def _give_up(self, address: Address, link: Connection, answer: "asyncio.Future[Any]") -> None:
        """Close a connection on which an answer is overdue: none after it would come before it."""
        if self._links.get(address) is link:
            del self._links[address]
            self.cluster.drop(address, purpose=PURPOSE)
        answer.cancel()

    def _answered(
        self,
        address: Address,
        batches: list[Batch],
        timer: asyncio.TimerHandle,
        answer: "asyncio.Future[Any]",
    ) -> None:
        timer.cancel()
        self._in_flight[address] -= 1
        error: BaseException | None = ClientTimeout(f"Produce: no answer from {address} in time")
        if not answer.cancelled():
            error = answer.exception()
        if error is None:
            self._settle(batches, asks.read_produce(answer.result()))
            return
        assert isinstance(error, CoterieError), error
        now_ms = self.now_ms()
        for batch in batches:
            self.accumulator.lost(batch, error, now_ms=now_ms)
        self.cluster.forget({batch.place.topic for batch in batches})
        self._woken()

    def _settle(self, batches: Iterable[Batch], answers: dict[TopicPartition, BatchAnswer]) -> None:
        now_ms = self.now_ms()
        for batch in batches:
            answer = answers.get(batch.place)
            if answer is None:
                self.accumulator.lost(batch, Disconnected(f"no word about {batch.place}"), now_ms=now_ms)
                continue
            self.accumulator.answered(batch, answer, now_ms=now_ms)
            if answer.code in WRONG_LEADER:
                self.cluster.forget({batch.place.topic})
        self._woken()

    def abandon(self, error: CoterieError) -> None:
        """Give up what is not in flight, see `Accumulator.abandon`; who waits for room is told."""
        self.accumulator.abandon(error)
        self._woken()

    def _woken(self) -> None:
        """Go on after something was settled or learnt; who waits for room gets what there is.

        If none of them may send any more, all are to hear of it: none would take room and pass on the rest.
        """
        memory, each = self.accumulator.memory, max(1, self.settings.batch_size)
        free = max(1, (memory.limit - memory.used) // each)
        if self.stopped or self.accumulator.abandoned is not None:
            free = len(self._waiting)
        while self._waiting and free:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1
        self.wake()

    async def room(self) -> None:
        """Wait until there may be room for another batch. Nothing lingers meanwhile."""
        waiter = self.loop.create_future()
        self._waiting.append(waiter)
        self.accumulator.urgent += 1
        self.wake()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._woken()  # what it was woken for is for the next one
            raise
        finally:
            self.accumulator.urgent -= 1

    # -- what has to be learnt

    def start(self, name: str, work: Work) -> None:
        """Run a coroutine function as a task, unless the task of that name runs already."""
        if name not in self._tasks and not self.stopped:
            task = asyncio.create_task(self._attempt(name, work), name=f"producer: {name}")
            self._tasks[name] = task
            task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        """Have everything looked at again after a task, wherever it was cut off."""
        self._tasks.pop(name, None)
        if not task.cancelled():
            if (error := task.exception()) is not None:
                self._break(error)
                raise error
            self._woken()
        elif not self.stopped:  # by somebody who cancels whatever runs: not at once, the loop may end
            self.loop.call_later(AFTER_CANCEL_S, self.wake)

    async def _attempt(self, name: str, work: Work) -> None:
        """Do a task's work; if it cannot be done now, return when it may be tried again."""
        try:
            await work()
            self._backoffs.pop(name, None)
        except (Disconnected, ClientTimeout) as error:
            log.info("%s: %s", name, error)
            await self._pause(name)
        except AuthenticationFailed as error:  # it may be mended while the records' time runs
            log.error("%s: %s", name, error)
            self.accumulator.hindered(error, now_ms=self.now_ms())
            await self._pause(name)
        except CoterieError as error:
            log.error("%s: %s", name, error)
            self.accumulator.abandon(error)

    async def _pause(self, name: str) -> None:
        """Wait before what goes by this name is tried again, longer each time until it has gone well."""
        backoff = self._backoffs.setdefault(name, self.cluster.backoff())
        await asyncio.sleep(backoff.next_ms() / 1000)

    async def _connect(self, address: Address) -> None:
        self._links.pop(address, None)
        try:
            self._links[address] = await self.cluster.connection(address, purpose=PURPOSE)
        except (Disconnected, ClientTimeout):
            # It may be led from elsewhere by now.
            leaders = self.cluster.known.topics
            self.cluster.forget(name for name in leaders if self._leads(address, name))
            raise

    def _leads(self, address: Address, topic: str) -> bool:
        known = self.cluster.known
        return any(known.brokers.get(leader) == address for leader in known.topics[topic].leaders.values())

    async def _learn(self) -> None:
        """Learn of the topics whose leaders are not known."""
        topics, self._learning = self._learning, set()
        aging, self._aging = self._aging - topics, set()
        if aging:  # one of them may have been deleted: who sends to it again may create it
            await self.cluster.metadata(aging)
        if not topics:
            return
        await self.cluster.metadata(topics, create=True)
        if any(self._leader_of(place) is None for place in self.accumulator.queues if place.topic in topics):
            await self._pause("leaders")
        else:
            self._backoffs.pop("leaders", None)

    async def _identify(self) -> None:
        """Ask any broker for a producer id."""

        cluster = self.cluster
        make = partial(
            asks.init_producer,
            transactional_id=None,
            transaction_timeout_ms=self.settings.transaction_timeout_ms,
            identity=NO_IDENTITY,
        )

        def read(answer: Any) -> Identity:
            if answer.error_code:
                raise RefusedBy(Code(answer.error_code), "InitProducerId")
            return asks.read_identity(answer)

        rpc = Rpc(ApiKey.INIT_PRODUCER_ID, make, read)
        self.accumulator.identity = await cluster.retrying(
            "InitProducerId", lambda: cluster.ask_first(rpc, purpose=PURPOSE)
        )

    async def stop(self, error: CoterieError | None = None) -> None:
        """Stop at once; whatever is not acknowledged fails, before anything is waited for."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        closed = error or ProducerClosed("the producer was closed before the record was acknowledged")
        unsent = sum(len(batch) for batch in self.accumulator.batches() if not batch.in_flight)
        if unsent and error is None:
            log.warning("the producer is closed at once: %s not sent", counted(unsent, "record"))
        self.accumulator.abandon(closed)
        for batch in list(self.accumulator.batches()):
            self.accumulator.fail(batch, closed)
        self.accumulator.say_all()
        self._woken()
        await asyncio.gather(*tasks, return_exceptions=True)
