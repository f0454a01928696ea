"""The shards of an internal topic: which partitions this node leads, and the way from an id to its shard."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.plain import counted
from coterie.broker.runtime.pieces import when_all
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

log = logging.getLogger("coterie.broker")


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
        self.all_loaded: Callable[[], None] | None = None
        """Called, where it is set, when all that was to be loaded is."""
        self._to_load: deque[H] = deque()
        self._loading = False
        self._newest: dict[int, int] = {}  # the newest epoch of each partition that was heard of
        self._suspended = False
        self._draining: set[int] = set()

    @abstractmethod
    def _new_host(self, partition: int, *, status: str, epoch: int) -> H:
        """Return a shard for a partition."""

    def _log(self, partition: int) -> Log | None:
        return self.parts.replica_manager.log_of(self.topic, partition)

    def _leads(self, partition: int) -> bool:
        return self.parts.leadership.leads(self.topic, partition)

    # -- leadership

    def elected(self, partition: int, leader_epoch: int) -> None:
        """Lead a partition, which is loaded once it is `opened`. An epoch that is no news is ignored (LO-8),
        and so is one below any that was heard of.
        """
        before = self.hosts.get(partition)
        if leader_epoch < self._newest.get(partition, leader_epoch):
            return
        if before is not None:
            if before.epoch >= leader_epoch:
                return
            before.unload()
        self._draining.discard(partition)
        host = self._begin_term(partition, leader_epoch)
        if before is not None:
            host.inherit(before)

    def opened(self, partition: int) -> None:
        """Load a partition whose log is there, in the epoch in which this node has come to lead it."""
        host = self.hosts.get(partition)
        if host is not None and not host.opened:
            host.opened = True
            if host.status == HostedShard.LOADING:
                self._load(host)

    def resigned(self, partition: int, leader_epoch: int | None = None) -> None:
        """Let go of a partition that another node leads by now, from that epoch on if given (LO-8, DE-6)."""
        host = self.hosts.get(partition)
        if host is not None and (leader_epoch is None or host.epoch < leader_epoch):
            del self.hosts[partition]
            self._draining.discard(partition)
            host.unload()
        if leader_epoch is not None:
            self._newest[partition] = max(leader_epoch, self._newest.get(partition, leader_epoch))

    def forget(self, partition: int | None = None) -> None:
        """Take any epoch for news again, of a partition that is led no more, or of all."""
        for one in list(self._newest) if partition is None else [partition]:
            self._newest.pop(one, None)

    def _begin_term(self, partition: int, epoch: int) -> H:
        """Return the shard of a partition that this node leads from an epoch on."""
        self._newest[partition] = epoch
        host = self._new_host(partition, status=self._status_of(partition), epoch=epoch)
        self.hosts[partition] = host
        return host

    # -- standing still

    def suspend(self) -> None:
        """Answer nobody until `resume`: others may lead. What is held stays, and what waits waits on."""
        self._suspended = True
        self._adjust_all(self.hosts)

    def resume(self) -> None:
        """Answer again: this node has led all the while. Sessions begin anew (LO-4)."""
        self._suspended = False
        self._adjust_all(self.hosts)

    def drain(self, done: Callable[[], None], partitions: Iterable[int] | None = None) -> None:
        """Decide nothing more about some partitions, or all, before they are given away. `done` is called
        once, when all that is decided has landed. Until news of the leader clients are to come back (E14,
        heartbeats NONE).
        """
        drained = tuple(self.hosts if partitions is None else partitions)
        self._draining.update(drained)
        self._adjust_all(drained)
        when_all([self.hosts[one].drain for one in drained if one in self.hosts], done)

    def _status_of(self, partition: int) -> str:
        """Return the status of a shard that is not loaded."""
        if self._suspended:
            return HostedShard.SUSPENDED
        return HostedShard.DRAINING if partition in self._draining else HostedShard.LOADING

    def _adjust_all(self, partitions: Iterable[int]) -> None:
        for partition in tuple(partitions):
            host = self.hosts.get(partition)
            if host is not None and host.status not in (HostedShard.FAILED, HostedShard.AWAY):
                self._adjust(host, self._status_of(partition))

    def _adjust(self, host: H, status: str) -> None:
        """Have a shard halt, or go on. One that is being loaded then is loaded from the beginning later."""
        if status in HostedShard.HALTED:
            if host.begun:
                host.halt(status)
            elif host.status == HostedShard.LOADING:
                fresh = self._begin_term(host.partition, host.epoch)
                fresh.opened = host.opened
                fresh.inherit(host)
                host.unload()
            else:
                host.status = status
        elif host.status in HostedShard.HALTED:
            if host.begun:
                host.go_on()
                return
            host.status = HostedShard.LOADING
            if host.opened:
                self._load(host)

    # -- loading

    def _load_what_is_led(self) -> None:
        """Load what the topic holds, if there is one, in slices between which requests are answered."""
        topic = self.parts.topics.get(self.topic)
        if topic is None:
            return
        self.partition_count = topic.partitions
        for partition in range(topic.partitions):
            log_ = self._log(partition)
            if (log_ is None or log_.end_offset > log_.start_offset) and self._leads(partition):
                self.host_at(partition)

    def _load(self, host: H) -> None:
        log_ = self._log(host.partition)
        assert log_ is not None, f"{host} is opened"
        if log_.high_watermark < log_.end_offset:  # of an earlier term: it lasts, or never will
            log_.when_landed(log_.end_offset - 1, lambda refused: self._load_soon(host))
        else:
            self._load_soon(host)

    def _load_soon(self, host: H) -> None:
        self._to_load.append(host)
        if not self._loading:
            self._loading = True
            self.parts.scheduler.call_soon(partial(self.parts.scheduler.work, self._load_all()))

    def _load_all(self) -> Pieces[None]:
        empty = 0
        while self._to_load:
            host = self._to_load.popleft()
            if host.status != HostedShard.LOADING:
                continue
            try:
                empty += host.log.start_offset == host.log.end_offset
                yield from host.load()
            except Exception:  # noqa: BLE001  the root of one shard's loading
                host.fail()
        if empty:  # each would be a line of its own
            log.info("%s: %s with nothing to load", self.topic, counted(empty, "partition"))
        self._all_loaded()

    def _all_loaded(self) -> None:
        self._loading = False
        if self.all_loaded is not None:
            self.all_loaded()

    def loading(self) -> bool:
        """Return whether some shard is still being loaded: a list of all would have gaps."""
        return self._loading or any(host.status == HostedShard.LOADING for host in self.hosts.values())

    def incomplete(self) -> Code:
        """Return why a list of all that is here would have gaps, NONE if it would have none (LS-4)."""
        if self._suspended:
            return Code.COORDINATOR_NOT_AVAILABLE
        loading = Code.COORDINATOR_LOAD_IN_PROGRESS
        return loading if any(host.unavailable() is loading for host in self.hosts.values()) else Code.NONE

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
        if host is None:
            if not self._leads(partition):
                return self._new_host(partition, status=HostedShard.AWAY, epoch=0)
            epoch = self.parts.leadership.leader_epoch(self.topic, partition)
            host = self._begin_term(partition, max(epoch, self._newest.get(partition, epoch)))
        if not host.opened:
            self._look_for_log(host)
        return host

    def _look_for_log(self, host: H) -> None:
        """Begin with a log that was made meanwhile. One of an earlier term is none: it is opened anew."""
        log_ = self._log(host.partition)
        epoch = self.parts.leadership.leader_epoch(self.topic, host.partition)
        if log_ is None or log_.latest_epoch < epoch:
            return
        if log_.end_offset > log_.start_offset or host.status != HostedShard.LOADING:
            self.opened(host.partition)
        else:
            host.opened = True
            host.begin()  # there is nothing to load

    def active(self) -> list[H]:
        """Return the shards that answer."""
        return [host for host in self.hosts.values() if host.status == HostedShard.ACTIVE]

    def flush_all(self) -> None:
        """Append whatever is decided and not yet appended."""
        for host in tuple(self.hosts.values()):
            host.flush()
