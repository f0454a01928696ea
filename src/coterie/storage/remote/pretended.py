"""The database in memory, for simulators and tests: each statement takes effect whole, at one moment.

That moment is between its sending and its answer, or after the connection has broken; which, is asked of
whoever makes the engine. What this holds of a real database: a statement that share-locks its lane's row and
one that changes or deletes it exclude each other, so that they are as if one after the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from coterie.base.errors import CoterieError
from coterie.base.journal import Journal
from coterie.storage.remote.chunk import Chunk, RowKey
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
    by_time,
    pieces_of,
    size_of,
)
from coterie.storage.remote.session import (
    Broken,
    Failed,
    Fenced,
    Inserted,
    LaneAnswer,
    Look,
    NewSession,
    Reopened,
)

T = TypeVar("T")
Later: TypeAlias = Callable[[int, Callable[[], None]], object]
"""Has something done after so many milliseconds."""

BROKEN = "broken"
OTHER_HISTORY = "the engine has gone back to an older state"
ROWS_LOOKED_AT = 3
"""So few rows are looked at, or deleted, at once that tests have some left over."""
PIECE_BYTES = 1 << 10
"""So little is joined that the short logs of tests come in several pieces."""
REFUSED_MS = 1
"""So long it takes to hear that a connection cannot be made, or is gone."""


class DatabaseError(CoterieError):
    """A statement that has failed, with its SQLSTATE; it has done nothing."""

    def __init__(self, sqlstate: str, message: str = "") -> None:
        super().__init__(f"{sqlstate} {message}")
        self.sqlstate = sqlstate


class Fate(NamedTuple):
    """What becomes of a statement: when it takes effect, never if None; when it is answered, and with what.

    `failure` is "" for its result, `BROKEN`, or the SQLSTATE of an error. An effect may come after the
    answer, unless that is the result; `answer_ms` of None leaves the connection silent.
    """

    effect_ms: int | None = 1
    answer_ms: int | None = 1
    failure: str = ""


Chooser: TypeAlias = Callable[[str], Fate]
"""Draws the Fate of a statement, by its name; append, begin-life and look are those of a lane,
read-logs, read-rows, find-lacking, retain, delete-rows, measure and save-starts those of a reader,
read-to-compact, replace-rows and save-compacted those of a compaction.
"""


class LaneRow(NamedTuple):
    """The row of a lane: the gate of its appends."""

    broker_epoch: int
    life: int


class Tables:
    """What the database holds, and the statements, each of which is called when it takes effect."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.version = {"cluster": 0}
        self.lanes: dict[RowKey, LaneRow] = {}
        self.leader_epochs: dict[RowKey, int] = {}
        self.chunks: dict[RowKey, Chunk] = {}
        self.start_offsets: dict[int, int] = {}
        self.end_floors: dict[int, int] = {}
        """Where a partition goes on at the earliest: all before that has been deleted."""
        self.compacted_to: dict[int, int] = {}
        self.deleted: dict[int, bool] = {}
        """The partitions whose topic is deleted."""
        self._places: dict[int, list[int]] = {}  # partition -> its rows' base offsets, ascending

    # -- appending

    def append(self, broker_id: int, lane: int, broker_epoch: int, life: int, chunks: Sequence[Chunk]) -> int:
        """Return the number of rows inserted: all, or none where the gate is shut."""
        if not self.passes_gate(broker_id, lane, broker_epoch, life):
            return 0
        for chunk in chunks:
            if chunk.key in self.chunks:
                raise DatabaseError("23505", f"a row is there: {chunk.key}")
        for chunk in chunks:
            self._insert(chunk)
        return len(chunks)

    def passes_gate(self, broker_id: int, lane: int, broker_epoch: int, life: int) -> bool:
        """Return whether the lane's row is there in this broker epoch and life."""
        return self.lanes.get((broker_id, lane)) == (broker_epoch, life)

    def _insert(self, chunk: Chunk) -> None:
        self.journal.put(self.chunks, chunk.key, chunk)
        places = self._places.setdefault(chunk.partition_id, [])
        insort(places, chunk.base_offset)
        self.journal.add(_take_out, places, chunk.base_offset, None)

    def leads(self, broker_id: int, partition_id: int, broker_epoch: int, leader_epoch: int) -> bool:
        """Return whether a broker is in its epoch, and nobody has led the partition since it did."""
        there = self.lanes.get((broker_id, 0))
        is_there = there is not None and there.broker_epoch == broker_epoch
        return is_there and not self._is_led_later(partition_id, leader_epoch)

    def begin_life(self, broker_id: int, lane: int, broker_epoch: int, life: int) -> bool:
        """Have a lane's row be in this life; return False if none in the epoch is in an earlier one."""
        row = self.lanes.get((broker_id, lane))
        if row is None or row.broker_epoch != broker_epoch or row.life >= life:
            return False
        self.journal.put(self.lanes, (broker_id, lane), LaneRow(broker_epoch, life))
        return True

    def look(self, look: Look) -> Reopened:
        """Return whether the rows are there, in their leader epochs."""
        return Reopened(*(row is None or self.has(*row) for row in look))

    def has(self, partition_id: int, base_offset: int, leader_epoch: int) -> bool:
        """Return whether a row is there, and not another leader's in its place."""
        chunk = self.chunks.get((partition_id, base_offset))
        return chunk is not None and chunk.leader_epoch == leader_epoch

    # -- brokers and leaders

    def register(self, broker_id: int, lanes: int) -> int:
        """Give a broker so many lanes in a broker epoch of its own, and return that."""
        epoch = self.journal.put(self.version, "cluster", self.version["cluster"] + 1)
        self.open_lanes(broker_id, lanes, epoch)
        return epoch

    def open_lanes(self, broker_id: int, lanes: int, broker_epoch: int) -> None:
        """Give a broker so many lanes in the epoch that it has registered in, instead of those of another."""
        self.fence(broker_id)
        for lane in range(lanes):
            self.journal.put(self.lanes, (broker_id, lane), LaneRow(broker_epoch, 0))

    def fence(self, broker_id: int) -> None:
        """Delete a broker's lanes: nothing that it sends takes effect any more."""
        for key in [key for key in self.lanes if key[0] == broker_id]:
            self.journal.drop(self.lanes, key)

    def lead(self, partition_id: int, leader_epoch: int) -> int:
        """Begin a leader epoch at the end of a partition, and return that end."""
        end = self.end(partition_id)
        self.journal.put(self.leader_epochs, (partition_id, leader_epoch), end)
        return end

    def read_logs(self, wanted: Sequence[LogWanted]) -> list[StoredLog]:
        """Begin leader epochs, each at the end of its log unless it or a later one has begun; return the logs
        as of then.
        """
        return [self._read_log(*one) for one in wanted]

    def _read_log(self, partition_id: int, leader_epoch: int, data_bytes: int) -> StoredLog:
        if all(epoch < leader_epoch for epoch, _ in self.epochs(partition_id)):
            self.lead(partition_id, leader_epoch)
        start = self.start_offsets.get(partition_id, 0)
        compacted_to = self.compacted_to.get(partition_id, 0)
        newest, older = pieces_of(self.rows(partition_id, start), data_bytes, compacted_to, PIECE_BYTES)
        epochs = self.epochs(partition_id)
        return StoredLog(partition_id, start, self.end(partition_id), epochs, newest, older, compacted_to)

    def epochs(self, partition_id: int) -> list[tuple[int, int]]:
        """Return the leader epochs that have begun in a partition, and where."""
        return [(key[1], start) for key, start in self.leader_epochs.items() if key[0] == partition_id]

    def lacking(self, led: Sequence[LogLed]) -> list[int]:
        """Return the partitions in which a leader epoch has not begun, or that are not compacted so far."""
        begun, compacted_to = self.leader_epochs, self.compacted_to
        return sorted(one[0] for one in led if one[:2] not in begun or compacted_to.get(one[0], 0) < one[2])

    def save_starts(self, starts: Sequence[StartWanted]) -> list[int]:
        """Have logs start at offsets, unless they start later already; return the partitions that have a
        later leader epoch, of which none moves.
        """
        gone = [one[0] for one in starts if self._is_led_later(*one[:2])]
        for partition_id, _, start in starts:
            left_alone = partition_id in gone or partition_id in self.deleted
            if not left_alone and start > self.start_offsets.get(partition_id, 0):
                self.journal.put(self.start_offsets, partition_id, start)
                floor = max(start, self.end_floors.get(partition_id, 0))
                self.journal.put(self.end_floors, partition_id, floor)
        return sorted(gone)

    def _is_led_later(self, partition_id: int, leader_epoch: int) -> bool:
        return any(epoch > leader_epoch for epoch, _ in self.epochs(partition_id))

    # -- reading

    def end(self, partition_id: int) -> int:
        """Return the offset at which a partition goes on."""
        places = self._places.get(partition_id)
        end = self.chunks[partition_id, places[-1]].last_offset + 1 if places else 0
        return max(end, self.end_floors.get(partition_id, 0))

    def rows(self, partition_id: int, offset: int = 0, end_offset: int | None = None) -> list[Chunk]:
        """Return the rows from the one that holds `offset`, up to those that begin at `end_offset`."""
        places = self._places.get(partition_id, [])
        first = max(0, bisect_right(places, offset) - 1)
        behind = len(places) if end_offset is None else bisect_left(places, end_offset)
        found = [self.chunks[partition_id, base] for base in places[first:behind]]
        return [chunk for chunk in found if chunk.last_offset >= offset]

    def read_rows(self, wanted: RowsWanted) -> StoredRows:
        """Return the rows that are wanted, with what was aborted of them."""
        rows = self._rows_wanted(wanted)
        if wanted.youngest or wanted.since_ms >= 0 or not rows:
            return StoredRows(rows)
        behind = self.rows(wanted.partition_id, wanted.offset)
        last = rows[-1].last_offset
        aborted = [span for row in behind for span in row.aborted if span.first_offset <= last]
        return StoredRows(rows, [span for span in aborted if span.last_offset >= wanted.offset])

    def _rows_wanted(self, wanted: RowsWanted) -> list[Chunk]:
        there = self.rows(wanted.partition_id, wanted.offset, wanted.end_offset)
        if wanted.youngest:
            there = by_time(there, wanted)
        found: list[Chunk] = []
        size = 0
        for row in there:
            if found and size >= wanted.max_bytes:
                break
            if row.max_timestamp >= wanted.since_ms:
                found.append(row)
                size += len(row.data)
        return found

    def heads(self, partition_id: int, offset: int = 0) -> list[tuple[int, bytes]]:
        """Return (base offset, headers of the batches) of the rows from the one that holds `offset`."""
        return [(chunk.base_offset, chunk.heads) for chunk in self.rows(partition_id, offset)]

    # -- forgetting

    def retain(self, wanted: RetentionWanted) -> RetainedLog:
        """Have a log start behind rows that it need not keep, unless a later epoch has begun."""
        partition_id, leader_epoch, start, end_offset, before_ms, surplus = wanted
        if self._is_led_later(partition_id, leader_epoch):
            return RetainedLog(start, None)
        for row in self.rows(partition_id, start, end_offset)[:ROWS_LOOKED_AT]:
            surplus -= len(row.data)
            if not (0 <= row.max_timestamp < before_ms or surplus >= 0):
                break
            start = row.last_offset + 1
        self.save_starts([StartWanted(partition_id, leader_epoch, start)])
        following = self.rows(partition_id, start, end_offset)
        return RetainedLog(start, following[0].max_timestamp if following else None)

    def delete_rows(self, partition_id: int, before_offset: int) -> list[DeletedRow]:
        """Delete the oldest rows that end before an offset, some at a time; return them."""
        before_offset = min(before_offset, self.start_offsets.get(partition_id, 0))
        gone = [row for row in self.rows(partition_id) if row.last_offset < before_offset][:ROWS_LOOKED_AT]
        if gone:
            self.delete(partition_id, gone[-1].last_offset + 1)
        return [DeletedRow(row.last_offset, len(row.data)) for row in gone]

    def delete(self, partition_id: int, before_offset: int) -> int:
        """Delete the rows that end before an offset; return their number."""
        floor = max(before_offset, self.end_floors.get(partition_id, 0))
        self.journal.put(self.end_floors, partition_id, floor)
        gone = [chunk.key for chunk in self.rows(partition_id) if chunk.last_offset < before_offset]
        self.take_out(gone)
        return len(gone)

    def take_out(self, keys: Sequence[RowKey]) -> None:
        """Take rows out."""
        for partition_id, base_offset in keys:
            self.journal.drop(self.chunks, (partition_id, base_offset))
            places = self._places[partition_id]
            places.remove(base_offset)
            self.journal.add(_put_in, places, base_offset, None)

    def delete_partitions(self, partition_ids: Sequence[int]) -> None:
        """Delete all that there is of partitions whose topic is deleted."""
        for partition_id in partition_ids:
            self.journal.put(self.deleted, partition_id, True)
            self.delete(partition_id, self.end(partition_id))
            for key in [key for key in self.leader_epochs if key[0] == partition_id]:
                self.journal.drop(self.leader_epochs, key)


