"""The engine of the metadata on PostgreSQL, as one broker reaches it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from coterie.base.ids import PRODUCER_ID_BLOCK
from coterie.broker.cluster.changes import (
    Change,
    Changed,
    GiveLeadership,
    LeaveCluster,
    NotChanged,
    RegisterBroker,
    StartLeaving,
    TakeOver,
)
from coterie.broker.cluster.engine import MetadataSession
from coterie.broker.cluster.image import Delta, DoesNotFollow, Image
from coterie.broker.cluster.postgres.rows import read_image, read_rows
from coterie.broker.cluster.postgres.sweeping import Sweeper
from coterie.broker.cluster.postgres.writing import (
    CHANNEL,
    depart,
    give,
    prepare_moves,
    write,
)
from coterie.broker.cluster.statements import (
    Answer,
    BrokerHeartbeat,
    Counted,
    HeartbeatAnswer,
    ProducerIds,
    ReadDelta,
    Refused,
    ReserveProducerIds,
    Statement,
)
from coterie.storage.postgres.blocking import ANYBODYS_LOCK, LockWatch
from coterie.storage.postgres.connecting import (
    LOST,
    NEXT_PRODUCER_ID,
    ClusterHistory,
    Connections,
    NoCluster,
    NotRestored,
    OtherTables,
    cluster_in,
    read_cluster_history,
    within_ms,
)
from coterie.storage.postgres.serial import (
    LOCK_TIMEOUT_MS,
    LOCKED,
    Connection,
    SerialConnection,
    after_others,
    done_beside,
    transaction,
)
from coterie.storage.remote.session import Failed

log = logging.getLogger("coterie.broker")

PRESENCE = 7
"""The first number of the advisory lock that a broker's membership holds; the second is its id."""
BE_PRESENT = "SELECT pg_try_advisory_lock($1, $2)"
HEARTBEAT = f"""
WITH {within_ms(700)},
me AS (
  UPDATE coterie.brokers SET beats = beats + 1, seen = $3 FROM patience
  WHERE broker_id = $1 AND broker_epoch = $2 AND state <> 'fenced'
    AND {cluster_in("$5")}
  RETURNING broker_id, beats, seen)
SELECT cluster.version, EXISTS (SELECT FROM me), cluster.tableoid, broker.broker_id, broker.broker_epoch,
  coalesce(me.beats, broker.beats), broker.broker_id IN (
    SELECT objid::bigint FROM pg_locks
    WHERE locktype = 'advisory' AND classid = $4 AND objsubid = 2 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())),
  coalesce(me.seen, broker.seen)
FROM coterie.cluster
LEFT JOIN coterie.brokers AS broker ON broker.state <> 'fenced'
LEFT JOIN me USING (broker_id)
ORDER BY broker.broker_id
"""
NOT_MADE = "a change of the metadata is not made: for %g s it has waited for %s"
Move: TypeAlias = TakeOver | LeaveCluster | GiveLeadership
"""Changes by which others lead; of these some are refused for what the image says, without any lock."""
OF_MEMBERSHIP = RegisterBroker | TakeOver | StartLeaving | LeaveCluster | GiveLeadership
"""Changes that lock rows of one broker, and for which groups wait: each is tried, whatever kept others, and
goes ahead of those that have not begun.
"""
PREPARED_WITHIN_MS = 500
"""So long a session that is opened waits for a lock to have moves prepared: whoever waits for the session has
to hear of the lock in time (`ANSWER_WITHIN_MS`).
"""
DELTAS_KEPT = 50
MANY_PARTITIONS = 1_000
LOCK_VERSION = "SELECT FROM coterie.cluster FOR UPDATE"
RESERVE = f"""
WITH {within_ms(LOCK_TIMEOUT_MS)}
UPDATE coterie.cluster SET next_producer_id = {NEXT_PRODUCER_ID} + $1 FROM patience
WHERE cluster.tableoid = $2
RETURNING next_producer_id - $1
"""


class _KeptWaiting(NamedTuple):
    """A refusal for a lock, and the number of the last statement that was sent by then."""

    last_sent: int
    refusal: Refused


