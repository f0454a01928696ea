"""Reading logs from PostgreSQL, beside the lanes, on connections that are opened when they are needed: one on
which logs are opened, one for what consumers read of them that is not in memory, and one to delete what need
not be kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap, takewhile
from typing import Any, NamedTuple

from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.postgres import deleting
from coterie.storage.postgres.connecting import (
    OTHER_HISTORY,
    Connections,
    cluster_in,
    read_history,
    table_of,
    within_ms,
)
from coterie.storage.postgres.deleting import END
from coterie.storage.postgres.serial import (
    ROWS_LOCK_MS,
    Connection,
    Job,
    SerialConnection,
    T,
    Watched,
    transaction,
    unwatched,
)
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.reading import (
    ALL_DATA,
    DeletedRow,
    LogLed,
    LogWanted,
    RetainedLog,
    RetentionWanted,
    RowHeads,
    RowsWanted,
    SizeWanted,
    StartWanted,
    StoredLog,
    StoredRows,
    StoredSize,
)
from coterie.storage.remote.session import Broken, Failed
from coterie.wire.records.batches import HEADER_SIZE

log = logging.getLogger("coterie.storage")

ROWS_WITH_DATA = 256
"""Of a log of which not all data is wanted that of so many rows is read at most."""
ROWS_FEW, FEW_BYTES = 10_000, 16 << 20
"""To count rows takes nearly as long as to read them, and those of a longer log are counted in vain."""
READ_BYTES = 4 << 20
"""What holds more is not read at once, unless it is one log."""
PIECE_BYTES = 64 << 10
"""Rows come joined, up to so many bytes of what is read of them: each costs, on both sides, and those of a
log of commits are small.
"""
ENDS_OF_WANTED = """
  coalesce(log.start_offset, 0) AS start_offset, greatest(log.end_floor,
    (SELECT last_offset + 1 FROM coterie.chunks_keep AS chunk WHERE chunk.partition_id = wanted.partition_id
     ORDER BY base_offset DESC LIMIT 1), 0) AS end_offset"""
"""Where the log of a row `wanted` starts and goes on, whose row in `logs` is `log`, if it has one."""
# Rows of a log as one, where they follow each other, are of one leader epoch, and all or none compacted. What
# each is to hold is found without its data, so that little is sorted, and then read by the index.
PIECES = f"""
LATERAL (
  SELECT min(base_offset) AS base_offset, max(base_offset) AS last_row, max(last_offset) AS last_offset,
    leader_epoch, max(max_timestamp) AS max_timestamp, sum(batches)::int AS batches, sum(size) AS size,
    with_data
  FROM (
    SELECT base_offset, last_offset, leader_epoch, max_timestamp, batches, size,
      last_offset < wanted.compacted_to AS is_clean, base_offset >= wanted.data_from AS with_data,
      sum(CASE WHEN base_offset >= wanted.data_from THEN size ELSE batches * {HEADER_SIZE} END)
        OVER (ORDER BY base_offset ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) / {PIECE_BYTES} AS place
    FROM coterie.chunks_keep WHERE partition_id = wanted.id AND last_offset >= wanted.start_offset
  ) AS placed
  GROUP BY leader_epoch, is_clean, with_data, place ORDER BY 1 OFFSET 0) AS piece,
LATERAL (
  SELECT string_agg(heads, '') AS heads,
    coalesce(string_agg(data, '') FILTER (WHERE with_data), '') AS data
  FROM (
    SELECT heads, data FROM coterie.chunks_keep
    WHERE partition_id = wanted.id AND base_offset BETWEEN piece.base_offset AND last_row
    ORDER BY base_offset OFFSET 0) AS ordered) AS joined"""
# The end is read in the statement that begins the epoch: whoever is late sees a later epoch before it sees
# what was appended in that. The epochs in the answer are those before it. With them come the rows of logs
# that have few, a column each as an array and in no order of the logs: groups wait for these, and each round
# trip takes long on a busy broker.
OPEN = f"""
WITH {within_ms(ROWS_LOCK_MS)},
ends AS MATERIALIZED (
  SELECT wanted.*, {ENDS_OF_WANTED},
    (SELECT coalesce(array_agg(ARRAY[there.epoch, there.start_offset] ORDER BY there.epoch), '{{}}')
     FROM coterie.leader_epochs AS there WHERE there.partition_id = wanted.partition_id) AS epochs,
    coalesce(log.compacted_to, 0) AS compacted_to
  FROM patience, unnest($1::int[], $2::int[], $3::bigint[]) AS wanted (partition_id, epoch, data_bytes)
  LEFT JOIN coterie.logs AS log USING (partition_id)),
