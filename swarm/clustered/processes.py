"""A broker's process as a member of the cluster. It may be stopped and go on, as under SIGSTOP."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from coterie.broker.cluster.engine import MetadataSession
from coterie.broker.cluster.image import Endpoint
from coterie.broker.cluster.lifecycle import BrokerLifecycle, Phase
from coterie.broker.cluster.pretended import PretendedSession as MetadataConnection
from coterie.broker.cluster.statements import Answer, Statement
from coterie.broker.clustered import ClusteredNode
from coterie.broker.net.gated import GatedConnection
from coterie.storage.remote.compaction import Compacted
from coterie.storage.remote.pretended import PretendedReader, PretendedSession
from coterie.storage.remote.pretended_compaction import PretendedCompactor
from coterie.storage.remote.store import RemoteStore
from swarm.cluster import Broker, Process
from swarm.clustered.between import Link
from swarm.network import PORT, Channel
from swarm.session import Frame, Session

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.interbroker.connection import Attempt, PeerConnection
    from coterie.broker.node import Node
    from coterie.storage.remote.chunk import Chunk
    from coterie.storage.remote.compaction import CompactionWanted
    from coterie.storage.remote.reading import (
        DeletedRow,
        LogLed,
        LogWanted,
        RetainedLog,
        RetentionWanted,
        RowsWanted,
        SizeWanted,
        StartWanted,
        StoredLog,
        StoredRows,
        StoredSize,
    )
    from coterie.storage.remote.session import Broken, LaneAnswer, Look
    from swarm.clustered.cluster import DatabaseCluster

LISTENER = "PLAINTEXT"


class ClusteredSession(Session, GatedConnection):
    """A connection to a process that may be stopped: what arrives then waits in the socket."""

    process: ClusteredProcess

    def receive(self, frame: Frame) -> None:
        self.process.when_running(self, lambda: super(ClusteredSession, self).receive(frame))

    def lost(self) -> None:
        self.process.when_running(self, lambda: super(ClusteredSession, self).lost())


class ReachedSession:
    """A session with the metadata's engine, whose answers come to the process once it runs."""

    def __init__(self, process: ClusteredProcess, connection: MetadataConnection) -> None:
        self._process = process
        self._connection = connection

    @property
    def cluster_id(self) -> str:
        """The cluster that it reaches."""
        return self._connection.cluster_id

    def send(self, statement: Statement, answered: Callable[[Answer | None], None]) -> None:
        """Send a statement."""
        process = self._process
        self._connection.send(statement, lambda answer: process.run(lambda: answered(answer)))

    def close(self) -> None:
        """End the session; the engine may notice later."""
        self._connection.close(noticed_ms=self._process.world.random.choice((0, 0, 3_000)))


class ReachedEngine:
    """The metadata's engine, as a process reaches it, if it does."""

    def __init__(self, process: ClusteredProcess) -> None:
        self._process = process

    def connect(
        self,
        *,
        opened: Callable[[MetadataSession, str], None],
        ended: Callable[[], None],
        notified: Callable[[int], None] | None = None,
    ) -> None:
        """Connect, soon or not."""
        process = self._process
        world, engine = process.world, process.over.database.metadata

        def arrive() -> None:
            connection = None
            if process.running and not process.is_cut_off:
                connection = engine.connect(
                    process.broker.node_id,
                    later=world.later,
                    choose=lambda statement: process.over.fates.of_metadata(process, statement),
                    ended=lambda: process.run(ended),
                    notified=notified and (lambda version: process.run(lambda: notified(version))),
                    presence=notified is not None,
                )
            if connection is None:
                process.run(ended)
                return
            process.connections.append(connection)
            session, history = ReachedSession(process, connection), engine.history
            process.run(lambda: opened(session, history))

        world.later(world.between(1, 10), arrive)