def _take_out(places: list[int], base_offset: int, _: None) -> None:
    places.remove(base_offset)


def _put_in(places: list[int], base_offset: int, _: None) -> None:
    insort(places, base_offset)


ANSWERED_WITHIN_MS = 10_000


class PretendedEngine:
    """The database as a server that connections are made to."""

    def __init__(self, choose: Chooser, later: Later) -> None:
        self.tables = Tables()
        self.choose = choose
        self.later = later
        self.up = True
        self.incarnation = 0
        """Counts outages: what was sent before one, and has had no effect, has none."""
        self.history = "0"
        """Another one once it has gone back to an older state."""
        self.connections: list[PretendedConnection] = []

    def connect(self, on_break: Callable[[str], None]) -> PretendedConnection:
        """Return a new connection; that it breaks while nothing is under way is told to `on_break`."""
        connection = PretendedConnection(self, on_break)
        self.connections.append(connection)
        return connection

    def new_session_of(self, broker_id: int) -> NewSession:
        """Return a maker of sessions for the lanes of a broker."""

        def new_session(
            lane: int,
            broker_epoch: int,
            *,
            history: Callable[[], str],
            answered: Callable[[int, LaneAnswer], None],
        ) -> PretendedSession:
            return PretendedSession(self, (broker_id, lane, broker_epoch), answered, history)

        return new_session

    def go_away(self, *, to: int | None = None) -> None:
        """Break all connections. If the server is replaced by one that was behind: `to` the state at a mark
        of the journal.
        """
        self.up = False
        self.incarnation += 1
        if to is not None:
            self.tables.journal.roll_back(to)
            self.history = str(self.incarnation)
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.cut("the server is gone")

    def come_back(self) -> None:
        """Take connections again."""
        self.up = True


