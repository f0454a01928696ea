"""The tables in PostgreSQL: made and changed by numbered migrations, each in one transaction; and the roles
that own, write and read them.

Migrations only add, so that software of an earlier one goes on beside them. The first start on a database
without tables makes them; later migrations wait for `coterie store migrate`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.resources import files
from typing import NamedTuple
from uuid import uuid4

import asyncpg

from coterie.base.errors import CoterieError
from coterie.base.ids import uuid_text
from coterie.storage.postgres.advice import connected
from coterie.storage.postgres.connecting import DatabaseAddress, NoCluster, in_a_line
from coterie.storage.postgres.serial import LOCK_TIMEOUT_MS, LOCKED_IDLE_MS

OWNER, BROKER, READER = "coterie_owner", "coterie_broker", "coterie_reader"
NUMBERED = re.compile(r"(\d{4})\.sql")
LOCK = (7, -1)
"""The advisory lock of whoever migrates; a broker's presence is (7, its id)."""
MIGRATED_WITHIN_MS = 60_000
"""So long whoever migrates waits for another who does, as one first start for another."""
RIGHTS = {BROKER: "SELECT, INSERT, UPDATE, DELETE", READER: "SELECT"}
MAY_MAKE_ROLES = "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user"
IS_MEMBER = "SELECT pg_has_role($1, 'MEMBER')"
OWNER_TO_BE = """
SELECT quote_ident(pg_get_userbyid(nspowner)) FROM pg_namespace
WHERE nspname = 'coterie' AND pg_has_role(nspowner, 'MEMBER')
"""
OWNER_OF_TABLES = "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'coterie'"
LACKS_RIGHTS = """
SELECT NOT has_schema_privilege($1::text, 'coterie', 'USAGE') OR EXISTS (
    SELECT FROM pg_class, unnest($2::text[]) AS wanted
    WHERE relnamespace = 'coterie'::regnamespace AND relkind IN ('r', 'p')
    AND NOT has_table_privilege($1::text, pg_class.oid, wanted))
"""
TO_GRANT = (
    "who makes the tables needs GRANT CREATE ON DATABASE, and who changes them"
    f" GRANT {OWNER}; with CREATEROLE the user makes the roles, too"
)
WITHOUT_TABLES = "without a cluster's tables: drop it if nobody needs it, or use another database"
NEW_CLUSTER = "INSERT INTO cluster (cluster_id, schema) VALUES ($1, 0)"


class Migration(NamedTuple):
    """Statements that bring the tables from the schema before to this one."""

    schema: int
    text: str


class Migrated(NamedTuple):
    """What was found and done: the schemas before and after (0: no tables), the cluster's id, and the roles
    that are not there and could not be made.
    """

    before: int
    after: int
    cluster_id: str
    missing_roles: tuple[str, ...] = ()


class StoreCluster(NamedTuple):
    """The row of the cluster: its id, what its brokers may rely on of each other, and its tables' schema."""

    cluster_id: str
    level: int
    schema: int


def migrations() -> tuple[Migration, ...]:
    """Return all migrations, in order."""
    found = []
    for file in (files(__package__) / "migrations").iterdir():
        if match := NUMBERED.fullmatch(file.name):
            found.append(Migration(int(match[1]), file.read_text(encoding="utf-8")))
    return tuple(sorted(found))


class StoreRoles(NamedTuple):
    """The role that owns the tables, None where there are none; and of the roles that there ought to be which
    are missing, and which lack rights in the tables.
    """

    owner: str | None
    missing: tuple[str, ...]
    lacking: tuple[str, ...]


async def make_roles(address: DatabaseAddress) -> tuple[str, ...]:
    """Make the roles that are missing on a server, and return those that this user may not make. Raises
    `CoterieError` where the database cannot be reached or refuses.
    """
    async with connected(address) as connection:
        return await _make_roles(connection)


async def read_roles(connection: asyncpg.Connection) -> StoreRoles:
    """Return the tables' owner, and what the roles lack."""
    there = {row[0] for row in await connection.fetch("SELECT rolname FROM pg_roles")}
    owner = await connection.fetchval(OWNER_OF_TABLES)
    lacking = [
        role
        for role, rights in RIGHTS.items()
        if owner is not None
        and role in there
        and await connection.fetchval(LACKS_RIGHTS, role, rights.split(", "))
    ]
    missing = (role for role in (OWNER, BROKER, READER) if role not in there)
    return StoreRoles(owner, tuple(missing), tuple(lacking))


async def migrate(address: DatabaseAddress, *, only_if_empty: bool = False) -> Migrated:
    """Bring a database's tables to the newest schema; where there are none, make them and the roles.

    `only_if_empty`: leave tables that are there as they are. Raises `CoterieError` where the database cannot
    be reached or refuses.
    """
    async with connected(address) as connection:
        return await migrate_over(connection, address, only_if_empty=only_if_empty)


