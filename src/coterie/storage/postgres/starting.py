"""What a broker does with a database before it serves: wait for it, make tables if there are none, and see
whether it may use them. What somebody has to put right is said in a sentence.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import NamedTuple

import asyncpg

from coterie.base.errors import CoterieError
from coterie.storage.postgres.connecting import LOST, DatabaseAddress, connect, read_history
from coterie.storage.postgres.facts import StoreFacts, facts_of
from coterie.storage.postgres.schema import BROKER, insist_on_schema, migrate, read_cluster

AGAIN_AFTER_S = 0.5
PASSING = ("08", "25006", "53", "57P")
"""The beginnings of the SQLSTATEs of a server that may take a connection later: it starts, stops, is full."""
PASSWORD_WRONG = ("28P01",)
NOT_LET_IN = ("28000",)
NO_DATABASE = ("3D000",)
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
    connection = await _connect_in_time(address, waiting)
    try:
        return await _look(connection, address)
    except asyncpg.InsufficientPrivilegeError as error:
        raise CoterieError(f"{address}: {error}; GRANT {BROKER} TO the user of brokers") from error
    except LOST as error:
        raise CoterieError(f"{address}: {error or type(error).__name__}") from error
    finally:
        connection.terminate()


async def history_of(address: DatabaseAddress, *, waiting: Callable[[str], object]) -> str:
    """Return the history of a database, once it is there; "" if it has no tables. Raises `CoterieError`."""
    connection = await _connect_in_time(address, waiting)
    try:
        return "" if await read_cluster(connection) is None else await read_history(connection)
    except LOST as error:
        raise CoterieError(f"{address}: {error or type(error).__name__}") from error
    finally:
        connection.terminate()


async def _connect_in_time(address: DatabaseAddress, waiting: Callable[[str], object]) -> asyncpg.Connection:
    said = ""
    while True:
        try:
            return await connect(address)
        except LOST as error:
            if sentence := what_to_put_right(error):
                raise CoterieError(f"{address}: {sentence}") from error
            reason = _reason(error)
        if reason != said:
            said = reason
            waiting(reason)
        await asyncio.sleep(AGAIN_AFTER_S)


def what_to_put_right(error: BaseException) -> str:
    """Return the sentence about an error in connecting that stays until somebody does something; "" for one
    that may pass.
    """
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if state in PASSWORD_WRONG:
            return (
                f"{error}; the password comes from the URL, from PGPASSWORD, or from the file that"
                " PGPASSFILE names, ~/.pgpass by default"
            )
        if state in NOT_LET_IN:
            return f"{error}; the server's pg_hba.conf and its roles say who is let in"
        if state in NO_DATABASE:
            return f"{error}; createdb makes one"
        return "" if state.startswith(PASSING) else str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message}; the URL's sslrootcert names whose certificates are trusted"
    if isinstance(error, ConnectionError) and "rejected SSL" in str(error):
        return "the server does not encrypt; sslmode=disable in the URL goes without, where the way is safe"
    if isinstance(error, asyncpg.InterfaceError):
        return str(error)
    return ""


def _reason(error: BaseException) -> str:
    """Return why a server takes no connection for now, in a line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.partition("\n")[0]
    return (str(error) or type(error).__name__).partition("\n")[0]


async def _look(connection: asyncpg.Connection, address: DatabaseAddress) -> OpenedStore:
    """Return the database that a connection leads to, with its tables made if there were none."""
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
