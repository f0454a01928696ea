"""What the database's administrator finds in pg_stat_activity."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.postgres import Server
from bench.store_cluster import StoreBroker

from coterie.cli.store import address_of
from coterie.storage.postgres.connecting import DatabaseAddress, connect

NAMES = "SELECT application_name FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()"
AT_ANY_TIME = ("writing 0", "writing 1", "writing 2", "membership", "metadata")


def name_of(address: DatabaseAddress, *, use: str = "") -> str:
    """Return what a connection is called at the server."""

    async def scene() -> str:
        connection = await connect(address, use=use)
        try:
            return await connection.fetchval("SELECT current_setting('application_name')")
        finally:
            connection.terminate()

    return asyncio.run(scene())


def test_each_connection_of_a_broker_says_whose_it_is_and_what_for(server: Server, tmp_path: Path):
    database = server.new_database()
    broker = StoreBroker(7, server.url(database), tmp_path / "log", {})
    broker.start()
    try:
        names = server.sql(database, NAMES.format(database)).splitlines()
    finally:
        broker.kill()

    assert {f"coterie broker 7: {use}" for use in AT_ANY_TIME} <= {*names}
    assert all(name.startswith("coterie broker 7") for name in names)


def test_a_command_says_that_it_is_one(address: DatabaseAddress):
    assert name_of(address_of(address.url)) == "coterie store"


def test_the_name_that_an_address_has_counts(server: Server, database: str):
    address = DatabaseAddress(f"{server.url(database)}&application_name=mine", used_by="coterie broker 7")

    assert name_of(address, use="writing 0") == "mine: writing 0"
