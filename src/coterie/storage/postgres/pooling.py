"""Poolers between a broker and its database: what one has to keep for its clients, and whether it does.

A pooler that gives a connection of the server's to each transaction anew keeps prepared statements, or does
not; lanes need these alone. A broker's membership needs the session: what it listens to, and its lock.
Neither can be asked. So a second client takes the server's connection that the first has just used, and the
first goes on with another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from coterie.base.errors import CoterieError
from coterie.storage.postgres.connecting import DatabaseAddress, connect
from coterie.storage.postgres.serial import Connection

HELD_S = 2.0
"""So long the second client keeps the server's connection: there may be one alone, for which the first waits.
"""
# A pooler gives its clients process ids of its own. Neither statement is one that the server prepares.
SAME_PROCESS = "DO $$ BEGIN ASSERT pg_backend_pid() = {}; END $$"
MARK = "SELECT set_config('coterie.kept', 'yes', false)"
SAME_SESSION = "DO $$ BEGIN ASSERT current_setting('coterie.kept', true) = 'yes'; END $$"


async def is_between(connection: Connection) -> bool:
    """Return whether a connection leads to a pooler, and not to the server itself."""
    return not await _holds(connection, SAME_PROCESS.format(connection.get_server_pid()))


async def insist_on_statements(connection: Connection, address: DatabaseAddress) -> None:
    """Have a pooler that is between show that it keeps what a client has prepared. Raises one of `LOST`; of
    those that are `NOT_PREPARED` where it does not.
    """
    statement = await connection.prepare("SELECT 1")
    await statement.fetch()  # until then nobody else gets the connection that it was prepared on
    async with _taken(address):
        await statement.fetch()


async def insist_on_session(connection: Connection, address: DatabaseAddress) -> None:
    """Raise `CoterieError` where a pooler is between that gives transactions to one session after another;
    one of `LOST` where that does not show now.
    """
    if not await is_between(connection):
        return
    await connection.execute(MARK)
    async with _taken(address):
        kept = await _holds(connection, SAME_SESSION)
    if not kept:
        raise CoterieError(
            f"{address} is a pooler that keeps no sessions, by which a broker is a member: give the server's"
            " own address as well, with --store-direct"
        )


async def _holds(connection: Connection, assertion: str) -> bool:
    try:
        await connection.execute(assertion)
    except asyncpg.AssertError:
        return False
    return True


@asynccontextmanager
async def _taken(address: DatabaseAddress) -> AsyncIterator[None]:
    """Have another client hold the connection of the server's that was used last, for a while at most."""
    other = await connect(address)
    await other.execute("BEGIN")
    release = asyncio.get_running_loop().call_later(HELD_S, other.terminate)
    try:
        yield
    finally:
        release.cancel()
        other.terminate()
