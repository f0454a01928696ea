"""The engine of the metadata in memory: its tables, each statement whole at one moment, and faults by choice.

It keeps what a database would: rows with versions, deltas out of them, counts of heartbeats, who holds a
session. What becomes of a statement on its way is drawn by whoever makes a session: done and answered, done
later than its session lives, never done. The engine itself may be away, stall, or go back to an older state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from uuid import UUID

from coterie.base.ids import PRODUCER_ID_BLOCK
from coterie.broker.cluster.changes import (
    Change,
    Changed,
    CreateTopics,
    LeaveCluster,
    NotChanged,
    RegisterBroker,
    TakeOver,
    UnregisterBroker,
    Why,
)
from coterie.broker.cluster.engine import MetadataSession
from coterie.broker.cluster.image import BrokerState, Delta, Image, PartitionRow, TopicRow
from coterie.broker.cluster.statements import (
    Answer,
    BrokerHeartbeat,
    Counted,
    HeartbeatAnswer,
    ProducerIds,
    ReadDelta,
    ReserveProducerIds,
    Statement,
)

PRODUCER_IDS_OF_TIMELINE = 1 << 40
"""Those that a server gives out before another one goes on that was behind, and does not know of them."""
FENCES = (RegisterBroker, TakeOver, LeaveCluster, UnregisterBroker)
Later: TypeAlias = Callable[[int, Callable[[], None]], None]
"""Has something done so many ms later."""


@dataclass(slots=True)
class MetadataTables:
    """All rows. The image has those of topics that are not deleted."""

    image: Image = field(default_factory=Image)
    deleted: dict[UUID, tuple[TopicRow, tuple[PartitionRow, ...]]] = field(default_factory=dict)
    beats: dict[int, tuple[int, int]] = field(default_factory=dict)  # and what is seen, by broker
    next_partition_id: int = 1
    next_producer_id: int = 0

    def copy(self) -> MetadataTables:
        """Return the tables as they are, to go back to."""
        return MetadataTables(
            self.image, dict(self.deleted), dict(self.beats), self.next_partition_id, self.next_producer_id
        )


class PretendedEngine:
    """The tables, and what statements do to them.

    `fenced` is called with a broker's id when its appends are to be refused from now on, `registered` with
    the id and the epoch in which they are taken again, and `deleted` with the ids of partitions whose topic
    is deleted: in the same moment as the rest of the change.
    """

    def __init__(
        self,
        *,
        fenced: Callable[[int], None] = lambda _: None,
        registered: Callable[[int, int], None] = lambda *_: None,
        deleted: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        self.tables = MetadataTables()
        self.history = "0"
        self.cluster_id = "simulated"
        self.away = self.stalled = False
        self._fenced = fenced
        self._registered = registered
        self._deleted = deleted
        self._sessions: dict[PretendedSession, None] = {}  # in the order in which they were opened
        self._waiting: list[Callable[[], None]] = []
        self._starts = 0
        self._timeline = 0  # so many servers have gone on before this one

    @property
    def image(self) -> Image:
        """The metadata as it stands."""
        return self.tables.image

    # -- statements

    def execute(self, statement: Statement) -> Answer:
        """Carry a statement out, whole, and return the answer."""
        match statement:
            case BrokerHeartbeat():
                return self._heartbeat(statement)
            case ReadDelta(above):
                return self._delta(above)
            case ReserveProducerIds():
                first = self.tables.next_producer_id
                mine = self._timeline * PRODUCER_IDS_OF_TIMELINE
                first = max(first, mine + first % PRODUCER_IDS_OF_TIMELINE)
                self.tables.next_producer_id = first + PRODUCER_ID_BLOCK
                return ProducerIds(first, PRODUCER_ID_BLOCK)
            case _:
                return self._change(statement)

    def _heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer:
        tables, brokers = self.tables, self.image.brokers
        mine = brokers.get(heartbeat.broker_id)
        counted = (
            mine is not None
            and mine.broker_epoch == heartbeat.broker_epoch
            and mine.state is not BrokerState.FENCED
        )
        if counted:
            beats, _ = tables.beats[heartbeat.broker_id]
            tables.beats[heartbeat.broker_id] = (beats + 1, heartbeat.seen)
        present = {session.broker_id for session in self._sessions if session.holds_presence}
        shown = []
        for broker_id in self.image.unfenced:
            beats, seen = tables.beats[broker_id]
            shown.append(
                Counted(broker_id, brokers[broker_id].broker_epoch, beats, broker_id in present, seen)
            )
        return HeartbeatAnswer(counted, self.image.version, tuple(shown))

    def _delta(self, above: int) -> Delta:
        image, deleted = self.image, self.tables.deleted.values()
        topics = [*image.topics(), *(topic for topic, _ in deleted)]
        partitions = [*image.all_partitions(), *(row for _, rows in deleted for row in rows)]
        return Delta(
            above=above,
            version=image.version,
            level=image.level,
            brokers=[row for row in image.brokers.values() if row.version > above],
            topics=[row for row in topics if row.version > above],
            partitions=[row for row in partitions if row.version > above],
            settings=[row for row in image.settings.values() if row.version > above],
        )

    def _change(self, change: Change) -> Changed | NotChanged:
        """Make a change under the lock of the version, which is this moment."""
        tables = self.tables
        if isinstance(change, TakeOver) and self._beats_on(change):
            return NotChanged(Why.BEATS_ON)
        if isinstance(change, CreateTopics) and any(new.topic_id in tables.deleted for new in change.topics):
            return NotChanged(Why.ID_TAKEN)
        delta = change.rows(tables.image, tables.next_partition_id)
        if isinstance(delta, NotChanged):
            return delta
        if isinstance(change, FENCES):
            self._fenced(change.broker_id)
        for topic in delta.topics:
            if topic.deleted:
                partitions = tables.image.partitions(topic.topic_id)
                tables.deleted[topic.topic_id] = (topic, partitions)
                self._deleted([row.partition_id for row in partitions])
        ids = [row.partition_id for row in delta.partitions]
        tables.next_partition_id = max([tables.next_partition_id, *(one + 1 for one in ids)])
        tables.image = tables.image.after(delta)
        if isinstance(change, RegisterBroker):
            tables.beats[change.broker_id] = (0, 0)
            self._registered(change.broker_id, delta.version)
        for session in self._sessions:
            session.notify(delta.version)
        return Changed(delta.version)

    def _beats_on(self, change: TakeOver) -> bool:
        beats, _ = self.tables.beats.get(change.broker_id, (change.beats, 0))
        return beats != change.beats

    # -- sessions, and the engine as a whole

    def connect(
        self,
        broker_id: int,
        *,
        later: Later,
        choose: Callable[[Statement], Fate],
        ended: Callable[[], None] = lambda: None,
        notified: Callable[[int], None] | None = None,
        presence: bool = False,
    ) -> PretendedSession | None:
        """Return a session, None while the engine is away. `ended` is called when it ends by itself,
        `notified` with each version of the metadata.
        """
        if self.away or self.stalled:
            return None
        session = PretendedSession(self, broker_id, later, choose, ended, notified, presence)
        self._sessions[session] = None
        return session

    def session_ended(self, session: PretendedSession) -> None:
        """Show a broker without this session."""
        self._sessions.pop(session, None)

    def go_away(self) -> None:
        """Answer nobody any more: the server is down. Its sessions end, and nothing that was on its way
        happens.
        """
        self.away, self.stalled = True, False
        self._starts += 1
        self._waiting.clear()
        for session in [*self._sessions]:
            session.end()

    def come_back(self) -> None:
        """Answer again."""
        self.away = False

    def stall(self) -> None:
        """Do nothing for a while; whatever comes has to wait."""
        self.stalled = True

    def go_on(self) -> None:
        """Do what has come meanwhile, in its order."""
        self.stalled = False
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            do()

    def fall_back(self, tables: MetadataTables, history: str) -> None:
        """Be as at an earlier time: another server goes on, that was behind. Sessions end."""
        self.go_away()
        self.come_back()
        self.tables = tables.copy()
        self.history = history
        self._timeline += 1

    def arriving(self, do: Callable[[], None]) -> Callable[[], None]:
        """Return a function that has something done, now or after the stall; not if the server has gone down
        since this was called.
        """
        started = self._starts

        def arrive() -> None:
            if started != self._starts or self.away:
                return
            if self.stalled:
                self._waiting.append(do)
            else:
                do()

        return arrive


class EngineOfBroker:
    """The engine as one broker reaches it: a `MetadataEngine`.

    `choose` draws what becomes of a statement, `connect_ms` after how many ms a session is open, None if the
    engine cannot be reached.
    """

    def __init__(
        self,
        engine: PretendedEngine,
        broker_id: int,
        *,
        later: Later,
        choose: Callable[[Statement], Fate],
        connect_ms: Callable[[], int | None] = lambda: 1,
        presence: bool = True,
    ) -> None:
        self._engine = engine
        self._broker_id = broker_id
        self._later = later
        self._choose = choose
        self._connect_ms = connect_ms
        self._presence = presence

    def connect(
        self,
        *,
        opened: Callable[[MetadataSession, str], None],
        ended: Callable[[], None],
        notified: Callable[[int], None] | None = None,
    ) -> None:
        after_ms = self._connect_ms()
        if after_ms is None:
            self._later(1, ended)
            return

        def arrive() -> None:
            session = self._engine.connect(
                self._broker_id,
                later=self._later,
                choose=self._choose,
                ended=ended,
                notified=notified,
                presence=self._presence and notified is not None,
            )
            if session is None:
                ended()
            else:
                opened(session, self._engine.history)

        self._later(after_ms, arrive)


class Fate(NamedTuple):
    """What becomes of a statement: after how many ms it is done, None if never; and after how many its answer
    arrives, None if the session ends instead, at `ends_ms`.
    """

    done_ms: int | None
    answered_ms: int | None
    ends_ms: int = 0


class PretendedSession:
    """A connection of a broker to the engine. Each statement is answered once; by None if it has ended."""

    def __init__(
        self,
        engine: PretendedEngine,
        broker_id: int,
        later: Later,
        choose: Callable[[Statement], Fate],
        ended: Callable[[], None],
        notified: Callable[[int], None] | None,
        presence: bool,
    ) -> None:
        self.broker_id = broker_id
        self.open = True
        self.holds_presence = presence
        self._engine = engine
        self._later = later
        self._choose = choose
        self._ended = ended
        self._notified = notified
        self._sent = 0
        self._silent = False
        self._waiting: dict[int, Callable[[Answer | None], None]] = {}

    @property
    def cluster_id(self) -> str:
        """The cluster whose engine it is."""
        return self._engine.cluster_id

    def send(self, statement: Statement, answered: Callable[[Answer | None], None]) -> None:
        """Send a statement; what becomes of it is drawn now."""
        if not self.open:
            self._later(0, lambda: answered(None))
            return
        self._sent += 1
        number, fate = self._sent, self._choose(statement)
        self._waiting[number] = answered
        if self._silent:
            return
        if fate.answered_ms is None:
            self._later(fate.ends_ms, self.end)
        if fate.done_ms is None:
            return
        rest_ms = None if fate.answered_ms is None else max(fate.answered_ms - fate.done_ms, 0)

        def do() -> None:
            answer = self._engine.execute(statement)
            if rest_ms is not None:
                self._later(rest_ms, lambda: self._answer(number, answer))

        self._later(fate.done_ms, self._engine.arriving(do))

    def _answer(self, number: int, answer: Answer) -> None:
        answered = None if self._silent else self._waiting.pop(number, None)
        if answered is not None:
            answered(answer)

    def notify(self, version: int) -> None:
        """Say that the metadata has changed."""
        if self._notified is not None and self.open and not self._silent:
            notified = self._notified
            self._later(1, lambda: notified(version) if self.open else None)

    def end(self) -> None:
        """End: both sides know at once, and what was not answered is not."""
        if self.open:
            self.close()
            self._ended()

    def fall_silent(self) -> None:
        """Let nothing through any more, in either direction, and have neither side notice."""
        self._silent = True

    def close(self, *, noticed_ms: int = 0) -> None:
        """End from the broker's side; the engine notices so much later."""
        if not self.open:
            return
        self.open = False
        if noticed_ms:
            self._later(noticed_ms, lambda: self._engine.session_ended(self))
        else:
            self._engine.session_ended(self)
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(None)