class ReachedReader:
    """The way to the logs beside the lanes; what is read comes to the process once it runs."""

    def __init__(self, process: ClusteredProcess) -> None:
        self._process = process
        self._reader = PretendedReader(process.over.database.storage)

    def prepare(self, *, history: str) -> None:
        """Do nothing: all is at hand."""

    def read_logs(
        self,
        wanted: Sequence[LogWanted],
        done: Callable[[Sequence[StoredLog] | Broken], None],
        *,
        history: str,
    ) -> None:
        """Read logs."""
        self._ask(partial(self._reader.read_logs, wanted), done, history)

    def find_lacking(
        self, led: Sequence[LogLed], done: Callable[[Sequence[int] | Broken], None], *, history: str
    ) -> None:
        """Find the partitions that lack a leader epoch, or a compaction."""
        self._ask(partial(self._reader.find_lacking, led), done, history)

    def read_rows(
        self, wanted: RowsWanted, done: Callable[[StoredRows | Broken], None], *, history: str
    ) -> None:
        """Read rows of a log."""
        self._ask(partial(self._reader.read_rows, wanted), done, history)

    def retain(
        self, wanted: RetentionWanted, done: Callable[[RetainedLog | Broken], None], *, history: str
    ) -> None:
        """Have a log start behind what it need not keep."""
        self._ask(partial(self._reader.retain, wanted), done, history)

    def delete_rows(
        self,
        partition_id: int,
        before_offset: int,
        done: Callable[[Sequence[DeletedRow] | Broken], None],
        *,
        history: str,
    ) -> None:
        """Delete rows of a log."""
        self._ask(partial(self._reader.delete_rows, partition_id, before_offset), done, history)

    def measure(
        self, wanted: SizeWanted, done: Callable[[StoredSize | Broken], None], *, history: str
    ) -> None:
        """Read how large a log is."""
        self._ask(partial(self._reader.measure, wanted), done, history)

    def save_starts(
        self,
        starts: Sequence[StartWanted],
        done: Callable[[Sequence[int] | Broken], None],
        *,
        history: str,
    ) -> None:
        """Write down where logs start."""
        self._ask(partial(self._reader.save_starts, starts), done, history)

    def _ask(self, ask: Callable[..., None], done: Callable[[Any], None], history: str) -> None:
        process = self._process
        with process.over.acting(process):
            ask(lambda answer: process.run(lambda: done(answer)), history=history)


class ReachedCompactor:
    """What compacts logs; what has become of that comes to the process once it runs."""

    def __init__(self, process: ClusteredProcess) -> None:
        self._process = process
        self._compactor = PretendedCompactor(process.over.database.storage, process.broker.node_id)

    def compact(
        self, wanted: CompactionWanted, done: Callable[[Compacted | Broken], None], *, history: str
    ) -> None:
        """Compact a log."""
        process = self._process

        def ended(answer: Compacted | Broken) -> None:
            if isinstance(answer, Compacted) and answer.removed_bytes:
                process.world.marks.add("compacted")
            process.run(lambda: done(answer))

        with process.over.acting(process):
            self._compactor.compact(wanted, ended, history=history)


class LaneSession(PretendedSession):
    """A lane's session, whose statements go by what the process's way to the database does to them."""

    process: ClusteredProcess

    def append(self, life: int, chunks: Sequence[Chunk]) -> None:
        """Append, as the process."""
        with self.process.over.acting(self.process):
            super().append(life, chunks)

    def reopen(self, life: int, look: Look) -> None:
        """Begin a life, as the process."""
        with self.process.over.acting(self.process):
            super().reopen(life, look)


class NoAttempt:
    """An attempt to connect to where nobody listens."""

    def cancel(self) -> None:
        """Do nothing: whoever asked hears of it."""


