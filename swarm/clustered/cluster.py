"""The cluster over one database: who leads what is what the database says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.cluster.changes import AddPartitions, Changed, CreateTopics, NewTopic
from coterie.broker.cluster.database import Database, Moment
from coterie.broker.cluster.image import Image
from coterie.broker.cluster.lifecycle import Phase
from coterie.broker.cluster.terms import LifecycleTerms
from coterie.simulate.agenda import START_MS
from swarm.cluster import Broker, Cluster
from swarm.clustered.fates import Fates
from swarm.clustered.processes import ClusteredProcess
from swarm.leading import NOBODY, DataLeaders, Led
from swarm.network import Network
from swarm.world import World

if TYPE_CHECKING:
    from swarm.checks.journal import Readable
    from swarm.cluster import Process
    from swarm.clustered.checks import ClusteredChecks
    from swarm.options import Options

READY_MS = 2_000
MOMENT_EVERY_MS = 200
MOMENTS = 20
SOON_COMPACTED = {"segment.ms": "2000"}
"""Rows need not be as many as a segment: they are compacted once the first is so old."""


class DatabaseLog:
    """The log of a partition, as the database has it."""

    start_offset = 0

    def __init__(self, database: Database, partition_id: int) -> None:
        self._tables = database.tables
        self._partition_id = partition_id

    @property
    def high_watermark(self) -> int:
        """The end of what lasts."""
        return self._tables.end(self._partition_id)

    def read(self, offset: int, *, max_bytes: int) -> bytes:
        """Return whole batches from the one that holds an offset."""
        return b"".join(bytes(chunk.data) for chunk in self._tables.rows(self._partition_id, offset))


class ClusteredBroker(Broker):
    """A machine, and the process that runs on it, if one does."""

    def __init__(self, cluster: DatabaseCluster, node_id: int) -> None:
        super().__init__(cluster, node_id)
        self.over = cluster
        self.leads = None

    @property
    def member(self) -> ClusteredProcess | None:
        """The process."""
        return cast("ClusteredProcess | None", self.process)

    def start(self) -> None:
        assert self.process is None
        process = ClusteredProcess(self, self.over)
        self.process = process
        self.cluster.world.tell(f"broker {self.node_id} starts")
        process.run(process.clustered.start)

    def crash(self, *, power: bool) -> None:
        process = self._gone()
        self.cluster.world.tell(f"broker {self.node_id} is killed")
        process.end(answers_too=power)

    def leave(self) -> None:
        """Have the process stop as SIGTERM does: it gives away what it leads, and exits."""
        process = self.member
        if process is not None:
            self.cluster.world.tell(f"broker {self.node_id} is asked to stop")
            process.run(process.clustered.member.terminate)


class ClusteredLeaders(DataLeaders):
    """The leaders of users' partitions, by the database."""

    def __init__(self, cluster: DatabaseCluster) -> None:
        super().__init__(cluster)
        self.over = cluster

    def log(self, name: TopicPartition) -> Readable | None:
        return self.over.log_of(name)

    def appoint(self) -> None:
        """Do nothing: who leads a new partition the database says."""


