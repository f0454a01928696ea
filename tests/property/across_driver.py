"""Three brokers that lead a third of everything each, transactions across them, and all sorts of trouble.

The brokers are production nodes over logs that outlive their leaders, in one virtual time; a seed says what
goes wrong. `PYTHONPATH=.:tests python tests/property/across_driver.py SEED` tells what happens by one seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

from swarm.world import Violation, World

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.interbroker.connection import PeerConnection
from coterie.broker.node import Node
from coterie.broker.runtime.leadership import ElectedLeaders, Led, NodeEndpoint
from coterie.broker.topics.registry import Topics
from coterie.storage.memory import MemoryStore
from coterie.wire.records.batches import read_marker, records_of, scan
from property.across_network import Link
from property.across_producer import PARTITIONS, SHARDS, TOPIC, Ask, Producer, part

__all__ = ["Driver", "violation_of"]

OFFSET_FETCH = 9
NODES = (1, 2, 3)
TOPICS = {TOPIC: PARTITIONS, OFFSETS_TOPIC: SHARDS, TRANSACTIONS_TOPIC: SHARDS}
REQUEST_TIMEOUT_MS = 1_000
PRODUCERS = 4
TROUBLES = ("move", "move", "break", "break_one_end", "freeze", "cut", "kill")
TROUBLED_MS, ENDS_WITHIN_MS = 5_000, 10_000


class Broker:
    """One life of a broker."""

    def __init__(self, driver: Driver, node_id: int, port: int) -> None:
        self.driver, self.node_id = driver, node_id
        self.endpoint = NodeEndpoint(node_id, f"broker{node_id}", port)
        self.leaders = ElectedLeaders(node_id)
        self.running = True
        self.asks: set[Ask] = set()
        self._soon: list[Callable[[], None]] = []
        self._alarm_number = 0
        named = {
            "node.id": str(node_id),
            "log.dirs": "data",
            "offsets.topic.num.partitions": str(SHARDS),
            "transaction.state.log.num.partitions": str(SHARDS),
            "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
            "coterie.story.enable": "false",
        }
        settings = BrokerSettings.of(named)
        store = MemoryStore.open(now_ms=driver.world.now_ms, cluster_id="across", node_id=node_id)
        self.node = Node(
            settings=settings,
            topics=Topics.open(settings, store, new_uuid=driver.new_uuid),
            store=store,
            clock=driver.world.clock,
            call_soon=self._call_soon,
            alarm=self._alarm,
            aside=lambda work, arguments, finish, computes: finish(work(*arguments)),
            new_uuid=driver.new_uuid,
            leadership=self.leaders,
            connect=self._connect,
        )

    def run(self, do: Callable[[], Any]) -> None:
        """Have it do something, unless it is gone."""
        if self.running:
            do()

    def _call_soon(self, do: Callable[[], None]) -> None:
        if not self._soon:
            self.driver.world.later(0, self.run, self._do_soon)
        self._soon.append(do)

    def _do_soon(self) -> None:
        todo, self._soon = self._soon, []
        for do in todo:
            do()

    def _alarm(self, at_ms: int) -> None:
        self._alarm_number += 1
        self.driver.world.at(at_ms, self.run, lambda number=self._alarm_number: self._ring(number))

    def _ring(self, number: int) -> None:
        if number == self._alarm_number:
            self.node.purgatory.expire(self.driver.world.now_ms)

    def _connect(self, host: str, port: int, connection: PeerConnection) -> Link:
        serves = self.driver.brokers[int(host.removeprefix("broker"))]
        link = Link(self.driver, self, serves, connection)
        link.refused = serves.endpoint.port != port
        self.driver.world.later(1, self.run, link.begin)
        return link


class Driver:
    """Brokers, producers and troubles, by seed."""

    def __init__(self, seed: int, troubles: tuple[str, ...] = TROUBLES) -> None:
        self.world = World(seed)
        self.troubles = troubles
        self.links: list[Link] = []
        self.cut: set[tuple[int, int]] = set()
        self.led: dict[TopicPartition, Led] = {}
        self.brokers: dict[int, Broker] = {}
        self.logs: dict[TopicPartition, Any] = {}
        self.ids: dict[str, UUID] = {}
        self.calm = False
        self._lives = 0
        for node_id in NODES:
            self._start(node_id)
        for topic, partitions in TOPICS.items():
            for number in range(partitions):
                self.elect(TopicPartition(topic, number), NODES[number % len(NODES)])
        self.producers = [Producer(self, number) for number in range(PRODUCERS)]
        self.world.later(300, self._trouble)

    def new_uuid(self) -> UUID:
        """Return an id that the seed makes."""
        return UUID(int=self.world.random.getrandbits(128), version=4)

    # -- brokers

    def _start(self, node_id: int) -> None:
        self._lives += 1
        broker = self.brokers[node_id] = Broker(self, node_id, self._lives)
        manager = broker.node.topic_manager
        for topic, partitions in TOPICS.items():
            configs = broker.node.settings.internal_topic(topic)[1] if topic != TOPIC else None
            made = manager.create_topic(
                topic, partitions=partitions, configs=configs, topic_id=self.ids.get(topic)
            )
            self.ids[topic] = made.topic_id
        logs = broker.node.store.logs
        for name in tuple(logs):
            logs[name] = self.logs.setdefault(name, logs[name])
        broker.node.producer_ids.producer_id_seen(self._lives * 10_000)
        self._live_brokers_changed()
        for name, led in self.led.items():
            broker.node.elections.heard(name, *led)

    def _live_brokers_changed(self) -> None:
        """Have every broker hear, some time, which are there by then."""
        for broker in self.brokers.values():
            late_ms = self.world.between(0, 200)
            self.world.later(late_ms, broker.run, lambda one=broker: one.leaders.set_live(self._live()))

    def _live(self) -> list[NodeEndpoint]:
        return [one.endpoint for one in self.brokers.values() if one.running]

    def leader(self, name: TopicPartition) -> Broker | None:
        """Return the broker that leads a partition, if one does."""
        leader = self.led[name].leader
        return self.brokers[leader] if leader is not None and self.brokers[leader].running else None

    def elect(self, name: TopicPartition, leader: int | None) -> None:
        """Have a broker lead a partition; who led hears of it at once, and before the one who leads."""
        before = self.led.get(name, Led(None, 0))
        if before.leader == leader or (leader is not None and not self.brokers[leader].running):
            return
        led = self.led[name] = Led(leader, before.epoch + 1)
        first = [one for one in (before.leader, leader) if one is not None]
        for node_id in dict.fromkeys((*first, *NODES)):
            broker = self.brokers[node_id]
            late_ms = 0 if node_id in first else self.world.between(0, 300)
            hear = lambda one=broker: one.node.elections.heard(name, *led)  # noqa: E731
            if late_ms:
                self.world.later(late_ms, broker.run, hear)
            else:
                broker.run(hear)

    # -- trouble

    def is_cut(self, link: Link) -> bool:
        """Return whether no connection can be made."""
        return (link.asks.node_id, link.serves.node_id) in self.cut

    def _trouble(self) -> None:
        if self.calm:
            return
        getattr(self, f"_{self.world.random.choice(self.troubles)}")()
        self.world.later(self.world.between(20, 400), self._trouble)

    def _move(self) -> None:
        name = self.world.random.choice(list(self.led))
        self.world.tell(f"{name} moves")
        self.elect(name, self.world.random.choice(NODES))

    def _open_link(self, kind: str = "") -> Link | None:
        self.links = [one for one in self.links if not one.gone]
        found = [one for one in self.links if kind in one.connection.client_id]
        return self.world.random.choice(found) if found else None

    def _break(self) -> None:
        link = self._open_link()
        if link is not None:
            self.world.tell(f"{link} breaks")
            link.broken()

    def _break_one_end(self) -> None:
        link = self._open_link("-markers-")
        if link is not None:
            self.world.tell(f"{link} is broken at one end")
            link.half_broken(self.world.now_ms + self.world.between(50, REQUEST_TIMEOUT_MS))

    def _freeze(self) -> None:
        link = self._open_link()
        if link is not None:
            direction = self.world.random.choice((link.requests, link.answers))
            for_good = self.world.chance(0.2)
            span_ms = 10**9 if for_good else self.world.between(50, 3 * REQUEST_TIMEOUT_MS)
            direction.frozen_until_ms = self.world.now_ms + span_ms
            self.world.tell(f"{link} is frozen")

    def _cut(self) -> None:
        pair = tuple(self.world.random.sample(NODES, 2))
        self.cut.add(pair)
        for link in self.links:
            if (link.asks.node_id, link.serves.node_id) == pair and not link.gone:
                link.broken()
        self.world.tell(f"{pair} is cut")
        self.world.later(self.world.between(100, 3_000), self.cut.discard, pair)

    def _kill(self) -> None:
        running = [one for one in self.brokers.values() if one.running]
        if len(running) < len(NODES):
            return
        broker = self.world.random.choice(running)
        self.world.tell(f"broker {broker.node_id} dies")
        broker.running = False
        for link in self.links:
            if broker in (link.asks, link.serves) and not link.gone:
                link.broken()
        for ask in tuple(broker.asks):
            ask.answer(None)
        self._live_brokers_changed()
        for name, led in tuple(self.led.items()):
            if led.leader == broker.node_id:
                others = [one.node_id for one in running if one is not broker]
                to = self.world.random.choice(others)
                self.world.later(self.world.between(50, 500), self.elect, name, to)
        self.world.later(self.world.between(600, 2_000), self._start, broker.node_id)

    # -- the end

    def run(self) -> None:
        """Let it all happen; raise `Violation` where a promise was broken."""
        self.world.run(self.world.now_ms + TROUBLED_MS)
        self.calm = True
        self.cut.clear()
        until_ms = self.world.now_ms + ENDS_WITHIN_MS
        while not all(one.over for one in self.producers):
            if self.world.now_ms >= until_ms:
                raise Violation("everybody comes to an end", "a producer waits for ever")
            self.world.run(self.world.now_ms + 1_000)
        self.world.run(self.world.now_ms + 5_000)
        self._check_logs()
        self._check_offsets()

    def _check_logs(self) -> None:
        """Each transaction is whole or not there, in all partitions; none is open."""
        seen: dict[tuple[int, int], set[int]] = {}
        written: dict[tuple[int, int], set[int]] = {}
        for partition in range(PARTITIONS):
            for value, visible in outcomes(self.logs[TOPIC, partition]):
                written.setdefault(value, set()).add(partition)
                if visible:
                    if partition in seen.setdefault(value, set()):
                        raise Violation("once", f"{value} twice in {partition}")
                    seen[value].add(partition)
        for value, partitions in written.items():
            if seen.get(value, partitions) != partitions:
                raise Violation("whole or not at all", f"{value}: {seen[value]} of {partitions}")
        for producer in self.producers:
            for value in producer.committed:
                if (producer.number, value) not in seen:
                    raise Violation("what is committed is seen", f"{producer.number}-{value}")
            for value in producer.aborted:
                if (producer.number, value) in seen:
                    raise Violation("what is aborted is not seen", f"{producer.number}-{value}")

    def _check_offsets(self) -> None:
        for producer in self.producers:
            broker = self.leader(producer.group)
            assert broker is not None
            found: list[Any] = []
            topic = part("offset_fetch", 7, "OffsetFetchRequestTopic", name=TOPIC, partition_indexes=(0,))
            Ask(broker, OFFSET_FETCH, 7, found.append, group_id=producer.group_id, topics=(topic,),
                require_stable=True)  # fmt: skip
            self.world.run(self.world.now_ms + 100)
            one = found[0].topics[0].partitions[0]
            expected = max(producer.offsets, default=-1)
            if one.error_code or one.committed_offset < expected:
                what = f"{producer.group_id} is at {one.committed_offset} ({one.error_code}), not {expected}"
                raise Violation("offsets are committed with their transaction", what)
            if one.committed_offset in producer.aborted:
                raise Violation("offsets are aborted with their transaction", str(one.committed_offset))


def outcomes(log: Any) -> list[tuple[tuple[int, int], bool]]:
    """Return each value of a log, and whether a reader of committed records sees it."""
    found: list[tuple[tuple[int, int], bool]] = []
    pending: dict[int, list[tuple[int, int]]] = {}
    data = log.read(0, max_bytes=1 << 30)
    for at, header in scan(data):
        if header.control:
            commit = read_marker(data, at).commit
            found += [(value, commit) for value in pending.pop(header.producer_id, [])]
            continue
        for record in records_of(data, at):
            number, value = (record.value or b"").split(b"-")
            pending.setdefault(header.producer_id, []).append((int(number), int(value)))
    if pending:
        raise Violation("every transaction ends", str(pending))
    return found


def violation_of(seed: int, troubles: tuple[str, ...] = TROUBLES) -> Violation | None:
    """Return the promise that is broken by a seed, if one is."""
    try:
        Driver(seed, troubles).run()
    except Violation as violation:
        return violation
    return None


if __name__ == "__main__":
    driver = Driver(int(sys.argv[1]))
    driver.world.listener = print
    driver.run()
    print([(len(one.committed), len(one.aborted)) for one in driver.producers])
