"""The producer: records in, deliveries out, transactions around them. asyncio; used from one loop."""

import asyncio
import types
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from time import time
from types import TracebackType
from typing import Any, Self, Unpack

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import GroupMetadata, OffsetAndMetadata, TopicPartition
from coterie.base.plain import counted
from coterie.client.documented import lists_settings
from coterie.client.ending import begun, ended, same_loop
from coterie.client.errors import ClientTimeout, WrongSetting, WrongUse
from coterie.client.member.backoff import Backoff
from coterie.client.net.cluster import Cluster
from coterie.client.net.jitter import jitter
from coterie.client.net.messages import TopicInfo
from coterie.client.options import ProducerOptions
from coterie.client.other_clients import PRODUCER_METHODS, HintsAtMethods, refuse_mapping
from coterie.client.partitions import checked_stamp, checked_timeout_s, partition_of
from coterie.client.producer.accumulator import Accumulator
from coterie.client.producer.batcher import RECORD_OVERHEAD, Batch, PackedBatch, record_size
from coterie.client.producer.delivery import Delivery, settled
from coterie.client.producer.errors import BufferFull, ProducerClosed, RecordTooLarge
from coterie.client.producer.partitioner import explicit_partition, partitioner_of
from coterie.client.producer.sender import Sender
from coterie.client.producer.settings import ProducerSettings
from coterie.client.producer.transaction_manager import Transactions
from coterie.wire.records.columns import Headers, Packed

# Other tasks run after so many bytes: often enough for all, and enough for requests of several batches.
YIELD_AFTER_BYTES = 65_536
# A topic of such a code will not come into being.
HOPELESS = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TOPIC_EXCEPTION})


