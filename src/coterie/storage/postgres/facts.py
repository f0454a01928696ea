"""What can be seen of a database that is a store: its tables, and how much it promises."""

from __future__ import annotations

from typing import NamedTuple

import asyncpg

from coterie.storage.postgres.advice import connected
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.schema import StoreCluster, StoreRoles, read_cluster, read_roles

SETTINGS = """
SELECT current_setting('server_version'), current_setting('fsync') = 'on',
  current_setting('synchronous_commit'), current_setting('synchronous_standby_names')
"""
VERSION = "SELECT version FROM coterie.cluster"
WAITS_FOR_STANDBY = ("on", "remote_write", "remote_apply")


class StoreFacts(NamedTuple):
    """The server's version and settings, and the cluster whose tables it has; None if it has none."""

    server_version: str
    fsync: bool
    synchronous_commit: str
    synchronous_standbys: str
    cluster: StoreCluster | None
    metadata_version: int

    @property
    def durability(self) -> str:
        """What becomes of an acknowledged record, in a sentence."""
        if not self.fsync:
            return "none: fsync is off, so a crash of the machine may lose or damage everything"
        if self.synchronous_commit == "off":
            return "weak: synchronous_commit is off, so a crash loses what was acknowledged last"
        if not self.synchronous_standbys or self.synchronous_commit not in WAITS_FOR_STANDBY:
            return "one server: a crash loses nothing, a failover to a standby may lose what was acknowledged"
        return f"with standbys: what is acknowledged is on {self.synchronous_standbys}, too"


async def read_facts(address: DatabaseAddress) -> tuple[StoreFacts, StoreRoles]:
    """Return the facts of a database, and its roles. Raises `CoterieError` where it cannot be reached."""
    async with connected(address) as connection:
        return await facts_of(connection), await read_roles(connection)


async def facts_of(connection: asyncpg.Connection) -> StoreFacts:
    """Return the facts of the database that a connection leads to. Raises one of `LOST`."""
    server_version, fsync, commit, standbys = await connection.fetchrow(SETTINGS)
    cluster = await read_cluster(connection)
    version = 0 if cluster is None else await connection.fetchval(VERSION)
    return StoreFacts(server_version, fsync, commit, standbys, cluster, version)
