"""The brokers: production nodes that live, die and come back, and partitions of groups that move between
them.

Replication is not simulated: the log of a partition that moves is handed over complete, as the disk of its
last leader holds it. The user topics lie on every broker, but see `leading`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.node import Node
from coterie.broker.runtime.leadership import NodeEndpoint
from coterie.broker.topics.manager import TopicManager
from coterie.broker.topics.registry import Topics
from coterie.storage.log.contract import AppendRefused, StorageFailed
from coterie.storage.memory import MemoryStore
from swarm.disk import SimDisk
from swarm.late import Lane, LateStore
from swarm.leading import NOBODY, DataLeaders, Leads, Led
from swarm.network import PORT, Channel, Network
from swarm.session import Session
from swarm.world import World

if TYPE_CHECKING:
    from coterie.broker.runtime.groups import ShardHost
    from coterie.storage.kind import LogStore
    from swarm.checks.invariants import Checks
    from swarm.options import Options


class Process:
    """One life of a broker, from its start to its crash."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.cluster = broker.cluster
        self.world = broker.cluster.world
        self.running = True
        self.sessions: dict[Session, None] = {}
        self._soon: list[Callable[[], None]] = []
        self._soon_armed = False
        self._alarm_number = 0
        self._ahead_ms = broker.ahead_ms
        self.lane: Lane | None = None
        self.node: Node = self._new_node(settings_of(broker.cluster.options, broker.node_id))

    def _new_node(self, settings: BrokerSettings) -> Node:
        """Return the node that this process runs, with the logs on the broker's disk."""
        kind = LateStore if self.cluster.options.landing_ms else MemoryStore
        disk, node_id = self.broker.disk, self.broker.node_id
        store = kind.open(now_ms=self.clock(), disk=disk, cluster_id="simulated", node_id=node_id)
        if isinstance(store, LateStore):
            self.lane = Lane(self.call_soon, self._land_later)
            store.use(self.lane)
        return Node(
            settings=settings,
            topics=Topics.open(settings, store, new_uuid=self.new_uuid),
            store=store,
            clock=self.clock,
            call_soon=self.call_soon,
            alarm=self._alarm,
            aside=self._aside,
            new_uuid=self.new_uuid,
            leadership=self.broker.leads,
            when_writable=None if self.lane is None else self.lane.ask,
        )

    @property
    def topic_manager(self) -> TopicManager:
        """Which creates topics with their logs."""
        assert isinstance(self.node.topic_manager, TopicManager)
        return self.node.topic_manager

    @property
    def store(self) -> LogStore:
        """The logs of the node."""
        return self.node.store

    @property
    def files(self) -> MemoryStore:
        """The logs, as they are on the broker's own disk."""
        assert isinstance(self.node.store, MemoryStore)
        return self.node.store

    def clock(self) -> int:
        """Return the time by this process's clock: the wall's when it started, and steady from then on."""
        return self.world.now_ms + self._ahead_ms

    def new_uuid(self) -> UUID:
        """Return an id that the seed makes."""
        return UUID(int=self.world.random.getrandbits(128), version=4)

    # -- what the node's shell owes it

    def run(self, do: Callable[[], None], *, only_asked: bool = False) -> None:
        """Have the process do something, unless it is dead, and look at what came of it.

        A step that is only requests concerns the groups that they ask for.
        """
        if self.running:
            do()
            self.cluster.checks.look(self, only_asked=only_asked)

    def call_soon(self, do: Callable[[], None]) -> None:
        """Have something done after what is being done now, mostly at once."""
        self._soon.append(do)
        if not self._soon_armed:
            self._soon_armed = True
            self.world.later(self.cluster.hiccup_ms(), self.run, self._do_soon)

    def _land_later(self, land: Callable[[], None]) -> None:
        self.world.later(self.world.between(0, self.cluster.options.landing_ms), self.run, land)

    def _do_soon(self) -> None:
        self._soon_armed = False
        todo, self._soon = self._soon, []
        for do in todo:
            do()

    def _alarm(self, at_ms: int) -> None:
        self._alarm_number += 1
        number, due_ms = self._alarm_number, at_ms - self._ahead_ms
        self.world.at(due_ms + self.cluster.hiccup_ms(), self.run, lambda: self._ring(number))

    def _ring(self, number: int) -> None:
        if number == self._alarm_number:
            self.node.purgatory.expire(self.clock())

    def _aside(
        self,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        finish: Callable[[Any], None],
        *,
        computes: bool,
    ) -> None:
        """Work now and tell later: whatever happens meanwhile, happens to a plan that is old by then."""
        try:
            result = work(*arguments)
        except OSError:
            result = None
        self.world.later(self.world.between(1, 2_000), self.run, lambda: finish(result))

    def let_land(self) -> None:
        """Write what is in flight before another leads, or hear that another does already."""
        if self.lane is None:
            return
        if self.world.chance(0.5):
            self.lane.settle()
        else:
            self.lane.refuse(AppendRefused(Code.NOT_LEADER_OR_FOLLOWER, "another leads"))

    # -- life

    def accept(self, channel: Channel) -> Session:
        """Return this end of a new connection."""
        session = Session(self, channel)
        self.sessions[session] = None
        return session

    def end(self, *, answers_too: bool) -> None:
        """Be gone; connections break."""
        self.running = False
        for session in self.sessions:
            session.end(answers_too=answers_too)
        self.cluster.checks.ended(self)


