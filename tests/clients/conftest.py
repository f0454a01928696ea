"""Fixtures: the broker (one for all, `brokers` says which), a client of each kind, fresh topics."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator

import pytest

from no_task_left import run

from .adapters import CLIENTS, Client
from .adapters.aio import end_loop
from .adapters.confluent import ConfluentAdmin
from .brokers import Broker, another, broker, left_out
from .soon import soon

NewTopic = Callable[..., str]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what needs a broker of ours where the broker under test is another."""
    why = left_out(item)
    if why:
        pytest.skip(why)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """HOST:PORT of the broker under test."""
    other = another()
    if other:
        yield other
        return
    with broker() as running:
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
            soon(lambda: admin.partition_count(name) == partitions)
        return name

    return create


@pytest.fixture
def restartable() -> Iterator[Broker]:
    """A broker of the test's own, which it may end and start again."""
    with broker() as running:
        yield running
