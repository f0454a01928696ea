"""Real clients go on while the partition that they write and read is led by one broker and then another.

The brokers run in the test's own loop, over a log that outlives its leaders, with sockets of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as Place

from coterie.base.ids import TopicPartition
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.net.request_queue import RequestQueue
from coterie.broker.net.server import SocketProtocol
from coterie.broker.node import Node
from coterie.broker.runtime.leadership import ElectedLeaders, NodeEndpoint
from coterie.broker.shell.loop import Alarm
from coterie.broker.shell.process import steady_clock_ms
from coterie.broker.topics.registry import Topics
from coterie.client import Consumer, Producer
from coterie.storage.memory import MemoryStore
from no_task_left import run

pytestmark = pytest.mark.ours("the test holds elections in the brokers")

TOPIC, NODES, MOVES = TopicPartition("t", 0), (1, 2), 6
WITHIN_S = 40.0


class Brokers:
    """Two brokers of one cluster, and who leads the partition."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = steady_clock_ms()
        self.leaders = {node_id: ElectedLeaders(node_id) for node_id in NODES}
        self.nodes = {node_id: self._node(node_id) for node_id in NODES}
        self.servers: list[asyncio.Server] = []
        self.epoch = 0
        self.leader = 0

    def _node(self, node_id: int) -> Node:
        settings = BrokerSettings.of({"node.id": str(node_id), "auto.create.topics.enable": "false"})
        store = MemoryStore.open(now_ms=self.clock(), cluster_id="several", node_id=node_id)
        alarm = Alarm(self.loop, self.clock)
        node = Node(
            settings=settings,
            topics=Topics.open(settings, store),
            store=store,
            clock=self.clock,
            wall=lambda: int(time.time() * 1000),
            call_soon=self.loop.call_soon,
            alarm=alarm.set,
            aside=lambda work, arguments, finish, computes: finish(work(*arguments)),
            leadership=self.leaders[node_id],
        )
        alarm.expire = node.purgatory.expire
        return node

    async def listen(self) -> None:
        live = []
        for node_id, node in self.nodes.items():
            queue = RequestQueue(self.loop.call_soon)
            accept = partial(SocketProtocol, node, queue)
            server = await self.loop.create_server(accept, "127.0.0.1", 0)
            self.servers.append(server)
            live.append(NodeEndpoint(node_id, *server.sockets[0].getsockname()[:2]))
            node.topic_manager.create_topic(TOPIC.topic, partitions=1, topic_id=self.topic_id(node))
        for node_id, node in self.nodes.items():
            self.leaders[node_id].set_live(live)
            node.store.logs[TOPIC] = self.nodes[1].store.logs[TOPIC]
        self.bootstrap = ",".join(f"{one.host}:{one.port}" for one in live)

    def topic_id(self, node: Node) -> Any:
        """Return the id that the first broker has given to the topic, a new one before."""
        known = self.nodes[1].topics.get(TOPIC.topic)
        return node.new_uuid() if known is None else known.topic_id

    def move(self) -> None:
        """Have the other broker lead; who led hears of it first."""
        before, self.leader, self.epoch = self.leader, 2 if self.leader == 1 else 1, self.epoch + 1
        for node_id in sorted(NODES, key=lambda one: one != before):
            self.nodes[node_id].elections.heard(TOPIC, self.leader, self.epoch)

    async def close(self) -> None:
        for server in self.servers:
            server.close()
        for node in self.nodes.values():
            for peer in tuple(node.peers.all):
                peer.drop(None)
        for server in self.servers:
            await server.wait_closed()


@asynccontextmanager
async def several() -> AsyncIterator[Brokers]:
    brokers = Brokers()
    await brokers.listen()
    brokers.move()
    try:
        yield brokers
    finally:
        await brokers.close()


Send = Callable[[bytes], Awaitable[int]]
Take = Callable[[], Awaitable[tuple[int, bytes]]]


@asynccontextmanager
async def librdkafka(bootstrap: str) -> AsyncIterator[tuple[Send, Take]]:
    """Yield how librdkafka sends a value and takes one."""
    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    producer = confluent_kafka.Producer({**common, "enable.idempotence": True})
    settings = {**common, "group.id": "g", "enable.auto.commit": False, "fetch.wait.max.ms": 20_000}
    consumer = confluent_kafka.Consumer(settings)
    beginning = confluent_kafka.TopicPartition(*TOPIC, confluent_kafka.OFFSET_BEGINNING)
    consumer.assign([beginning])

    def send(value: bytes) -> int:
        offsets: list[int] = []
        producer.produce("t", value, partition=0, callback=lambda _, sent: offsets.append(sent.offset()))
        assert producer.flush(WITHIN_S) == 0
        return offsets[0]

    def take() -> tuple[int, bytes]:
        record = consumer.poll(WITHIN_S)
        assert record is not None
        assert record.error() is None
        return record.offset(), record.value()

    yield lambda value: asyncio.to_thread(send, value), lambda: asyncio.to_thread(take)
    await asyncio.to_thread(consumer.close)


@asynccontextmanager
async def aiokafka(bootstrap: str) -> AsyncIterator[tuple[Send, Take]]:
    """Yield how aiokafka sends a value and takes one."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=20_000
    )
    async with producer, consumer:
        consumer.assign([Place(*TOPIC)])

        async def send(value: bytes) -> int:
            offset: int = (await producer.send_and_wait(TOPIC.topic, value, partition=0)).offset
            return offset

        async def take() -> tuple[int, bytes]:
            record = await consumer.getone()
            return record.offset, record.value

        yield send, take


@asynccontextmanager
async def ours(bootstrap: str) -> AsyncIterator[tuple[Send, Take]]:
    """Yield how our own client sends a value and takes one."""
    async with (
        Producer(bootstrap) as producer,
        Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=20_000
        ) as consumer,
    ):
        consumer.assign([tuple(TOPIC)])

        async def send(value: bytes) -> int:
            return (await (await producer.send(TOPIC.topic, value, partition=0))).offset

        async def take() -> tuple[int, bytes]:
            record = await consumer.getone()
            return record.offset, record.value

        yield send, take


@pytest.mark.parametrize("client", [librdkafka, aiokafka, ours])
def test_what_a_client_writes_it_reads_whoever_leads_by_then(client: Any) -> None:
    """The consumer's fetch waits at who leads no more, for up to 20 s; it is sent on at once (KIP-951)."""

    async def scenario() -> float:
        async with several() as brokers, client(brokers.bootstrap) as (send, take):
            assert await send(b"0") == 0
            assert await take() == (0, b"0")
            begun = time.monotonic()
            for number in range(1, MOVES + 1):
                value = str(number).encode()
                brokers.move()
                assert await send(value) == number
                assert await take() == (number, value)
            return time.monotonic() - begun

    took_s = run(scenario())

    assert took_s < 20, "no fetch has waited for its time to be over"
