"""Whole logs into PostgreSQL's tables, and out of them: a row at a time, in the transaction of the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.postgres.reading import COLUMNS, ENDS_OF_WANTED
from coterie.storage.postgres.serial import Connection
from coterie.storage.remote.chunk import Chunk

ROWS_AT_ONCE = 16
CHUNK_COLUMNS = (
    "partition_id",
    "base_offset",
    "last_offset",
    "leader_epoch",
    "max_timestamp",
    "batches",
    "size",
    "heads",
    "data",
)
NEW_IDS = """
UPDATE coterie.cluster SET next_partition_id = next_partition_id + $1 RETURNING next_partition_id - $1
"""
ENDS = f"""
SELECT {ENDS_OF_WANTED}
FROM (SELECT $1::int AS partition_id) AS wanted LEFT JOIN coterie.logs AS log USING (partition_id)
"""
EPOCHS = "SELECT epoch, start_offset FROM coterie.leader_epochs WHERE partition_id = $1 ORDER BY epoch"
CHUNKS = f"""
SELECT {COLUMNS}
FROM coterie.chunks_keep WHERE partition_id = $1 AND last_offset >= $2 ORDER BY base_offset
"""
PLACES = """
SELECT partition_id FROM coterie.partitions JOIN coterie.topics USING (topic_id)
WHERE NOT deleted AND name = $1 ORDER BY number
"""


class LogPlace(NamedTuple):
    """A partition's log but for its records: where it starts and goes on, and its leader epochs."""

    partition_id: int
    start_offset: int
    end_offset: int
    epochs: Sequence[tuple[int, int]]


async def reserve_partition_ids(connection: Connection, count: int) -> int:
    """Return the first of so many ids that no partition has or gets."""
    first: int = await connection.fetchval(NEW_IDS, count)
    return first


async def copy_in(
    connection: Connection, log: LogPlace, chunks: Iterable[Chunk], aborted: Iterable[AbortedSpan]
) -> None:
    """Write a log of a partition that nobody leads yet. Raises one of `LOST`, and what `chunks` raises."""
    await _insert(connection, "chunks_keep", CHUNK_COLUMNS, map(_row, chunks))
    await _insert(
        connection,
        "aborted",
        ("partition_id", "last_offset", "producer_id", "first_offset", "stable"),
        (
            (log.partition_id, span.last_offset, span.producer_id, span.first_offset, span.last_stable_offset)
            for span in aborted
        ),
    )
    await _insert(
        connection,
        "leader_epochs",
        ("partition_id", "epoch", "start_offset"),
        ((log.partition_id, epoch, start) for epoch, start in log.epochs),
    )
    await _insert(connection, "logs", ("partition_id", "start_offset", "end_floor"), [tuple(log[:3])])


async def _insert(
    connection: Connection, table: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> None:
    await connection.copy_records_to_table(table, schema_name="coterie", columns=columns, records=rows)


def _row(chunk: Chunk) -> tuple[Any, ...]:
    return (*chunk[:6], len(chunk.data), *chunk[6:8])


async def partition_ids(connection: Connection, topic: str) -> list[int]:
    """Return the ids of a topic's partitions, in their order; none if there is no such topic."""
    return [row[0] for row in await connection.fetch(PLACES, topic)]


async def read_place(connection: Connection, partition_id: int) -> LogPlace:
    """Return a log but for its records."""
    start_offset, end_offset = await connection.fetchrow(ENDS, partition_id)
    epochs = await connection.fetch(EPOCHS, partition_id)
    return LogPlace(partition_id, start_offset, end_offset, [tuple(row) for row in epochs])


async def read_chunks(connection: Connection, log: LogPlace) -> AsyncIterator[Chunk]:
    """Yield the rows of a log from the one that holds its start on, a few at a time."""
    cursor = await connection.cursor(CHUNKS, log.partition_id, log.start_offset)
    while rows := await cursor.fetch(ROWS_AT_ONCE):
        for row in rows:
            yield Chunk(*row)
