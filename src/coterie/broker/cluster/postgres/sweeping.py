"""Deleting the rows of topics that are deleted: by one broker, now and then, once all know that they are."""

from __future__ import annotations

from functools import partial

from coterie.broker.cluster.statements import HeartbeatAnswer
from coterie.storage.postgres.connecting import Connections
from coterie.storage.postgres.deleting import delete_log
from coterie.storage.postgres.serial import Connection, SerialConnection

SWEEP_EVERY = 32
"""So many heartbeats from one sweep to the next, ten seconds by default."""
PARTITIONS_AT_ONCE = 100
# The topic's row stays: its id is never used again.
DELETED = """
SELECT partition_id FROM coterie.topics AS topic JOIN coterie.partitions USING (topic_id)
WHERE topic.deleted AND topic.version <= $1 LIMIT $2
"""
FORGET_PARTITION = "DELETE FROM coterie.partitions WHERE partition_id = $1"


async def sweep(seen: int, connection: Connection) -> int:
    """Delete rows of topics whose deletion every broker has seen; return the number of partitions.

    What was in flight when its broker heard of the deletion may land after that. So a partition is forgotten
    only by a sweep that finds no record of it.
    """
    found = await connection.fetch(DELETED, seen, PARTITIONS_AT_ONCE)
    for (partition_id,) in found:
        if not await delete_log(connection, partition_id):
            await connection.execute(FORGET_PARTITION, partition_id)
    return len(found)


class Sweeper:
    """Sweeps when heartbeats are answered: it is on the broker of the lowest id to do so."""

    def __init__(self, connections: Connections, broker_id: int) -> None:
        self._connections = connections
        self._broker_id = broker_id
        self._heartbeats = 0
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
            self._sweep(min(one.seen for one in answer.brokers))

    def close(self) -> None:
        """Give up the connection; what was under way is done at another time."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _sweep(self, seen: int) -> None:
        self._sweeping = True
        if self._connection is None:
            connection = self._connection = SerialConnection(self._connections)
            connection.open(_nothing, lambda _: None, partial(self._ended, connection))
        self._connection.run(partial(sweep, seen), self._swept)

    def _swept(self, _: int | None) -> None:
        self._sweeping = False

    def _ended(self, connection: SerialConnection) -> None:
        if self._connection is connection:
            self._connection = None


async def _nothing(_: Connection) -> None:
    pass
