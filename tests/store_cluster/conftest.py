"""Fixtures: one server of PostgreSQL for all tests of a process, and brokers of a cluster over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench.postgres import INSTALL, Server, programs
from bench.store_cluster import StoreCluster

from clients.adapters.aio import end_loop

NewCluster = Callable[..., StoreCluster]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that runs."""
    if programs() is None:
        pytest.skip(f"no PostgreSQL is there: {INSTALL}")
    with Server() as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def _event_loop() -> Iterator[None]:
    """End aiokafka's loop when all tests are done."""
    yield
    end_loop()


@pytest.fixture
def new_cluster(server: Server, tmp_path: Path) -> Iterator[NewCluster]:
    """A function that starts the brokers of a cluster; a failing test shows what they have written."""
    with ExitStack() as running:

        def start(**terms: object) -> StoreCluster:
            return running.enter_context(StoreCluster(server, tmp_path, **terms))  # type: ignore[arg-type]

        yield start
        for log in sorted(tmp_path.glob("broker-*.log")):
            print(f"== {log.name}\n{log.read_text()[-4000:]}")  # pytest shows it where the test has failed


@pytest.fixture
def cluster(new_cluster: NewCluster) -> StoreCluster:
    """Three brokers that run."""
    return new_cluster()
