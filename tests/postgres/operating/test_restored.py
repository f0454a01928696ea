"""A database that was brought back from a backup: it is of a history of its own, and nobody of before
appends.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.postgres import Server
from click.testing import CliRunner

from coterie.base.errors import CoterieError
from coterie.cli import cli
from coterie.storage.postgres.connecting import DatabaseAddress, connect, read_history
from coterie.storage.postgres.restored import AHEAD, EPOCHS_AHEAD, go_on_restored
from coterie.storage.postgres.schema import migrate

TOPIC_ID = "00000000-0000-0000-0000-000000000007"
ROWS = f"""
UPDATE coterie.cluster SET version = 40, next_producer_id = 3000, next_partition_id = 3;
INSERT INTO coterie.brokers
  (broker_id, broker_epoch, incarnation, state, listeners, level, software, version)
VALUES (1, 38, gen_random_uuid(), 'live', '[]', 0, '', 38),
  (2, 40, gen_random_uuid(), 'leaving', '[]', 0, '', 40);
INSERT INTO coterie.lanes (broker_id, lane, broker_epoch) VALUES (1, 0, 38), (2, 0, 40);
INSERT INTO coterie.topics VALUES ('{TOPIC_ID}', 'orders', 2, '{{}}', 0, false, 39);
INSERT INTO coterie.partitions
  (partition_id, topic_id, number, replicas, leader, leader_epoch, next_leader, version)
