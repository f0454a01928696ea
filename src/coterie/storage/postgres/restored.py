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
EPOCH_MAX = 2**31 - 1 - EPOCHS_AHEAD
"""The last that a partition may come to: there are as many elections left then as were left out."""


def mark_of(transaction_id: str) -> str:
    """Return an expression: what a transaction marks the database with, which no other has been.

    Where a row has the mark of its own transaction (xmin), nobody has written it since, and a broker that
    starts does. No copy has that: one by files needs a server that is started, one by CREATE DATABASE is
    another database, and what pg_restore writes is of another transaction.
    """
    return f"""
      left(encode(sha256(convert_to(concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
        (SELECT oid FROM pg_database WHERE datname = current_database()),
        extract(epoch FROM pg_postmaster_start_time()), {transaction_id}), 'UTF8')), 'hex'), 32)::uuid
    """


IS_MARKED = f"""
SELECT version, coalesce(restoration = {mark_of("cluster.xmin")}, false) FROM coterie.cluster FOR UPDATE
"""
MOVE_ON = f"""
UPDATE coterie.cluster SET version = version + $1, next_producer_id = next_producer_id + $1,
  restoration = {mark_of("pg_current_xact_id()::xid")}
RETURNING version
"""
THERE = "topic_id IN (SELECT topic_id FROM coterie.topics WHERE NOT deleted)"
FAR_ALREADY = f"""
SELECT name, number, leader_epoch FROM coterie.partitions JOIN coterie.topics USING (topic_id)
WHERE leader_epoch > $1 AND {THERE} ORDER BY leader_epoch DESC LIMIT 1
"""
SHUT_GATES = "DELETE FROM coterie.lanes"
FENCE = "UPDATE coterie.brokers SET state = 'fenced', version = $1"
LEAVE_WITHOUT_LEADER = f"""
UPDATE coterie.partitions
SET leader = NULL, next_leader = NULL, leader_epoch = leader_epoch + $2, version = $1 WHERE {THERE}
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
    """The cluster, the version of its metadata from now on, how many partitions wait for a leader, the
    brokers that are connected and could not be cut off, and whether anything had to be changed.
    """

    cluster_id: str
    version: int
    partitions: int
    connected: tuple[int, ...] = ()
    changed: bool = True


async def go_on_restored(address: DatabaseAddress, *, though_served: bool = False) -> Restored:
    """Have the database be of a history of its own, with epochs that nobody was given before.

    Where that was done already, and nothing has been written since, it stays as it is. Raises `CoterieError`
    where the database cannot be reached or refuses, where a partition has no epochs left, and where brokers
    are connected, unless it is to be done all the same.
    """
    async with connected(address) as connection:
        cluster = insist_on_schema(await read_cluster(connection), address)
        if not though_served:
            _insist_on_no_brokers(await connection.fetch(MEMBERSHIPS), address)
        async with transaction(connection, lock_timeout=COMMAND_LOCK_MS):
            version, is_marked = await connection.fetchrow(IS_MARKED)
            if is_marked:
                partitions = await connection.fetchval(
                    f"SELECT count(*) FROM coterie.partitions WHERE {THERE}"
                )
            else:
                await _insist_on_epochs(connection, address)
                version, partitions = await _move_on(connection)
        left = await _cut_off(connection)
        return Restored(cluster.cluster_id, version, partitions, left, changed=not is_marked)


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


async def _insist_on_epochs(connection: Connection, address: DatabaseAddress) -> None:
    """Raise `CoterieError` where a partition has come too far to go on ahead. It takes two thousand times."""
    far = await connection.fetchrow(FAR_ALREADY, EPOCH_MAX - EPOCHS_AHEAD)
    if far is not None:
        name, number, epoch = far
        raise CoterieError(
            f"{address}: partition {name}-{number} is in leader epoch {epoch}, and a million later too few"
            f" would be left: {2**31 - 1} is the last. Nothing is changed. Start brokers on the database as"
            f" it is, and all clients anew; copy the records of {name} to another topic, delete {name}"
            " (coterie topics delete), stop the brokers, and run this again"
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