@lru_cache(maxsize=256)
def _settings(given: tuple[tuple[str, str], ...]) -> BrokerSettings:
    return BrokerSettings.of(dict(given))


def settings_of(options: Options, node_id: int) -> BrokerSettings:
    """Return the settings of one broker."""
    own = {"node.id": str(node_id), "listeners": f"PLAINTEXT://broker{node_id}:{PORT}", "log.dirs": "data"}
    return _settings(tuple(sorted((options.settings | own).items())))


class Broker:
    """One machine: a disk, and the process that runs on it, if one does."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = f"broker{node_id}"
        self.disk = SimDisk(seed=cluster.world.random.getrandbits(32))
        self.leads = Leads(self) if cluster.options.brokers > 1 else None
        self.process: Process | None = None
        self.ahead_ms = 0
        """How much the machine's wall clock is ahead; a process reads it once, when it starts."""

    @property
    def alive(self) -> bool:
        """Whether a process runs."""
        return self.process is not None

    @property
    def endpoint(self) -> NodeEndpoint:
        """The id and the address of the broker."""
        return NodeEndpoint(self.node_id, self.host, PORT)

    def accept(self, channel: Channel) -> Session | None:
        """Return the broker's end of a new connection, None if nobody listens."""
        return None if self.process is None else self.process.accept(channel)

    def start(self) -> None:
        """Start a process on what the disk holds."""
        assert self.process is None
        with self.disk.quiet():
            self.process = Process(self)
            self.process.node.start()
        self.cluster.world.tell(f"broker {self.node_id} starts")

    def crash(self, *, power: bool) -> None:
        """End the process as kill -9 does, or by a loss of power."""
        process = self._gone()
        if process.lane is not None:
            written = process.lane.is_busy and self.cluster.world.chance(0.5)
            process.lane.die(written=written)
            if written:
                self.cluster.checks.stopping(process)
        process.files.crash(power=power)
        self.cluster.world.tell(f"broker {self.node_id} {'loses power' if power else 'is killed'}")
        process.end(answers_too=power)

    def stop(self) -> None:
        """End the process as SIGTERM does: what is owed is written, the connections are closed.

        After a flush that failed it cannot say that it has stopped cleanly; the next start looks at all.
        """
        process = self._gone()
        self.cluster.checks.stopping(process)
        how = "stops"
        with self.disk.quiet():
            try:
                process.node.stop()
            except StorageFailed as failed:
                how = f"stops, not cleanly: {failed}"
        self.cluster.world.tell(f"broker {self.node_id} {how}")
        process.end(answers_too=False)

    def _gone(self) -> Process:
        process, self.process = self.process, None
        assert process is not None
        if self.leads is not None:
            self.leads.forget()
        return process


