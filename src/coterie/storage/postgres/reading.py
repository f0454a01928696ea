"""Reading logs from PostgreSQL, beside the lanes: one connection, that is opened when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from coterie.storage.postgres.connecting import OTHER_HISTORY, Connections, read_history
from coterie.storage.postgres.serial import Connection, Job, SerialConnection, T, transaction
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.reading import LogWanted, StoredLog
from coterie.storage.remote.session import Broken

# The end is read in the statement that begins the epoch: whoever is late sees a later epoch before it sees
# what was appended in that.
BEGIN_EPOCHS = """
WITH ends AS (
  SELECT wanted.*, coalesce(log.start_offset, 0) AS start_offset, greatest(log.end_floor,
    (SELECT last_offset + 1 FROM coterie.chunks_keep AS chunk WHERE chunk.partition_id = wanted.partition_id
     ORDER BY base_offset DESC LIMIT 1), 0) AS end_offset
  FROM unnest($1::int[], $2::int[]) AS wanted (partition_id, epoch)
  LEFT JOIN coterie.logs AS log USING (partition_id)),
begun AS (
  INSERT INTO coterie.leader_epochs (partition_id, epoch, start_offset)
  SELECT partition_id, epoch, end_offset FROM ends
  WHERE NOT EXISTS (SELECT FROM coterie.leader_epochs AS there
    WHERE there.partition_id = ends.partition_id AND there.epoch >= ends.epoch)
  ORDER BY partition_id
  ON CONFLICT DO NOTHING)
SELECT partition_id, start_offset, end_offset FROM ends
"""
EPOCHS = """
SELECT partition_id, epoch, start_offset FROM coterie.leader_epochs WHERE partition_id = ANY ($1::int[])
ORDER BY partition_id, epoch
"""
# A partition at a time, by its index, whatever the planner thinks of the table.
CHUNKS = """
SELECT chunk.* FROM unnest($1::int[], $2::bigint[]) AS wanted (id, start_offset), LATERAL (
  SELECT partition_id, base_offset, last_offset, leader_epoch, max_timestamp, batches, heads, data
  FROM coterie.chunks_keep WHERE partition_id = wanted.id AND last_offset >= wanted.start_offset
  ORDER BY base_offset OFFSET 0) AS chunk
"""
SAVE_STARTS = """
INSERT INTO coterie.logs AS there (partition_id, start_offset)
SELECT id, start_offset FROM unnest($1::int[], $2::bigint[]) AS log (id, start_offset) ORDER BY id
ON CONFLICT (partition_id) DO UPDATE SET start_offset = greatest(there.start_offset, excluded.start_offset)
"""
PARTITION = itemgetter(0)
LOCK_TIMEOUT_MS = 8_000
STUCK_S = 60.0
"""What has not been read after so long is not waited for: whoever asks next has a connection of its own."""


class PostgresReader:
    """A `RemoteReader`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._connection: SerialConnection | None = None
        self._history: str | None = None  # of that connection, once it is known
        self._asked_s: list[float] = []  # when each was asked for that waits for an answer, oldest first

    def read_logs(
        self,
        wanted: Sequence[LogWanted],
        done: Callable[[Sequence[StoredLog] | Broken], None],
        *,
        history: str,
    ) -> None:
        self._run(partial(_read_logs, wanted), done, history)

    def save_starts(
        self, starts: Mapping[int, int], done: Callable[[Broken | None], None], *, history: str
    ) -> None:
        def saved(answer: bool | Broken) -> None:
            done(answer if isinstance(answer, Broken) else None)

        self._run(partial(_save_starts, starts), saved, history)

    def close(self) -> None:
        """Give the connection up; whoever waits has Broken."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _run(self, job: Job[T], done: Callable[[T | Broken], None], history: str) -> None:
        """Have a job done by a database of this history. One that fails is tried again by whoever asked."""

        now_s = self._connections.loop.time()

        def answered(result: T | Broken | None) -> None:
            self._asked_s.remove(now_s)
            done(Broken("no answer has come") if result is None else result)

        connection = self._connection
        is_stuck = bool(self._asked_s) and self._asked_s[0] < now_s - STUCK_S
        if connection is None or is_stuck or self._history not in (None, history):
            connection = self._open()
        self._asked_s.append(now_s)
        connection.run(partial(self._do, job, history), answered)

    async def _do(self, job: Job[T], history: str, connection: Connection) -> T | Broken:
        return await job(connection) if self._history == history else Broken(OTHER_HISTORY)

    def _open(self) -> SerialConnection:
        def opened(history: str) -> None:
            self._history = history

        def ended() -> None:
            if self._connection is connection:
                self._connection = None

        self.close()
        self._history = None
        connection = self._connection = SerialConnection(self._connections)
        connection.open(read_history, opened, ended)
        return connection


async def _read_logs(wanted: Sequence[LogWanted], connection: Connection) -> list[StoredLog]:
    """Return the logs in the order of those that are wanted."""
    ids = [one.partition_id for one in wanted]
    async with transaction(connection, lock_timeout=LOCK_TIMEOUT_MS):
        ends = await connection.fetch(BEGIN_EPOCHS, ids, [one.leader_epoch for one in wanted])
    epochs = await connection.fetch(EPOCHS, ids)
    epochs_of = {one: [(row[1], row[2]) for row in rows] for one, rows in groupby(epochs, PARTITION)}
    chunks = await connection.fetch(CHUNKS, [row[0] for row in ends], [row[1] for row in ends])
    chunks_of = {one: [*_chunks(rows)] for one, rows in groupby(chunks, PARTITION)}
    logs = {
        one: StoredLog(one, start, end, epochs_of.get(one, []), chunks_of.get(one, []))
        for one, start, end in ends
    }
    return [logs[one] for one in ids]


def _chunks(rows: Iterator[Sequence[object]]) -> Iterator[Chunk]:
    for row in rows:
        yield Chunk(*row)  # type: ignore[arg-type]  # of the types that its columns have


async def _save_starts(starts: Mapping[int, int], connection: Connection) -> bool:
    async with transaction(connection, lock_timeout=LOCK_TIMEOUT_MS):
        await connection.execute(SAVE_STARTS, [*starts], [*starts.values()])
    return True