class PretendedConnection:
    """One connection, with one statement under way."""

    def __init__(self, engine: PretendedEngine, on_break: Callable[[str], None]) -> None:
        self.engine = engine
        self.on_break = on_break
        self.open = True
        self.incarnation = engine.incarnation
        self._waiting: Callable[[Failed | Broken], None] | None = None
        self._number = 0  # of the statement under way

    def execute(
        self,
        name: str,
        statement: Callable[[], T],
        answer: Callable[[T], None],
        fail: Callable[[Failed | Broken], None],
        *,
        within_ms: int | None = None,
    ) -> None:
        """Have a statement take effect, and answered, by the Fate that is chosen for its name. If that is
        never, the connection is given up within so long.
        """
        assert self._waiting is None
        self._waiting = fail
        self._number += 1
        engine = self.engine
        if not self.open or not engine.up or engine.incarnation != self.incarnation:
            engine.later(REFUSED_MS, partial(self._break, self._number, "no connection can be made"))
            return
        fate = engine.choose(name)
        outcome: list[T | Failed] = []
        if fate.effect_ms is not None:
            engine.later(fate.effect_ms, partial(self._take_effect, statement, outcome))
        if fate.answer_ms is not None:
            reply = partial(self._reply, self._number, fate.failure, outcome, answer)
            engine.later(fate.answer_ms, reply)
        elif within_ms is not None:
            engine.later(within_ms, partial(self._break, self._number, f"no answer in {within_ms} ms"))

    def _take_effect(self, statement: Callable[[], T], outcome: list[T | Failed]) -> None:
        if self.engine.incarnation != self.incarnation:
            return
        try:
            outcome.append(statement())
        except DatabaseError as error:
            outcome.append(Failed(error.sqlstate, str(error)))

    def _reply(
        self, number: int, failure: str, outcome: list[T | Failed], answer: Callable[[T], None]
    ) -> None:
        waiting = self._waiting
        if number != self._number or waiting is None or not self.open:
            return
        if failure == BROKEN or not (failure or outcome):
            self._break(number, "the connection is gone")
            return
        self._waiting = None
        if failure:
            waiting(Failed(failure, "by chance"))
        elif isinstance(outcome[0], Failed):
            waiting(outcome[0])
        else:
            answer(outcome[0])

    def abandon(self) -> None:
        """Use it no more; what was sent may take effect all the same, and be answered."""
        if self in self.engine.connections:
            self.engine.connections.remove(self)

    def cut(self, reason: str) -> None:
        """Break the connection; whoever uses it hears of it a little later."""
        self.open = False
        self.engine.later(REFUSED_MS, partial(self._break, self._number, reason))

    def _break(self, number: int, reason: str) -> None:
        if number != self._number:
            return
        self.open = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting(Broken(reason))
        else:
            self.on_break(reason)