class Cluster:
    """All brokers, who leads what, and what the brokers have heard of it."""

    def __init__(self, world: World, options: Options, network: Network) -> None:
        self.world = world
        self.options = options
        self.network = network
        self.checks: Checks
        self.calm = False
        self.deaths_in_revocation = options.deaths_in_revocation
        self.topics = dict(options.topics)
        self.ids = {name: UUID(int=number + 1) for number, name in enumerate((OFFSETS_TOPIC, *self.topics))}
        self.brokers = {number: Broker(self, number) for number in range(1, options.brokers + 1)}
        self.led: dict[int, Led] = {}
        self.data = DataLeaders(self)
        self.lost_power: set[int] = set()
        """Partitions whose log may have lost its tail since it was last led."""

    def start(self) -> None:
        """Start every broker on an empty disk, and give each its share of the groups."""
        for broker in self.brokers.values():
            broker.start()
            assert broker.process is not None
            manager = broker.process.topic_manager
            for name, partitions in self.topics.items():
                manager.create_topic(
                    name, partitions=partitions, configs=self.options.data_configs, topic_id=self.ids[name]
                )
            manager.create_topic(
                OFFSETS_TOPIC,
                partitions=self.options.shards,
                configs=self.options.offsets_configs,
                topic_id=self.ids[OFFSETS_TOPIC],
            )
            if self.options.producers:
                manager.ensure_internal(TRANSACTIONS_TOPIC)
        for partition in range(self.options.shards):
            holder = partition % len(self.brokers) + 1
            self.led[partition] = Led(NOBODY, holder, 0)
            self._elect(partition, holder)
        if self.options.data:
            self.data.appoint()

    def hiccup_ms(self) -> int:
        """Return the time in ms that a busy broker lets things wait just now; mostly 0."""
        options, world = self.options, self.world
        if self.calm or not world.chance(options.hiccup_chance):
            return 0
        return world.between(1, options.hiccup_ms)

    # -- who leads

    def named(self, asked: Any) -> TopicPartition:
        """Return the first partition of a topic that a fetch names, by name or by id."""
        names = {topic_id: name for name, topic_id in self.ids.items()}
        name = getattr(asked, "topic", None) or names[asked.topic_id]
        return TopicPartition(name, asked.partitions[0].partition)

    def partition_of(self, group_id: str) -> int:
        """Return the partition that a group hashes to."""
        return coordinator_partition(group_id, partition_count=self.options.shards)

    def host_of(self, partition: int) -> ShardHost | None:
        """Return the shard of a partition where its leader has one."""
        process = self.process_of(partition)
        return None if process is None else process.node.coordinator.hosts.get(partition)

    def process_of(self, partition: int) -> Process | None:
        """Return the process that leads a partition, if any does."""
        leader = self.led[partition].leader
        return None if leader == NOBODY else self.brokers[leader].process

    def at(self, host: str) -> Broker:
        """Return the broker of this name."""
        return self.brokers[int(host.removeprefix("broker"))]

    def move(self, partition: int, to: int) -> None:
        """Have another broker lead a partition: the old one resigns, the new one comes a little later."""
        self._resign(partition)
        self.world.later(self.world.between(0, self.options.hiccup_ms), self._elect, partition, to)

    def _resign(self, partition: int) -> None:
        led = self.led[partition]
        if led.leader == NOBODY:
            return
        broker = self.brokers[led.leader]
        process = broker.process
        if process is not None:
            process.run(process.let_land)
        self.led[partition] = led._replace(leader=NOBODY)
        self.world.tell(f"broker {led.leader} resigns from {partition}")
        self._tell_all(partition)
        if process is not None and broker.leads is not None:
            broker.leads.mine.discard(partition)
            process.run(lambda: process.node.coordinator.resigned(partition))
            self.checks.resigned(process, partition)

    def _elect(self, partition: int, to: int) -> None:
        """Have a broker lead a partition that nobody leads, if it lives, with the log handed over."""
        led, broker = self.led[partition], self.brokers[to]
        if led.leader != NOBODY or broker.process is None:
            return
        if led.holder != to:
            self.hand_over(TopicPartition(OFFSETS_TOPIC, partition), self.brokers[led.holder], broker)
        self.led[partition] = Led(to, to, led.epoch + 1)
        self.world.tell(f"broker {to} is elected for {partition} in epoch {led.epoch + 1}")
        process = broker.process
        self.checks.elected(process, partition)
        self.lost_power.discard(partition)
        if broker.leads is not None:
            broker.leads.mine.add(partition)
            process.run(lambda: process.node.coordinator.elected(partition, led.epoch + 1))
            process.run(lambda: process.node.coordinator.opened(partition))
            if self.world.chance(0.5):
                self.world.later(self.options.news_ms, self._tell_again, process, partition, led.epoch + 1)
        self._tell_all(partition)

    def _tell_again(self, process: Process, partition: int, epoch: int) -> None:
        """Tell a leader what it knows, and what is no longer so: neither is news to it (LO-8)."""

        def tell() -> None:
            process.node.coordinator.elected(partition, epoch)
            process.node.coordinator.resigned(partition, epoch)

        if self.led[partition].epoch == epoch and self.led[partition].leader == process.broker.node_id:
            process.run(tell)

    def _tell_all(self, partition: int) -> None:
        """Let every broker hear who leads, each in its own time, and maybe out of order."""
        leader = self.led[partition].leader
        for broker in self.brokers.values():
            if broker.leads is not None:
                delay = 0 if broker.node_id == leader else self.world.between(0, self.options.news_ms)
                self.world.later(delay, self._hear, broker.leads, partition)

    def _hear(self, leads: Leads, partition: int) -> None:
        leads.seen[partition] = self.led[partition].leader

    def hand_over(self, name: TopicPartition, source: Broker, target: Broker) -> None:
        """Put the log of a partition from one disk in the place of what the other has of it."""
        process = target.process
        assert process is not None
        store = process.files
        config = store.logs[name].config
        directory = f"{store.path}/{name}"
        with target.disk.quiet():
            store.delete_log(*name, now_ms=process.clock())
            target.disk.take_over(directory, source.disk)
            log = store.logs[name] = store.log_type.open(
                target.disk,
                directory,
                name,
                config,
                store.checkpoints,
                clean=False,
                gapless=False,
                now_ms=process.clock(),
            )
            if isinstance(store, LateStore):
                store.adopt(log)

    # -- life and death

    def crash(self, node_id: int, *, power: bool) -> None:
        """Kill a broker; what it led is led by nobody until it is back or another takes over."""
        broker = self.brokers[node_id]
        if not broker.alive:
            return
        if power:
            self.lost_power |= {partition for partition, led in self.led.items() if led.holder == node_id}
        broker.crash(power=power)
        self._leaderless(node_id)

    def stop(self, node_id: int) -> None:
        """Stop a broker as an administrator does."""
        broker = self.brokers[node_id]
        if broker.alive:
            broker.stop()
            self._leaderless(node_id)

    def _leaderless(self, node_id: int) -> None:
        for partition, led in self.led.items():
            if led.leader == node_id:
                self.led[partition] = led._replace(leader=NOBODY)
                self._tell_all(partition)
                self.world.later(self.options.failover_ms, self._fail_over, partition)
        self.data.leaderless(node_id)

    def _fail_over(self, partition: int) -> None:
        """Give a partition that still has no leader to a broker that lives."""
        living = [broker.node_id for broker in self.brokers.values() if broker.alive]
        if self.led[partition].leader == NOBODY and living and self.led[partition].holder not in living:
            self._elect(partition, self.world.random.choice(living))

    def restart(self, node_id: int) -> None:
        """Start a broker again; it leads again what nobody else leads and it has the log of."""
        broker = self.brokers[node_id]
        if broker.alive:
            return
        broker.start()
        self.catch_up()
        for partition, led in self.led.items():
            if led.leader == NOBODY and led.holder == node_id:
                self._elect(partition, node_id)
        self.data.returned(node_id)

    def heal(self, node_id: int) -> None:
        """End what ails a broker's disk, and start the broker anew where that takes a start.

        Who runs brokers sees to that: a log that promises flushes refuses everything once one has failed.
        """
        broker = self.brokers[node_id]
        broker.disk.heal()
        if broker.process is not None and any(
            log.flushing.has_failed for log in broker.process.files.logs.values()
        ):
            self.crash(node_id, power=False)
            self.restart(node_id)

    def grow(self, topic: str) -> None:
        """Give a topic one more partition, on every broker that lives."""
        self.topics[topic] += 1
        self.world.tell(f"topic {topic} has {self.topics[topic]} partitions")
        self.catch_up()
        if self.options.data:
            self.data.appoint()

    def catch_up(self) -> None:
        """Have every broker that lives know of all partitions."""
        for broker in self.brokers.values():
            if broker.process is None:
                continue
            with broker.disk.quiet():
                for name, partitions in self.topics.items():
                    known = broker.process.node.topics.get(name)
                    if known is not None and known.partitions < partitions:
                        broker.process.topic_manager.add_partitions(name, partitions)
