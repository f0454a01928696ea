"""Who leads the partitions of users' topics, the news of it, and what a broker believes of any partition.

In most scenarios the topics of users lie on every broker, and each answers for its own. In those with data
(`Options.data`) each partition has one leader, which moves as those of groups do: who led hears of it first,
who will lead next, and the others late, maybe out of order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.runtime.leadership import ElectedLeaders, NodeEndpoint
from coterie.wire.api.apis import ApiKey
from swarm.world import Violation

if TYPE_CHECKING:
    from swarm.checks.journal import Readable
    from swarm.cluster import Broker, Cluster, Process

NOBODY = -1


class Led(NamedTuple):
    """Who leads a partition, whose disk has its log, and in which epoch."""

    leader: int
    holder: int
    epoch: int


class Leads(ElectedLeaders):
    """Which broker a node believes to lead a partition; news takes its time."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.node_id)
        self._broker = broker
        self._cluster = broker.cluster
        self.mine: set[int] = set()
        self.seen: dict[int, int] = {}

    def forget(self) -> None:
        """Believe nothing any more: the process is gone, and the next one hears of all elections."""
        self.mine.clear()
        self._led.clear()

    def leads(self, topic: str, partition: int) -> bool:
        """Return whether this node leads a partition."""
        if topic == OFFSETS_TOPIC:
            return partition in self.mine
        return not self._cluster.options.data or super().leads(topic, partition)

    def leader_of(self, topic: str, partition: int) -> NodeEndpoint | None:
        """Return a partition's leader, None while it has none."""
        leader: int | None = self._broker.node_id
        if topic == OFFSETS_TOPIC:
            leader = self.seen.get(partition, NOBODY)
        elif self._cluster.options.data:
            known = self._led.get((topic, partition))
            leader = None if known is None else known.leader
        return None if leader in (None, NOBODY) else self._cluster.brokers[leader].endpoint

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the epoch of a partition's last election."""
        if topic == OFFSETS_TOPIC:
            return self._cluster.led[partition].epoch
        return super().leader_epoch(topic, partition)

    def live_brokers(self) -> tuple[NodeEndpoint, ...]:
        """Return the brokers that live."""
        return tuple(one.endpoint for one in self._cluster.brokers.values() if one.alive)

    def lives(self, node_id: int) -> bool:
        """Return whether a broker lives."""
        return self._cluster.brokers[node_id].alive

    def controller(self) -> int | None:
        """Return the first broker that lives."""
        return next((one.node_id for one in self.live_brokers()), None)


class DataLeaders:
    """The leaders of the partitions of users' topics, where these have one each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.led: dict[TopicPartition, Led] = {}

    def names(self) -> list[TopicPartition]:
        """Return all partitions of users' topics."""
        return [
            TopicPartition(topic, number)
            for topic, partitions in self.cluster.topics.items()
            for number in range(partitions)
        ]

    def appoint(self) -> None:
        """Give each partition that is new its first leader."""
        for name in self.names():
            if name not in self.led:
                holder = len(self.led) % len(self.cluster.brokers) + 1
                self.led[name] = Led(NOBODY, holder, 0)
                self._elect(name, holder)

    def move(self, name: TopicPartition, to: int) -> None:
        """Have another broker lead a partition: the old one resigns, the new one comes a little later."""
        process = self.leader(name)
        if process is not None:
            process.run(process.let_land)
        if self.led[name].leader != NOBODY:
            self._change(name, NOBODY)
        self.world.later(self.world.between(0, self.cluster.options.hiccup_ms), self._elect, name, to)

    def leaderless(self, node_id: int) -> None:
        """Have nobody lead what a broker led that is gone, until it is back or another takes over."""
        for name, led in self.led.items():
            if led.leader == node_id:
                self._change(name, NOBODY)
                self.world.later(self.cluster.options.failover_ms, self._fail_over, name)

    def returned(self, node_id: int) -> None:
        """Let a broker that is back hear of everything, and lead what nobody else leads and it has."""
        for name, led in self.led.items():
            self._hear(node_id, name, led)
        for name, led in self.led.items():
            if led.leader == NOBODY and led.holder == node_id:
                self._elect(name, node_id)

    def leader(self, name: TopicPartition) -> Process | None:
        """Return the process that leads a partition, if any does."""
        leader = self.led[name].leader
        return None if leader == NOBODY else self.cluster.brokers[leader].process

    def log(self, name: TopicPartition) -> Readable | None:
        """Return the log of a partition, where its leader has it; None if nobody leads it."""
        process = self.leader(name)
        return None if process is None else process.store.logs[name]

    def _fail_over(self, name: TopicPartition) -> None:
        living = [broker.node_id for broker in self.cluster.brokers.values() if broker.alive]
        led = self.led[name]
        if led.leader == NOBODY and living and led.holder not in living:
            self._elect(name, self.world.random.choice(living))

    def _elect(self, name: TopicPartition, to: int) -> None:
        """Have a broker lead a partition that nobody leads, if it lives, with the log handed over."""
        led, target = self.led[name], self.cluster.brokers[to]
        if led.leader != NOBODY or target.process is None:
            return
        if led.holder != to:
            self.cluster.hand_over(name, self.cluster.brokers[led.holder], target)
            self.led[name] = led._replace(holder=to)
        self._change(name, to)

    def _change(self, name: TopicPartition, leader: int) -> None:
        """Begin an epoch; who led or leads hears of it at once."""
        before = self.led[name]
        led = self.led[name] = before._replace(leader=leader, epoch=before.epoch + 1)
        self.world.tell(f"{leader if leader != NOBODY else 'nobody'} leads {name} in epoch {led.epoch}")
        first = before.leader if leader == NOBODY else leader
        self._hear(first, name, led)
        for node_id in self.cluster.brokers:
            if node_id != first:
                late_ms = self.world.between(0, self.cluster.options.news_ms)
                self.world.later(late_ms, self._hear, node_id, name, led)

    def _hear(self, node_id: int, name: TopicPartition, led: Led) -> None:
        broker = self.cluster.brokers[node_id]
        process, leader = broker.process, None if led.leader == NOBODY else led.leader
        if process is None:
            return
        with broker.disk.quiet():
            process.run(lambda: process.node.elections.heard(name, leader, led.epoch))
        if process.node.led_log(name) is None:
            self._check_waiting(process, name)

    def _check_waiting(self, process: Process, name: TopicPartition) -> None:
        """Nobody waits for records at a broker that does not lead: its fetch is answered with the news."""
        for call in self.cluster.checks.waiting(process):
            if call.api == ApiKey.FETCH and self.cluster.named(call.request.topics[0]) == name:
                raise Violation("nobody waits for who resigned", f"{call} waits for {name}")