class PostgresEngine:
    """A `MetadataEngine`. A broker that registers has so many lanes."""

    def __init__(
        self,
        connections: Connections,
        broker_id: int,
        *,
        lanes: int,
        cluster_id: str | None = None,
        looked: Callable[[BaseException | None], None] = lambda _: None,
    ) -> None:
        """Without a `cluster_id` the cluster is that which is found first. `looked` is told of each
        membership's look at the database: why it has failed, or None.
        """
        self.looked = looked
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.lanes = lanes
        self._connections = connections
        self.sweeper = Sweeper(connections, broker_id, history=lambda: self.history)
        self.locks = LockWatch(connections)
        self.history = ""
        """That of the membership that was opened last, "" before."""
        self._is_locked = False  # whether the last change met a lock that somebody keeps, which was said
        self._newest = 0  # the version of the metadata that is known of that history
        self._known = ("", Image())
        self._deltas: list[Delta] = []  # that lead on from it, oldest first
        self._sessions: dict[PostgresSession, None] = {}  # those that are open

    def connect(
        self,
        *,
        opened: Callable[[MetadataSession, str], None],
        ended: Callable[[], None],
        notified: Callable[[int], None] | None = None,
    ) -> None:
        use = "metadata" if notified is None else "membership"
        connection = SerialConnection(self._connections, use, watched=self.locks.over)
        session = PostgresSession(self, connection)
        session.open(opened, ended, notified)

    def take_in(self, session: PostgresSession) -> bool:
        """Have a session be open; return whether it may be.

        Of several servers an old one may still answer some, while a new one is behind what it has: a broker
        goes by that of its membership, and by no other at once.
        """
        if self.is_of_another(session.cluster_id):
            return session.is_membership  # whoever has asked for that is to know; nothing goes by it
        if session.is_membership:
            if self.history != session.history:
                self._newest = 0
            self.history, self.cluster_id = session.history, session.cluster_id
            for other in [one for one in self._sessions if one.history != session.history]:
                other.give_up()
        elif self.history not in ("", session.history):
            return False
        self._sessions[session] = None
        return True

    def is_of_another(self, cluster_id: str) -> bool:
        """Return whether a cluster is another one than the broker's."""
        return self.cluster_id not in (None, cluster_id)

    def insist_on_restored(self, found: ClusterHistory) -> None:
        """Raise `NotRestored` where other tables have taken the place of those that the broker goes by, and
        know nothing later: `coterie store restored` makes them later than all that was before.
        """
        known = self._newest > 0 and not self.is_of_another(found.cluster_id)
        if known and found.version <= self._newest and found.has_other_tables(self.history):
            raise NotRestored

    def let_go(self, session: PostgresSession) -> None:
        """Have a session be closed."""
        self._sessions.pop(session, None)

    def note_locked(self, pid: int) -> Refused:
        """Take note that a lock has kept a change of a session from being made, and return that; it is said
        once until one is not kept.
        """
        kept = self.locks.seen.just_now(pid) or ANYBODYS_LOCK
        if not self._is_locked:
            log.warning(NOT_MADE, LOCK_TIMEOUT_MS / 1_000, kept)
        self._is_locked = True
        return Refused(str(kept), locked=True)

    def note_unlocked(self) -> None:
        """Take note that no lock has kept a change: of the next one that does it is said."""
        self._is_locked = False

    def image(self, history: str) -> Image:
        """Return an image that changes of this history may begin with, as new as what was read of it."""
        known, image = self._known
        if known != history:
            return Image()
        deltas, self._deltas = self._deltas, []
        try:
            for delta in deltas:
                image = image.after(delta)
        except DoesNotFollow:
            image = Image()
        self._known = (history, image)
        return image

    def note_image(self, history: str, image: Image) -> None:
        """Have later changes begin with an image: it is as the database has it."""
        self._note_version(history, image.version)
        self._known, self._deltas = (history, image), []

    def note_delta(self, history: str, delta: Delta) -> None:
        """Have later changes begin with what was read. The image is made when one does: most brokers read far
        more than they change.
        """
        self._note_version(history, delta.version)
        known, image = self._known
        if delta.above == 0:
            self._known, self._deltas = (history, Image()), [delta]
        elif known == history and delta.above == (self._deltas[-1] if self._deltas else image).version:
            self._deltas.append(delta)
            if len(self._deltas) >= DELTAS_KEPT:
                self.image(history)

    def _note_version(self, history: str, version: int) -> None:
        if history == self.history:
            self._newest = max(self._newest, version)