begun AS (
  INSERT INTO coterie.leader_epochs (partition_id, epoch, start_offset)
  SELECT partition_id, epoch, end_offset FROM ends
  WHERE {cluster_in("$5")} AND NOT EXISTS (SELECT FROM coterie.leader_epochs AS there
    WHERE there.partition_id = ends.partition_id AND there.epoch >= ends.epoch)
  ORDER BY partition_id
  ON CONFLICT DO NOTHING)
SELECT partition_id, start_offset, end_offset, epoch, epochs, compacted_to, is_whole, columns.*
FROM ends, LATERAL (
  SELECT count(*) <= {ROWS_FEW} AND coalesce(sum(size), 0) <= least(data_bytes, $4::bigint) AS is_whole FROM (
    SELECT size FROM coterie.chunks_keep AS chunk
    WHERE chunk.partition_id = ends.partition_id AND last_offset >= start_offset
    LIMIT {ROWS_FEW + 1}) AS first) AS counted,
LATERAL (
  SELECT array_agg(piece.base_offset) AS base_offsets, array_agg(last_offset) AS last_offsets,
    array_agg(leader_epoch) AS leader_epochs, array_agg(max_timestamp) AS max_timestamps,
    array_agg(batches) AS batches, array_agg(heads) AS heads, array_agg(data) AS data
  FROM (SELECT partition_id AS id, start_offset, compacted_to, 0 AS data_from WHERE is_whole) AS wanted,
  {PIECES}) AS columns
"""
# A partition at a time, in the order of those that are wanted and by its index, whatever the planner thinks
# of the table.
COLUMNS = "partition_id, base_offset, last_offset, leader_epoch, max_timestamp, batches, heads, data"
CHUNKS = f"""
SELECT wanted.id, piece.base_offset, last_offset, leader_epoch, max_timestamp, batches, heads, data, size,
  with_data
FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[])
  AS asked (id, start_offset, data_bytes, compacted_to),
LATERAL (
  SELECT asked.*, CASE WHEN data_bytes >= {ALL_DATA} THEN 0 ELSE coalesce((SELECT min(base_offset) FROM (
    SELECT base_offset, sum(size) OVER (ORDER BY base_offset DESC) - size AS behind FROM (
      SELECT base_offset, size FROM coterie.chunks_keep WHERE partition_id = asked.id
      ORDER BY base_offset DESC LIMIT {ROWS_WITH_DATA}) AS newest) AS summed
    WHERE behind < data_bytes), {END}) END AS data_from OFFSET 0) AS wanted,
{PIECES}
"""
LACKING = """
SELECT led.id FROM unnest($1::int[], $2::int[], $3::bigint[]) AS led (id, epoch, compacted_to)
LEFT JOIN coterie.logs AS log ON log.partition_id = led.id
WHERE coalesce(log.compacted_to, 0) < led.compacted_to OR NOT EXISTS (
  SELECT FROM coterie.leader_epochs AS there WHERE there.partition_id = led.id AND there.epoch = led.epoch)
