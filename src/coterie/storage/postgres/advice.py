"""Errors in connecting to the database, as sentences for whoever can put them right."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from coterie.base.errors import CoterieError
from coterie.storage.postgres.blocking import ANYBODYS_LOCK, LockWatch
from coterie.storage.postgres.connecting import (
    LOST,
    MIDWAY,
    Connections,
    DatabaseAddress,
    NoCluster,
    NotRestored,
    connect,
    in_a_line,
)
from coterie.storage.postgres.serial import COMMAND_LOCK_MS, Connection
from coterie.storage.postgres.tls import tls_advice

PASSING = ("08", "25006", "53", "57P")
"""The beginnings of the SQLSTATEs of a server that may take a connection later: it starts, stops, is full."""
PASSWORD_WRONG = ("28P01",)
NOT_LET_IN = ("28000",)
NO_DATABASE = ("3D000",)
NO_PARAMETER = ("42704",)
NOT_PREPARED = ("26000", "42P05")
REFUSED = "nobody listens there; is the address right, and PostgreSQL up?"
SILENT = "no answer comes from there; is the address right, and the network up?"
TO_GRANT = "who looks or dumps needs GRANT coterie_reader, and who loads or restores GRANT coterie_broker"
IN_VAIN = "this has waited in vain for %s; run it again once that is over, or ended by pg_terminate_backend"
TAKES_WRITES = "read-write"  # as the driver names what was looked for
TO_MAKE = "createdb makes one"
IS_AWAY = "it was there before: is another to take its place, or has it been renamed or dropped?"
WAITS = "this broker waits for that"
NO_TABLES = f"has no tables of a cluster: bring the backup back (pg_restore); {WAITS}"
NO_CLUSTER = "has tables, and no cluster in them: have the backup be brought back in all its parts"
NOT_RESTORED = (
    "its tables are those of a backup: run `coterie store restored`; until then this broker serves nothing"
    " (if that was done, start the broker anew)"
)
READ_ONLY = "no server that takes writes: this one is a standby, or has default_transaction_read_only on"
FORGETFUL_POOLER = (
    "a pooler is between that keeps no prepared statements: PgBouncer does from 1.21 on, with"
    " max_prepared_statements above 0, or with pool_mode=session"
)


async def connect_or_say(address: DatabaseAddress) -> Connection:
    """Return a new connection. Raises `CoterieError`: what to put right, or why there is none now."""
    try:
        return await connect(address)
    except LOST as error:
        sentence = what_to_put_right(error) or passing_reason(error)
        raise CoterieError(f"{address}: {sentence}") from error


@asynccontextmanager
async def connected(address: DatabaseAddress) -> AsyncIterator[Connection]:
    """Yield a new connection, which is given up after the block. Raises `CoterieError`, also for what the
    database refuses, or the way to it, within the block. Where that is for a lock it says who keeps it.
    """
    connection = await connect_or_say(address)
    beside = Connections(address, asyncio.get_running_loop())
    locks = LockWatch(beside, says=False)
    try:
        with locks.over(connection):
            await connection.execute(f"SET lock_timeout = {COMMAND_LOCK_MS}")
            yield connection
    except asyncpg.LockNotAvailableError as error:
        waited_for = locks.seen.latest() or ANYBODYS_LOCK
        raise CoterieError(f"{address}: {IN_VAIN % (waited_for,)}") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise CoterieError(f"{address}: {in_a_line(error)}; {TO_GRANT}") from error
    except LOST as error:
        raise CoterieError(f"{address}: {passing_reason(error)}") from error
    finally:
        connection.terminate()
        await beside.close()


def what_to_put_right(error: BaseException, *, was_there: bool = False) -> str:
    """Return the sentence about an error in connecting that stays until somebody does something; "" for one
    that may pass. `was_there`: the database is one that has been used before.
    """
    if advice := tls_advice(error):
        return advice
    if isinstance(error, asyncpg.PostgresError):
        state, said = error.sqlstate or "", in_a_line(error)
        if state in PASSWORD_WRONG:
            return (
                f"{said}; is a password given, and the right one? It comes from the URL"
                " (postgresql://USER:PASSWORD@HOST/DATABASE), from PGPASSWORD, or from the file that"
                " PGPASSFILE names, ~/.pgpass by default"
            )
        if state in NOT_LET_IN:
            return f"{said}; the server's pg_hba.conf and its roles say who is let in"
        if state in NO_PARAMETER:
            return f"{said}; behind the ? stand psql's words, as sslmode, and settings of the server's"
        if state in NO_DATABASE:
            return f"{said}; {IS_AWAY if was_there else TO_MAKE}"
        if state in NOT_PREPARED:
            return FORGETFUL_POOLER
        return "" if state.startswith(PASSING) else said
    return in_a_line(error) if isinstance(error, asyncpg.InterfaceError) else ""


def what_is_lacking(error: BaseException) -> str:
    """Return the sentence about a database that is there, and has not what was there before, as it goes on
    behind "it is reached, but"; "" where an error says nothing of the kind.
    """
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.InvalidSchemaNameError):
        return NO_TABLES
    if isinstance(error, NoCluster):
        return f"{NO_CLUSTER}: {WAITS}"
    if isinstance(error, NotRestored):
        return NOT_RESTORED
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return (
            f"lets no broker go on ({in_a_line(error)}): GRANT coterie_broker TO the user of brokers; {WAITS}"
        )
    return ""


def passing_reason(error: BaseException) -> str:
    """Return why a server takes no connection for now, or cannot be used yet, in a line."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched) and TAKES_WRITES in str(error):
        return READ_ONLY
    if isinstance(error, NoCluster):
        return f"it {NO_CLUSTER}"
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}; is the host's name right?"
    if isinstance(error, TimeoutError) and not error.strerror:
        return SILENT
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.partition("\n")[0]
    if isinstance(error, asyncpg.InternalClientError):
        return MIDWAY
    return in_a_line(error) or type(error).__name__
