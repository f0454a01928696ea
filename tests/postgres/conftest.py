"""Fixtures: one server of PostgreSQL for all tests of a process, and a database of its own for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from bench.postgres import INSTALL, Server, programs

from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.schema import migrate
from no_task_left import run

from .rigs.lane_places import Play, play_over


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that runs."""
    if programs() is None:
        pytest.skip(f"no PostgreSQL is there: {INSTALL}")
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def with_tables(server: Server) -> str:
    """The name of a database with the tables, to be copied; nobody connects to it."""
    name = server.new_database()
    asyncio.run(migrate(DatabaseAddress(server.url(name))))
    return name


@pytest.fixture
def database(server: Server, with_tables: str) -> str:
    """The name of a database with empty tables."""
    return server.new_database(with_tables)


@pytest.fixture
def address(server: Server, database: str) -> DatabaseAddress:
    """Where that database is."""
    return DatabaseAddress(server.url(database))


@pytest.fixture(params=["memory", "postgres"])
def play(request: pytest.FixtureRequest) -> Play:
    """Runs a scene over each database."""
    return play_over(None if request.param == "memory" else request.getfixturevalue("address"))


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have asyncio.run fail the test if a task still runs, or somebody still waits, when its work is done."""
    monkeypatch.setattr(asyncio, "run", run)
