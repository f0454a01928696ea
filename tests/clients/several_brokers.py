"""Brokers of one cluster in the test's own loop, over logs that outlive their leaders, with real sockets.

They ask each other over those as production brokers do; elections are the test's, and each broker hears of
them at once, who led first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.interbroker.sockets import Connector
from coterie.broker.net.request_queue import RequestQueue
from coterie.broker.net.server import SocketProtocol
from coterie.broker.node import Node
from coterie.broker.runtime.leadership import ElectedLeaders, Led, NodeEndpoint
from coterie.broker.shell.loop import Alarm
from coterie.broker.shell.process import steady_clock_ms
from coterie.broker.topics.registry import Topics
from coterie.storage.memory import MemoryStore

NODES = (1, 2, 3)
PARTITIONS = 3
PRODUCER_IDS = 1_000_000  # for each life of a broker; in production they come in blocks


class OneBroker:
    """A broker that runs."""

    def __init__(self, brokers: Brokers, node_id: int) -> None:
        self.node_id = node_id
        self.leaders = ElectedLeaders(node_id)
        loop = asyncio.get_running_loop()
        self._alarm = Alarm(loop, brokers.clock)
        self._queue = RequestQueue(loop.call_soon)
        self._server: asyncio.Server | None = None
        self.running = True
        settings = BrokerSettings.of(
            {
                "node.id": str(node_id),
                "auto.create.topics.enable": "false",
                "group.initial.rebalance.delay.ms": "0",
                "offsets.topic.num.partitions": str(PARTITIONS),
                "transaction.state.log.num.partitions": str(PARTITIONS),
            }
        )
        store = MemoryStore.open(now_ms=brokers.clock(), cluster_id="several", node_id=node_id)
        self.node = Node(
            settings=settings,
            topics=Topics.open(settings, store),
            store=store,
            clock=brokers.clock,
            wall=lambda: int(time.time() * 1000),
            call_soon=self._queue.call_soon,
            alarm=self._set_alarm,
            aside=lambda work, arguments, finish, computes: finish(work(*arguments)),
            work=self._queue.work,
            leadership=self.leaders,
            connect=Connector(loop),
        )
        self._alarm.expire = self.node.purgatory.expire

    def _set_alarm(self, at_ms: int) -> None:
        if self.running:  # who is gone does nothing any more
            self._alarm.set(at_ms)

    async def listen(self) -> NodeEndpoint:
        """Return the address at which it serves."""
        loop = asyncio.get_running_loop()
        accept = partial(SocketProtocol, self.node, self._queue)
        self._server = await loop.create_server(accept, "127.0.0.1", 0)
        return NodeEndpoint(self.node_id, *self._server.sockets[0].getsockname()[:2])

    async def end(self) -> None:
        """End it as a kill does; its logs live on."""
        assert self._server is not None
        self.running = False
        self._server.close()
        for peer in tuple(self.node.peers.all):
            peer.drop(None)
        self.node.hang_up()
        await self._server.wait_closed()


class Brokers:
    """The brokers that run, the logs, and who leads which."""

    def __init__(self, topics: Sequence[str]) -> None:
        self.clock = steady_clock_ms()
        self.topics = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, *topics)
        self.running: dict[int, OneBroker] = {}
        self.led: dict[TopicPartition, Led] = {}
        self._live: dict[int, NodeEndpoint] = {}
        self._lives = 0
        self._first: OneBroker | None = None

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers that run."""
        return ",".join(f"{one.host}:{one.port}" for one in self._live.values())

    async def start(self, node_id: int) -> None:
        """Start a broker, and have it lead every partition that it comes first for."""
        broker = self.running[node_id] = OneBroker(self, node_id)
        self._make_topics(broker)
        self._lives += 1
        broker.node.producer_ids.producer_id_seen(self._lives * PRODUCER_IDS)
        self._live[node_id] = await broker.listen()
        self._live_brokers_changed()
        for name, led in self.led.items():
            assert led.leader is not None
            broker.node.elections.heard(name, *led)
        if len(self.running) == len(NODES):
            self.give_back()

    def _make_topics(self, broker: OneBroker) -> None:
        """Have a broker know the topics, by the ids and over the logs of the first."""
        self._first = first = self._first or broker
        for topic in self.topics:
            known = first.node.topics.get(topic)
            topic_id = None if known is None else known.topic_id
            _, configs = broker.node.settings.internal_topic(topic) if topic.startswith("__") else (0, None)
            broker.node.topic_manager.create_topic(
                topic, partitions=PARTITIONS, topic_id=topic_id, configs=configs
            )
        for name in tuple(broker.node.store.logs):
            broker.node.store.logs[name] = first.node.store.logs[name]

    def _live_brokers_changed(self) -> None:
        for broker in self.running.values():
            broker.leaders.set_live(self._live.values())

    def elect(self, name: TopicPartition, leader: int) -> None:
        """Have a broker lead a partition from now on."""
        before = self.led.get(name, Led(None, 0))
        if before.leader == leader:
            return
        led = self.led[name] = Led(leader, before.epoch + 1)
        for node_id in sorted(self.running, key=lambda one: one != before.leader):
            self.running[node_id].node.elections.heard(name, *led)

    def give_away(self, node_id: int) -> None:
        """Have the others lead what a broker leads."""
        others = [one for one in self.running if one != node_id]
        for place, (name, led) in enumerate(tuple(self.led.items())):
            if led.leader == node_id and others:
                self.elect(name, others[place % len(others)])

    def give_back(self) -> None:
        """Have each broker lead what it comes first for."""
        for topic in self.topics:
            for number in range(PARTITIONS):
                self.elect(TopicPartition(topic, number), NODES[number % len(NODES)])

    async def stop(self, node_id: int) -> None:
        """End a broker; the others lead what it has led."""
        broker = self.running[node_id]
        self.give_away(node_id)
        del self.running[node_id], self._live[node_id]
        self._live_brokers_changed()
        await broker.end()


@asynccontextmanager
async def several_brokers(*topics: str) -> AsyncIterator[Brokers]:
    """Yield brokers that lead a partition of each topic."""
    brokers = Brokers(topics)
    for node_id in NODES:
        await brokers.start(node_id)
    try:
        yield brokers
    finally:
        for node_id in tuple(brokers.running):
            await brokers.stop(node_id)
