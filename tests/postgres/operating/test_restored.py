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
from coterie.storage.postgres.restored import (
    AHEAD,
    EPOCH_MAX,
    EPOCHS_AHEAD,
    Counts,
    counts_beyond,
    go_on_restored,
)
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


SINCE = 1_577_836_800  # 2020
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
COUNTS = "SELECT version, next_producer_id, next_partition_id FROM coterie.cluster"
PARTITIONS = (
    "SELECT leader, next_leader, leader_epoch, version = {version} FROM coterie.partitions ORDER BY number"
)


def numbers(server: Server, database: str, query: str) -> list[int]:
    return [*map(int, server.sql(database, query).split("|"))]


def test_all_that_is_counted_goes_on_from_the_time_of_the_databases_server(
    server: Server, database: str, address: DatabaseAddress
):
    server.sql(database, ROWS)

    (earliest_ms,) = numbers(server, database, NOW)
    done = asyncio.run(go_on_restored(address))
    (latest_ms,) = numbers(server, database, NOW)

    assert (done.partitions, done.connected) == (2, ())
    version, producer_id, partition_id = numbers(server, database, COUNTS)
    assert version == done.version
    assert earliest_ms <= version <= latest_ms
    earliest, latest = earliest_ms // 1000 - SINCE, latest_ms // 1000 - SINCE
    assert 512 * earliest <= producer_id <= 512 * latest
    assert partition_id == 3
    brokers = server.sql(
        database, "SELECT broker_epoch, state, version FROM coterie.brokers ORDER BY broker_id"
    )
    assert brokers.splitlines() == [f"38|fenced|{version}", f"40|fenced|{version}"]
    assert server.sql(database, "SELECT count(*) FROM coterie.lanes") == "0"
    first, second = server.sql(database, PARTITIONS.format(version=version)).splitlines()
    assert first == second
    leader_epoch = int(first.removeprefix("||").removesuffix("|t"))
    assert earliest <= leader_epoch <= latest


def test_where_the_clock_was_set_back_it_goes_on_beyond_what_can_have_been_given_out(
    server: Server, database: str, address: DatabaseAddress
):
    (now_ms,) = numbers(server, database, NOW)
    now = now_ms // 1000 - SINCE
    later_ms, later = now_ms + 3_600_000, now + 3_600
    server.sql(database, ROWS)
    server.sql(
        database,
        f"UPDATE coterie.cluster SET version = {later_ms}, next_producer_id = {later * 512};"
        f" UPDATE coterie.partitions SET leader_epoch = {later} WHERE number = 0",
    )

    done = asyncio.run(go_on_restored(address))

    assert numbers(server, database, COUNTS) == [later_ms + AHEAD, later * 512 + AHEAD, 3]
    first, second = server.sql(database, PARTITIONS.format(version=done.version)).splitlines()
    assert first == f"||{later + EPOCHS_AHEAD}|t"
    assert now <= int(second.split("|")[2]) < later  # of this one's epochs the clock is ahead


IN_2026_MS = 1_795_000_000_000
IN_2026 = 217_163_200  # in seconds since 2020


def test_producer_ids_stay_those_of_the_timeline():
    """Those of the next are for a standby that takes over, and was behind."""
    third = 2 << 40

    counts = counts_beyond(40, third + 3000, IN_2026_MS)
    again = counts_beyond(40, third + 3000, IN_2026_MS + 1000)

    assert counts == Counts(IN_2026_MS, third + IN_2026 * 512, IN_2026)
    assert again == Counts(IN_2026_MS + 1000, third + IN_2026 * 512 + 512, IN_2026 + 1)


@pytest.mark.parametrize("year", [1970, 2019, 2089, 2300])
def test_a_time_for_which_no_leader_epoch_is_left_moves_none(year: int):
    clock_ms = 31_556_952_000 * (year - 1970)

    counts = counts_beyond(IN_2026_MS, IN_2026 * 512, clock_ms)

    assert counts.epoch == 0
    assert counts.version > IN_2026_MS
    assert counts.producer_id == IN_2026 * 512 + AHEAD


def test_the_last_leader_epoch_of_the_clock_leaves_room_for_elections():
    last_ms = (EPOCH_MAX + SINCE) * 1000

    assert counts_beyond(40, 3000, last_ms).epoch == EPOCH_MAX
    assert counts_beyond(40, 3000, last_ms).producer_id < 1 << 40
    assert counts_beyond(40, 3000, last_ms + 1000).epoch == 0