async def migrate_over(
    connection: asyncpg.Connection, address: DatabaseAddress, *, only_if_empty: bool
) -> Migrated:
    """Do the same over a connection, which is of no other use then. Raises one of `LOST`, too."""
    try:
        return await _migrate(connection, only_if_empty=only_if_empty)
    except asyncpg.InsufficientPrivilegeError as error:
        raise CoterieError(f"{address}: {in_a_line(error)}; {TO_GRANT}") from error
    except asyncpg.DuplicateSchemaError as error:
        raise CoterieError(f"{address}: {in_a_line(error)}, {WITHOUT_TABLES}") from error


async def read_cluster(connection: asyncpg.Connection) -> StoreCluster | None:
    """Return the row of the cluster; None if the database has no tables of ours. Raises `NoCluster`."""
    if await connection.fetchval("SELECT to_regclass('coterie.cluster')") is None:
        return None
    row = await connection.fetchrow("SELECT cluster_id, level, schema FROM coterie.cluster")
    if row is None:
        raise NoCluster
    return StoreCluster(*row)


def insist_on_schema(cluster: StoreCluster | None, address: DatabaseAddress) -> StoreCluster:
    """Return the cluster, if its tables are what this software needs. Raises `CoterieError`."""
    needed = migrations()[-1].schema
    if cluster is None:
        raise CoterieError(f"{address} has no tables of a cluster: coterie store migrate makes them")
    if cluster.schema < needed:
        raise CoterieError(
            f"{address} has tables of schema {cluster.schema}, and this software needs {needed}:"
            " run coterie store migrate, which leaves brokers running"
        )
    return cluster


async def _migrate(connection: asyncpg.Connection, *, only_if_empty: bool) -> Migrated:
    await connection.execute(f"SET idle_in_transaction_session_timeout = {LOCKED_IDLE_MS}")
    await connection.execute(f"SET lock_timeout = {MIGRATED_WITHIN_MS}")
    await connection.execute("SELECT pg_advisory_lock($1, $2)", *LOCK)  # two first starts at once
    await connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
    cluster = await read_cluster(connection)
    before = 0 if cluster is None else cluster.schema
    if cluster is not None and only_if_empty:
        return Migrated(before, before, cluster.cluster_id)
    missing = await _make_roles(connection)
    if before:
        for migration in migrations():
            if migration.schema > before:
                await _carry_out(connection, migration, missing)
        await _give_rights(connection, missing)
    else:  # at once: who starts meanwhile sees no tables, or those of the newest schema
        async with connection.transaction():
            for migration in migrations():
                await _carry_out(connection, migration, missing)
            await _give_rights(connection, missing)
    cluster = await read_cluster(connection)
    assert cluster is not None
    return Migrated(before, cluster.schema, cluster.cluster_id, missing)


async def _make_roles(connection: asyncpg.Connection) -> tuple[str, ...]:
    """Make the roles that are missing, if that is allowed; return those that are missing still."""
    there = {row[0] for row in await connection.fetch("SELECT rolname FROM pg_roles")}
    missing = tuple(role for role in (OWNER, BROKER, READER) if role not in there)
    if not await connection.fetchval(MAY_MAKE_ROLES):
        return missing
    for role in missing:
        await _make_role(connection, role)
    return ()


async def _make_role(connection: asyncpg.Connection, role: str) -> None:
    """Make a role, of which this user is a member. Roles are the server's, while whoever migrates locks the
    database: the first start of another cluster may be faster, and be another user's.
    """
    with suppress(asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
        await connection.execute(f"CREATE ROLE {role} NOLOGIN")
    with suppress(asyncpg.InsufficientPrivilegeError, asyncpg.UniqueViolationError):
        await connection.execute(f"GRANT {role} TO CURRENT_USER")


async def _carry_out(connection: asyncpg.Connection, migration: Migration, missing: tuple[str, ...]) -> None:
    """Run one migration, as the owner of the tables where that can be."""
    async with connection.transaction():
        if migration.schema == 1:
            owned = OWNER not in missing and await connection.fetchval(IS_MEMBER, OWNER)
            owner = OWNER if owned else "CURRENT_USER"
            await connection.execute(f"CREATE SCHEMA coterie AUTHORIZATION {owner}")
        await _act_as_owner(connection)
        await connection.execute("SET LOCAL search_path = coterie")
        await connection.execute(migration.text)
        if migration.schema == 1:
            await connection.execute(NEW_CLUSTER, uuid_text(uuid4()))
        await connection.execute("UPDATE cluster SET schema = $1", migration.schema)


async def _give_rights(connection: asyncpg.Connection, missing: tuple[str, ...]) -> None:
    """Let brokers and readers use the tables, where they may not yet: those of a migration are new, and a
    role that this user could not make may have been made by another since.
    """
    for role, rights in RIGHTS.items():
        if role in missing or not await connection.fetchval(LACKS_RIGHTS, role, rights.split(", ")):
            continue
        async with connection.transaction():
            await _act_as_owner(connection)
            await connection.execute(f"GRANT USAGE ON SCHEMA coterie TO {role}")
            await connection.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA coterie TO {role}")


async def _act_as_owner(connection: asyncpg.Connection) -> None:
    """Be the tables' owner until the transaction ends, where that is another role of which this user is a
    member. Tables that were made before there was one of ours belong to who made them.
    """
    if owner := await connection.fetchval(OWNER_TO_BE):
        await connection.execute(f"SET LOCAL ROLE {owner}")