class PretendedReader:
    """The way beside the lanes: each statement has a connection of its own."""

    def __init__(self, engine: PretendedEngine) -> None:
        self.engine = engine

    def prepare(self, *, history: str) -> None:
        """Do nothing: all is at hand."""

    def read_logs(
        self,
        wanted: Sequence[LogWanted],
        done: Callable[[Sequence[StoredLog] | Broken], None],
        *,
        history: str,
    ) -> None:
        self._execute("read-logs", lambda tables: tables.read_logs(wanted), done, history)

    def find_lacking(
        self, led: Sequence[LogLed], done: Callable[[Sequence[int] | Broken], None], *, history: str
    ) -> None:
        self._execute("find-lacking", lambda tables: tables.lacking(led), done, history)

    def read_rows(
        self, wanted: RowsWanted, done: Callable[[StoredRows | Broken], None], *, history: str
    ) -> None:
        self._execute("read-rows", lambda tables: tables.read_rows(wanted), done, history)

    def retain(
        self, wanted: RetentionWanted, done: Callable[[RetainedLog | Broken], None], *, history: str
    ) -> None:
        self._execute("retain", lambda tables: tables.retain(wanted), done, history)

    def delete_rows(
        self,
        partition_id: int,
        before_offset: int,
        done: Callable[[Sequence[DeletedRow] | Broken], None],
        *,
        history: str,
    ) -> None:
        self._execute(
            "delete-rows", lambda tables: tables.delete_rows(partition_id, before_offset), done, history
        )

    def measure(
        self, wanted: SizeWanted, done: Callable[[StoredSize | Broken], None], *, history: str
    ) -> None:
        self._execute("measure", lambda tables: size_of(tables.rows(*wanted[:2]), wanted), done, history)

    def save_starts(
        self,
        starts: Sequence[StartWanted],
        done: Callable[[Sequence[int] | Broken], None],
        *,
        history: str,
    ) -> None:
        self._execute("save-starts", lambda tables: tables.save_starts(starts), done, history)

    def _execute(
        self, name: str, statement: Callable[[Tables], T], done: Callable[[T | Broken], None], history: str
    ) -> None:
        def failed(why: Failed | Broken) -> None:
            connection.abandon()
            done(why if isinstance(why, Broken) else Broken(f"{why.sqlstate} {why.message}".rstrip()))

        def answered(result: T) -> None:
            connection.abandon()
            done(result)

        if self.engine.history != history:
            self.engine.later(REFUSED_MS, lambda: done(Broken(OTHER_HISTORY)))
            return
        connection = self.engine.connect(lambda reason: None)
        connection.execute(
            name, lambda: statement(self.engine.tables), answered, failed, within_ms=ANSWERED_WITHIN_MS
        )


