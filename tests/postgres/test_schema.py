"""The tables: made once, by whoever may, changed by numbered migrations; and `coterie store`."""

from __future__ import annotations

import asyncio
import json

import pytest
from bench.postgres import Server
from click.testing import CliRunner

from coterie.base.errors import CoterieError
from coterie.cli import cli
from coterie.storage.postgres import schema
from coterie.storage.postgres.connecting import DatabaseAddress, connect
from coterie.storage.postgres.facts import read_facts
from coterie.storage.postgres.schema import (
    BROKER,
    LOCK,
    OWNER,
    READER,
    Migrated,
    Migration,
    StoreCluster,
    insist_on_schema,
    migrate,
    migrations,
    read_cluster,
)

NEWEST = migrations()[-1].schema


@pytest.fixture
def empty(server: Server) -> DatabaseAddress:
    """Where a database without tables is."""
    return DatabaseAddress(server.url(server.new_database()))


def test_migrations_are_numbered_without_a_gap():
    assert [one.schema for one in migrations()] == [*range(1, NEWEST + 1)]


def test_tables_are_made_once(empty: DatabaseAddress):
    made = asyncio.run(migrate(empty))
    again = asyncio.run(migrate(empty))

    assert (made.before, made.after, made.missing_roles) == (0, NEWEST, ())
    assert again == made._replace(before=NEWEST)
    assert len(made.cluster_id) == 22


def test_of_two_first_starts_at_once_one_makes_the_tables(empty: DatabaseAddress):
    async def both() -> list[Migrated]:
        return await asyncio.gather(migrate(empty, only_if_empty=True), migrate(empty, only_if_empty=True))

    one, other = asyncio.run(both())

    assert one.cluster_id == other.cluster_id
    assert sorted((one.before, other.before)) == [0, NEWEST]


WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"


