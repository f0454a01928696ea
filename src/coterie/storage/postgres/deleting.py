"""Deleting rows of a log, a slice at a time: no statement runs long, and none locks what appends lock."""

from __future__ import annotations

from coterie.storage.postgres.serial import Connection

SLICE_ROWS = 1_000
SLICE_BYTES = 16 << 20
DELETE_SLICE = """
WITH oldest AS (
  SELECT base_offset, size FROM coterie.chunks_keep WHERE partition_id = $1 AND last_offset < $2
  ORDER BY base_offset LIMIT $3),
slice AS (
  SELECT base_offset FROM (
    SELECT base_offset, sum(size) OVER (ORDER BY base_offset) - size AS before FROM oldest) AS summed
  WHERE before < $4)
DELETE FROM coterie.chunks_keep
WHERE partition_id = $1 AND base_offset BETWEEN (SELECT min(base_offset) FROM slice)
  AND (SELECT max(base_offset) FROM slice)
"""
FORGET_LOG = (
    "DELETE FROM coterie.aborted WHERE partition_id = $1",
    "DELETE FROM coterie.leader_epochs WHERE partition_id = $1",
    "DELETE FROM coterie.logs WHERE partition_id = $1",
)
END = (1 << 63) - 1


async def delete_slice(connection: Connection, partition_id: int, before_offset: int = END) -> int:
    """Delete the oldest rows that end before an offset; return their number, 0 once there are none."""
    done = await connection.execute(DELETE_SLICE, partition_id, before_offset, SLICE_ROWS, SLICE_BYTES)
    return int(done.rpartition(" ")[2])


async def delete_log(connection: Connection, partition_id: int) -> int:
    """Delete all rows of a partition that is no more; return the number of those that held records."""
    deleted = 0
    while count := await delete_slice(connection, partition_id):
        deleted += count
    for statement in FORGET_LOG:
        await connection.execute(statement, partition_id)
    return deleted