class Producer(HintsAtMethods):
    """Sends records to a cluster. Settings have Kafka's names, with underscores.

    `async with Producer("127.0.0.1:9092", linger_ms=10) as producer:` connects, and on the way out sends what
    is left and closes. Left by cancellation, it closes at once, and says how much it drops.
    """

    _called_here = PRODUCER_METHODS

    @lists_settings(ProducerSettings)
    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ProducerOptions]) -> None:
        """Make a producer; it connects in `start` or `async with`."""
        refuse_mapping("Producer", bootstrap_servers)
        self.settings = ProducerSettings.of(bootstrap_servers=bootstrap_servers, **settings)
        self._accumulator = Accumulator(self.settings, jitter=jitter)
        self._partitioner = partitioner_of(
            self.settings.partitioner,
            random=Random(),
            batch_size=self.settings.batch_size,
            ignore_keys=self.settings.partitioner_ignore_keys,
            adaptive=self.settings.partitioner_adaptive_partitioning_enable,
        )
        # Without a key and a serializer a record goes to the topic's batch here as long as there is room.
        self._current: dict[str, Batch] = {}
        self._routes: dict[str, Route] = {}
        self._cluster: Cluster | None = None
        self._closes_cluster = False
        self._sender: Sender | None = None
        self._transactions: Transactions | None = None
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        self._until_yield = YIELD_AFTER_BYTES
        self._loop_checked_ms = 0
        """When it was last looked whether this is the right loop, in milliseconds since 1970."""

    # -- its life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        at_once = kind is not None and issubclass(kind, asyncio.CancelledError)
        await self.close(timeout_ms=0 if at_once else None)

    async def start(self) -> None:
        """Connect; with a transactional id, become its only owner."""
        await self._start(Cluster.of(self.settings), closes_it=True)

    async def start_on(self, cluster: Cluster) -> None:
        """Start over the connections that somebody else has opened, and closes."""
        await self._start(cluster, closes_it=False)

    async def _start(self, cluster: Cluster, *, closes_it: bool) -> None:
        if self._closed or self._cluster is not None:
            raise ProducerClosed("this producer was started before; make another one")
        settings = self.settings
        self._cluster, self._closes_cluster = cluster, closes_it
        self._sender = Sender(settings, self._cluster, self._accumulator)
        try:
            await self._cluster.reach()
            if settings.transactional_id is not None:
                self._transactions = Transactions(self._sender, settings.transactional_id)
                await self._transactions.start()
        except BaseException:
            await self.close(timeout_ms=0)
            raise

    async def close(self, *, timeout_ms: float | None = None) -> None:
        """Send what is left, for at most so long, and close; an open transaction is aborted.

        What is not acknowledged then fails with ProducerClosed.
        """
        if self._sender is None or self._cluster is None:
            self._closed = True
            return
        if self._ending is None:
            same_loop(self._sender.loop, "producer")
            timeout_s = None if timeout_ms is None else checked_timeout_s(timeout_ms)
            self._closed = True
            self._current.clear()
            self._ending = begun(
                self._end(self._sender, self._cluster, timeout_s), name="closes the producer"
            )
        if not self._ending.done():
            await ended(self._ending)

    async def _end(self, sender: Sender, cluster: Cluster, timeout_s: float | None) -> None:
        try:
            if timeout_s is None or timeout_s > 0:
                async with asyncio.timeout(timeout_s):
                    await self._finish()
        except TimeoutError:
            pass
        finally:
            try:
                await sender.stop()
                if self._transactions is not None:
                    await self._transactions.stop()
            finally:
                if self._closes_cluster:
                    await cluster.close()

    async def _finish(self) -> None:
        if self._transactions is not None:
            await self._transactions.finish()
        else:
            await self.flush()

    # -- records

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: Headers | Mapping[str, bytes | None] | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Hand over a record and return its delivery, which can be awaited.

        This waits only for the topic to be known and for room in `buffer_memory`, and lets other tasks run
        after every few batches.
        """
        if key is None and partition is None and headers is None and timestamp is None:
            batch = self._current.get(topic)
            if batch is not None and type(value) is bytes:
                room = batch.room - len(value) - RECORD_OVERHEAD
                if room >= 0:
                    batch.room = room
                    now_s = time()
                    if now_s >= batch.tick:
                        self._check_loop()
                        batch.mark_time(now_s)
                    values = batch.values
                    values.append(value)
                    return Delivery(batch, len(values) - 1)
        return await self._send(topic, value, key, partition, headers, timestamp)

    async def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Headers | Mapping[str, bytes | None] | None,
        timestamp: int | None,
    ) -> Delivery:
        """Send in any case: serialize, find the partition, wait for room.

        Whoever is cancelled here has sent nothing: once the record is in its batch, nothing is waited for.
        """
        sender = self._running()
        if self._until_yield < 0:
            self._until_yield = YIELD_AFTER_BYTES
            await yielded()
        settings = self.settings
        value_bytes = serialized("value", value, settings.value_serializer)
        key_bytes = serialized("key", key, settings.key_serializer)
        with_headers = pairs_of(headers) if headers else ()
        size = record_size(key_bytes, value_bytes, with_headers)
        if size > settings.max_request_size:
            raise RecordTooLarge(
                f"a record of about {size} bytes for {topic}; max_request_size is {settings.max_request_size}"
            )
        now_ms = int(time() * 1000)
        if (
            now_ms != self._loop_checked_ms
        ):  # often enough: a loop ends and another begins between two of them
            self._loop_checked_ms = now_ms
            self._check_loop()
        stamp = now_ms if timestamp is None else checked_stamp(timestamp)
        until = sender.loop.time() + settings.max_block_ms / 1000
        route = self._known(topic) or await self._route(topic, until)
        queue = self._accumulator.queue(self._place(route, key_bytes, partition, size=size))
        had = queue.open_batch
        batch = self._accumulator.opened(queue, size=size, now_ms=sender.now_ms())
        while batch is None:
            await self._room(sender, until)
            self._check_open()
            had = queue.open_batch
            batch = self._accumulator.opened(queue, size=size, now_ms=sender.now_ms())
        index = batch.add(value_bytes, key=key_bytes, headers=with_headers, timestamp=stamp)
        self._remember(route, batch, sticky=partition is None and key_bytes is None)
        if batch is not had:
            sender.wake()
            self._until_yield -= batch.size
        return Delivery(batch, index)

    async def send_packed(self, topic: str, packed: Packed) -> PackedBatch:
        """Hand over records that are encoded and compressed as this producer would; wait for room.

        Return their batch: `delivery.written` says what becomes of it.
        """
        if len(packed.body) > self.settings.max_request_size:
            raise RecordTooLarge(
                f"{counted(packed.records, 'record')} of {len(packed.body)} bytes for {topic};"
                f" max_request_size is {self.settings.max_request_size}"
            )
        sender = self._check_open()
        await yielded()
        until = sender.loop.time() + self.settings.max_block_ms / 1000
        route = self._known(topic) or await self._route(topic, until)
        wanted = packed.partition if packed.partition >= 0 else None
        place = self._place(route, None, wanted, size=len(packed.body))
        batch = PackedBatch(place, packed, codec=self.settings.codec, now_ms=sender.now_ms())
        while not self._accumulator.accepted(self._accumulator.queue(place), batch):
            await self._room(sender, until)
            self._check_open()
        if wanted is None:
            self._partitioner.appended(topic, None, place.partition, batch.size, full=True)
        sender.wake()
        return batch

    def _check_open(self) -> Sender:
        """Return the sender, or raise why nothing can be sent now."""
        sender = self._running()
        if self._transactions is not None:
            self._transactions.check_open()
        return sender

    def _known(self, topic: str) -> "Route | None":
        """Return the topic's route if its partitions are known; raise why nothing can be sent now."""
        info = self._check_open().cluster.known.topics.get(topic)
        route = self._routes.get(topic)
        # If it was forgotten, its leaders were wrong; its partitions are what they were.
        if info is None or (route is not None and route.info is info):
            return route
        if not info.leaders:
            return None
        route = self._routes[topic] = Route(info, None if route is None else route.sticky)
        return route

    async def _route(self, topic: str, until: float) -> "Route":
        """Return the topic's route, asked for first if need be; raise why nothing can be sent to it."""
        self._check_loop()
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name is text, not {topic!r}")
        backoff = self._running().cluster.backoff()
        while True:
            route, sender = self._known(topic), self._running()
            if route is not None:
                return route
            info = sender.cluster.known.topics.get(topic)
            if info is not None and info.code in HOPELESS:
                sender.cluster.forget([topic])
                raise RefusedBy(info.code, f"topic {topic}")
            await self._learn(sender, topic, until, backoff)

    async def _learn(self, sender: Sender, topic: str, until: float, backoff: Backoff) -> None:
        """Ask for the topic's partitions; if it is not there yet, wait for a moment."""
        try:
            async with asyncio.timeout_at(until):
                found = await sender.cluster.metadata([topic], create=True)
                if not found.topics[topic].leaders and found.topics[topic].code not in HOPELESS:
                    await asyncio.sleep(backoff.next_ms() / 1000)
        except TimeoutError:
            raise ClientTimeout(
                f"topic {topic} is not known; it was looked for within"
                f" max_block_ms={self.settings.max_block_ms}: create it, or have the broker do so"
                " (auto.create.topics.enable)"
            ) from None

    async def _room(self, sender: Sender, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await sender.room()
        except TimeoutError:
            raise BufferFull(
                f"no room for the record; buffer_memory={self.settings.buffer_memory} "
                f"was full for max_block_ms={self.settings.max_block_ms}"
            ) from None

    def _place(
        self, route: "Route", key: bytes | None, partition: int | None, *, size: int
    ) -> TopicPartition:
        """Return the record's partition: given, sticky, or chosen by the partitioner."""
        topic, count = route.info.name, len(route.info.leaders)
        if partition is not None:
            return route.places[explicit_partition(topic, partition, partitions=count)]
        sticky = route.sticky
        if sticky is not None and (key is None or self.settings.partitioner_ignore_keys):
            if sticky.room >= size:
                return sticky.place
            self._account(route, sticky)
        return route.places[
            self._partitioner.partition(topic, key, partitions=count, available=route.available)
        ]

    def _account(self, route: "Route", sticky: Batch) -> None:
        """Tell the partitioner of a batch that records without a key filled, and how long the queues are."""
        topic, queues = route.info.name, self._accumulator.queues
        self._partitioner.appended(topic, None, sticky.place.partition, sticky.filled, full=True)
        lengths = {place.partition: len(queues[place].waiting) for place in route.places if place in queues}
        slow = [number for number, leader in route.info.leaders.items() if self._lags(leader)]
        self._partitioner.measured(
            topic, lengths, partitions=len(route.places), available=route.available, slow=slow
        )
        route.sticky = None

    def _lags(self, broker_id: int) -> bool:
        """Return whether a broker has taken nothing for too long (PT-8)."""
        address = self._running().cluster.known.brokers.get(broker_id)
        return address is not None and self._accumulator.waits.slow(address)

    def _remember(self, route: "Route", batch: Batch, *, sticky: bool) -> None:
        """Let records without a key go to this batch while it has room, if partitions stick."""
        settings, topic = self.settings, route.info.name
        sticky = (sticky or settings.partitioner_ignore_keys) and settings.partitioner == "builtin"
        if sticky:
            route.sticky = batch
        plain = batch.keys is None and batch.headers is None and settings.value_serializer is None
        if sticky and plain and settings.key_serializer is None:
            self._current[topic] = batch
        elif self._current.get(topic) is batch and not plain:
            del self._current[topic]

    def _running(self) -> Sender:
        """Return the sender, or raise why there is none."""
        if self._closed:
            raise ProducerClosed("the producer is closed")
        if self._sender is None:
            raise ProducerClosed("the producer has not started: use `async with Producer(...) as producer:`")
        if self._accumulator.abandoned is not None and self._transactions is None:
            raise self._accumulator.abandoned
        return self._sender

    def _check_loop(self) -> None:
        """Raise unless this is the loop that the producer lives on."""
        if self._sender is not None:
            same_loop(self._sender.loop, "producer")

    async def flush(self) -> None:
        """Send everything that was handed over, without lingering, and return when all of it is settled.

        Failures are told to who awaits the deliveries; each is logged, too.
        """
        accumulator = self._accumulator
        self._check_loop()
        accumulator.urgent += 1
        try:
            if self._sender is not None:
                self._sender.wake()
            for batch in list(accumulator.batches()):
                if batch.outcome is None:
                    await settled(batch)
        finally:
            accumulator.urgent -= 1

    async def partitions_for(self, topic: str) -> int:
        """Return the topic's partition count."""
        until = self._running().loop.time() + self.settings.max_block_ms / 1000
        return len((await self._route(topic, until)).info.leaders)

    # -- transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A block whose records and offsets are read all or, if an exception leaves it, not at all."""
        transactions = self._transactional()
        await transactions.begin()
        self._current.clear()
        try:
            yield
        except BaseException:
            self._current.clear()
            await transactions.abort_after_failure()
            raise
        self._current.clear()
        await transactions.commit()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Commit a group's offsets (of the next records to read) if and when the transaction commits."""
        whole = {partition_of(at): offset for at, offset in offsets.items()}
        await self._transactional().send_offsets(whole, group)

    def _transactional(self) -> Transactions:
        self._running()
        self._check_loop()
        if self._transactions is None:
            raise WrongSetting("transactions need the setting transactional_id")
        return self._transactions


class Route:
    """What is known of a topic."""

    __slots__ = ("available", "info", "places", "sticky")

    def __init__(self, info: TopicInfo, sticky: Batch | None) -> None:
        self.info = info
        self.available = sorted(number for number, leader in info.leaders.items() if leader >= 0)
        self.places = [TopicPartition(info.name, number) for number in range(len(info.leaders))]
        self.sticky = sticky
        """The batch that records without a key go to."""


def serialized(what: str, given: Any, serializer: Any) -> bytes | None:
    """Return the bytes of a key or value."""
    data = given if serializer is None else serializer(given)
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    hint = f"give {what}_serializer, for example str.encode" if serializer is None else "by its serializer"
    raise TypeError(f"a {what} is bytes or None, not {type(data).__name__}: {hint}")


def pairs_of(headers: Headers | Mapping[str, bytes | None]) -> Headers:
    """Return headers as pairs; raise for what no record can carry, before it is among others in a batch."""
    pairs = tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)
    for pair in pairs:
        match pair:
            case (str(name), bytes() | None):
                try:
                    name.encode()
                except UnicodeEncodeError:
                    raise WrongUse(f"a header's name is text that UTF-8 can write, not {name!r}") from None
                continue
        raise TypeError(f"a header is a name and bytes or None, not {pair!r}: encode its value")
    return pairs


@types.coroutine
def yielded() -> Generator[None, None, None]:
    """Let the loop run once."""
    yield
