"""A broker over a database that cannot begin says why, or waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from bench.postgres import Server

from coterie.base.errors import CoterieError
from coterie.broker.cluster.terms import LifecycleTerms
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.over_database import MemberProcess, StoreAddresses
from coterie.storage.postgres import pooling, starting
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.facts import StoreFacts
from coterie.storage.postgres.starting import OpenedStore, history_of, open_store, see_session_kept


def test_what_keeps_a_broker_from_being_put_together_is_what_is_raised(monkeypatch: pytest.MonkeyPatch):
    nowhere = DatabaseAddress("postgresql://broker@localhost/coterie")
    facts = StoreFacts("17", True, "on", "", None, 0)

    def cannot(_: MemberProcess, host: str, port: int) -> None:
        raise ValueError("it cannot be")

    monkeypatch.setattr(MemberProcess, "_assemble", cannot)

    async def begin() -> int:
        settings = BrokerSettings.of({"listeners": "PLAINTEXT://127.0.0.1:0"})
        opened = OpenedStore(facts, "cluster", "1")
        return await MemberProcess(settings, LifecycleTerms(), StoreAddresses(nowhere, nowhere), opened).run()

    loop = asyncio.new_event_loop()
    with pytest.raises(ValueError, match="it cannot be"):
        loop.run_until_complete(begin())
    loop.close()


ENDS_WHO_LOOKS = """
CREATE SEQUENCE coterie.looks;
ALTER TABLE coterie.cluster RENAME TO cluster_itself;
CREATE VIEW coterie.cluster AS SELECT * FROM coterie.cluster_itself
WHERE CASE WHEN nextval('coterie.looks') = 1 THEN pg_terminate_backend(pg_backend_pid()) ELSE true END
"""


@pytest.mark.parametrize("look", [open_store, history_of])
def test_a_server_that_goes_down_while_a_broker_looks_at_it_is_waited_for(
    look: Callable[..., Awaitable[object]], server: Server, database: str, address: DatabaseAddress
):
    server.sql(database, ENDS_WHO_LOOKS)  # the first, as the server's stop does
    reasons: list[str] = []

    assert asyncio.run(look(address, waiting=reasons.append))

    assert len(reasons) == 1  # the words are the driver's


OF_THE_CROWD = """
DO $$ BEGIN
  CREATE ROLE crowd LOGIN CREATEROLE IN ROLE coterie_broker, coterie_owner;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$
"""


def crowded(server: Server, database: str, connections: int) -> DatabaseAddress:
    """Return the address of a database that takes so many connections, for who is no superuser."""
    server.sql("postgres", OF_THE_CROWD)
    server.sql("postgres", f"ALTER DATABASE {database} OWNER TO crowd")
    server.sql("postgres", f"ALTER DATABASE {database} CONNECTION LIMIT {connections}")
    return DatabaseAddress(server.url(database, user="crowd"))


@pytest.mark.parametrize("look", [open_store, see_session_kept], ids=["statements-kept", "session-kept"])
def test_a_second_connection_that_is_not_to_be_had_for_now_is_waited_for(
    look: Callable[..., Awaitable[object]],
    server: Server,
    with_tables: str,
    monkeypatch: pytest.MonkeyPatch,
):
    name = server.new_database(with_tables)
    address = crowded(server, name, 1)
    monkeypatch.setattr(starting, "CONNECTIONS_NEEDED", 1)
    # as it looks where a pooler is between
    monkeypatch.setattr(pooling, "SAME_PROCESS", "DO $$ BEGIN ASSERT false; END $$")
    reasons: list[str] = []

    def waiting(reason: str) -> None:
        reasons.append(reason)
        server.sql("postgres", f"ALTER DATABASE {name} CONNECTION LIMIT -1")

    asyncio.run(look(address, waiting=waiting))

    assert reasons == [f'too many connections for database "{name}"']


def test_a_database_that_takes_too_few_connections_is_said_so(server: Server, database: str):
    address = crowded(server, database, 3)

    with pytest.raises(
        CoterieError, match=r"takes 3 connections at once, and each broker needs 11: ALTER DATA"
    ):
        asyncio.run(open_store(address, waiting=pytest.fail))


def test_a_role_that_may_have_too_few_connections_is_said_so(server: Server, database: str):
    address = crowded(server, database, -1)
    server.sql("postgres", "ALTER ROLE crowd CONNECTION LIMIT 10")
    try:
        with pytest.raises(CoterieError, match=r"the role crowd may have 10 connections at once, and each "):
            asyncio.run(open_store(address, waiting=pytest.fail))
        server.sql("postgres", "ALTER ROLE crowd CONNECTION LIMIT 11")
        assert asyncio.run(open_store(address, waiting=pytest.fail))
    finally:
        server.sql("postgres", "ALTER ROLE crowd CONNECTION LIMIT -1")