class DatabaseCluster(Cluster):
    """All brokers, and the database."""

    checks: ClusteredChecks

    def __init__(self, world: World, options: Options, network: Network, terms: LifecycleTerms) -> None:
        super().__init__(world, options, network)
        self.terms = terms
        self.fates = Fates(self)
        self.database = Database(choose=self.fates.of_lane, later=world.later)
        self.brokers = {number: ClusteredBroker(self, number) for number in range(1, options.brokers + 1)}
        self.data = ClusteredLeaders(self)
        self.ids[TRANSACTIONS_TOPIC] = UUID(int=1_000)
        self.asks: ClusteredProcess | None = None
        """Whose statement is being sent."""
        self.histories = 0
        self.moments: list[Moment] = []
        self._image = Image()

    @property
    def members(self) -> list[ClusteredProcess]:
        """The processes that run, stopped or not."""
        found = (cast("ClusteredBroker", broker).member for broker in self.brokers.values())
        return [process for process in found if process is not None]

    @contextmanager
    def acting(self, process: ClusteredProcess) -> Iterator[None]:
        """Have statements be those of a process meanwhile."""
        before, self.asks = self.asks, process
        try:
            yield
        finally:
            self.asks = before

    # -- beginning

    def start(self) -> None:
        """Start every broker, and have topics made when all are there."""
        for broker in self.brokers.values():
            broker.start()
        self.world.run(START_MS + READY_MS)
        self._make(OFFSETS_TOPIC, self.options.shards, self.options.offsets_configs | SOON_COMPACTED)
        for name, partitions in self.topics.items():
            self._make(name, partitions, self.options.data_configs)
        if self.options.producers:
            self._make(TRANSACTIONS_TOPIC, 1, {"cleanup.policy": "compact"} | SOON_COMPACTED)
        self.world.later(MOMENT_EVERY_MS, self._keep_moment)

    def _make(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        ids = [*self.brokers]
        self.world.random.shuffle(ids)
        replicas = tuple(self._placed(ids, number) for number in range(partitions))
        answer = self.database.metadata.execute(
            CreateTopics((NewTopic(self.ids[name], name, replicas, configs),))
        )
        assert isinstance(answer, Changed)

    def _placed(self, ids: list[int], number: int) -> tuple[int, ...]:
        return tuple(ids[(number + place) % len(ids)] for place in range(min(2, len(ids))))

    def _keep_moment(self) -> None:
        """Keep the state now and then: an engine that goes back goes there."""
        self.moments = [*self.moments[1 - MOMENTS :], self.database.moment()]
        self.database.forget_before(self.moments[0])
        self.world.later(MOMENT_EVERY_MS, self._keep_moment)

    # -- who leads

    def note_leaders(self) -> None:
        """Take note of what the database says by now."""
        image = self.database.metadata.image
        if image is self._image:
            return
        self._image = image
        for name, topic_id in self.ids.items():
            for row in image.partitions(topic_id):
                leader = NOBODY if row.leader is None else row.leader
                led = Led(leader, leader, row.leader_epoch)
                if name in self.topics:
                    self.data.led[TopicPartition(name, row.number)] = led
                elif name == OFFSETS_TOPIC and self.led.get(row.number) != led:
                    self.led[row.number] = led
                    self.checks.led_anew(row.number)

    def partition_id(self, name: TopicPartition) -> int:
        """Return the id of a partition."""
        row = self.database.metadata.image.partition(self.ids[name.topic], name.partition)
        assert row is not None
        return row.partition_id

    def log_of(self, name: TopicPartition) -> DatabaseLog:
        """Return the log of a partition."""
        return DatabaseLog(self.database, self.partition_id(name))

    def process_of(self, partition: int) -> Process | None:
        """Return the process that leads a partition of the groups' topic, if any does."""
        self.note_leaders()
        return super().process_of(partition)

    def unserved(self) -> str:
        """Return the partition that its leader does not serve, as a sentence; "" if all are served."""
        self.note_leaders()
        for process in self.members:
            if process.phase is not Phase.LIVE:
                return f"broker {process.broker.node_id} is {process.phase.name}"
        for name in self.data.names():
            led = self.data.led[name]
            leader = self.brokers[led.leader].process if led.leader != NOBODY else None
            if leader is None or leader.node.led_log(name) is None:
                return f"{led.leader} does not serve {name}"
        return ""

    # -- life and death

    def crash(self, node_id: int, *, power: bool) -> None:
        broker = self.brokers[node_id]
        if broker.alive:
            broker.crash(power=power)

    def stop(self, node_id: int) -> None:
        cast("ClusteredBroker", self.brokers[node_id]).leave()

    def exited(self, process: ClusteredProcess) -> None:
        """Take note that a process has ended by itself: once it has said all it says now."""

        def gone() -> None:
            if process.broker.process is process:
                process.broker._gone()
                process.end(answers_too=False)

        self.world.later(0, gone)

    def restart(self, node_id: int) -> None:
        broker = self.brokers[node_id]
        if not broker.alive:
            broker.start()

    def heal(self, node_id: int) -> None:
        """Have everything get through, and a process that is stopped go on."""
        process = cast("ClusteredBroker", self.brokers[node_id]).member
        if process is not None:
            if process.is_cut_off:
                process.cut(silently=False)
            process.cut_off_until_ms = process.bad_until_ms = 0
            process.go_on()

    def grow(self, topic: str) -> None:
        """Give a topic one more partition, if the database is there."""
        engine = self.database.metadata
        row = engine.image.topic(topic)
        if engine.away or row is None:
            return
        ids = [*self.brokers]
        change = AddPartitions(row.topic_id, row.partitions, (self._placed(ids, row.partitions),))
        if isinstance(engine.execute(change), Changed):
            self.topics[topic] = row.partitions + 1
            self.world.tell(f"topic {topic} has {self.topics[topic]} partitions")

    # -- the database

    def go_away(self) -> None:
        """Have the database be away."""
        self.world.tell("the database is away")
        self.database.go_away()

    def come_back(self) -> None:
        """Have it be back."""
        if self.database.metadata.away:
            self.world.tell("the database is back")
            self.database.come_back()

    def fall_back(self) -> None:
        """Have another server go on, which was behind: what came last is gone."""
        if not self.moments or self.database.metadata.away:
            return
        place = self.world.between(0, len(self.moments) - 1)
        self.histories += 1
        self.world.tell(f"the database falls back to version {self.moments[place].metadata.image.version}")
        self.database.fall_back(self.moments[place], f"h{self.histories}")
        self.moments = self.moments[: place + 1]
        for name, topic_id in self.ids.items():
            row = self.database.metadata.image.topic_by_id(topic_id)
            if row is not None and name in self.topics:
                self.topics[name] = row.partitions
        self.note_leaders()
        self.checks.fell_back()
