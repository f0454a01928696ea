"""The shards of an internal topic: which partitions this node leads, and the way from an id to its shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.shards import HostedShard

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.pieces import Pieces, Scheduler
    from coterie.broker.runtime.purgatory import Purgatory
    from coterie.broker.runtime.replica_manager import ReplicaManager
    from coterie.broker.topics.catalog import TopicCatalog, TopicChanges
    from coterie.broker.topics.producer_ids import ProducerIdManager
    from coterie.storage.kind import Log


class CoordinatorParts(NamedTuple):
    """The parts of the broker that both coordinators use."""

    settings: BrokerSettings
    clock: Clock
    scheduler: Scheduler
    purgatory: Purgatory
    leadership: Leadership
    topics: TopicCatalog
    topic_manager: TopicChanges
    producer_ids: ProducerIdManager
    replica_manager: ReplicaManager


H = TypeVar("H", bound=HostedShard[Any, Any])


class ShardsOfTopic(ABC, Generic[H]):
    """The shards of an internal topic that this node leads, and the way from an id to its shard."""

    topic: ClassVar[str]

    def __init__(self, parts: CoordinatorParts, *, partition_count: int) -> None:
        """`partition_count` is that of a topic which is still to be made."""
        self.parts = parts
        self.partition_count = partition_count
        self.hosts: dict[int, H] = {}
        self.numbers = count(1)  # of the calls that a core answers
        self._to_load: deque[H] = deque()
        self._loading = False
        self._held_back = 0  # those to load of whose logs something is in flight

    @abstractmethod
    def _new_host(self, partition: int, *, status: str, epoch: int) -> H:
        """Return a shard for a partition."""

    def _log(self, partition: int) -> Log:
        return self.parts.replica_manager.logs[TopicPartition(self.topic, partition)]

    def _is_written(self, partition: int) -> bool:
        log_ = self._log(partition)
        return log_.end_offset > log_.start_offset

    def _leads(self, partition: int) -> bool:
        return self.parts.leadership.leads(self.topic, partition)

    # -- leadership

    def elected(self, partition: int, leader_epoch: int) -> None:
        """Load a partition that this node has come to lead; an epoch that is no news is ignored (LO-8)."""
        before = self.hosts.get(partition)
        if before is None or before.epoch < leader_epoch:
            if before is not None:
                before.unload()
            self._load(partition, epoch=leader_epoch)

    def resigned(self, partition: int, leader_epoch: int | None = None) -> None:
        """Let go of a partition that another node leads by now, from that epoch on if given (LO-8, DE-6)."""
        host = self.hosts.get(partition)
        if host is not None and (leader_epoch is None or host.epoch < leader_epoch):
            del self.hosts[partition]
            host.unload()

    # -- loading

    def _load_what_is_led(self) -> None:
        """Load what the topic holds, if there is one, in slices between which requests are answered."""
        topic = self.parts.topics.get(self.topic)
        if topic is None:
            return
        self.partition_count = topic.partitions
        for partition in range(topic.partitions):
            if self._is_written(partition) and self._leads(partition):
                self._load(partition, epoch=self._log(partition).latest_epoch)

    def _load(self, partition: int, *, epoch: int) -> H:
        host = self.hosts[partition] = self._new_host(partition, status=HostedShard.LOADING, epoch=epoch)
        log_ = self._log(partition)
        if log_.high_watermark < log_.end_offset:  # of an earlier term: it lasts, or never will
            self._held_back += 1
            log_.when_landed(log_.end_offset - 1, lambda refused: self._load_soon(host, held_back=1))
        else:
            self._load_soon(host)
        return host

    def _load_soon(self, host: H, *, held_back: int = 0) -> None:
        self._held_back -= held_back
        self._to_load.append(host)
        if not self._loading:
            self._loading = True
            self.parts.scheduler.call_soon(partial(self.parts.scheduler.work, self._load_all()))

    def _load_all(self) -> Pieces[None]:
        while self._to_load:
            host = self._to_load.popleft()
            try:
                yield from host.load()
            except Exception:  # noqa: BLE001  the root of one shard's loading
                host.fail()
        self._all_loaded()

    def _all_loaded(self) -> None:
        self._loading = False

    def loading(self) -> bool:
        """Return whether some shard is still being loaded: a list of all would have gaps."""
        return self._loading or self._held_back > 0

    # -- the way in

    def host_of(self, name: str) -> H | None:
        """Return the shard that a group id or a transactional id hashes to (P-6), None while the topic is
        being made.
        """
        topic = self.parts.topic_manager.ensure_internal(self.topic)
        if topic is None:
            return None
        self.partition_count = topic.partitions
        return self.host_at(coordinator_partition(name, partition_count=topic.partitions))

    def host_at(self, partition: int) -> H:
        """Return the shard of a partition that exists; if it is another's, one that sends everybody there."""
        host = self.hosts.get(partition)
        if host is not None:
            return host
        if not self._leads(partition):
            return self._new_host(partition, status=HostedShard.AWAY, epoch=0)
        epoch = self._log(partition).latest_epoch
        if self._is_written(partition):
            return self._load(partition, epoch=epoch)
        host = self.hosts[partition] = self._new_host(partition, status=HostedShard.LOADING, epoch=epoch)
        host.begin()  # there is nothing to load
        return host

    def active(self) -> list[H]:
        """Return the shards that answer."""
        return [host for host in self.hosts.values() if host.status == HostedShard.ACTIVE]

    def flush_all(self) -> None:
        """Append whatever is decided and not yet appended."""
        for host in tuple(self.hosts.values()):
            host.flush()
