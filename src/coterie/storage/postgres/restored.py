"""A database that was brought back from a backup: it goes on where nobody has been before.

What was decided after the backup is gone from the database, but not from the memory of brokers and clients.
So everything that is counted goes on far ahead of what may have been given out by then, and no broker of
before appends any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import asyncpg

from coterie.base.errors import CoterieError
from coterie.storage.postgres.advice import connected
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.schema import insist_on_schema, read_cluster
from coterie.storage.postgres.serial import COMMAND_LOCK_MS, Connection, transaction

AHEAD = 1_000_000_000
"""More changes of the metadata, and more producer ids, than any cluster makes between backup and restore."""
EPOCHS_AHEAD = 1_000_000
"""The same of leader epochs of one partition, of which there are 2^31."""
MOVE_ON = """
UPDATE coterie.cluster SET version = version + $1, next_producer_id = next_producer_id + $1,
  restoration = gen_random_uuid()
RETURNING version
"""
SHUT_GATES = "DELETE FROM coterie.lanes"
FENCE = "UPDATE coterie.brokers SET state = 'fenced', version = $1"
LEAVE_WITHOUT_LEADER = """
UPDATE coterie.partitions
SET leader = NULL, next_leader = NULL, leader_epoch = leader_epoch + $2, version = $1
"""
# The lock of a broker's membership. Whoever has read the metadata since the backup was brought back has to
# look at the history anew.
MEMBERSHIPS = """
SELECT pid, objid::int FROM pg_locks WHERE locktype = 'advisory' AND classid = 7 AND objsubid = 2 AND granted
  AND objid::int >= 0 AND pid <> pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
END_SESSION = "SELECT pg_terminate_backend($1)"


class Restored(NamedTuple):
    """The cluster, the version of its metadata from now on, how many partitions wait for a leader, and the
    brokers that are connected and could not be cut off.
    """

    cluster_id: str
    version: int
    partitions: int
    connected: tuple[int, ...] = ()


async def go_on_restored(address: DatabaseAddress, *, though_served: bool = False) -> Restored:
    """Have the database be of a history of its own, with epochs that nobody was given before.

    Again, it does the same once more, which does no harm. Raises `CoterieError` where the database cannot be
    reached or refuses, and where brokers are connected, unless it is to be done all the same.
    """
    async with connected(address) as connection:
        cluster = insist_on_schema(await read_cluster(connection), address)
        if not though_served:
            _insist_on_no_brokers(await connection.fetch(MEMBERSHIPS), address)
        async with transaction(connection, lock_timeout=COMMAND_LOCK_MS):
            version, partitions = await _move_on(connection)
        return Restored(cluster.cluster_id, version, partitions, await _cut_off(connection))


def _insist_on_no_brokers(memberships: Sequence[tuple[int, int]], address: DatabaseAddress) -> None:
    """Raise `CoterieError` where brokers are connected: it may not be the database that was meant."""
    brokers = sorted(broker_id for _, broker_id in memberships)
    if brokers:
        ids = ", ".join(map(str, brokers))
        serve, them = (
            (f"broker {ids} serves", "it") if len(brokers) == 1 else (f"brokers {ids} serve", "them")
        )
        raise CoterieError(
            f"{address}: {serve} from this database, so nothing is changed. If it was made of a backup, stop"
            f" {them} and run this again, or run it with --yes: then who serves begins anew, and what clients"
            " remember of later records is void"
        )


async def _move_on(connection: Connection) -> tuple[int, int]:
    """Return the next version of the metadata, and the number of partitions: all are without a leader."""
    version = await connection.fetchval(MOVE_ON, AHEAD)
    await connection.execute(SHUT_GATES)
    await connection.execute(FENCE, version)
    done = await connection.execute(LEAVE_WITHOUT_LEADER, version, EPOCHS_AHEAD)
    return version, int(done.rpartition(" ")[2])


async def _cut_off(connection: Connection) -> tuple[int, ...]:
    """End the sessions by which brokers are members; return the brokers of those that may not be ended."""
    left = []
    for pid, broker_id in await connection.fetch(MEMBERSHIPS):
        try:
            await connection.execute(END_SESSION, pid)
        except asyncpg.InsufficientPrivilegeError:
            left.append(broker_id)
    return tuple(sorted(left))
