"""aiokafka behind the tests' common face: one event loop in a thread runs all of its clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from functools import cache
from typing import Any, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError

from .model import (
    CALL_S,
    FETCH_WAIT_MS,
    HEARTBEAT_MS,
    SESSION_MS,
    Admin,
    Client,
    Consumer,
    Denied,
    Membership,
    Message,
    Place,
)

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
T = TypeVar("T")


ONE_LOOP = threading.Lock()


def loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that a thread of its own runs: heartbeats go on between a test's calls."""
    with ONE_LOOP:  # a cache alone makes two if two threads are the first to ask
        return made_loop()


@cache
def made_loop() -> asyncio.AbstractEventLoop:
    """Return the loop, and start it the first time."""
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, name="aiokafka", daemon=True).start()
    return made


def end_loop() -> None:
    """Stop and close the loop, if there is one; an open one would be a ResourceWarning at the end."""
    if made_loop.cache_info().currsize == 0:
        return
    ours = loop()
    stopped = threading.Event()
    ours.call_soon_threadsafe(lambda: (ours.stop(), stopped.set()))
    stopped.wait(CALL_S)
    while ours.is_running():
        pass
    ours.close()
    made_loop.cache_clear()


def run(work: Coroutine[Any, Any, T], *, within_s: float = 2 * CALL_S) -> T:
    """Run a coroutine in the loop's thread; returns its result."""
    return asyncio.run_coroutine_threadsafe(work, loop()).result(within_s)


class Listener(aiokafka.ConsumerRebalanceListener):
    """Tells the adapter what was assigned and revoked."""

    def __init__(self, consumer: AioConsumer) -> None:
        self.consumer = consumer

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.consumer.hear("assigned", assigned)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.consumer.hear("revoked", revoked)


class AioConsumer(Consumer):
    """An aiokafka consumer."""

    refusals = (KafkaError,)

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        super().__init__()
        self.inner: AIOKafkaConsumer = run(self._made(bootstrap, settings))

    @staticmethod
    async def _made(bootstrap: str, settings: dict[str, Any]) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            retry_backoff_ms=20,
            **settings,
        )

    async def begin(self, *, topics: Iterable[str] = (), places: Iterable[Place] = ()) -> None:
        """Start with topics to subscribe to, or partitions to read."""
        if topics:
            self.inner.subscribe(list(topics), listener=Listener(self))
        else:
            self.inner.assign([TopicPartition(*place) for place in places])
        await self.inner.start()

    def poll(self, seconds: float) -> list[Message]:
        found = run(self.inner.getmany(timeout_ms=int(seconds * 1000)))
        return [Message.of(record) for records in found.values() for record in records]

    def assignment(self) -> frozenset[Place]:
        return frozenset((p.topic, p.partition) for p in self.inner.assignment())

    def seek(self, place: Place, offset: int) -> None:
        loop().call_soon_threadsafe(self.inner.seek, TopicPartition(*place), offset)

    def commit(self) -> None:
        run(self.inner.commit())

    def committed(self, place: Place) -> int | None:
        found: int | None = run(self.inner.committed(TopicPartition(*place)))
        return found

    def offset_at_time(self, place: Place, at_ms: int) -> int | None:
        partition = TopicPartition(*place)
        found = run(self.inner.offsets_for_times({partition: at_ms}))[partition]
        return None if found is None else found.offset

    def bounds(self, place: Place) -> tuple[int, int]:
        partition = TopicPartition(*place)
        first, last = run(self.inner.beginning_offsets([partition])), run(self.inner.end_offsets([partition]))
        return first[partition], last[partition]

    def close(self) -> None:
        run(self.inner.stop())


class AioAdmin(Admin):
    """aiokafka's AIOKafkaAdminClient."""

    def __init__(self, bootstrap: str) -> None:
        self.inner: AIOKafkaAdminClient = run(self._started(bootstrap))

    @staticmethod
    async def _started(bootstrap: str) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        return admin

    def create(self, topic: str, *, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        wanted = NewTopic(topic, partitions, 1, topic_configs=config or {})
        answer = run(self.inner.create_topics([wanted]))
        refuse(answer.topic_errors)

    def delete(self, topic: str) -> None:
        refuse(run(self.inner.delete_topics([topic])).topic_error_codes)

    def grow(self, topic: str, *, partitions: int) -> None:
        try:
            run(self.inner.create_partitions({topic: NewPartitions(partitions)}))
        except KafkaError as error:
            raise Denied(error.errno) from error

    def partition_count(self, topic: str) -> int | None:
        if topic not in run(self.inner.list_topics()):
            return None
        [described] = run(self.inner.describe_topics([topic]))
        return len(described["partitions"])

    def close(self) -> None:
        run(self.inner.close())


def refuse(errors: Iterable[tuple[Any, ...]]) -> None:
    """Raise the first error of an answer, if there is one."""
    for _, code, *_rest in errors:
        if code:
            raise Denied(code)


class Aio(Client):
    """aiokafka: asyncio."""

    name = "aiokafka"
    codecs = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})

    def produce(
        self,
        bootstrap: str,
        messages: Iterable[Message],
        *,
        codec: str = "none",
        idempotent: bool = False,
        acks: str = "all",
    ) -> None:
        settings = {
            "compression_type": None if codec == "none" else codec,
            "enable_idempotence": idempotent,
            "acks": acks if acks == "all" else int(acks),
            "max_request_size": 8_000_000,
            "linger_ms": 2,
        }
        run(self._produced(bootstrap, messages, settings))

    @staticmethod
    async def _produced(bootstrap: str, messages: Iterable[Message], settings: dict[str, Any]) -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
            sent = [
                await producer.send(
                    message.topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=None if message.partition < 0 else message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            for error in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(error, KafkaError):
                    raise Denied(error.errno) from error

    def reader(self, bootstrap: str, *places: Place) -> Consumer:
        consumer = AioConsumer(bootstrap)
        run(consumer.begin(places=places))
        return consumer

    def member(self, bootstrap: str, membership: Membership) -> Consumer:
        consumer = AioConsumer(
            bootstrap,
            group_id=membership.group,
            group_instance_id=membership.instance,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=(ASSIGNORS[membership.assignor],),
        )
        run(consumer.begin(topics=membership.topics))
        return consumer

    def admin(self, bootstrap: str) -> Admin:
        return AioAdmin(bootstrap)