class ClusteredProcess(Process):
    """One life of a broker that is a member."""

    over: DatabaseCluster
    """The cluster."""

    def __init__(self, broker: Broker, over: DatabaseCluster) -> None:
        self.over = over
        self.stopped = False
        self.exits = False
        self.cut_off_until_ms = 0
        self.bad_until_ms = 0
        self.refused_until_ms = 0
        """Until when an append of its may be refused, and undone."""
        self.silent_until_ms = 0
        """Until when a lane may wait for an answer that does not come."""
        self.connections: list[MetadataConnection] = []
        self.lane_sessions: list[LaneSession] = []
        self.links: list[Link] = []
        """The connections of other brokers to this one."""
        self._inbox: list[tuple[Hashable, Callable[[], None]]] = []
        self._arm_number = 0
        self._stopped_ms = 0
        super().__init__(broker)

    def _new_node(self, settings: BrokerSettings) -> Node:
        node_id = self.broker.node_id
        store = RemoteStore(
            self._new_lane_session,
            ReachedReader(self),
            ReachedCompactor(self),
            clock=self.clock,
            call_soon=self.call_soon,
            later=lambda ms, do: self.world.later(ms, self.run, do),
            data_lanes=self.over.database.lanes - 1,
        )
        lifecycle = BrokerLifecycle(
            node_id,
            self.over.terms,
            incarnation=self.new_uuid(),
            listeners=(Endpoint(LISTENER, self.broker.host, PORT),),
        )
        self.clustered = ClusteredNode(
            settings=settings,
            cluster_id="simulated",
            engine=ReachedEngine(self),
            lifecycle=lifecycle,
            store=store,
            listener=LISTENER,
            clock=self.clock,
            call_soon=self.call_soon,
            alarm=self._alarm,
            arm=self._arm,
            aside=self._aside,
            new_uuid=self.new_uuid,
            connect=self._connect,
            exit_with=self._exit,
        )
        return self.clustered.node

    def _connect(self, host: str, port: int, connection: PeerConnection) -> Attempt:
        """Begin to connect to another broker."""
        serves = cast("ClusteredProcess | None", self.cluster.at(host).process)
        if serves is not None:
            return Link(self, serves, connection)
        refused = partial(connection.connection_lost, ConnectionRefusedError())
        self.world.later(1, self.run, refused)
        return NoAttempt()

    def _new_lane_session(
        self,
        lane: int,
        broker_epoch: int,
        *,
        history: Callable[[], str],
        answered: Callable[[int, LaneAnswer], None],
    ) -> LaneSession:
        session = LaneSession(
            self.over.database.storage,
            (self.broker.node_id, lane, broker_epoch),
            lambda life, answer: self.run(lambda: answered(life, answer)),
            history,
        )
        session.process = self
        self.lane_sessions = [*self.lane_sessions[-10:], session]
        return session

    @property
    def phase(self) -> Phase:
        """Where the broker is in its life."""
        return self.clustered.member.lifecycle.phase

    @property
    def is_suspended(self) -> bool:
        """Whether it answers nobody for what it leads, for now."""
        return self.clustered.leaders.suspended

    @property
    def suspensions(self) -> int:
        """How often it has come to that."""
        return self.clustered.hosting.suspensions

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing that it sends arrives at the database."""
        return self.world.now_ms < self.cut_off_until_ms

    @property
    def follows(self) -> bool:
        """Whether it goes by the history that the database is in."""
        return self.clustered.member.history == self.over.database.metadata.history

    # -- running, or not

    def run(self, do: Callable[[], None], *, only_asked: bool = False) -> None:
        if self.stopped:
            self._inbox.append((object(), lambda: self.run(do, only_asked=only_asked)))
        else:
            super().run(do, only_asked=only_asked)

    def when_running(self, key: Hashable, do: Callable[[], None]) -> None:
        """Do something now, or once the process goes on; what is of one key in its order."""
        if self.stopped:
            self._inbox.append((key, do))
        elif self.running:
            do()

    def stop(self) -> None:
        """Stop, as by SIGSTOP."""
        if not self.stopped:
            self._stopped_ms = self.world.now_ms
        self.stopped = True
        self.world.tell(f"broker {self.broker.node_id} is stopped")

    def go_on(self) -> None:
        """Go on, and do what has come meanwhile: sockets and timers in any order, each socket in its own."""
        if not self.stopped:
            return
        self.world.tell(f"broker {self.broker.node_id} goes on")
        self.stopped = False
        self.over.checks.forgive(self)
        self.over.checks.rings_late(self, self.world.now_ms - self._stopped_ms)
        inbox, self._inbox = self._inbox, []
        by_key: dict[Hashable, deque[Callable[[], None]]] = defaultdict(deque)
        for key, do in inbox:
            by_key[key].append(do)
        keys = [key for key, _ in inbox]
        self.world.random.shuffle(keys)
        for key in keys:
            self.when_running(key, by_key[key].popleft())

    # -- what the node's shell owes it

    def _arm(self, at_ms: int | None) -> None:
        self._arm_number += 1
        number = self._arm_number
        if at_ms is not None:
            due_ms = max(at_ms - self._ahead_ms, self.world.now_ms + 1)
            self.world.at(due_ms, self.run, lambda: self._due(number))

    def _due(self, number: int) -> None:
        if number == self._arm_number:
            self.clustered.member.tick()

    def _ring(self, number: int) -> None:
        if number == self._alarm_number:
            self.clustered.ring()

    def _exit(self, sentence: str) -> None:
        fault = sys.exception()
        if fault is not None:
            raise fault
        self.world.tell(f"broker {self.broker.node_id} exits: {sentence or 'it was asked to'}")
        self.exits = True
        self.over.exited(self)

    def accept(self, channel: Channel) -> Session:
        session = ClusteredSession(self, channel)
        self.sessions[session] = None
        return session

    def end(self, *, answers_too: bool) -> None:
        super().end(answers_too=answers_too)
        for connection in self.connections:
            connection.close(noticed_ms=self.world.between(5, 25))
        self._inbox.clear()
        for link in self.links:
            link.server_gone()

    # -- its way to the database

    def cut(self, *, silently: bool) -> None:
        """Break its connections to the database, or let nothing through any more, and nobody notice."""
        for connection in self.connections:
            if silently:
                connection.fall_silent()
            else:
                connection.end()
        for session in self.lane_sessions:
            if session.connection is not None and not silently:
                session.connection.cut("it is cut")
        self.connections = [one for one in self.connections if one.open]
