"""What a broker does with a database before it serves: wait for it, make tables if there are none, and see
whether it may use them. What somebody has to put right is said in a sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import asyncpg

from coterie.base.errors import CoterieError
from coterie.storage.postgres.advice import passing_reason, what_to_put_right
from coterie.storage.postgres.connecting import LOST, DatabaseAddress, connect, read_history
from coterie.storage.postgres.facts import StoreFacts, facts_of
from coterie.storage.postgres.pooling import insist_on_statements
from coterie.storage.postgres.schema import BROKER, insist_on_schema, migrate, read_cluster
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


class OpenedStore(NamedTuple):
    """A database that a broker may use, and the history that it is of."""

    facts: StoreFacts
    cluster_id: str
    history: str


async def open_store(address: DatabaseAddress, *, waiting: Callable[[str], object]) -> OpenedStore:
    """Return the database once it is there, with tables. `waiting` is called with a reason, each time that it
    is another one, while it is not. Raises `CoterieError` where waiting would not help.
    """

    async def look(connection: Connection) -> OpenedStore:
        try:
            return await _look(connection, address)
        except asyncpg.InsufficientPrivilegeError as error:
            raise CoterieError(f"{address}: {error}; GRANT {BROKER} TO the user of brokers") from error

    return await _once_there(address, waiting, look)


async def history_of(address: DatabaseAddress, *, waiting: Callable[[str], object]) -> str:
    """Return the history of a database, once it is there; "" if it has no tables. Raises `CoterieError`."""

    async def look(connection: Connection) -> str:
        return "" if await read_cluster(connection) is None else await read_history(connection)

    return await _once_there(address, waiting, look)


async def _once_there(address: DatabaseAddress, waiting: Callable[[str], object], look: Job[T]) -> T:
    """Return the result of a look at a database, once there is a connection that lasts until then."""
    said = ""
    while True:
        try:
            return await _seen(address, look)
        except LOST as error:
            if sentence := what_to_put_right(error):
                raise CoterieError(f"{address}: {sentence}") from error
            reason = passing_reason(error)
        if reason != said:
            said = reason
            waiting(reason)
        await asyncio.sleep(AGAIN_AFTER_S)


async def _seen(address: DatabaseAddress, look: Job[T]) -> T:
    connection = await connect(address)
    try:
        return await look(connection)
    finally:
        connection.terminate()


async def _look(connection: Connection, address: DatabaseAddress) -> OpenedStore:
    """Return the database that a connection leads to, with its tables made if there were none."""
    await insist_on_statements(connection, address)
    if await read_cluster(connection) is None:
        if not await connection.fetchval(MAY_CREATE):
            user = await connection.fetchval(USER)
            raise CoterieError(
                f"{address} has no tables of a cluster, and {user} may not make them:"
                " run coterie store migrate as a user who may"
            )
        await migrate(address, only_if_empty=True)
    cluster = insist_on_schema(await read_cluster(connection), address)
    if not await connection.fetchval(MAY_WRITE):
        user = await connection.fetchval(USER)
        raise CoterieError(f"{address}: {user} may not write the tables: GRANT {BROKER} TO {user}")
    return OpenedStore(await facts_of(connection), cluster.cluster_id, await read_history(connection))
