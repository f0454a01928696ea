"""Deleting the rows of topics that are deleted: by one broker, now and then, once all know that they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from coterie.broker.cluster.statements import HeartbeatAnswer
from coterie.storage.postgres.connecting import (
    OTHER_HISTORY,
    Connections,
    cluster_in,
    read_history,
    table_of,
)
from coterie.storage.postgres.deleting import delete_log
from coterie.storage.postgres.serial import Connection, SerialConnection

SWEEP_EVERY = 32
"""So many heartbeats from one sweep to the next, ten seconds by default."""
STRAYS_EVERY = 64
"""So many sweeps from one that looks for strays to the next, ten minutes by default."""
PARTITIONS_AT_ONCE = 100
# The topic's row stays: its id is never used again.
DELETED = """
SELECT partition_id FROM coterie.topics AS topic JOIN coterie.partitions USING (topic_id)
WHERE topic.deleted AND topic.version <= $1 LIMIT $2
"""
# From one id to the next by the index of rows, of which there may be millions. A partition has its row before
# anybody can write there.
STRAYS = """
WITH RECURSIVE filled (partition_id) AS (
  (SELECT partition_id FROM coterie.chunks_keep ORDER BY partition_id LIMIT 1)
  UNION ALL
  SELECT (SELECT chunk.partition_id FROM coterie.chunks_keep AS chunk
    WHERE chunk.partition_id > filled.partition_id ORDER BY chunk.partition_id LIMIT 1)
  FROM filled WHERE filled.partition_id IS NOT NULL),
there AS (
  SELECT partition_id FROM filled WHERE partition_id IS NOT NULL
  UNION SELECT partition_id FROM coterie.leader_epochs
  UNION SELECT partition_id FROM coterie.logs
  UNION SELECT partition_id FROM coterie.aborted)
SELECT partition_id FROM there
WHERE NOT EXISTS (SELECT FROM coterie.partitions AS kept WHERE kept.partition_id = there.partition_id)
LIMIT $1
"""
FORGET_PARTITION = f"DELETE FROM coterie.partitions WHERE partition_id = $1 AND {cluster_in('$2')}"


async def sweep(seen: int, table: int, connection: Connection) -> int:
    """Delete rows of topics whose deletion every broker has seen, where the cluster is in this `table`;
    return the number of partitions.

    What was in flight when its broker heard of the deletion may land after that. So a partition is forgotten
    only by a sweep that finds no record of it.
    """
    found = await connection.fetch(DELETED, seen, PARTITIONS_AT_ONCE)
    for (partition_id,) in found:
        if not await delete_log(connection, table, partition_id):
            await connection.execute(FORGET_PARTITION, partition_id, table)
    return len(found)


async def sweep_strays(table: int, connection: Connection) -> int:
    """Delete rows of partitions that are forgotten, as `sweep` does; return the number of these.

    What a lane held while it had no connection, and a leader epoch or a start that is late, may come after
    the sweep that found nothing.
    """
    found = await connection.fetch(STRAYS, PARTITIONS_AT_ONCE)
    for (partition_id,) in found:
        await delete_log(connection, table, partition_id)
    return len(found)


class Sweeper:
    """Sweeps when heartbeats are answered: it is on the broker of the lowest id to do so."""

    def __init__(self, connections: Connections, broker_id: int, *, history: Callable[[], str]) -> None:
        """`history` returns the one that the broker goes by: in a database of another nothing is deleted."""
        self._connections = connections
        self._broker_id = broker_id
        self._history = history
        self._heartbeats = 0
        self._sweeps = 0
        self._connection: SerialConnection | None = None
        self._sweeping = False

    def heartbeat_answered(self, answer: HeartbeatAnswer) -> None:
        """Take note of a heartbeat's answer; sweep if it is time to."""
        first = min((one.broker_id for one in answer.brokers), default=None)
        if first != self._broker_id:
            self.close()
            return
        self._heartbeats += 1
        if self._heartbeats % SWEEP_EVERY == 0 and not self._sweeping:
            self._sweep(min(one.reached for one in answer.brokers))

    def close(self) -> None:
        """Give up the connection; what was under way is done at another time."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _sweep(self, seen: int) -> None:
        self._sweeping = True
        if self._connection is None:
            connection = self._connection = SerialConnection(self._connections, "sweeping")
            connection.open(self._table, lambda _: None, partial(self._ended, connection))
        if self._sweeps % STRAYS_EVERY == 0:
            self._connection.run(partial(self._in_own_tables, sweep_strays), _nothing_follows)
        self._sweeps += 1
        self._connection.run(partial(self._in_own_tables, partial(sweep, seen)), self._swept)

    async def _in_own_tables(
        self, swept: Callable[[int, Connection], Awaitable[int]], connection: Connection
    ) -> int:
        """Have a sweep be in the tables of the history that the broker goes by: others may have taken their
        place since the last one.
        """
        return await swept(await self._table(connection), connection)

    async def _table(self, connection: Connection) -> int:
        """Return the table that has the cluster. Raises `ConnectionError` where the history is another."""
        found = await read_history(connection)
        if found != self._history():
            raise ConnectionError(OTHER_HISTORY)
        return table_of(found)

    def _swept(self, _: int | None) -> None:
        self._sweeping = False

    def _ended(self, connection: SerialConnection) -> None:
        if self._connection is connection:
            self._connection = None


def _nothing_follows(_: int | None) -> None:
    pass
