"""Deleting rows of a log, a slice at a time: no statement runs long, and none locks what appends lock."""

from __future__ import annotations

from itertools import starmap

from coterie.storage.postgres.connecting import cluster_in, table_of, within_ms
from coterie.storage.postgres.serial import ROWS_LOCK_MS, Connection
from coterie.storage.remote.reading import DeletedRow, RetainedLog, RetentionWanted, SizeWanted, StoredSize

SLICE_ROWS = 1_000
SLICE_BYTES = 16 << 20
DELETE_SLICE = f"""
WITH oldest AS (
  SELECT base_offset, size FROM coterie.chunks_keep WHERE partition_id = $1 AND last_offset < $2
  ORDER BY base_offset LIMIT $3),
slice AS (
  SELECT base_offset FROM (
    SELECT base_offset, sum(size) OVER (ORDER BY base_offset) - size AS before FROM oldest) AS summed
  WHERE before < $4)
DELETE FROM coterie.chunks_keep
WHERE partition_id = $1 AND base_offset BETWEEN (SELECT min(base_offset) FROM slice)
  AND (SELECT max(base_offset) FROM slice) AND {cluster_in("$5")}
RETURNING last_offset, size
"""
FORGET_LOG = (
    f"DELETE FROM coterie.aborted WHERE partition_id = $1 AND {cluster_in('$2')}",
    f"DELETE FROM coterie.leader_epochs WHERE partition_id = $1 AND {cluster_in('$2')}",
    f"DELETE FROM coterie.logs WHERE partition_id = $1 AND {cluster_in('$2')}",
)
END = (1 << 63) - 1
# Where a log starts it goes on at the earliest, before any row goes that has said so.
START = f"""
WITH raised AS (
  UPDATE coterie.logs SET end_floor = start_offset
  WHERE partition_id = $1 AND end_floor < start_offset AND {cluster_in("$2")})
SELECT start_offset FROM coterie.logs WHERE partition_id = $1
"""
# The rows themselves are small: what is large of them lies beside the table, and is not read.
MEASURE = """
SELECT coalesce(sum(size) FILTER (WHERE last_offset < $3), 0)::bigint,
  coalesce(sum(size) FILTER (WHERE last_offset < $4), 0)::bigint,
  coalesce((SELECT heads FROM coterie.chunks_keep
    WHERE partition_id = $1 AND base_offset < $3 AND last_offset >= $3 ORDER BY base_offset DESC LIMIT 1), '')
FROM coterie.chunks_keep WHERE partition_id = $1 AND last_offset >= $2 AND base_offset < greatest($3, $4)
"""
FORGET_ABORTED = f"""
DELETE FROM coterie.aborted WHERE partition_id = $1 AND last_offset < $2 AND {cluster_in("$3")}
"""
# A row without a time is kept as if it were young, as are all behind it. The partition's row is locked as a
# lane's gate is: who gives it another leader waits for this, or this for them, and sees their leader epoch.
RETAIN = f"""
WITH {within_ms(ROWS_LOCK_MS)},
led AS MATERIALIZED (
  SELECT leader_epoch FROM patience, coterie.partitions WHERE partition_id = $1 FOR SHARE OF partitions),
oldest AS (
  SELECT base_offset, last_offset, max_timestamp, sum(size) OVER (ORDER BY base_offset) AS upto FROM (
    SELECT base_offset, last_offset, max_timestamp, size FROM coterie.chunks_keep, patience
    WHERE partition_id = $1 AND last_offset >= $3 AND base_offset < $4
    ORDER BY base_offset LIMIT $7 + 1) AS following),
kept AS (
  SELECT base_offset, max_timestamp FROM oldest
  WHERE NOT (max_timestamp >= 0 AND max_timestamp < $5) AND upto > $6 ORDER BY base_offset LIMIT 1),
start AS (
  SELECT max(last_offset) + 1 AS start_offset FROM oldest
  WHERE base_offset < coalesce((SELECT base_offset FROM kept), {END}) AND {cluster_in("$8")}
    AND NOT EXISTS (SELECT FROM led WHERE leader_epoch > $2)
    AND NOT EXISTS (SELECT FROM coterie.leader_epochs WHERE partition_id = $1 AND epoch > $2)),
moved AS (
  INSERT INTO coterie.logs AS there (partition_id, start_offset, end_floor)
  SELECT $1, start_offset, start_offset FROM start WHERE start_offset IS NOT NULL
  ON CONFLICT (partition_id) DO UPDATE SET start_offset = greatest(there.start_offset, excluded.start_offset),
    end_floor = greatest(there.end_floor, excluded.end_floor))
SELECT coalesce((SELECT start_offset FROM start), $3), (SELECT max_timestamp FROM kept)
"""


async def delete_slice(
    connection: Connection, table: int, partition_id: int, before_offset: int = END
) -> int:
    """Delete the oldest rows that end before an offset, where the cluster is in this `table`; return their
    number, 0 once there are none.
    """
    return len(await _delete_slice(connection, table, partition_id, before_offset))


async def _delete_slice(
    connection: Connection, table: int, partition_id: int, before_offset: int
) -> list[DeletedRow]:
    terms = (partition_id, before_offset, SLICE_ROWS, SLICE_BYTES, table)
    return [*starmap(DeletedRow, await connection.fetch(DELETE_SLICE, *terms))]


async def retain(wanted: RetentionWanted, history: str, connection: Connection) -> RetainedLog:
    """Have a log start behind rows that it need not keep, unless a later leader epoch has begun, or the
    tables are not those of this history.
    """
    start, oldest_ms = await connection.fetchrow(RETAIN, *wanted, SLICE_ROWS, table_of(history))
    return RetainedLog(start, oldest_ms)


async def delete_rows(
    partition_id: int, before_offset: int, history: str, connection: Connection
) -> list[DeletedRow]:
    """Delete a slice of the rows that end before an offset, and before where the log starts by its row, in
    tables of this history; return them.
    """
    table = table_of(history)
    start = await connection.fetchval(START, partition_id, table)
    before_offset = min(before_offset, start or 0)
    await connection.execute(FORGET_ABORTED, partition_id, before_offset, table)
    return await _delete_slice(connection, table, partition_id, before_offset)


async def measure(wanted: SizeWanted, connection: Connection) -> StoredSize:
    """Return the size of a log."""
    return StoredSize(*await connection.fetchrow(MEASURE, *wanted))


async def delete_log(connection: Connection, table: int, partition_id: int) -> int:
    """Delete all rows of a partition that is no more, where the cluster is in this `table`; return the number
    of those that held records.
    """
    deleted = 0
    while count := await delete_slice(connection, table, partition_id):
        deleted += count
    for statement in FORGET_LOG:
        await connection.execute(statement, partition_id, table)
    return deleted
