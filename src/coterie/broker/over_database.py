"""`serve --store`: one of several brokers over a database that they share. Waits for the database, joins the
cluster, says `ready HOST:PORT`, and leaves on a signal.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from coterie import __version__
from coterie.base.errors import CoterieError
from coterie.base.signals import StopRequests
from coterie.broker.api import FAMILIES
from coterie.broker.cluster.image import Endpoint
from coterie.broker.cluster.lifecycle import BrokerLifecycle
from coterie.broker.cluster.postgres.engine import PostgresEngine
from coterie.broker.cluster.postgres.outage import Outage
from coterie.broker.cluster.terms import LifecycleTerms, terms_of
from coterie.broker.clustered import ClusteredNode
from coterie.broker.interbroker.sockets import Connector
from coterie.broker.net.request_queue import RequestQueue
from coterie.broker.net.server import SocketProtocol
from coterie.broker.node import GROUP_APIS, Node, make
from coterie.broker.runtime.background import Beside
from coterie.broker.shell.listening import (
    CannotServe,
    address_of,
    let_in,
    listen,
    sweep_again_and_again,
    try_port,
)
from coterie.broker.shell.loop import Alarm, Timer, thinking_of
from coterie.broker.shell.process import (
    ageing_clock_ms,
    file_limit,
    hide_in_command_line,
    keep_freed_blocks,
    keep_what_is_there,
    new_runner,
    on_stop_signals,
    raise_file_limit,
    say_ready,
    wall_clock_ms,
)
from coterie.storage.postgres.compacting import PostgresCompactor
from coterie.storage.postgres.connecting import Connections, DatabaseAddress
from coterie.storage.postgres.lane_session import LaneSessions
from coterie.storage.postgres.reading import PostgresReader
from coterie.storage.postgres.starting import OpenedStore, history_of, open_store, see_session_kept
from coterie.storage.remote.store import DATA_LANES, RemoteStore
from coterie.wire.api.codec import prepare

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings

log = logging.getLogger("coterie.broker")

LISTENER = "PLAINTEXT"
# Produce, Fetch, ListOffsets, Metadata; what members send; the requests of transactions.
FIRST_APIS = (0, 1, 2, 3, *GROUP_APIS, 22, 24, 25, 26, 27, 28)
LEVEL = 0
"""What the brokers of this software can rely on of each other."""
STOPPED_WAITING = "stopped before it was ready: %s"
NOT_REACHED = "it waited for the database %s, which is not reached: %s"
NOT_ANSWERED = (
    "it waited for the database, which answers, but not all that a broker asks before it serves: %s"
)
PERHAPS_LOCKED = "somebody may keep a lock there"
NOT_WRITABLE = "it waited for its connections for writing to %s, which are not there yet"
UNREADY_LEAVES_WITHIN_S = 3.0
"""So long a broker that was never ready waits for what it writes, when it is stopped: nobody waits for that,
and supervisors kill after 10 seconds.
"""
TWICE = "asked to stop twice: the others take over what this broker leads, once the database tells them"


class StoreAddresses(NamedTuple):
    """Where the database is, and how the membership reaches it: past a pooler, which keeps no sessions."""

    store: DatabaseAddress
    direct: DatabaseAddress


def serve_over(settings: BrokerSettings, addresses: StoreAddresses) -> int:
    """Serve until told to stop; return the exit code. Raises `CannotServe` with a sentence for the user."""
    hide_in_command_line([*addresses.store.secrets, *addresses.direct.secrets])
    raise_file_limit()
    try_port(settings)
    try:
        terms = terms_of(settings)
        with new_runner() as runner:
            return runner.run(_serve(settings, terms, addresses))
    except CoterieError as error:
        raise CannotServe(str(error)) from error


async def _serve(settings: BrokerSettings, terms: LifecycleTerms, addresses: StoreAddresses) -> int:
    opened = await _open(addresses)
    return await MemberProcess(settings, terms, addresses, opened).run()


async def _open(addresses: StoreAddresses) -> OpenedStore:
    """Return the database, once it is there."""
    opened = await open_store(addresses.store, waiting=_waiting(addresses.store))
    if addresses.direct is not addresses.store:
        direct = await history_of(addresses.direct, waiting=_waiting(addresses.direct))
        if direct != opened.history:
            raise CoterieError(f"{addresses.direct} is another database than {addresses.store}")
    await see_session_kept(addresses.direct, waiting=_waiting(addresses.direct))
    log.info("cluster %s over %s", opened.cluster_id, addresses.store)
    log.info("durability: %s", opened.facts.durability)
    return opened


def _waiting(address: DatabaseAddress) -> Callable[[str], None]:
    return lambda reason: log.warning("waiting for the database %s: %s", address, reason)


def _make_ready(node: Node) -> None:
    """Make what the first requests need. A loop that stood still for it later would look dead to others."""
    make(node.coordinator, node.transactions, node.fast_path.heartbeats)
    node.fast_path.prepare()
    for api_key in FIRST_APIS:
        prepare(api_key)
    for family in {*FAMILIES.values()}:
        import_module(f"coterie.broker.api.{family}")
    keep_freed_blocks()
    keep_what_is_there()


class MemberProcess:
    """The process of a broker that is a member of a cluster over a database."""

    def __init__(
        self,
        settings: BrokerSettings,
        terms: LifecycleTerms,
        addresses: StoreAddresses,
        opened: OpenedStore,
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._terms = terms
        self._opened = opened
        self._clock = ageing_clock_ms()
        self._queue = RequestQueue(loop.call_soon, aside=thinking_of(loop))
        self._alarm = Alarm(loop, self._clock)
        self._timer = Timer(loop, self._clock)
        self._beside = Beside(loop)
        connections = Connections(addresses.store, loop)
        self._direct = addresses.direct
        self._outage = Outage(addresses.direct, loop.time)
        direct = Connections(addresses.direct, loop, tried=self._outage.tried)
        self._connections = (connections, direct)
        self._engine = PostgresEngine(
            direct,
            settings.node_id,
            lanes=1 + DATA_LANES,
            cluster_id=opened.cluster_id,
            looked=self._outage.looked,
        )
        self._reader = PostgresReader(connections, self._engine.locks.over)
        self._store = RemoteStore(
            LaneSessions(connections, settings.node_id, self._engine.locks),
            self._reader,
            PostgresCompactor(addresses.store, settings.node_id, self._beside),
            clock=self._clock,
            call_soon=loop.call_soon,
            later=lambda ms, do: loop.call_later(ms / 1000, do),
            log_dir=str(addresses.store),
        )
        self._ended: asyncio.Future[str] = loop.create_future()
        self._started: asyncio.Future[None] = loop.create_future()
        self._stop_requests = StopRequests()
        self._lacked = ""  # what it waited for, where it was stopped before it was ready

    async def run(self) -> int:
        """Serve until the broker's life is over; return the exit code. Raises `CannotServe`."""
        server = await listen(self._settings, self._accept)
        host, port = address_of(server)
        try:
            self._prepare(host, port)
            try:
                sentence = await self._run(server, host, port)
            finally:
                self._end_node()
        finally:
            server.close()
            await self._close()
        if sentence:  # nothing is said behind it
            log.error("%s (exit code 1)", sentence)
        elif self._lacked:
            log.warning(STOPPED_WAITING, self._lacked)
        return 1 if sentence else 0

    async def _run(self, server: asyncio.Server, host: str, port: int) -> str:
        """Serve; return the sentence that says why the broker's life is over, "" where it was asked to."""
        self._clustered.start()
        await self._started
        if not self._ended.done():
            await let_in(self._settings, server)
            say_ready(host, port)
        elif self._ended.result():
            raise CannotServe(self._ended.result())
        else:
            self._lacked = self._waited_for()
        return await self._ended

    def _waited_for(self) -> str:
        """Return the sentence about what kept the broker from being ready."""
        if away := self._outage.reason:
            return NOT_REACHED % (self._direct, away)
        if self._store.lanes:  # they are made when all else is there
            return NOT_WRITABLE % self._store.log_dir
        return NOT_ANSWERED % (self._outage.lacks or self._engine.locks.wait or PERHAPS_LOCKED)

    def _prepare(self, host: str, port: int) -> None:
        """Make all that the broker consists of; it listens there."""
        self._clustered = self._assemble(*(self._settings.advertised_listener or (host, port)))
        node = self._clustered.node
        node.advertise(host, port)
        node.groups_loaded = gc.freeze  # a million offsets are not looked through again and again
        node.peers.descriptor_limit = file_limit()
        sweep_again_and_again(self._loop, node.peers)
        self._alarm.expire = lambda _: self._clustered.ring()
        self._timer.act = self._clustered.member.tick
        self._queue.before_slice = self._clustered.member.look_at_clock
        _make_ready(node)
        on_stop_signals(self._loop, self._stop)

    def _accept(self) -> SocketProtocol:
        return SocketProtocol(self._clustered.node, self._queue)

    def _assemble(self, host: str, port: int) -> ClusteredNode:
        """Return the node, which clients find at this address."""
        settings = self._settings
        lifecycle = BrokerLifecycle(
            settings.node_id,
            self._terms,
            incarnation=uuid4(),
            listeners=(Endpoint(LISTENER, host, port),),
            rack=settings.broker_rack,
            level=LEVEL,
            software=f"coterie {__version__}",
        )
        return ClusteredNode(
            settings=settings,
            cluster_id=self._opened.cluster_id,
            engine=self._engine,
            lifecycle=lifecycle,
            store=self._store,
            listener=LISTENER,
            clock=self._clock,
            wall=wall_clock_ms,
            call_soon=self._queue.call_soon,
            alarm=self._alarm.set,
            arm=self._timer.set,
            aside=self._beside,
            work=self._queue.work,
            new_uuid=uuid4,
            exit_with=self._exit,
            connect=Connector(self._loop),
            serving=self._note_serving,
        )

    def _note_serving(self) -> None:
        """Begin once all lanes are open, too: before that nothing that is produced would be written."""
        lanes = self._store.lanes

        def asked() -> None:
            if lanes and not any(lane.closed for lane in lanes):
                self._note_start()

        self._store.drained(asked)

    def _note_start(self) -> None:
        if not self._started.done():
            self._started.set_result(None)

    # -- its end

    def _stop(self) -> None:
        """Leave the cluster; end at once when asked again."""
        if not self._stop_requests.hear(self._clock()):
            return
        if self._stop_requests.count > 1:
            self._exit(TWICE)
            return
        log.info("stopping")
        if not self._started.done():
            self._loop.call_later(UNREADY_LEAVES_WITHIN_S, self._give_up_unready)
        self._clustered.member.terminate()

    def _give_up_unready(self) -> None:
        """End as asked where what it lacked has not come meanwhile; with it, it leaves in order."""
        if not self._started.done():
            self._exit("")

    def _exit(self, sentence: str) -> None:
        if not self._ended.done():
            self._ended.set_result(sentence)
        self._note_start()

    def _end_node(self) -> None:
        """Let go of all clients and other brokers, and of what works for the node."""
        node = self._clustered.node
        for peer in tuple(node.peers.all):
            peer.drop(None)
        self._beside.stop()
        node.stop()

    async def _close(self) -> None:
        """Let go of what there is before the node."""
        self._reader.close()
        self._engine.sweeper.close()
        for connections in self._connections:
            await connections.close()
