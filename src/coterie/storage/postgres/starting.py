"""What a broker does with a database before it serves: wait for it, make tables if there are none, and see
whether it may use them. What somebody has to put right is said in a sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import asyncpg

from coterie.base.errors import CoterieError
from coterie.storage.postgres.advice import passing_reason, what_to_put_right
from coterie.storage.postgres.blocking import LockWatch
from coterie.storage.postgres.connecting import (
    CONNECTIONS_NEEDED,
    LOST,
    Connections,
    DatabaseAddress,
    connect,
    in_a_line,
    read_history,
)
from coterie.storage.postgres.facts import StoreFacts, facts_of
from coterie.storage.postgres.pooling import insist_on_session, insist_on_statements, is_between
from coterie.storage.postgres.schema import BROKER, insist_on_schema, migrate_over, read_cluster
from coterie.storage.postgres.serial import Connection, Job, T

AGAIN_AFTER_S = 0.5
MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE')"
MAY_WRITE = """
SELECT has_schema_privilege('coterie', 'USAGE')
  AND has_table_privilege('coterie.lanes', 'UPDATE')
  AND has_table_privilege('coterie.chunks_keep', 'INSERT')
  AND has_table_privilege('coterie.brokers', 'DELETE')
"""
USER = "SELECT current_user"
# Of role and database -1 is none, and neither counts for a superuser.
CONNECTIONS_ALLOWED = """
SELECT session_user, current_database(), CASE WHEN rolsuper THEN -1 ELSE rolconnlimit END,
  CASE WHEN rolsuper THEN -1 ELSE datconnlimit END,
  current_setting('max_connections')::int - CASE WHEN rolsuper THEN 0 ELSE
    current_setting('superuser_reserved_connections')::int
    + coalesce(current_setting('reserved_connections', true)::int, 0) END
FROM pg_roles, pg_database WHERE rolname = session_user AND datname = current_database()
"""


class OpenedStore(NamedTuple):
    """A database that a broker may use, and the history that it is of."""

    facts: StoreFacts
    cluster_id: str
    history: str


async def open_store(address: DatabaseAddress, *, waiting: Callable[[str], object]) -> OpenedStore:
    """Return the database once it is there, with tables. `waiting` is called with a reason, each time that it
    is another one, while it is not. Raises `CoterieError` where waiting would not help.
    """

    async def look(connection: Connection) -> OpenedStore | None:
        try:
            return await _look(connection, address)
        except asyncpg.InsufficientPrivilegeError as error:
            raise CoterieError(
                f"{address}: {in_a_line(error)}; GRANT {BROKER} TO the user of brokers"
            ) from error

    while (opened := await _once_there(address, waiting, look)) is None:
        await _once_there(address, waiting, partial(migrate_over, address=address, only_if_empty=True))
    return opened


async def history_of(address: DatabaseAddress, *, waiting: Callable[[str], object]) -> str:
    """Return the history of a database, once it is there; "" if it has no tables. Raises `CoterieError`."""

    async def look(connection: Connection) -> str:
        return "" if await read_cluster(connection) is None else await read_history(connection)

    return await _once_there(address, waiting, look)


async def see_session_kept(address: DatabaseAddress, *, waiting: Callable[[str], object]) -> None:
    """Return once it is known that a membership may go by an address. Raises `CoterieError` where a pooler is
    between that keeps no sessions.
    """
    await _once_there(address, waiting, partial(insist_on_session, address=address))


async def _once_there(address: DatabaseAddress, waiting: Callable[[str], object], look: Job[T]) -> T:
    """Return the result of a look at a database, once there is a connection that lasts until then. Who keeps
    a lock that the look waits for is said in the log.
    """
    said = ""
    beside = Connections(address, asyncio.get_running_loop())
    locks = LockWatch(beside)

    async def watched(connection: Connection) -> T:
        with locks.over(connection):
            return await look(connection)

    try:
        while True:
            try:
                return await _seen(address, watched)
            except LOST as error:
                is_locked = isinstance(error, asyncpg.LockNotAvailableError)
                if not is_locked and (sentence := what_to_put_right(error)):
                    raise CoterieError(f"{address}: {sentence}") from error
                # Who keeps a lock was seen, and said, meanwhile.
                reason = said if is_locked and locks.wait else passing_reason(error)
            if reason != said:
                said = reason
                waiting(reason)
            await asyncio.sleep(AGAIN_AFTER_S)
    finally:
        await beside.close()


async def _seen(address: DatabaseAddress, look: Job[T]) -> T:
    connection = await connect(address)
    try:
        return await look(connection)
    finally:
        connection.terminate()


async def _look(connection: Connection, address: DatabaseAddress) -> OpenedStore | None:
    """Return the database that a connection leads to; None where it has no tables, and they may be made."""
    if await is_between(connection):
        await insist_on_statements(connection, address)
    else:
        await _insist_on_connections(connection, address)
    if await read_cluster(connection) is None:
        if not await connection.fetchval(MAY_CREATE):
            user = await connection.fetchval(USER)
            raise CoterieError(
                f"{address} has no tables of a cluster, and {user} may not make them:"
                " run coterie store migrate as a user who may"
            )
        return None
    cluster = insist_on_schema(await read_cluster(connection), address)
    if not await connection.fetchval(MAY_WRITE):
        user = await connection.fetchval(USER)
        raise CoterieError(f"{address}: {user} may not write the tables: GRANT {BROKER} TO {user}")
    return OpenedStore(await facts_of(connection), cluster.cluster_id, await read_history(connection))


async def _insist_on_connections(connection: Connection, address: DatabaseAddress) -> None:
    """Raise `CoterieError` where not even one broker could have the connections that it needs. Whether there
    are enough for several shows when they connect.
    """
    user, database, of_role, of_database, of_server = await connection.fetchrow(CONNECTIONS_ALLOWED)
    for allowed, whose, remedy in (
        (of_role, f"the role {user} may have", f"ALTER ROLE {user} CONNECTION LIMIT"),
        (of_database, f"the database {database} takes", f"ALTER DATABASE {database} CONNECTION LIMIT"),
        (of_server, "the server takes", "max_connections"),
    ):
        if 0 <= allowed < CONNECTIONS_NEEDED:
            raise CoterieError(
                f"{address}: {whose} {allowed} connections at once, and each broker needs"
                f" {CONNECTIONS_NEEDED}: {remedy} raises it"
            )
