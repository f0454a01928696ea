"""One broker without its sockets: topics, logs, groups, what waits, and which handler answers what."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID, uuid4

from coterie.base.ids import TopicPartition
from coterie.base.plain import counted
from coterie.base.reasons import mark
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.fastpath import FastPath
from coterie.broker.net.context import Hangup
from coterie.broker.net.peers import Peers
from coterie.broker.runtime.leadership import Alone
from coterie.broker.runtime.pieces import Pieces, at_once
from coterie.broker.runtime.purgatory import Purgatory
from coterie.storage.log.contract import StorageFailed
from coterie.wire.api.apis import APIS

if TYPE_CHECKING:
    from coterie.base.codes import Code
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.net.context import Context
    from coterie.broker.runtime.cleaner import Cleaner, WorksBeside
    from coterie.broker.runtime.groups import Coordinator
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.transactions import TransactionCoordinator
    from coterie.broker.topics.registry import (
        Topics,
    )
    from coterie.broker.topics.topic import (
        Topic,
    )
    from coterie.storage.config import LogConfig
    from coterie.storage.directory import Store
    from coterie.storage.log.contract import Appended
    from coterie.storage.log.partition import (
        PartitionLog,
    )
    from coterie.storage.log.producers import Verification
    from coterie.storage.log.validate import Prepared
    from coterie.wire.api.codec import RequestHeader

log = logging.getLogger("coterie.broker")

API_VERSIONS = 18

TOPICS_AT_ONCE = 1_000
SLEWED_MS = 1_000  # by less than this the wall's clock is brought in step, and not set
# What members send: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, OffsetFetch, OffsetCommit, LeaveGroup.
GROUP_APIS = (10, 11, 14, 12, 9, 8, 13)

# Which module of `api` answers which API. They are imported on their first request: start-up stays
# short.
FAMILIES: Mapping[int, str] = {
    0: "produce",
    1: "data",
    2: "data",
    3: "metadata",
    8: "offsets",
    9: "offsets",
    10: "metadata",
    11: "groups",
    12: "groups",
    13: "groups",
    14: "groups",
    15: "groups",
    16: "groups",
    17: "security",
    18: "metadata",
    19: "admin",
    20: "admin",
    21: "data",
    22: "transactions",
    23: "data",
    24: "transactions",
    25: "transactions",
    26: "transactions",
    27: "transactions",
    28: "txn_offsets",
    29: "security",
    30: "security",
    31: "security",
    32: "configs",
    33: "configs",
    34: "log_dirs",
    35: "log_dirs",
    36: "security",
    37: "admin",
    38: "security",
    39: "security",
    40: "security",
    41: "security",
    42: "groups",
    43: "replicas",
    44: "configs",
    45: "replicas",
    46: "replicas",
    47: "offsets",
    48: "quotas",
    49: "quotas",
    50: "security",
    51: "security",
    55: "replicas",
    60: "admin",
    61: "producers",
    65: "transactions",
    66: "transactions",
    74: "listings",
    75: "listings",
}

# Of the node, of who asks in which version, and of the request. It returns the response, WAITS or SILENT, or
# pieces of work that end in one of these.
Handler: TypeAlias = "Callable[[Node, Context, Any], Any]"


def nothing() -> None:
    """Do nothing."""


class Node:
    """A broker's state and its one way in: `handler_of` says who answers a request.

    Time, chance and the order of work are handed in: the socket shell hands in the event loop's, a test
    whatever it drives time with, the simulator all of them from one seed. Below are the parts that handlers
    and what runs beside them use.
    """

    settings: BrokerSettings
    """Kafka's settings of this broker."""
    topics: Topics
    """The topics: names, ids, partitions, settings. The methods of the node create and delete them."""
    store: Store
    """The logs, by TopicPartition, and the directory that they lie in."""
    purgatory: Purgatory
    """The operations that wait, such as fetches, and the timers."""
    leadership: Leadership
    """Which node leads a partition: this one, but in the swarm."""
    peers: Peers
    """The connections, and what they may hold together."""
    cleaner: Cleaner
    """Retention and compaction."""
    fast_path: FastPath
    """What is answered from a request's bytes."""
    advertised: tuple[str, int]
    """The host and port that clients are sent to."""
    now_ms: Callable[[], int]
    """A clock that never jumps."""
    wall_ms: Callable[[], int]
    """The wall's clock, by which records are dated."""
    call_soon: Callable[[Callable[[], None]], object]
    """Runs a function after the requests that are being answered now."""
    work: Callable[[Pieces[None]], None]
    """Does what takes long in pieces, between which requests are answered."""
    new_uuid: Callable[[], UUID]
    """Makes what member ids end in."""
    groups_loaded: Callable[[], None]
    """Called once the groups have been loaded."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        topics: Topics,
        store: Store,
        clock: Callable[[], int],
        wall: Callable[[], int] | None = None,
        call_soon: Callable[[Callable[[], None]], object],
        alarm: Callable[[int], None],
        aside: WorksBeside,
        work: Callable[[Pieces[None]], None] = at_once,
        new_uuid: Callable[[], UUID] = uuid4,
    ) -> None:
        from coterie.broker.runtime.cleaner import Cleaner

        self.settings = settings
        self.topics = topics
        self.store = store
        self.now_ms = clock
        self.wall_ms = wall or clock
        self._wall_ahead_ms = 0
        self.call_soon = call_soon
        self.work = work
        self.new_uuid = new_uuid
        self.purgatory = Purgatory(alarm)
        self.leadership = Alone(self)
        self.groups_loaded = nothing
        self.peers = Peers(
            idle_ms=settings.connections_max_idle_ms,
            request_bytes_max=settings.socket_request_max_bytes,
            clock=clock,
        )
        self.advertised = settings.advertised_listener or (settings.listen_host, settings.listen_port)
        self.cleaner = Cleaner(self, aside)
        self.fast_path = FastPath(self)
        self._handlers: dict[int, Handler] = {}

    # The core is imported on first use, and soon after the broker is ready if nobody asks: start-up is short.

    @cached_property
    def coordinator(self) -> Coordinator:
        """The groups of this node, loading from the moment they are first asked for."""
        from coterie.broker.runtime.groups import Coordinator

        return Coordinator(self)

    @cached_property
    def transactions(self) -> TransactionCoordinator:
        """The transactional ids of this node, loading from the moment they are first asked for."""
        from coterie.broker.runtime.transactions import TransactionCoordinator

        return TransactionCoordinator(self)

    # -- requests

    def handler_of(self, header: RequestHeader) -> Handler | None:
        """Return the handler of a request; None for a version of ApiVersions that we do not know.

        Raises `Hangup` for every other API or version that is not served, as Apache Kafka closes the
        connection.
        """
        key = header.api_key
        if key not in FAMILIES:
            mark("api-not-served", key)
            raise Hangup(f"asked for API {key}, which is not served")
        api = APIS[key]
        if not api.served_from <= header.api_version <= api.most:
            if key == API_VERSIONS:
                return None
            mark("version-not-served", key)
            raise Hangup(f"asked for {api.title} v{header.api_version}; {api.least} to {api.most} are served")
        handler = self._handlers.get(key)
        if handler is None:
            module = importlib.import_module(f"coterie.broker.api.{FAMILIES[key]}")
            handler = self._handlers[key] = module.HANDLERS[key]
        return handler

    def refuse_version(self, header: RequestHeader) -> Any:
        """Return the answer to an unknown version of ApiVersions (KIP-511)."""
        from coterie.broker.api.metadata import versions_refused

        assert header.api_key == API_VERSIONS
        return versions_refused()

    # -- topics and logs

    def log_of(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition that exists."""
        return self.store.logs.get(TopicPartition(topic, partition))

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the epoch in which a partition is led; 0 of one whose log could not be made."""
        log = self.log_of(topic, partition)
        return 0 if log is None else log.latest_epoch

    def dated_ms(self, now_ms: int) -> int:
        """Return by which time to date what is decided now.

        It is the wall's, but for what that is slewed by: a transaction that goes on keeps its start to the
        millisecond.
        """
        ahead_ms = self.wall_ms() - now_ms
        if abs(ahead_ms - self._wall_ahead_ms) >= SLEWED_MS:
            self._wall_ahead_ms = ahead_ms
        return now_ms + self._wall_ahead_ms

    def append(
        self,
        topic: str,
        partition: int,
        records: bytes | Prepared,
        *,
        now_ms: int,
        leader_epoch: int = 0,
        origin: str = "client",
        verified: Verification | None = None,
        transaction_version: int = 0,
        promptly: bool = False,
        wakes: bool = True,
    ) -> Appended:
        """Append to a partition that exists and wake who waits for it, if this `wakes` at once: who is woken
        may have the next request answered within. Raises `AppendRefused`.

        `verified` comes with what a client writes in a transaction, `transaction_version` with its marker;
        `promptly` as with the log, which may raise `TakesLong`.
        """
        watched = TopicPartition(topic, partition)
        appended = self.store.logs[watched].append(
            records,
            now_ms=now_ms,
            wall_ms=self.wall_ms(),
            leader_epoch=leader_epoch,
            origin=origin,
            verified=verified,
            transaction_version=transaction_version,
            promptly=promptly,
        )
        if wakes:
            self.purgatory.changed(watched)
        return appended

    def write_marker(
        self,
        watched: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        deliver: Callable[[Code], None],
        transaction_version: int = 0,
    ) -> None:
        """End a producer's transaction in one partition; `deliver` is called once, at once or later."""
        from coterie.broker.runtime.transactions import write_marker

        write_marker(
            self,
            watched,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=commit,
            transaction_version=transaction_version,
            deliver=deliver,
        )

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
    ) -> Topic:
        """Create a topic with its logs; the name is valid and free. Raises `StorageFailed`."""
        wanted = self.topics.new(name, partitions=partitions, configs=configs, topic_id=topic_id)
        for failed in at_once(self.create_topics([wanted])).values():
            raise failed
        return wanted

    def create_topics(self, wanted: Sequence[Topic]) -> Pieces[dict[str, StorageFailed]]:
        """Create topics with their logs, and return which could not be; their names are valid and free.

        They are written down together, a thousand at a time, before the first of their logs is made: to wait
        for the disk once for each would keep everybody waiting.
        """
        failed: dict[str, StorageFailed] = {}
        self.topics.claim(wanted)
        try:
            for at in range(0, len(wanted), TOPICS_AT_ONCE):
                failed |= yield from self._create_some(wanted[at : at + TOPICS_AT_ONCE])
                yield
        finally:
            self.topics.give_up(wanted)
        return failed

    def _create_some(self, wanted: Sequence[Topic]) -> Pieces[dict[str, StorageFailed]]:
        outdated = yield from self._forget_commits([topic.name for topic in wanted])
        if outdated:
            failure = StorageFailed("what groups have committed for an earlier topic of the name stays")
            return {topic.name: failure for topic in wanted}
        known: dict[frozenset[tuple[str, str]], LogConfig] = {}
        for topic in wanted:  # what cannot be carried out is not written down
            key = frozenset(topic.configs.items())
            known[key] = known.get(key) or self.settings.log_config(topic.configs)
        try:
            self.topics.announce(wanted, outdated_in=self._unread_commits())
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
                self.topics.arrive(topic.name)
                log.info("created topic %s with %s", topic.name, counted(topic.partitions, "partition"))
        if failed:
            self.topics.call_off(failed)
        return failed

    def _forget_commits(self, names: Sequence[str]) -> Pieces[frozenset[str]]:
        """Have topics that are to be made begin without commits; return those of which some stay."""
        if self.topics.get(OFFSETS_TOPIC) is None:
            return frozenset()
        return (yield from self.coordinator.topics_made(names))

    def _unread_commits(self) -> list[int]:
        """Return the partitions of the groups' topic in which nobody can say now what is committed."""
        return [] if self.topics.get(OFFSETS_TOPIC) is None else self.coordinator.unread()

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic that exists to `total` partitions. Raises `StorageFailed`."""
        for failed in at_once(self.grow_topics({name: total})).values():
            raise failed

    def grow_topics(self, totals: Mapping[str, int]) -> Pieces[dict[str, StorageFailed]]:
        """Grow topics that exist, and return which could not be. Written down as those that are created."""
        befores = [self.topics.get(name) for name in totals]
        before = {topic.name: topic for topic in befores if topic is not None}
        self.topics.change([replace(topic, partitions=totals[name]) for name, topic in before.items()])
        failed: dict[str, StorageFailed] = {}
        for name, topic in before.items():
            added = range(topic.partitions, totals[name])
            try:
                yield from self._grow(topic, added)
            except StorageFailed as error:
                failed[name] = error
                kept = yield from self._shrink(topic, added)
                grown = self.topics.by_id(topic.topic_id)
                if grown is not None and grown.partitions == added.stop:
                    self.topics.put_back(replace(grown, partitions=kept))
        return failed

    def _shrink(self, topic: Topic, added: range) -> Pieces[int]:
        """Take new partitions back, the last first, up to one that somebody has written to meanwhile; return
        how many the topic has then.
        """
        for partition in reversed(added):
            there = self.log_of(topic.name, partition)
            if (there is not None and there.end_offset) or self.topics.by_id(topic.topic_id) is None:
                return partition + 1
            yield from self._drop_logs(topic.name, range(partition, partition + 1))
        return added.start

    def _grow(self, topic: Topic, added: range) -> Pieces[None]:
        """Make the logs of new partitions, by the settings that their topic has by then; of none once it is
        deleted.
        """
        configs, (config, _) = topic.configs, self.settings.stored_log_config(topic.configs)
        for partition in added:
            current = self.topics.by_id(topic.topic_id)
            if current is None:
                return
            if current.configs is not configs:
                configs, (config, _) = current.configs, self.settings.stored_log_config(current.configs)
            yield from self._open_logs(topic, range(partition, partition + 1), config)

    def configure_topics(self, wanted: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the settings of topics that exist, all of them or none. Raises OSError."""
        # what cannot be carried out is not written down
        made = {name: self.settings.log_config(configs) for name, configs in wanted.items()}
        found = [self.topics.get(name) for name in wanted]
        topics = [topic for topic in found if topic is not None]
        self.store.checkpoints.expect_gaps()  # or the next start cuts a log that was compacted before
        self.topics.change([replace(topic, configs=dict(wanted[topic.name])) for topic in topics])
        for topic in topics:
            for partition in range(topic.partitions):
                there = self.log_of(topic.name, partition)
                if there is not None:
                    there.configure(made[topic.name])

    def delete_topics(self, names: Sequence[str]) -> Pieces[dict[str, StorageFailed]]:
        """Delete topics that exist, their logs, and what groups have committed for them (OM-7).

        They are gone even where a log's directory could not be moved away, which is returned: what is left of
        it goes when the broker starts next. Raises OSError where the deletion cannot be written down.
        """
        failed: dict[str, StorageFailed] = {}
        for topic in self.topics.delete(names):
            error = yield from self._drop_logs(topic.name, range(topic.partitions))
            if error is not None:
                failed[topic.name] = error
            log.info("deleted topic %s", topic.name)
        try:
            self.store.make_deletions_certain()
        except StorageFailed as error:
            failed |= dict.fromkeys(names, error)
        try:
            yield from self.coordinator.topics_deleted(tuple(names))
        finally:  # not before: what is committed for the next of the name is not to go with it
            for name in names:
                self.topics.gone(name)
        return failed

    def _open_logs(self, topic: Topic, partitions: range, config: LogConfig) -> Pieces[None]:
        """Make the logs that are not there yet. Raises `StorageFailed`."""
        for partition in partitions:
            if TopicPartition(topic.name, partition) not in self.store.logs:
                self.store.create_log(topic.name, partition, topic.topic_id, config)
                yield

    def _drop_logs(self, name: str, partitions: range) -> Pieces[StorageFailed | None]:
        """Take logs out of sight, all of them, whatever the disk says; return what it said last."""
        failed: StorageFailed | None = None
        for partition in partitions:
            gone = TopicPartition(name, partition)
            if gone in self.store.logs:
                try:
                    self.store.delete_log(name, partition, now_ms=self.now_ms())
                except StorageFailed as error:
                    failed = error
                self.purgatory.changed(gone)
                yield
        return failed

    def ensure_internal(self, name: str) -> Topic:
        """Return an internal topic, made on its first use as Apache Kafka makes it."""
        topic = self.topics.get(name)
        if topic is None:
            mark("internal-topic-made")
            partitions, configs = self.settings.internal_topic(name)
            topic = self.create_topic(name, partitions=partitions, configs=configs)
        return topic

    # -- life

    def advertise(self, host: str, port: int) -> None:
        """Tell clients the address that is listened on, unless `advertised.listeners` names another."""
        if self.settings.advertised_listener is None:
            self.advertised = (host, port)

    def start(self) -> None:
        """Open the logs of every topic, begin to load the groups if there are any, arm the housekeeping."""
        for topic in self.topics.all():
            config, _ = self.settings.stored_log_config(topic.configs)
            for partition in range(topic.partitions):
                try:
                    at_once(self._open_logs(topic, range(partition, partition + 1), config))
                except StorageFailed as error:
                    if topic.internal:
                        raise
                    log.error("%s-%d is not served: %s", topic.name, partition, error)
        if self.topics.get(OFFSETS_TOPIC) is not None:
            self.warm_up()
        if self.topics.get(TRANSACTIONS_TOPIC) is not None:
            make(self.transactions)
        else:
            self.store.in_doubt = False  # nobody else goes by what a loss of power may have taken
        self._housekeep(None, self.now_ms())

    def warm_up(self) -> None:
        """Have at hand what the first group will need."""
        make(self.coordinator, self.fast_path.heartbeats)

    def get_ready(self, api_keys: Sequence[int] = GROUP_APIS) -> None:
        """Make the readers and writers of what members send, one by one: others ask meanwhile."""
        from coterie.wire.api.codec import prepare

        self.fast_path.prepare()
        first, *others = api_keys
        prepare(first)
        if others:
            self.call_soon(lambda: self.get_ready(others))

    def _housekeep(self, _: object, now_ms: int) -> None:
        # Armed first: whatever happens in one round, there is a next.
        self.purgatory.arm("housekeeping", now_ms + self.settings.housekeeping_interval_ms, self._housekeep)
        self.cleaner.tick(now_ms)

    def stop(self) -> None:
        """Write what is owed and let go of the files."""
        if "transactions" in vars(self):
            self.transactions.flush_all()
            self.store.in_doubt = self.store.in_doubt and self.transactions.in_doubt()
        self.coordinator.flush_all()
        self.store.close()


def make(*parts: object) -> None:
    """Do nothing more: to name the parts has made those that are made when first asked for."""