ORDER BY led.id
"""
# Which they are is found by their sizes, so that no data is read of more than is wanted. What was aborted of
# them comes with the first, as it is at that moment: compaction takes both away at once. Whatever is aborted
# later than where all was decided up to the last row begins behind that.
ROWS = f"""
WITH sized AS (
  SELECT base_offset, last_offset, sum(size) OVER (ORDER BY base_offset) - size AS before FROM (
    SELECT base_offset, last_offset, size FROM coterie.chunks_keep
    WHERE partition_id = $1 AND base_offset < $3 AND last_offset >= $2 AND max_timestamp >= $5
      AND base_offset >= coalesce((SELECT base_offset FROM coterie.chunks_keep
        WHERE partition_id = $1 AND base_offset <= $2 ORDER BY base_offset DESC LIMIT 1), $2)
    ORDER BY base_offset LIMIT $6) AS following),
wanted AS MATERIALIZED (SELECT base_offset, last_offset FROM sized WHERE before = 0 OR before < $4),
ends AS MATERIALIZED (SELECT min(base_offset) AS first, max(last_offset) AS last FROM wanted),
ended AS MATERIALIZED (
  SELECT array_agg(ARRAY[producer_id, first_offset, last_offset, stable] ORDER BY last_offset) AS aborted
  FROM coterie.aborted
  WHERE partition_id = $1 AND $5 < 0 AND last_offset >= $2 AND first_offset <= (SELECT last FROM ends)
    AND last_offset <= coalesce((SELECT last_offset FROM coterie.aborted
      WHERE partition_id = $1 AND last_offset >= $2 AND stable > (SELECT last FROM ends)
      ORDER BY last_offset LIMIT 1), {END}))
SELECT chunk.*, CASE WHEN base_offset = (SELECT first FROM ends) THEN (SELECT aborted FROM ended) END
FROM (SELECT base_offset AS place FROM wanted) AS wanted, LATERAL (
  SELECT {COLUMNS} FROM coterie.chunks_keep
  WHERE partition_id = $1 AND base_offset = place OFFSET 0) AS chunk
ORDER BY base_offset
"""
# Rows of headers alone, which compaction leaves, hold no record, whatever time they say.
YOUNGEST_ROWS = f"""
WITH sized AS (
  SELECT base_offset, max_timestamp,
    sum(size) OVER (ORDER BY max_timestamp DESC, base_offset) - size AS before FROM (
    SELECT base_offset, max_timestamp, size FROM coterie.chunks_keep
    WHERE partition_id = $1 AND base_offset >= $2 AND base_offset < $3 AND max_timestamp >= $5
      AND size > batches * {HEADER_SIZE} AND (-max_timestamp, base_offset) > (-$7::bigint, $8::bigint)
    ORDER BY max_timestamp DESC, base_offset LIMIT $6) AS youngest)
SELECT chunk.*, NULL
FROM (SELECT base_offset AS place FROM sized WHERE before = 0 OR before < $4) AS wanted, LATERAL (
  SELECT {COLUMNS} FROM coterie.chunks_keep
  WHERE partition_id = $1 AND base_offset = place OFFSET 0) AS chunk
ORDER BY max_timestamp DESC, base_offset
"""
# A partition's row is locked as a lane's gate is: who gives it another leader waits for this, and the next
# leader reads the start then. Where somebody does so just now this is not waited for, but tried again.
SAVE_STARTS = f"""
WITH wanted AS (
  SELECT * FROM unnest($1::int[], $2::int[], $3::bigint[]) AS log (partition_id, epoch, start_offset)),
led AS MATERIALIZED (
  SELECT partition_id, leader_epoch, topic_id FROM coterie.partitions WHERE partition_id = ANY ($1)
  ORDER BY partition_id FOR SHARE NOWAIT),
deleted AS MATERIALIZED (
  SELECT partition_id FROM led JOIN coterie.topics AS topic USING (topic_id) WHERE topic.deleted),
gone AS MATERIALIZED (
  SELECT partition_id FROM wanted
  WHERE EXISTS (SELECT FROM led WHERE led.partition_id = wanted.partition_id AND leader_epoch > epoch)
    OR EXISTS (SELECT FROM coterie.leader_epochs AS there
      WHERE there.partition_id = wanted.partition_id AND there.epoch > wanted.epoch)),