def test_a_first_start_waits_longer_for_another_than_for_a_table(
    empty: DatabaseAddress, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("coterie.storage.postgres.schema.LOCK_TIMEOUT_MS", 1)

    async def second() -> Migrated:
        first = await connect(empty)
        await first.execute("SELECT pg_advisory_lock($1, $2)", *LOCK)
        starting = asyncio.create_task(migrate(empty, only_if_empty=True))
        while not (starting.done() or await first.fetchval(WAITS)):
            pass
        for _ in range(20):  # longer than a table is waited for
            await first.fetchval(WAITS)
        await first.execute("SELECT pg_advisory_unlock($1, $2)", *LOCK)
        first.terminate()
        return await starting

    assert asyncio.run(second()).before == 0


def test_tables_are_made_of_the_newest_schema_or_not_at_all(
    empty: DatabaseAddress, monkeypatch: pytest.MonkeyPatch
):
    failing = (*migrations(), Migration(NEWEST + 1, "SELECT 1 / 0"))
    monkeypatch.setattr("coterie.storage.postgres.schema.migrations", lambda: failing)

    with pytest.raises(CoterieError, match="division by zero"):
        asyncio.run(migrate(empty))

    assert asyncio.run(read_facts(empty))[0].cluster is None  # which another first start might have seen


def test_a_start_leaves_tables_of_an_earlier_schema_as_they_are(server: Server, empty: DatabaseAddress):
    asyncio.run(migrate(empty))
    database = empty.url.rpartition("/")[2].partition("?")[0]
    server.sql(database, f"UPDATE coterie.cluster SET schema = {NEWEST - 1}")

    assert asyncio.run(migrate(empty, only_if_empty=True)).after == NEWEST - 1
    with pytest.raises(
        CoterieError, match=f"tables of schema {NEWEST - 1}, and this software needs {NEWEST}"
    ):
        insist_on_schema(asyncio.run(read_facts(empty))[0].cluster, empty)


def test_a_database_without_tables_is_refused_with_what_to_run(empty: DatabaseAddress):
    async def cluster() -> StoreCluster | None:
        connection = await connect(empty)
        found = await read_cluster(connection)
        connection.terminate()
        return found

    with pytest.raises(CoterieError, match="coterie store migrate makes them"):
        insist_on_schema(asyncio.run(cluster()), empty)


@pytest.mark.parametrize("granted", [False, True])
def test_of_two_first_starts_on_one_server_each_for_its_database_both_have_the_roles(
    granted: bool, server: Server, empty: DatabaseAddress, monkeypatch: pytest.MonkeyPatch
):
    """Found by a reviewer: one ended, as the other had made a role meanwhile; roles are the server's."""
    monkeypatch.setattr(schema, "READER", "coterie_meanwhile")

    async def behind_another() -> Migrated:
        faster, looking = [await connect(empty) for _ in range(2)]
        await faster.execute("BEGIN; CREATE ROLE coterie_meanwhile NOLOGIN")
        if granted:
            await faster.execute("GRANT coterie_meanwhile TO CURRENT_USER")
        migrating = asyncio.create_task(migrate(empty))
        while not await looking.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            assert not migrating.done()
        await faster.execute("COMMIT")
        done = await migrating
        faster.terminate()
        looking.terminate()
        return done

    try:
        done = asyncio.run(behind_another())
    finally:
        server.sql("postgres", "DROP ROLE coterie_meanwhile")

    assert (done.after, done.missing_roles) == (NEWEST, ())


def test_tables_of_a_later_schema_will_do(address: DatabaseAddress):
    cluster = StoreCluster("id", 0, NEWEST + 1)

    assert insist_on_schema(cluster, address) is cluster


def test_the_roles_may_what_they_are_for(server: Server, database: str):
    rights = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
    asked = [
        f"has_table_privilege('{role}', c.oid, '{right}')" for role in (BROKER, READER) for right in rights
    ]
    rows = server.sql(
        database,
        f"SELECT rolname, {', '.join(asked)} FROM pg_class c JOIN pg_roles r ON r.oid = relowner"
        " WHERE relnamespace = 'coterie'::regnamespace AND relkind = 'r'",
    ).splitlines()

    assert len(rows) >= 10
    assert {*rows} == {"|".join((OWNER, *"tttt", "f", "t", *"ffff"))}


def test_a_user_who_may_make_no_roles_owns_the_tables(server: Server, with_tables: str):
    server.sql("postgres", "CREATE ROLE plain LOGIN")
    database = server.new_database()
    server.sql("postgres", f"GRANT CREATE ON DATABASE {database} TO plain")
    try:
        done = asyncio.run(migrate(DatabaseAddress(server.url(database, user="plain"))))
    finally:
        server.sql(database, "DROP OWNED BY plain")
        server.sql("postgres", "DROP ROLE plain")

    assert (done.before, done.after, done.missing_roles) == (0, NEWEST, ())  # others have made the roles


MENDS = "coterie store migrate by one with CREATEROLE makes them"


def described(address: DatabaseAddress) -> list[str]:
    """Return the lines of `coterie store describe`."""
    return CliRunner().invoke(cli, ["store", "describe", address.url]).output.splitlines()


def test_roles_that_are_made_later_are_given_their_rights_by_the_next_migrate(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    """Found by a newcomer: whoever may make no roles makes the tables; an operator makes them then."""
    database = server.new_database()
    roles = (OWNER, BROKER, READER)
    there = server.sql("postgres", "SELECT rolname FROM pg_roles WHERE rolname LIKE 'coterie%'").split()
    address = DatabaseAddress(server.url(database, user="plain"))
    server.sql("postgres", "CREATE ROLE plain LOGIN")
    server.sql("postgres", f"GRANT CREATE ON DATABASE {database} TO plain")
    for role in there:  # of the server's other databases, whose tables keep theirs
        server.sql("postgres", f"ALTER ROLE {role} RENAME TO aside_{role}")
    try:
        made = asyncio.run(migrate(address))
        assert (made.before, made.after, made.missing_roles) == (0, NEWEST, roles)
        assert described(address)[-2:] == [
            "tables owned by plain",
            f"roles missing: {', '.join(roles)}; {MENDS}",
        ]
        for role in roles:
            server.sql("postgres", f"CREATE ROLE {role}")
        lacking = f"roles without all their rights: {BROKER}, {READER}; coterie store migrate gives them"
        assert described(address)[-2:] == [lacking, f"roles {OWNER}"]

        done = asyncio.run(migrate(address))

        assert described(address)[-2:] == ["tables owned by plain", f"roles {', '.join(roles)}"]

        assert (done.before, done.missing_roles) == (NEWEST, ())
        for role, wanted in ((BROKER, "t|t|t"), (READER, "t|t|f")):
            on_table = f"has_table_privilege('{role}', 'coterie.lanes', "
            asked = f"has_schema_privilege('{role}', 'coterie', 'USAGE')"
            asked += f", {on_table}'SELECT'), {on_table}'UPDATE')"
            assert server.sql(database, f"SELECT {asked}") == wanted
        later = Migration(NEWEST + 1, "ALTER TABLE cluster ADD COLUMN later integer; CREATE TABLE new ()")
        monkeypatch.setattr(schema, "migrations", lambda: (later,))
        assert asyncio.run(migrate(address)).after == NEWEST + 1  # by the tables' owner, who is not the role
        assert server.sql(database, f"SELECT has_table_privilege('{READER}', 'coterie.new', 'SELECT')") == "t"
    finally:
        server.sql(database, f"DROP OWNED BY plain, {', '.join(roles)}")
        server.sql("postgres", f"DROP OWNED BY plain; DROP ROLE plain, {', '.join(roles)}")
        for role in there:
            server.sql("postgres", f"ALTER ROLE aside_{role} RENAME TO {role}")


def test_the_roles_alone_are_made_where_a_backup_is_to_come(server: Server, empty: DatabaseAddress):
    there = server.sql("postgres", "SELECT rolname FROM pg_roles WHERE rolname LIKE 'coterie%'").split()
    server.sql("postgres", "CREATE ROLE plain LOGIN")
    for role in there:
        server.sql("postgres", f"ALTER ROLE {role} RENAME TO aside_{role}")
    plain = empty.url.replace("postgres@", "plain@")
    try:
        refused = CliRunner().invoke(cli, ["store", "migrate", "--only-roles", plain])
        made = CliRunner().invoke(cli, ["store", "migrate", "--only-roles", empty.url])
        found = server.sql("postgres", "SELECT rolname FROM pg_roles WHERE rolname LIKE 'coterie%'").split()
        shown = described(empty)
    finally:
        server.sql("postgres", f"DROP ROLE IF EXISTS plain, {', '.join((OWNER, BROKER, READER))}")
        for role in there:
            server.sql("postgres", f"ALTER ROLE aside_{role} RENAME TO {role}")

    assert isinstance(refused.exception, CoterieError | SystemExit)
    assert (
        f"not to be made by this user: {OWNER}, {BROKER}, {READER}" in str(refused.exception) + refused.output
    )
    assert made.output.startswith(f"the roles {OWNER}, {BROKER} and {READER} are there; next:\n")
    assert sorted(found) == sorted((OWNER, BROKER, READER))
    assert shown[0].startswith("no tables of a cluster")
    assert shown[-1] == f"roles {OWNER}, {BROKER}, {READER}"


def test_a_user_who_may_make_no_tables_is_told_what_is_to_be_granted(server: Server, with_tables: str):
    server.sql("postgres", "CREATE ROLE plain LOGIN")
    database = server.new_database()
    try:
        with pytest.raises(CoterieError, match="needs GRANT CREATE ON DATABASE"):
            asyncio.run(migrate(DatabaseAddress(server.url(database, user="plain"))))
    finally:
        server.sql("postgres", "DROP ROLE plain")


def test_a_database_that_is_not_there_is_said_with_its_address(server: Server):
    away = DatabaseAddress(server.url("nowhere").replace("postgres@", "postgres:secret@"))

    with pytest.raises(CoterieError, match="does not exist") as refused:
        asyncio.run(migrate(away))
    assert "secret" not in str(refused.value)


def test_the_command_makes_tables_and_says_what_the_server_promises(empty: DatabaseAddress):
    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, ["store", *words], env={"COTERIE_STORE": empty.url})
        assert not result.exception, result.output
        return result.output

    assert run("describe").startswith("no tables of a cluster: coterie store migrate makes them\nPostgreSQL ")
    made, again = run("migrate", empty.url), run("migrate")
    assert f"the tables are made, of schema {NEWEST}\n" in made
    assert f"the tables are of schema {NEWEST} already\n" in again
    for said in (made, again):
        assert "the roles coterie_owner, coterie_broker and coterie_reader are there" in said
        assert "GRANT coterie_broker TO the user of brokers; GRANT coterie_reader TO" in said
    facts = json.loads(run("describe", "--output", "json"))
    assert facts["cluster"]["schema"] == NEWEST
    assert facts["durability"].startswith("none: fsync is off")
