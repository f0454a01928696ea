"""One broker without its sockets: it makes the parts, hands each what it uses, and finds who answers what."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast
from uuid import UUID, uuid4

from coterie.base.reasons import mark
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.api import FAMILIES, served_apis
from coterie.broker.fastpath import FastPath, FastPathParts
from coterie.broker.net.context import Hangup
from coterie.broker.net.peers import Peers
from coterie.broker.runtime.clock import Clock
from coterie.broker.runtime.leadership import ElectedLeaders, Elections, SoleLeader
from coterie.broker.runtime.pieces import Pieces, Scheduler, straight_on
from coterie.broker.runtime.purgatory import Purgatory
from coterie.broker.runtime.replica_manager import ReplicaManager
from coterie.broker.topics.manager import TopicManager
from coterie.broker.topics.registry import Topics
from coterie.storage.directory import Store
from coterie.wire.api.apis import APIS

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.interbroker.lives import SenderLives, SenderName
    from coterie.broker.interbroker.markers import TransactionMarkers
    from coterie.broker.interbroker.partitions import TransactionPartitions
    from coterie.broker.interbroker.sender import Connect
    from coterie.broker.net.context import Context
    from coterie.broker.runtime.cleaner import Housekeeping, RetainingStore, WorksBeside
    from coterie.broker.runtime.groups import Coordinator
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.markers import MarkerWriter
    from coterie.broker.runtime.transactions import AsksCoordinators, TransactionCoordinator
    from coterie.broker.topics.catalog import TopicCatalog, TopicChanges
    from coterie.broker.topics.producer_ids import ProducerIdManager
    from coterie.broker.topics.replica_proposals import ReplicaProposals
    from coterie.storage.kind import Log, LogStore
    from coterie.wire.api.codec import RequestHeader

API_VERSIONS = 18

# What members send: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, OffsetFetch, OffsetCommit, LeaveGroup.
GROUP_APIS = (10, 11, 14, 12, 9, 8, 13)

# Of who asks in which version, and of the request. It returns the response, WAITS or SILENT, or pieces of
# work that end in one of these.
Handler: TypeAlias = Callable[["Context", Any], Any]

P = TypeVar("P", bound=NamedTuple)


def nothing() -> None:
    """Do nothing."""


class Handlers(dict[tuple[int, int], Handler | None]):
    """The handlers of a node by API key and version. Each is made with the first request that it answers, and
    its module is imported then: start-up stays short.
    """

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node

    def __missing__(self, asked: tuple[int, int]) -> Handler | None:
        """Return the handler of a request; None for a version of ApiVersions that we do not know.

        Raises `Hangup` for every other API or version that is not served, as Apache Kafka closes the
        connection.
        """
        key, version = asked
        if key not in self._node.apis:
            mark("api-not-served", key)
            raise Hangup(f"asked for API {key}, which is not served")
        api = APIS[key]
        if not api.served_from <= version <= api.most:
            if key == API_VERSIONS:
                return None
            mark("version-not-served", key)
            raise Hangup(f"asked for {api.title} v{version}; {api.least} to {api.most} are served")
        module = importlib.import_module(f"coterie.broker.api.{FAMILIES[key]}")
        handler: Handler = module.HANDLERS[key]
        wanted = getattr(module, "Parts", None)
        if wanted is not None:
            handler = partial(handler, self._node.parts(wanted))
        self[asked] = handler
        return handler


class Node:
    """A broker's parts and its one way in: `handlers` says who answers a request.

    Time, chance and the order of work are handed in: the socket shell hands in the event loop's, a test
    whatever it drives time with, the simulator all of them from one seed. Below are the parts. Each is given
    those that it uses, and none is given the node: whoever uses several names them in a NamedTuple (`parts`).
    """

    settings: BrokerSettings
    """Kafka's settings of this broker."""
    topics: TopicCatalog
    """The topics: names, ids, partitions, settings."""
    topic_manager: TopicChanges
    """Creates, grows, configures and deletes them."""
    replica_changes: ReplicaProposals | None
    """Moves replicas and leaders, where that is a matter of the metadata alone."""
    producer_ids: ProducerIdManager
    """Where producer ids come from."""
    store: LogStore
    """The logs, by TopicPartition, and the place that they lie in."""
    replica_manager: ReplicaManager
    """Finds the logs of partitions, dates records and appends them."""
    led_log: Callable[[TopicPartition], Log | None]
    """Finds the log of a partition that this node leads; None of any other."""
    purgatory: Purgatory
    """The operations that wait, such as fetches, and the timers."""
    leadership: Leadership
    """Which node leads a partition, and in which epoch: this one, unless it is one of several."""
    peers: Peers
    """The connections, and what they may hold together."""
    cleaner: Housekeeping
    """Retention and compaction, as far as the store has them."""
    fast_path: FastPath
    """What is answered from a request's bytes."""
    advertised: tuple[str, int]
    """The host and port that clients are sent to."""
    clock: Clock
    """The time."""
    scheduler: Scheduler
    """Runs what is to run after the requests that are being answered now, or between others."""
    new_uuid: Callable[[], UUID]
    """Makes what member ids end in."""
    look_at_clock: Callable[[], None]
    """Called before a client of one broker of several is answered: it may have to stop serving by now."""
    groups_loaded: Callable[[], None]
    """Called once the groups have been loaded."""
    connect: Connect | None
    """Opens connections to other brokers."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        topics: TopicCatalog,
        store: LogStore,
        clock: Callable[[], int],
        wall: Callable[[], int] | None = None,
        call_soon: Callable[[Callable[[], None]], object],
        alarm: Callable[[int], None],
        aside: WorksBeside,
        work: Callable[[Pieces[None]], None] = straight_on,
        new_uuid: Callable[[], UUID] = uuid4,
        leadership: Leadership | None = None,
        when_writable: Callable[[TopicPartition, Callable[[], None]], object] | None = None,
        groups_loaded: Callable[[], None] = nothing,
        topic_manager: TopicChanges | None = None,
        replica_changes: ReplicaProposals | None = None,
        producer_ids: ProducerIdManager | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`when_writable` is for logs that write at times of their own (`ReplicaManager`), `connect` opens
        connections to other brokers. A broker alone changes its topics itself, and makes its producer ids:
        its topics are `Topics` then.
        """
        from coterie.broker.runtime.cleaner import Cleaner, RemoteCleaner

        self.settings = settings
        self.topics = topics
        self.store = store
        self.clock = Clock(clock, wall)
        self.scheduler = Scheduler(call_soon, work)
        self.new_uuid = new_uuid
        self.purgatory = Purgatory(alarm)
        self.leadership = leadership or SoleLeader(
            settings.node_id, self.address, settings.broker_rack, store.logs
        )
        self.led_log = store.logs.get if self.leadership.alone else self._log_if_led
        self.groups_loaded = groups_loaded
        self.connect = connect
        self.look_at_clock = nothing
        self.peers = Peers(
            idle_ms=settings.connections_max_idle_ms,
            request_bytes_max=settings.socket_request_max_bytes,
            clock=clock,
        )
        self.advertised = settings.advertised_listener or (settings.listen_host, settings.listen_port)
        self.replica_manager = ReplicaManager(
            store.logs, self.purgatory, self.clock, self.scheduler, when_writable or self._after_this_round
        )
        self.topic_manager = topic_manager or self._own_topic_manager()
        self.replica_changes = replica_changes
        self.producer_ids = producer_ids or self._own_topics()
        self.cleaner = (
            Cleaner(store, self.clock, aside)
            if isinstance(store, Store)
            else RemoteCleaner(cast("RetainingStore", store), self.clock)
        )
        self.fast_path = FastPath(self.parts(FastPathParts))
        self.handlers = Handlers(self)

    def _own_topics(self) -> Topics:
        assert isinstance(self.topics, Topics), "what a cluster agrees on has ways of its own to change it"
        return self.topics

    def _own_topic_manager(self) -> TopicManager:
        assert isinstance(self.store, Store)
        return TopicManager(
            settings=self.settings,
            topics=self._own_topics(),
            store=self.store,
            replica_manager=self.replica_manager,
            purgatory=self.purgatory,
            clock=self.clock,
            leadership=self.leadership,
            load_coordinator=self.load_coordinator,
        )

    def parts(self, wanted: type[P]) -> P:
        """Return a NamedTuple of parts, each of which is this node's of that name."""
        return wanted._make(getattr(self, name) for name in wanted._fields)

    def _log_if_led(self, name: TopicPartition) -> Log | None:
        return self.store.logs.get(name) if self.leadership.leads(*name) else None

    @cached_property
    def elections(self) -> Elections:
        """Takes the news of elections, where this node is one of several."""
        assert isinstance(self.leadership, ElectedLeaders)
        return Elections(
            self.leadership, self.store.logs, self.purgatory, self.load_coordinator, self.load_transactions
        )

    def _after_this_round(self, _: TopicPartition, append: Callable[[], None]) -> None:
        self.scheduler.call_soon(append)

    # The core is imported on first use, and soon after the broker is ready if nobody asks: start-up is short.

    @cached_property
    def coordinator(self) -> Coordinator:
        """The groups of this node, loading from the moment they are first asked for."""
        from coterie.broker.runtime.groups import Coordinator
        from coterie.broker.runtime.topic_shards import CoordinatorParts
        from coterie.story.recorder import GroupStories
        from coterie.story.topic import StoryParts, StoryTopic

        return Coordinator(
            self.parts(CoordinatorParts),
            stories=GroupStories(StoryTopic(self.parts(StoryParts))),
            new_uuid=self.new_uuid,
            loaded=self.groups_loaded,
        )

    def load_coordinator(self) -> Coordinator:
        """Return the groups of this node, for a part that may never ask for them."""
        return self.coordinator

    @cached_property
    def transactions(self) -> TransactionCoordinator:
        """The transactional ids of this node, loading from the moment they are first asked for."""
        from coterie.broker.runtime.topic_shards import CoordinatorParts
        from coterie.broker.runtime.transactions import TransactionCoordinator

        return TransactionCoordinator(
            self.parts(CoordinatorParts),
            store=self.store,
            peers=self.peers,
            marker_writer=self.marker_writer if self.leadership.alone else self.transaction_markers,
        )

    def load_transactions(self) -> TransactionCoordinator:
        """Return the transactional ids of this node, for a part that may never ask for them."""
        return self.transactions

    @cached_property
    def marker_writer(self) -> MarkerWriter:
        """Writes the markers that end transactions."""
        from coterie.broker.runtime.markers import MarkerParts, MarkerWriter

        return MarkerWriter(self.parts(MarkerParts))

    @cached_property
    def apis(self) -> frozenset[int]:
        """The keys of the APIs that are served."""
        return served_apis(alone=self.leadership.alone, replicas_are_moved=self.replica_changes is not None)

    # -- between brokers, where there are several

    @cached_property
    def transaction_markers(self) -> TransactionMarkers:
        """Has the markers of this node's coordinators written, here or by who leads."""
        from coterie.broker.interbroker.markers import TransactionMarkers
        from coterie.broker.interbroker.sender import SenderParts

        return TransactionMarkers(
            self.parts(SenderParts),
            topics=self.topics,
            leadership=self.leadership,
            local=self.marker_writer,
        )

    @cached_property
    def transaction_partitions(self) -> TransactionPartitions:
        """Asks the coordinators of transactions, here or elsewhere, which partitions may be written."""
        from coterie.broker.interbroker.partitions import TransactionPartitions
        from coterie.broker.interbroker.sender import SenderParts

        return TransactionPartitions(
            self.parts(SenderParts), topics=self.topics, load_transactions=self.load_transactions
        )

    def load_transaction_partitions(self) -> AsksCoordinators:
        """Return the part that asks coordinators: a broker alone is all of them."""
        return self.transactions if self.leadership.alone else self.transaction_partitions

    @cached_property
    def sender_name(self) -> SenderName:
        """How this node calls itself where it asks others."""
        from coterie.broker.interbroker.lives import SenderName

        return SenderName(self.settings.node_id, self.new_uuid)

    @cached_property
    def sender_lives(self) -> SenderLives:
        """The connections over which others ask."""
        from coterie.broker.interbroker.lives import SenderLives

        return SenderLives()

    # -- requests

    def refuse_version(self, header: RequestHeader) -> Any:
        """Return the answer to an unknown version of ApiVersions (KIP-511)."""
        from coterie.broker.api.metadata import versions_refused

        assert header.api_key == API_VERSIONS
        return versions_refused()

    # -- life

    def address(self) -> tuple[str, int]:
        """Return the host and port that clients are sent to; before it listens, those of the settings."""
        return self.advertised

    def advertise(self, host: str, port: int) -> None:
        """Tell clients the address that is listened on, unless `advertised.listeners` names another."""
        if self.settings.advertised_listener is None:
            self.advertised = (host, port)

    def start(self) -> None:
        """Open the logs of every topic, begin to load the groups if there are any, arm the housekeeping."""
        if isinstance(self.topic_manager, TopicManager):
            self.topic_manager.open_logs()
        if self.topics.get(OFFSETS_TOPIC) is not None:
            self.warm_up()
        if self.topics.get(TRANSACTIONS_TOPIC) is not None:
            make(self.transactions)
        else:
            self.store.in_doubt = False  # nobody else goes by what a loss of power may have taken
        self._housekeep(None, self.clock.now_ms())

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
            self.scheduler.call_soon(lambda: self.get_ready(others))

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
        self.hang_up()
        self.store.close()

    def hang_up(self) -> None:
        """End the connections to other brokers."""
        for asks in ("transaction_markers", "transaction_partitions"):
            if asks in vars(self):
                getattr(self, asks).senders.close()


def make(*parts: object) -> None:
    """Do nothing more: to name the parts has made those that are made when first asked for."""
