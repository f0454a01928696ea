"""A database that was brought back from a backup: it goes on where nobody has been before.

What was decided after the backup is gone from the database, but not from the memory of brokers and clients.
So everything that is counted goes on beyond what may have been given out by then, and no broker of before
appends any more. The copy does not know how far that was, nor how often it was brought back before; the clock
of the database's server does. Where that is not later, as when it was set back, all goes on far ahead of the
copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import asyncpg

from coterie.base.errors import CoterieError
from coterie.storage.postgres.advice import connected
from coterie.storage.postgres.connecting import NEXT_PRODUCER_ID, PRODUCER_IDS_BITS, DatabaseAddress
from coterie.storage.postgres.schema import insist_on_schema, read_cluster
from coterie.storage.postgres.serial import COMMAND_LOCK_MS, Connection, transaction

AHEAD = 1_000_000_000
"""More changes of the metadata, and more producer ids, than any cluster makes between backup and restore."""
EPOCHS_AHEAD = 1_000_000
"""The same of leader epochs of one partition, of which there are 2^31."""
EPOCH_MAX = 2**31 - 1 - EPOCHS_AHEAD
"""The last that a partition may come to: there are as many elections left then as were left out."""
EPOCHS_SINCE = 1_577_836_800
"""2020-01-01, in seconds since 1970. Leader epochs, one for each second since then, last until 2088."""
PRODUCER_IDS_A_SECOND = 512
"""So the 2^40 ids of a timeline last as long as the leader epochs do."""


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


CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
IS_MARKED = f"""
SELECT coalesce(restoration = {mark_of("cluster.xmin")}, false), version, {NEXT_PRODUCER_ID}
FROM coterie.cluster FOR UPDATE
"""
MOVE_ON = f"""
UPDATE coterie.cluster SET version = $1, next_producer_id = $2,
  restoration = {mark_of("pg_current_xact_id()::xid")}
"""
THERE = "topic_id IN (SELECT topic_id FROM coterie.topics WHERE NOT deleted)"
FAR_ALREADY = f"""
SELECT name, number, leader_epoch FROM coterie.partitions JOIN coterie.topics USING (topic_id)
WHERE leader_epoch > $1 AND leader_epoch >= $2 AND {THERE} ORDER BY leader_epoch DESC LIMIT 1
"""
SHUT_GATES = "DELETE FROM coterie.lanes"
FENCE = "UPDATE coterie.brokers SET state = 'fenced', version = $1"
LEAVE_WITHOUT_LEADER = f"""
UPDATE coterie.partitions
SET leader = NULL, next_leader = NULL, version = $1,
  leader_epoch = CASE WHEN $2 > leader_epoch THEN $2 ELSE leader_epoch + $3 END
WHERE {THERE}
"""
# The lock of a broker's membership. Whoever has read the metadata since the backup was brought back has to
# look at the history anew.
MEMBERSHIPS = """
SELECT pid, objid::int FROM pg_locks WHERE locktype = 'advisory' AND classid = 7 AND objsubid = 2 AND granted
  AND objid::int >= 0 AND pid <> pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
END_SESSION = "SELECT pg_terminate_backend($1)"


class Counts(NamedTuple):
    """The version of the metadata, the next producer id, and the leader epoch that partitions are in at least
    which are not there yet.
    """

    version: int
    producer_id: int
    epoch: int


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
            is_marked, version, producer_id = await connection.fetchrow(IS_MARKED)
            if is_marked:
                partitions = await connection.fetchval(
                    f"SELECT count(*) FROM coterie.partitions WHERE {THERE}"
                )
            else:
                counts = counts_beyond(version, producer_id, await connection.fetchval(CLOCK))
                await _insist_on_epochs(connection, address, counts.epoch)
                version, partitions = counts.version, await _move_on(connection, counts)
        left = await _cut_off(connection)
        return Restored(cluster.cluster_id, version, partitions, left, changed=not is_marked)


def counts_beyond(version: int, producer_id: int, clock_ms: int) -> Counts:
    """Return the counts by which a copy goes on that has come to this version and producer id, at a time in
    milliseconds since 1970.

    Leader epoch 0 is for a time for which there is none: all partitions are there already.
    """
    seconds = clock_ms // 1000 - EPOCHS_SINCE
    epoch = seconds if 0 < seconds <= EPOCH_MAX else 0
    of_timeline = producer_id >> PRODUCER_IDS_BITS << PRODUCER_IDS_BITS
    by_clock = of_timeline + epoch * PRODUCER_IDS_A_SECOND
    return Counts(
        clock_ms if clock_ms > version else version + AHEAD,
        by_clock if by_clock > producer_id else producer_id + AHEAD,
        epoch,
    )


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


async def _insist_on_epochs(connection: Connection, address: DatabaseAddress, epoch: int) -> None:
    """Raise `CoterieError` where a partition has come too far to go on ahead, and the clock has not."""
    far = await connection.fetchrow(FAR_ALREADY, EPOCH_MAX - EPOCHS_AHEAD, epoch)
    if far is not None:
        name, number, epoch = far
        raise CoterieError(
            f"{address}: partition {name}-{number} is in leader epoch {epoch}, and a million later too few"
            f" would be left: {2**31 - 1} is the last. Nothing is changed. Start brokers on the database as"
            f" it is, and all clients anew; copy the records of {name} to another topic, delete {name}"
            " (coterie topics delete), stop the brokers, and run this again"
        )


async def _move_on(connection: Connection, counts: Counts) -> int:
    """Write where all goes on, and return the number of partitions: all are without a leader."""
    await connection.execute(MOVE_ON, counts.version, counts.producer_id)
    await connection.execute(SHUT_GATES)
    await connection.execute(FENCE, counts.version)
    done = await connection.execute(LEAVE_WITHOUT_LEADER, counts.version, counts.epoch, EPOCHS_AHEAD)
    return int(done.rpartition(" ")[2])


async def _cut_off(connection: Connection) -> tuple[int, ...]:
    """End the sessions by which brokers are members; return the brokers of those that may not be ended."""
    left = []
    for pid, broker_id in await connection.fetch(MEMBERSHIPS):
        try:
            await connection.execute(END_SESSION, pid)
        except asyncpg.InsufficientPrivilegeError:
            left.append(broker_id)
    return tuple(sorted(left))
