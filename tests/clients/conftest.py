"""Fixtures: the broker (one for all, or `COTERIE_TEST_BOOTSTRAP`), a client of each kind, fresh topics."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator

import pytest

import coterie.testing
from no_task_left import run

from .adapters import CLIENTS, Client
from .adapters.aio import end_loop
from .adapters.confluent import ConfluentAdmin

OTHER_BROKER = "COTERIE_TEST_BOOTSTRAP"

NewTopic = Callable[..., str]


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """HOST:PORT of the broker under test."""
    other = os.environ.get(OTHER_BROKER)
    if other:
        yield other
        return
    with coterie.testing.broker() as running:
        yield running.bootstrap


@pytest.fixture(scope="session", autouse=True)
def _event_loop() -> Iterator[None]:
    """End aiokafka's loop when all tests are done."""
    yield
    end_loop()


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have asyncio.run fail the test if a task still runs, or somebody still waits, when its work is done."""
    monkeypatch.setattr(asyncio, "run", run)


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """Each of the client libraries in turn."""
    wanted: Client = request.param
    return wanted


@pytest.fixture
def new_topic(bootstrap: str) -> NewTopic:
    """A function that creates a topic with a name of its own: `new_topic(partitions=6)`."""

    def create(*, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4()}"
        with ConfluentAdmin(bootstrap) as admin:
            admin.create(name, partitions=partitions, config=config)
        return name

    return create


@pytest.fixture
def restartable() -> Iterator[coterie.testing.Broker]:
    """A broker of the test's own, which it may end and start again; only ours can be."""
    if os.environ.get(OTHER_BROKER):
        pytest.skip(f"{OTHER_BROKER} names a broker that is not ours to restart")
    with coterie.testing.broker() as running:
        yield running