saved AS (
  INSERT INTO coterie.logs AS there (partition_id, start_offset, end_floor)
  SELECT partition_id, start_offset, start_offset FROM wanted
  WHERE partition_id NOT IN (SELECT partition_id FROM gone UNION ALL SELECT partition_id FROM deleted)
    AND {cluster_in("$4")}
  ORDER BY partition_id
  ON CONFLICT (partition_id) DO UPDATE SET
    start_offset = greatest(there.start_offset, excluded.start_offset),
    end_floor = greatest(there.end_floor, excluded.end_floor))
SELECT partition_id FROM gone ORDER BY partition_id
"""
STUCK_S = 60.0
"""Where nothing comes for so long nothing is waited for: the connection is given up. What is slow goes on."""
ROWS_AT_ONCE, ROWS_AT_ONCE_MAX = 64, 1_024
BYTES_AT_ONCE = 1 << 20
"""So much is asked for at once, by the size of what has come so far: a round trip takes long where many want
the processor, and what comes of a short log is small.
"""
ROWS_RECALLED = 1_000
NO_ROWS: tuple[list[Chunk], list[RowHeads]] = ([], [])


class PostgresReader:
    """A `RemoteReader`."""

    def __init__(self, connections: Connections, watched: Watched = unwatched) -> None:
        """Each read is done within `watched`."""
        self._opening = ReadConnection(connections, "opening logs", watched)
        self._recalling = ReadConnection(connections, "older records", watched)
        self._forgetting = ReadConnection(connections, "deleting records", watched)

    def prepare(self, *, history: str) -> None:
        self._opening.run(_prepare, lambda _: None, history)

    def read_logs(
        self,
        wanted: Sequence[LogWanted],
        done: Callable[[Sequence[StoredLog] | Broken], None],
        *,
        history: str,
    ) -> None:
        self._opening.run(partial(_read_logs, wanted, history, self._opening.move), done, history)

    def read_rows(
        self, wanted: RowsWanted, done: Callable[[StoredRows | Broken], None], *, history: str
    ) -> None:
        self._recalling.run(partial(read_rows, wanted), done, history)

    def find_lacking(
        self, led: Sequence[LogLed], done: Callable[[Sequence[int] | Broken], None], *, history: str
    ) -> None:
        self._opening.run(partial(_find_lacking, led), done, history)

    def retain(
        self, wanted: RetentionWanted, done: Callable[[RetainedLog | Broken], None], *, history: str
    ) -> None:
        self._forgetting.run(partial(deleting.retain, wanted, history), done, history)

    def delete_rows(
        self,
        partition_id: int,
        before_offset: int,
        done: Callable[[Sequence[DeletedRow] | Broken], None],
        *,
        history: str,
    ) -> None:
        job = partial(deleting.delete_rows, partition_id, before_offset, history)
        self._forgetting.run(job, done, history)

    def measure(
        self, wanted: SizeWanted, done: Callable[[StoredSize | Broken], None], *, history: str
    ) -> None:
        self._forgetting.run(partial(deleting.measure, wanted), done, history)

    def save_starts(
        self,
        starts: Sequence[StartWanted],
        done: Callable[[Sequence[int] | Broken], None],
        *,
        history: str,
    ) -> None:
        self._opening.run(partial(_save_starts, starts, history), done, history)

    def close(self) -> None:
        """Give the connections up; whoever waits has Broken."""
        self._opening.close()
        self._recalling.close()
        self._forgetting.close()


class ReadConnection:
    """A connection on which reads are done one after the other, opened anew when it is needed again."""

    def __init__(self, connections: Connections, use: str, watched: Watched) -> None:
        self._connections = connections
        self._use = use
        self._watched = watched
        self._connection: SerialConnection | None = None
        self._history: str | None = None  # of that connection, once it is known
        self._waiting = 0  # the number of those that wait for an answer
        self._moved_s = 0.0  # when something came last
        self._watch: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Give the connection up; whoever waits has Broken."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def run(self, job: Job[T], done: Callable[[T | Broken], None], history: str) -> None:
        """Have a job done by a database of this history. One that fails is tried again by whoever asked."""

        def answered(result: T | Broken | None) -> None:
            self._waiting -= 1
            self.move()
            done(Broken("no answer has come") if result is None else result)

        def refused(failed: Failed) -> None:
            answered(Broken(f"{failed.message} ({failed.sqlstate})"))

        connection = self._connection
        if connection is None or self._is_stuck or self._history not in (None, history):
            connection = self._open()
        if not self._waiting:
            self.move()
        self._waiting += 1
        self._watch_on()
        connection.run(partial(self._do, job, history), answered, refused)

    def move(self) -> None:
        """Note that something has come."""
        self._moved_s = self._connections.loop.time()

    @property
    def _is_stuck(self) -> bool:
        return bool(self._waiting) and self._connections.loop.time() - self._moved_s >= STUCK_S

    def _watch_on(self) -> None:
        """Look in time whether something still comes, as long as somebody waits."""
        if self._watch is None and self._waiting:
            self._watch = self._connections.loop.call_later(STUCK_S, self._look)

    def _look(self) -> None:
        self._watch = None
        if self._is_stuck:
            log.warning("the database has sent nothing for %.0f s: the connection is given up", STUCK_S)
            self.close()
        else:
            self._watch_on()

    async def _do(self, job: Job[T], history: str, connection: Connection) -> T | Broken:
        """Return the outcome of a job, unless other tables have taken the place of those that it is to read:
        what waits for the lock of whoever brings a backup back reads what that has brought.
        """
        if self._history != history:
            return Broken(OTHER_HISTORY)
        found = await job(connection)
        self._history = await read_history(connection)
        return found if self._history == history else Broken(OTHER_HISTORY)

    def _open(self) -> SerialConnection:
        def opened(history: str) -> None:
            self._history = history

        def ended() -> None:
            if self._connection is connection:
                self._connection = None

        self.close()
        self.move()
        self._history = None
        connection = self._connection = SerialConnection(self._connections, self._use, watched=self._watched)
        connection.open(read_history, opened, ended)
        return connection


async def _prepare(connection: Connection) -> None:
    """Have the server know the statements."""
    await connection.fetch(OPEN, [], [], [], 0, 0)
    await _read_chunks(([0], [0], [0], [0]), lambda: None, connection)


async def _read_logs(
    wanted: Sequence[LogWanted], history: str, moved: Callable[[], None], connection: Connection
) -> list[StoredLog]:
    """Return the logs in the order of those that are wanted, the first that are not too much. Their epochs
    begin in tables of this history.
    """
    few_bytes = FEW_BYTES // len(wanted)
    rows = await connection.fetch(OPEN, *zip(*wanted, strict=True), few_bytes, table_of(history))
    by_id = {row[0]: _Opened(*row) for row in rows}
    opened = [by_id[one.partition_id] for one in wanted]
    whole = [*takewhile(lambda one: one.is_whole, opened)]
    if whole:
        return [one.log(one.chunks(), ()) for one in whole]
    longer = [one for one in opened if not one.is_whole]
    ids = [one.partition_id for one in longer]
    data_bytes = {one.partition_id: one.data_bytes for one in wanted}
    terms = (
        ids,
        [one.start_offset for one in longer],
        [data_bytes[one] for one in ids],
        [one.compacted_to for one in longer],
    )
    rows_of, unread = await _read_chunks(terms, moved, connection)
    rows_of |= {one.partition_id: (one.chunks(), []) for one in opened if one.is_whole}
    read = takewhile(lambda one: one.partition_id != unread, opened)
    return [one.log(*rows_of.get(one.partition_id, NO_ROWS)) for one in read]


class _Opened(NamedTuple):
    """A log whose epoch has begun, and the columns of its rows where it `is_whole`: None of no rows."""

    partition_id: int
    start_offset: int
    end_offset: int
    epoch: int
    epochs_before: Sequence[Sequence[int]]
    compacted_to: int
    is_whole: bool
    base_offsets: Sequence[int] | None
    last_offsets: Sequence[int] | None
    leader_epochs: Sequence[int] | None
    max_timestamps: Sequence[int] | None
    batches: Sequence[int] | None
    heads: Sequence[bytes] | None
    data: Sequence[bytes] | None

    def chunks(self) -> list[Chunk]:
        """Return its rows."""
        columns: list[Sequence[Any]] = [column or () for column in self[7:]]
        return [*map(partial(Chunk, self.partition_id), *columns)]

    def log(self, chunks: Sequence[Chunk], older: Sequence[RowHeads]) -> StoredLog:
        """Return the log with these rows."""
        epochs = _with_begun(self.epoch, self.end_offset, self.epochs_before)
        return StoredLog(*self[:3], epochs, chunks, tuple(older), self.compacted_to)


def _with_begun(epoch: int, end_offset: int, epochs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return the epochs of a log once one is to have begun at its end, unless it or a later one had."""
    there = [(number, start) for number, start in epochs]
    return there if there and there[-1][0] >= epoch else [*there, (epoch, end_offset)]