class PretendedSession:
    """A lane's session with the engine. Answers come late as well: those of a life that was given up."""

    def __init__(
        self,
        engine: PretendedEngine,
        place: tuple[int, int, int],
        answered: Callable[[int, LaneAnswer], None],
        history: Callable[[], str] | None = None,
    ) -> None:
        """`place` is (broker id, lane, broker epoch). With `history`, which returns the one that the broker
        goes by, it begins no life on an engine of another.
        """
        self.engine = engine
        self.history = history
        self.place = place
        self.answered = answered
        self.connection: PretendedConnection | None = None

    def append(self, life: int, chunks: Sequence[Chunk]) -> None:
        assert self.connection is not None
        self.connection.execute(
            "append",
            partial(self.engine.tables.append, *self.place, life, chunks),
            lambda rows: self.answered(life, Inserted(rows)),
            partial(self.answered, life),
        )

    def reopen(self, life: int, look: Look) -> None:
        def broken(reason: str) -> None:
            self.answered(life, Broken(reason))

        def begun(bumped: bool) -> None:
            if not bumped:
                self.answered(life, Fenced())
                return
            connection.execute(
                "look",
                partial(self.engine.tables.look, look),
                partial(self.answered, life),
                partial(self.answered, life),
            )

        connection = self.connection = self.engine.connect(broken)
        if self.history is not None and self.engine.history != self.history():
            connection.cut(OTHER_HISTORY)
            return
        connection.execute(
            "begin-life",
            partial(self.engine.tables.begin_life, *self.place, life),
            begun,
            partial(self.answered, life),
        )

    def abort(self) -> None:
        if self.connection is not None:
            self.connection.abandon()
            self.connection = None