def state(server: Server, database: str) -> list[str]:
    """Return all that the tables say of epochs, versions and histories."""
    tables = ("cluster", "brokers", "partitions")
    return [server.sql(database, f"SELECT * FROM coterie.{one} ORDER BY 1") for one in tables]


def test_a_database_is_of_another_history_each_time_that_it_has_been_served_from(
    server: Server, database: str, address: DatabaseAddress
):
    found = [asyncio.run(history(address))]
    for _ in range(2):
        asyncio.run(go_on_restored(address))
        found.append(asyncio.run(history(address)))
        server.sql(database, "UPDATE coterie.cluster SET version = version + 1")  # as a broker that registers

    assert len({*found}) == 3
    before, after = (one.split("/") for one in found[:2])
    assert [part for part in after if part in before] == before  # all else is as it was
    assert len(after) == len(before) + 1


def test_again_it_changes_nothing_before_a_broker_has_started(
    server: Server, database: str, address: DatabaseAddress
):
    server.sql(database, ROWS)
    first = asyncio.run(go_on_restored(address))
    before = state(server, database)

    second = asyncio.run(go_on_restored(address))

    assert first.changed
    assert second == first._replace(changed=False)
    assert state(server, database) == before


def test_a_copy_that_was_made_of_a_restored_database_is_marked_anew(
    server: Server, database: str, address: DatabaseAddress, tmp_path: Path
):
    """Its epochs are those that brokers were given over the first one, since it was copied."""
    server.sql(database, ROWS)
    done = [asyncio.run(go_on_restored(address))]
    dump = tmp_path / "coterie.dump"
    programs = server.programs
    made = ["--format=custom", "--schema=coterie", f"--file={dump}", server.url(database)]
    subprocess.run([programs / "pg_dump", *made], check=True)
    by_template = server.new_database(database)

    done.append(asyncio.run(go_on_restored(DatabaseAddress(server.url(by_template)))))
    for there, how in ((server.new_database(), []), (database, ["--clean", "--if-exists"])):
        into = ["--single-transaction", "--exit-on-error", *how, f"--dbname={server.url(there)}", dump]
        subprocess.run([programs / "pg_restore", *into], check=True)
        done.append(asyncio.run(go_on_restored(DatabaseAddress(server.url(there)))))

    assert all(one.changed for one in done)
    versions = [one.version for one in done]
    assert sorted({*versions}) == versions, "each is beyond all that were before"


def test_once_the_server_was_started_anew_it_is_done_again(copied: Server, database: str):
    """Of files that were put back nothing else tells."""
    copy = DatabaseAddress(copied.url(database))
    asyncio.run(go_on_restored(copy))
    copied.stop()
    copied.start()

    assert asyncio.run(go_on_restored(copy)).changed


def test_where_no_epochs_are_left_it_is_refused_and_nothing_is_changed(
    server: Server, database: str, address: DatabaseAddress
):
    server.sql(database, ROWS)
    last = EPOCH_MAX - EPOCHS_AHEAD
    server.sql(database, f"UPDATE coterie.partitions SET leader_epoch = {last} WHERE number = 0")
    assert asyncio.run(go_on_restored(address)).changed
    before = state(server, database)
    server.sql(database, "UPDATE coterie.cluster SET next_partition_id = next_partition_id")

    with pytest.raises(
        CoterieError, match=f"partition orders-0 is in leader epoch {EPOCH_MAX}, and .* Nothing"
    ):
        asyncio.run(go_on_restored(address))

    assert state(server, database) == before
    server.sql(database, "UPDATE coterie.topics SET deleted = true")
    assert asyncio.run(go_on_restored(address)).partitions == 0


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
    again = CliRunner().invoke(cli, ["store", "restored", address.url])
    as_json = CliRunner().invoke(cli, ["store", "restored", address.url, "--output", "json"])

    version, *_ = numbers(server, database, COUNTS)
    assert as_text.output.splitlines()[0].endswith(f": the metadata is at version {version}")
    assert as_text.output.splitlines()[1].startswith("2 partitions are led anew, ")
    assert "done already, and no broker has started since; nothing is changed" in again.output
    told = json.loads(as_json.output)
    assert (told["version"], told["partitions"], told["changed"]) == (version, 2, False)


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
