"""Topics with their logs: they are created, grown, configured and deleted here, and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.base.plain import counted
from coterie.base.reasons import mark
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.runtime.pieces import Pieces, at_once
from coterie.storage.log.contract import StorageFailed

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.placement.model import Broker, Layout, Problem
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.groups import Coordinator
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.purgatory import Purgatory
    from coterie.broker.runtime.replica_manager import ReplicaManager
    from coterie.broker.topics.registry import Topics
    from coterie.broker.topics.topic import Topic
    from coterie.storage.config import LogConfig
    from coterie.storage.directory import Store
    from coterie.storage.log.partition import PartitionLog

log = logging.getLogger("coterie.broker")

TOPICS_AT_ONCE = 1_000
NOTHING: Mapping[str, Layout] = MappingProxyType({})


class TopicManager:
    """The changes of topics of a broker alone: each is written down, and its logs are made, or go.

    What groups have committed for a topic goes with it, so the groups are asked, and loaded if they are not.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        topics: Topics,
        store: Store,
        replica_manager: ReplicaManager,
        purgatory: Purgatory,
        clock: Clock,
        leadership: Leadership,
        load_coordinator: Callable[[], Coordinator],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._store = store
        self._replica_manager = replica_manager
        self._purgatory = purgatory
        self._clock = clock
        self._leadership = leadership
        self._load_coordinator = load_coordinator

    default_factor: Final = 1

    def brokers(self) -> list[Broker]:
        """Return this broker: what it leads is replicated nowhere else."""
        from coterie.broker.placement.model import Broker

        return [Broker(self._settings.node_id, self._settings.broker_rack)]

    def placed(self, partitions: int, *, factor: int) -> Layout | Problem:
        """Return the replicas of so many new partitions, all here, or why they cannot be so many each."""
        from coterie.broker.placement.striped import problem_of

        problem = problem_of(self.brokers(), factor=factor)
        return [(self._settings.node_id,)] * partitions if problem is None else problem

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
    ) -> Topic:
        """Create a topic with its logs; the name is valid and free. Raises `StorageFailed`."""
        replicas = [(self._settings.node_id,)] * partitions
        wanted = self._topics.new(name, replicas=replicas, configs=configs, topic_id=topic_id)
        for failed in at_once(self.create_topics([wanted])).values():
            raise failed
        return wanted

    def create_topics(self, wanted: Sequence[Topic]) -> Pieces[dict[str, StorageFailed]]:
        """Create topics with their logs, and return which could not be; their names are valid and free.

        They are written down together, a thousand at a time, before the first of their logs is made: to wait
        for the disk once for each would keep everybody waiting.
        """
        failed: dict[str, StorageFailed] = {}
        self._topics.claim(wanted)
        try:
            for at in range(0, len(wanted), TOPICS_AT_ONCE):
                failed |= yield from self._create_some(wanted[at : at + TOPICS_AT_ONCE])
                yield
        finally:
            self._topics.give_up(wanted)
        return failed

    def _create_some(self, wanted: Sequence[Topic]) -> Pieces[dict[str, StorageFailed]]:
        outdated = yield from self._forget_commits([topic.name for topic in wanted])
        if outdated:
            failure = StorageFailed("what groups have committed for an earlier topic of the name stays")
            return {topic.name: failure for topic in wanted}
        known: dict[frozenset[tuple[str, str]], LogConfig] = {}
        for topic in wanted:  # what cannot be carried out is not written down
            key = frozenset(topic.configs.items())
            known[key] = known.get(key) or self._settings.log_config(topic.configs)
        try:
            self._topics.announce(wanted, outdated_in=self._unread_commits())
        except OSError as error:
            failure = StorageFailed(f"{error.strerror or error}")
            return {topic.name: failure for topic in wanted}
        failed: dict[str, StorageFailed] = {}
        for topic in wanted:
            config = known[frozenset(topic.configs.items())]
            try:
                yield from self._open_logs(topic, range(topic.partitions), config)
            except StorageFailed as error:  # nothing half made stays behind
                failed[topic.name] = error
                yield from self._drop_logs(topic.name, range(topic.partitions))
            else:
                self._topics.arrive(topic.name)
                log.info("created topic %s with %s", topic.name, counted(topic.partitions, "partition"))
        if failed:
            self._topics.call_off(failed)
        return failed

    def _forget_commits(self, names: Sequence[str]) -> Pieces[frozenset[str]]:
        """Have topics that are to be made begin without commits; return those of which some stay."""
        if self._topics.get(OFFSETS_TOPIC) is None:
            return frozenset()
        return (yield from self._load_coordinator().topics_made(names))

    def _unread_commits(self) -> list[int]:
        """Return the partitions of the groups' topic in which nobody can say now what is committed."""
        return [] if self._topics.get(OFFSETS_TOPIC) is None else self._load_coordinator().unread()

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic that exists to `total` partitions. Raises `StorageFailed`."""
        for failed in at_once(self.grow_topics({name: total})).values():
            raise failed

    def grow_topics(
        self, totals: Mapping[str, int], assigned: Mapping[str, Layout] = NOTHING
    ) -> Pieces[dict[str, StorageFailed]]:
        """Grow topics that exist, and return which could not be. Written down as those that are created.

        All partitions are here, whether they are `assigned` or not.
        """
        befores = [self._topics.get(name) for name in totals]
        before = {topic.name: topic for topic in befores if topic is not None}
        self._topics.change([topic.resized(totals[name]) for name, topic in before.items()])
        failed: dict[str, StorageFailed] = {}
        for name, topic in before.items():
            added = range(topic.partitions, totals[name])
            try:
                yield from self._grow(topic, added)
            except StorageFailed as error:
                failed[name] = error
                kept = yield from self._shrink(topic, added)
                grown = self._topics.by_id(topic.topic_id)
                if grown is not None and grown.partitions == added.stop:
                    self._topics.put_back(grown.resized(kept))
        return failed

    def _shrink(self, topic: Topic, added: range) -> Pieces[int]:
        """Take new partitions back, the last first, up to one that somebody has written to meanwhile; return
        how many the topic has then.
        """
        for partition in reversed(added):
            there = self._replica_manager.log_of(topic.name, partition)
            if (there is not None and there.end_offset) or self._topics.by_id(topic.topic_id) is None:
                return partition + 1
            yield from self._drop_logs(topic.name, range(partition, partition + 1))
        return added.start

    def _grow(self, topic: Topic, added: range) -> Pieces[None]:
        """Make the logs of new partitions, by the settings that their topic has by then; of none once it is
        deleted.
        """
        configs, (config, _) = topic.configs, self._settings.stored_log_config(topic.configs)
        for partition in added:
            current = self._topics.by_id(topic.topic_id)
            if current is None:
                return
            if current.configs is not configs:
                configs, (config, _) = current.configs, self._settings.stored_log_config(current.configs)
            yield from self._open_logs(topic, range(partition, partition + 1), config)

    def configure_topics(self, wanted: Mapping[str, Mapping[str, str]]) -> Pieces[dict[str, StorageFailed]]:
        """Replace the settings of topics that exist, all of them or none. Raises OSError."""
        yield from ()  # nobody is heard between
        # what cannot be carried out is not written down
        made = {name: self._settings.log_config(configs) for name, configs in wanted.items()}
        found = [self._topics.get(name) for name in wanted]
        topics = [topic for topic in found if topic is not None]
        self._store.checkpoints.expect_gaps()  # or the next start cuts a log that was compacted before
        self._topics.change([replace(topic, configs=dict(wanted[topic.name])) for topic in topics])
        for topic in topics:
            for partition in range(topic.partitions):
                there = self._replica_manager.log_of(topic.name, partition)
                if there is not None:
                    there.configure(made[topic.name])
        return {}

    def delete_topics(self, names: Sequence[str]) -> Pieces[dict[str, StorageFailed]]:
        """Delete topics that exist, their logs, and what groups have committed for them (OM-7).

        They are gone even where a log's directory could not be moved away, which is returned: what is left of
        it goes when the broker starts next. Raises OSError where the deletion cannot be written down.
        """
        failed: dict[str, StorageFailed] = {}
        for topic in self._topics.delete(names):
            error = yield from self._drop_logs(topic.name, range(topic.partitions))
            if error is not None:
                failed[topic.name] = error
            log.info("deleted topic %s", topic.name)
        try:
            self._store.make_deletions_certain()
        except StorageFailed as error:
            failed |= dict.fromkeys(names, error)
        try:
            yield from self._load_coordinator().topics_deleted(tuple(names))
        finally:  # not before: what is committed for the next of the name is not to go with it
            for name in names:
                self._topics.gone(name)
        return failed

    def _open_logs(self, topic: Topic, partitions: range, config: LogConfig) -> Pieces[None]:
        """Make the logs that are not there yet. Raises `StorageFailed`."""
        for partition in partitions:
            if TopicPartition(topic.name, partition) not in self._store.logs:
                self._begin_epoch(self._store.create_log(topic.name, partition, topic.topic_id, config))
                yield

    def _begin_epoch(self, made: PartitionLog) -> None:
        """Have a new log be written in the epoch in which this node leads it: news of the election may have
        come first. Raises `StorageFailed`.
        """
        if self._leadership.leads(*made.name):
            try:
                made.lead(self._leadership.leader_epoch(*made.name))
            except OSError as error:
                raise StorageFailed(f"{made.directory}: {error.strerror or error}") from error

    def _drop_logs(self, name: str, partitions: range) -> Pieces[StorageFailed | None]:
        """Take logs out of sight, all of them, whatever the disk says; return what it said last."""
        failed: StorageFailed | None = None
        for partition in partitions:
            gone = TopicPartition(name, partition)
            if gone in self._store.logs:
                try:
                    self._store.delete_log(name, partition, now_ms=self._clock.now_ms())
                except StorageFailed as error:
                    failed = error
                self._purgatory.changed(gone)
                yield
        return failed

    def ensure_internal(self, name: str) -> Topic:
        """Return an internal topic, made on its first use as Apache Kafka makes it."""
        topic = self._topics.get(name)
        if topic is None:
            mark("internal-topic-made")
            partitions, configs = self._settings.internal_topic(name)
            topic = self.create_topic(name, partitions=partitions, configs=configs)
        return topic

    def ensure_own_partition(self, name: str) -> bool:
        """Return False: a broker alone leads all there are, but for what its disk keeps back."""
        return False

    def open_logs(self) -> None:
        """Open the logs of every topic: the broker starts. Raises `StorageFailed` for one of an internal
        topic; others are not served.
        """
        for topic in self._topics.all():
            config, _ = self._settings.stored_log_config(topic.configs)
            for partition in range(topic.partitions):
                try:
                    at_once(self._open_logs(topic, range(partition, partition + 1), config))
                except StorageFailed as error:
                    if topic.internal:
                        raise
                    log.error("%s-%d is not served: %s", topic.name, partition, error)