VALUES (1, '{TOPIC_ID}', 0, '{{1,2}}', 1, 0, 2, 39), (2, '{TOPIC_ID}', 1, '{{2,1}}', 2, 5, NULL, 40);
"""


async def history(address: DatabaseAddress) -> str:
    connection = await connect(address)
    try:
        return await read_history(connection)
    finally:
        connection.terminate()


def test_all_that_is_counted_goes_on_beyond_what_can_have_been_given_out(
    server: Server, database: str, address: DatabaseAddress
):
    server.sql(database, ROWS)

    done = asyncio.run(go_on_restored(address))

    assert (done.version, done.partitions, done.connected) == (40 + AHEAD, 2, ())
    cluster = server.sql(database, "SELECT version, next_producer_id, next_partition_id FROM coterie.cluster")
    assert cluster == f"{40 + AHEAD}|{3000 + AHEAD}|3"
    brokers = server.sql(
        database, "SELECT broker_epoch, state, version FROM coterie.brokers ORDER BY broker_id"
    )
    assert brokers.splitlines() == [f"38|fenced|{done.version}", f"40|fenced|{done.version}"]
    assert server.sql(database, "SELECT count(*) FROM coterie.lanes") == "0"
    partitions = server.sql(
        database, "SELECT leader, next_leader, leader_epoch, version FROM coterie.partitions ORDER BY number"
    )
    assert partitions.splitlines() == [
        f"||{EPOCHS_AHEAD}|{done.version}",
        f"||{5 + EPOCHS_AHEAD}|{done.version}",
    ]


def test_a_database_is_of_another_history_each_time(address: DatabaseAddress):
    async def histories() -> list[str]:
        found = [await history(address)]
        for _ in range(2):
            await go_on_restored(address)
            found.append(await history(address))
        return found

    found = asyncio.run(histories())

    assert len({*found}) == 3
    assert found[1].startswith(f"{found[0]}/")


@pytest.fixture
def copied(server: Server, database: str) -> Iterator[Server]:
    """A server over a copy of the folder of the other, as `pg_basebackup` makes it."""
    other = Server(server.settings, place=server.directory.parent)
    backup = Path(other.directory) / "data"
    command = [str(server.programs / "pg_basebackup"), "-D", str(backup), "-c", "fast", "--no-sync"]
    subprocess.run([*command, "-d", server.url("postgres")], check=True)
    if other._as_user:
        shutil.chown(other.directory, "postgres", "postgres")
        for path in backup.rglob("*"):
            shutil.chown(path, "postgres", "postgres")
        shutil.chown(backup, "postgres", "postgres")
    other.start()
    yield other
    other.stop()
    shutil.rmtree(other.directory)


def test_the_copy_of_a_server_is_told_from_it_once_it_is_restored(
    server: Server, copied: Server, database: str, address: DatabaseAddress
):
    copy = DatabaseAddress(copied.url(database))

    async def histories() -> tuple[str, str, str]:
        before = await history(copy)
        await go_on_restored(copy)
        return await history(address), before, await history(copy)

    there, before, after = asyncio.run(histories())

    assert there == before  # which is why it takes a command
    assert after != there


def test_the_sessions_of_brokers_that_were_faster_are_ended(
    server: Server, database: str, address: DatabaseAddress
):
    server.sql("postgres", "CREATE ROLE restorer LOGIN IN ROLE coterie_broker")
    plain = DatabaseAddress(server.url(database, user="restorer"))

    async def play() -> tuple[tuple[int, ...], tuple[int, ...], bool]:
        member, migrating = await connect(address), await connect(address)
        await member.execute("SELECT pg_advisory_lock(7, 3)")
        await migrating.execute("SELECT pg_advisory_lock(7, -1)")
        ended = asyncio.Event()
        member.add_termination_listener(lambda _: ended.set())
        may_not = await go_on_restored(plain, though_served=True)
        may = await go_on_restored(address, though_served=True)
        await ended.wait()
        is_left = not migrating.is_closed()
        migrating.terminate()
        return may_not.connected, may.connected, is_left

    try:
        assert asyncio.run(play()) == ((3,), (), True)
    finally:
        server.sql("postgres", "DROP ROLE restorer")


def test_brokers_that_serve_are_named_and_nothing_is_changed_unless_that_is_confirmed(
    server: Server, database: str, address: DatabaseAddress
):
    server.sql(database, ROWS)
    runner = CliRunner()

    async def play() -> tuple[str, str]:
        members = [await connect(address) for _ in range(2)]
        try:
            await members[0].execute("SELECT pg_advisory_lock(7, 12)")
            one = await asyncio.to_thread(runner.invoke, cli, ["store", "restored", address.url])
            await members[1].execute("SELECT pg_advisory_lock(7, 3)")
            several = await asyncio.to_thread(runner.invoke, cli, ["store", "restored", address.url])
        finally:
            for member in members:
                member.terminate()
        return str(one.exception), str(several.exception)

    one, several = asyncio.run(play())
    versions = server.sql(database, "SELECT version, restoration FROM coterie.cluster")
    lanes = server.sql(database, "SELECT count(*) FROM coterie.lanes")

    assert "broker 12 serves from this database, so nothing is changed" in one
    assert "brokers 3, 12 serve from this database" in several
    assert "stop them and run this again, or run it with --yes" in several
    assert (versions, lanes) == ("40|", "2")


def test_without_tables_there_is_nothing_to_go_on_with(server: Server):
    empty = DatabaseAddress(server.url(server.new_database()))

    with pytest.raises(CoterieError, match="has no tables of a cluster"):
        asyncio.run(go_on_restored(empty))


def test_the_command_says_what_the_database_has_become(
    server: Server, database: str, address: DatabaseAddress
):
    server.sql(database, ROWS)

    as_text = CliRunner().invoke(cli, ["store", "restored", address.url])
    as_json = CliRunner().invoke(cli, ["store", "restored", address.url, "--output", "json"])

    assert as_text.output.splitlines()[0].endswith(f": the metadata is at version {40 + AHEAD}")
    assert as_text.output.splitlines()[1].startswith("2 partitions are led anew, ")
    assert json.loads(as_json.output)["version"] == 40 + 2 * AHEAD


def test_the_tables_of_an_earlier_schema_are_brought_up_to_date(server: Server):
    address = DatabaseAddress(server.url(server.new_database()))
    asyncio.run(migrate(address))
    database = address.url.rpartition("/")[2].partition("?")[0]
    server.sql(
        database, "ALTER TABLE coterie.cluster DROP COLUMN restoration; UPDATE coterie.cluster SET schema = 1"
    )

    with pytest.raises(CoterieError, match="run coterie store migrate"):
        asyncio.run(go_on_restored(address))
    asyncio.run(migrate(address))

    assert asyncio.run(go_on_restored(address)).partitions == 0
