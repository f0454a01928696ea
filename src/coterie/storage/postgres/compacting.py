"""Compactions over PostgreSQL, in a process beside the broker, each on a connection of its own.

A statement share-locks the rows by which its broker leads, as an append does its lane's: a takeover waits for
it, and so does whoever gives the partition away. What comes later finds them no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.postgres.connecting import (
    LOST,
    OTHER_HISTORY,
    DatabaseAddress,
    cluster_in,
    connect,
    failure_of,
    read_history,
    table_of,
    within_ms,
)
from coterie.storage.postgres.reading import columns_of, read_rows
from coterie.storage.postgres.serial import ROWS_LOCK_MS, Connection
from coterie.storage.remote.compaction import (
    Compacted,
    CompactedTo,
    CompactionWanted,
    RowsReplaced,
    SpansWanted,
    Statement,
    compaction,
)
from coterie.storage.remote.session import Broken

_LED = f"""
WITH {within_ms(ROWS_LOCK_MS)},
gate AS MATERIALIZED (
  SELECT FROM patience, coterie.lanes WHERE broker_id = $1 AND lane = 0 AND broker_epoch = $3
    AND {cluster_in("$5")} FOR SHARE OF lanes),
led AS MATERIALIZED (
  SELECT partition_id FROM gate, coterie.partitions
  WHERE partition_id = $2 AND leader = $1 AND leader_epoch = $4 FOR SHARE OF partitions)
"""
# A row that stays is changed in its place: whether others go first is not said.
REPLACE = (
    _LED
    + """,
there AS MATERIALIZED (
  SELECT FROM led, unnest($6::bigint[], $7::bigint[], $8::int[]) AS place (base_offset, last_offset, size),
    coterie.chunks_keep AS chunk
  WHERE chunk.partition_id = $2 AND chunk.base_offset = ANY($6)
    AND (chunk.base_offset, chunk.last_offset, chunk.size)
      = (place.base_offset, place.last_offset, place.size)
  FOR UPDATE OF chunk),
whole AS MATERIALIZED (SELECT FROM led WHERE (SELECT count(*) FROM there) = cardinality($6)),
gone AS (
  DELETE FROM coterie.chunks_keep AS chunk USING whole
  WHERE chunk.partition_id = $2 AND chunk.base_offset = ANY($6) AND chunk.base_offset <> ALL($9::bigint[])),
changed AS (
  UPDATE coterie.chunks_keep AS chunk SET last_offset = made.last_offset, max_timestamp = made.max_timestamp,
    batches = made.batches, size = made.size, heads = made.heads, data = made.data
  FROM whole, unnest($9::bigint[], $10::bigint[], $11::bigint[], $12::int[], $13::int[], $14::bytea[],
    $15::bytea[]) AS made (base_offset, last_offset, max_timestamp, batches, size, heads, data)
  WHERE chunk.partition_id = $2 AND chunk.base_offset = made.base_offset),
forgotten AS (
  DELETE FROM coterie.aborted AS span
  USING whole, unnest($16::bigint[], $17::bigint[]) AS gone (marker, producer)
  WHERE span.partition_id = $2 AND (span.last_offset, span.producer_id) = (gone.marker, gone.producer))
SELECT count(*) FROM whole
"""
)
SAVE = (
    _LED
    + """,
saved AS (
  INSERT INTO coterie.logs AS there (partition_id, compacted_to) SELECT partition_id, $6::bigint FROM led
  ON CONFLICT (partition_id) DO UPDATE SET compacted_to = greatest(there.compacted_to, excluded.compacted_to))
SELECT count(*) FROM led
"""
)
SPANS = """
SELECT producer_id, first_offset, last_offset, stable FROM coterie.aborted
WHERE partition_id = $1 AND first_offset < $2 ORDER BY last_offset
"""


class PostgresCompactor:
    """The `Compactor` of a broker."""

    def __init__(self, address: DatabaseAddress, broker_id: int, aside: Callable[..., None]) -> None:
        """`aside` is a `WorksBeside`."""
        self._address, self._broker_id, self._aside = address, broker_id, aside

    def compact(
        self, wanted: CompactionWanted, done: Callable[[Compacted | Broken], None], *, history: str
    ) -> None:
        def ended(answer: Compacted | Broken | None) -> None:
            done(Broken("its process has failed") if answer is None else answer)

        arguments = (self._address.url, self._address.used_by, self._broker_id, history, wanted)
        self._aside(run_compaction, arguments, ended, computes=True)


def run_compaction(
    url: str, used_by: str, broker_id: int, history: str, wanted: CompactionWanted
) -> Compacted | Broken:
    """Compact a log, as its broker, in a database of this history; return the outcome."""
    return asyncio.run(_run(DatabaseAddress(url, used_by=used_by), broker_id, history, wanted))


async def _run(
    address: DatabaseAddress, broker_id: int, history: str, wanted: CompactionWanted
) -> Compacted | Broken:
    connection: Connection | None = None
    try:
        connection = await connect(address, use="compaction")
        if await read_history(connection) != history:
            return Broken(OTHER_HISTORY)
        compacted = await _carry_out_all(connection, broker_id, table_of(history), wanted)
        return compacted if await read_history(connection) == history else Broken(OTHER_HISTORY)
    except LOST as error:
        failure = failure_of(error)
        return failure if isinstance(failure, Broken) else Broken(f"{failure.sqlstate} {failure.message}")
    finally:
        if connection is not None:
            connection.terminate()


async def _carry_out_all(
    connection: Connection, broker_id: int, table: int, wanted: CompactionWanted
) -> Compacted:
    statements, answer = compaction(wanted), None
    while True:
        try:
            statement = statements.send(answer)
        except StopIteration as ended:
            compacted: Compacted = ended.value
            return compacted
        answer = await carry_out(connection, broker_id, table, statement)


async def carry_out(connection: Connection, broker_id: int, table: int, statement: Statement) -> Any:
    """Return the answer to a statement of a broker's compaction, which changes nothing unless the cluster is
    in this `table`.
    """
    if isinstance(statement, RowsReplaced):
        made = [(row[1], row[2], *row[4:6], len(row.data), *row[6:8]) for row in statement.new]
        gone = [(span.last_offset, span.producer_id) for span in statement.gone]
        columns = (*columns_of(statement.old, 3), *columns_of(made, 7), *columns_of(gone, 2))
        return bool(await connection.fetchval(REPLACE, broker_id, *statement.leads, table, *columns))
    if isinstance(statement, CompactedTo):
        return bool(await connection.fetchval(SAVE, broker_id, *statement.leads, table, statement.upto))
    if isinstance(statement, SpansWanted):
        return [AbortedSpan(*row) for row in await connection.fetch(SPANS, *statement)]
    return await read_rows(statement, connection)