async def _read_chunks(
    terms: Sequence[Sequence[int]],
    moved: Callable[[], None],
    connection: Connection,
) -> tuple[dict[int, tuple[list[Chunk], list[RowHeads]]], int | None]:
    """Return the rows of the first partitions that are not too much, with data and without, and the id of the
    first that is left. `terms` are the partitions' ids, starts, how much data is wanted of each, and up to
    where it is compacted.
    """
    found: dict[int, tuple[list[Chunk], list[RowHeads]]] = {}
    if not terms[0]:
        return found, None
    async with transaction(connection, "READ ONLY"):
        size = count = 0
        wanted = ROWS_AT_ONCE
        cursor = await connection.cursor(CHUNKS, *terms)
        while rows := await cursor.fetch(wanted):
            moved()
            for *columns, row_size, with_data in rows:
                chunk = Chunk(*columns)
                if chunk.partition_id not in found:
                    if size >= READ_BYTES:
                        return found, chunk.partition_id
                    found[chunk.partition_id] = ([], [])
                if with_data:
                    found[chunk.partition_id][0].append(chunk)
                else:
                    found[chunk.partition_id][1].append(RowHeads(*chunk[1:4], row_size, chunk.heads))
                size += len(chunk.data) + len(chunk.heads)
            if len(rows) < wanted:
                break
            count += len(rows)
            wanted = max(ROWS_AT_ONCE, min(ROWS_AT_ONCE_MAX, BYTES_AT_ONCE * count // (size + 1)))
    return found, None


async def _find_lacking(led: Sequence[LogLed], connection: Connection) -> list[int]:
    return [one for (one,) in await connection.fetch(LACKING, *columns_of(led, 3))]


def columns_of(rows: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    """Return the columns of rows, so many, which may be empty."""
    return list(zip(*rows, strict=True)) if rows else [()] * count


async def read_rows(wanted: RowsWanted, connection: Connection) -> StoredRows:
    """Return rows of a log, and what was aborted of them."""
    *terms, youngest, after = wanted
    if youngest:
        rows = await connection.fetch(YOUNGEST_ROWS, *terms, ROWS_RECALLED, *after)
    else:
        rows = await connection.fetch(ROWS, *terms, ROWS_RECALLED)
    aborted = rows[0][-1] if rows else None
    spans = () if aborted is None else tuple(starmap(AbortedSpan, aborted))
    return StoredRows([Chunk(*columns) for *columns, _ in rows], spans)


async def _save_starts(starts: Sequence[StartWanted], history: str, connection: Connection) -> list[int]:
    async with transaction(connection, lock_timeout=ROWS_LOCK_MS):
        gone = await connection.fetch(SAVE_STARTS, *columns_of(starts, 3), table_of(history))
        return [one for (one,) in gone]