class PostgresSession:
    """One connection. Statements are done one after another, those of the membership ahead of others; a
    change is one transaction.
    """

    def __init__(self, engine: PostgresEngine, connection: SerialConnection) -> None:
        self.history = self.cluster_id = ""
        self.is_membership = False
        self._engine = engine
        self._connection = connection
        self._is_present = False
        self._pid = 0  # of the server's process
        self._table = 0  # that of the cluster, when the session began: others are never written
        self._sent = 0  # statements
        self._kept_waiting: dict[type[Statement], _KeptWaiting] = {}
        self._ended: Callable[[], None]

    def open(
        self,
        opened: Callable[[MetadataSession, str], None],
        ended: Callable[[], None],
        notified: Callable[[int], None] | None,
    ) -> None:
        """Connect; `connect` of the engine says the rest."""

        def begun(found: ClusterHistory) -> None:
            self.history, self.cluster_id = found.history, found.cluster_id
            self._table = found.table
            if self._engine.take_in(self):
                opened(self, self.history)
            else:
                log.warning("a server answers that is of another history than the broker's membership")
                self.give_up()

        def has_ended() -> None:
            self._engine.let_go(self)
            ended()

        self.is_membership = notified is not None
        self._ended = has_ended
        self._connection.open(partial(self._begin, notified), begun, has_ended)

    def give_up(self) -> None:
        """End it as if the connection had ended by itself."""
        self._connection.close()
        self._connection.run(_nothing, lambda _: self._ended())

    async def _begin(self, notified: Callable[[int], None] | None, connection: Connection) -> ClusterHistory:
        self._pid = connection.get_server_pid()
        # What a lock keeps from being read the server says then, where it would only be given up.
        await connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
        found = await self._look(connection)
        if self._engine.is_of_another(found.cluster_id):
            return found  # where a broker of this id may be as well, and is not to look present
        if notified is not None:
            await connection.add_listener(CHANNEL, lambda *heard: notified(int(heard[-1])))
            await self._be_present(connection)
        else:
            await _prepare(connection)
        found = await read_cluster_history(connection)  # whoever is present hears of what changes it
        self._engine.insist_on_restored(found)
        return found

    async def _look(self, connection: Connection) -> ClusterHistory:
        """Return the history of the database, before anything is left there."""
        try:
            found = await read_cluster_history(connection)
            self._engine.insist_on_restored(found)
        except LOST as error:
            if self.is_membership:
                self._engine.looked(error)
            raise
        if self.is_membership:
            self._engine.looked(None)
        return found

    async def _be_present(self, connection: Connection) -> None:
        """Hold the lock that shows the broker; an earlier session, not noticed to be dead yet, may still."""
        self._is_present = await connection.fetchval(BE_PRESENT, PRESENCE, self._engine.broker_id)

    def send(self, statement: Statement, answered: Callable[[Answer | None], None]) -> None:
        is_change = not isinstance(statement, BrokerHeartbeat | ReadDelta | ReserveProducerIds)
        self._sent += 1

        def refused(failed: Failed) -> None:
            if failed.sqlstate != LOCKED:
                if is_change:
                    self._engine.note_unlocked()
                answered(Refused(f"{failed.message} ({failed.sqlstate})"))
                return
            if not is_change:
                answered(None)  # it is asked again
                return
            refusal = self._engine.note_locked(self._pid)
            if not isinstance(statement, OF_MEMBERSHIP):
                self._kept_waiting[type(statement)] = _KeptWaiting(self._sent, refusal)
            answered(refusal)

        def done(answer: Answer | None) -> None:
            if _has_had_lock(statement, answer):
                self._engine.note_unlocked()
            answered(answer)

        execute = partial(self._execute, statement, self._sent)
        self._connection.run(execute, done, refused, ahead=isinstance(statement, OF_MEMBERSHIP))

    def close(self) -> None:
        if self.is_membership:
            self._engine.sweeper.close()
        self._engine.let_go(self)
        self._connection.close()

    # -- statements

    async def _execute(self, statement: Statement, number: int, connection: Connection) -> Answer:
        kept = self._kept_waiting.get(type(statement))
        if kept is not None and number <= kept.last_sent:
            return kept.refusal  # it was sent before that one was refused, and is likely to wait as long
        match statement:
            case BrokerHeartbeat():
                return await self._heartbeat(connection, statement)
            case ReadDelta(above):
                delta, _ = await read_rows(connection, above, self._table)
                self._engine.note_delta(self.history, delta)
                if len(delta.partitions) > MANY_PARTITIONS:
                    await after_others()  # before the next image is made, which takes long as well
                return delta
            case ReserveProducerIds():
                first = await connection.fetchval(RESERVE, PRODUCER_ID_BLOCK, self._table)
                if first is None:
                    raise OtherTables
                return ProducerIds(first, PRODUCER_ID_BLOCK)
            case _:
                return await self._change(connection, statement)

    async def _heartbeat(self, connection: Connection, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer:
        if self.is_membership and not self._is_present:
            await self._be_present(connection)
        rows = await connection.fetch(HEARTBEAT, *heartbeat, PRESENCE, self._table)
        if not rows:
            raise NoCluster
        version, counted, table, *_ = rows[0]
        if table != self._table:
            raise OtherTables
        shown = [Counted(*row[3:]) for row in rows if row[3] is not None]
        answer = HeartbeatAnswer(counted, version, tuple(shown))
        if self.is_membership:
            self._engine.sweeper.heartbeat_answered(answer)
        return answer

    async def _change(self, connection: Connection, change: Change) -> Changed | NotChanged:
        """Make a change. What the image lacks is read before others have to wait for the lock."""
        image = self._engine.image(self.history)
        if isinstance(change, Move):
            answer = await self._move(connection, change, image)
            if not isinstance(answer, Changed):  # nothing is known yet, or something has changed since
                image = await self._read_on(connection, image)
                answer = await self._move(connection, change, image)
            if answer is not None:
                return answer
        image = await self._read_on(connection, image)
        try:
            async with transaction(connection, lock_timeout=LOCK_TIMEOUT_MS, first=LOCK_VERSION):
                image, delta = await self._make(connection, change, image)
        except _Refused as refused:
            return refused.answer
        self._engine.note_image(self.history, image.after(delta))
        return Changed(delta.version)

    async def _move(self, connection: Connection, change: Move, image: Image) -> Changed | NotChanged | None:
        """Make a change by which others lead, in one statement; None if the image is not the newest any more.
        A refusal is that of the image.
        """
        delta = await self._rows(change, image)
        if isinstance(delta, NotChanged):
            return delta
        if not isinstance(change, GiveLeadership):
            return Changed(delta.version) if await depart(connection, change, delta, self._table) else None
        if not await give(connection, delta, self._table):
            return None
        self._engine.note_image(self.history, image.after(delta))  # the next may follow before it is read
        return Changed(delta.version)

    async def _rows(self, change: Move, image: Image) -> Delta | NotChanged:
        """Return the rows of a change. Where there are many partitions others are answered meanwhile."""
        if sum(topic.partitions for topic in image.topics()) <= MANY_PARTITIONS:
            return change.rows(image, 0)
        return await done_beside(change.rows, image, 0)

    async def _make(self, connection: Connection, change: Change, image: Image) -> tuple[Image, Delta]:
        """Write a change under the lock, and return the image before it and its rows. Raises `_Refused`."""
        rest, new_partition_id = await read_rows(connection, image.version, self._table)
        image = image.after(rest)
        self._engine.note_image(self.history, image)
        delta = change.rows(image, new_partition_id)
        if isinstance(delta, NotChanged):
            raise _Refused(delta)
        refused = await write(connection, change, delta, lanes=self._engine.lanes)
        if refused is not None:
            raise _Refused(refused)
        return image, delta

    async def _read_on(self, connection: Connection, image: Image) -> Image:
        """Return the image at the version that is seen now, with which later changes begin, too."""
        try:
            image = image.after((await read_rows(connection, image.version, self._table))[0])
        except DoesNotFollow:
            image = await read_image(connection, self._table)
        self._engine.note_image(self.history, image)
        return image


class _Refused(Exception):
    """A change is not made, and what was written of it is rolled back."""

    def __init__(self, answer: NotChanged) -> None:
        super().__init__(answer)
        self.answer = answer


def _has_had_lock(statement: Statement, answer: Answer | None) -> bool:
    """Return whether the statement was a change that has had the lock of the version, made or not."""
    return isinstance(answer, Changed) or (isinstance(answer, NotChanged) and not isinstance(statement, Move))


async def _prepare(connection: Connection) -> None:
    """Prepare the moves, for which groups wait, and a round trip takes long. Where somebody keeps a lock on a
    table of theirs it is left: a change is told of the lock, and others do not need that table.
    """
    await connection.execute(f"SET lock_timeout = {PREPARED_WITHIN_MS}")
    try:
        await prepare_moves(connection)
    except LOST as error:
        if getattr(error, "sqlstate", None) != LOCKED:
            raise
    await connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")


async def _nothing(_: Connection) -> None:
    """Do nothing."""
