"""Fixtures: one server of PostgreSQL for all tests of a process, and brokers of a cluster over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.postgres import INSTALL, Server, programs
from bench.store_cluster import StoreCluster

from clients.adapters.aio import end_loop


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


@pytest.fixture(scope="session")
def brokers(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreCluster]:
    """Three brokers that run unless a test has ended them."""
    with StoreCluster(server, tmp_path_factory.mktemp("brokers")) as running:
        yield running


@pytest.fixture
def cluster(brokers: StoreCluster) -> Iterator[StoreCluster]:
    """Three brokers that run; a failing test shows what they have written."""
    brokers.start()
    brokers.until("all are live", lambda: brokers.live() == [1, 2, 3])
    for broker in brokers.brokers.values():
        broker.mark()
    yield brokers
    for broker in brokers.brokers.values():
        # pytest shows it where the test has failed
        print(f"== broker {broker.node_id}\n{broker.log[-4000:]}")
