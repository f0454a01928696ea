"""Poolers between brokers and their database: one that keeps too little is refused with what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench.pooler import INSTALL, KEEPS_STATEMENTS, pooler, program, version
from bench.postgres import Server
from bench.store_cluster import StoreBroker

from clients.adapters.confluent import Confluent, ConfluentAdmin
from clients.adapters.model import Message
from coterie.base.errors import CoterieError
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.starting import OpenedStore, open_store, see_session_kept

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(program() is None, reason=f"no PgBouncer is there: {INSTALL}"),
]
Pooled = Callable[[str], DatabaseAddress]
OF_THIS_VERSION = "not by this version of PgBouncer"


@pytest.fixture
def pooled(server: Server, database: str) -> Iterator[Pooled]:
    """A function from a pool_mode to the address of the database behind a pooler of it."""
    with ExitStack() as running:
        yield lambda mode: DatabaseAddress(
            server.url(database, port=running.enter_context(pooler(server, mode)))
        )


def opened(address: DatabaseAddress) -> OpenedStore:
    async def open_it() -> OpenedStore:
        return await open_store(address, waiting=lambda reason: pytest.fail(reason))

    return asyncio.run(open_it())


def kept(address: DatabaseAddress) -> None:
    async def see() -> None:
        await see_session_kept(address, waiting=lambda reason: pytest.fail(reason))

    asyncio.run(see())


@pytest.mark.skipif(program() is None or version() >= KEEPS_STATEMENTS, reason="it keeps them")
def test_one_that_forgets_what_was_prepared_is_no_way_for_lanes(pooled: Pooled):
    for _ in range(3):  # whichever of its connections it begins with
        with pytest.raises(CoterieError, match=r"keeps no prepared statements: PgBouncer does from 1\.21"):
            opened(pooled("transaction"))


@pytest.mark.skipif(program() is None or version() < KEEPS_STATEMENTS, reason=OF_THIS_VERSION)
def test_one_that_keeps_what_was_prepared_is_a_way_for_lanes(pooled: Pooled):
    assert opened(pooled("transaction")).history


def test_one_that_keeps_no_sessions_is_no_way_for_a_membership(pooled: Pooled, address: DatabaseAddress):
    with pytest.raises(CoterieError, match=r"give the server's own address as well, with --store-direct"):
        kept(pooled("transaction"))
    kept(address)


def test_one_that_gives_each_client_a_session_is_as_good_as_none(pooled: Pooled, address: DatabaseAddress):
    through = pooled("session")

    assert opened(through).history == opened(address).history
    kept(through)


@pytest.mark.parametrize(
    "mode",
    [
        "session",
        pytest.param(
            "transaction",
            marks=pytest.mark.skipif(
                program() is None or version() < KEEPS_STATEMENTS, reason=OF_THIS_VERSION
            ),
        ),
    ],
)
def test_a_broker_serves_through_a_pooler_and_is_a_member_past_it(
    mode: str, server: Server, database: str, pooled: Pooled, tmp_path: Path
):
    broker = StoreBroker(1, pooled(mode).url, tmp_path / "broker.log", {}, direct=server.url(database))
    broker.start()
    try:
        with ConfluentAdmin(broker.address) as admin:
            admin.create("flights")
        Confluent().produce(broker.address, [Message(topic="flights", value=b"1", partition=0)])
        with Confluent().reader(broker.address, ("flights", 0)) as reader:
            assert [one.value for one in reader.take(1)] == [b"1"]
    finally:
        broker.kill()
