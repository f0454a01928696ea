"""Fixtures: a broker, topics with known contents, one Spark session for all tests."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .kafka import Topic, create_topic

OTHER_BROKER = "COTERIE_TEST_BOOTSTRAP"
SHORT_SESSION_MS = 2000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a broker or a Spark session, and give it time: Spark's start takes seconds."""
    for item in items:
        if not item.nodeid.startswith("tests/spark/"):
            continue
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(300))
        if "bootstrap" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """HOST:PORT of the broker under test."""
    other = os.environ.get(OTHER_BROKER)
    if other:
        yield other
        return
    import coterie.testing

    with coterie.testing.broker({"group.min.session.timeout.ms": SHORT_SESSION_MS}) as running:
        yield running.bootstrap


@pytest.fixture(autouse=True)
def _kept_connections_end() -> Iterator[None]:
    """Close what a task that ran in this process keeps for the next: nobody else would."""
    yield
    tasks = sys.modules.get("coterie.spark.source.tasks")
    while tasks and tasks.idle_connections:
        tasks.idle_connections.popitem()[1].close()
    if sink := sys.modules.get("coterie.spark.sink.worker_loop"):
        sink.WORKER_LOOP.close()


@pytest.fixture(scope="session")
def quick_session() -> dict[str, str]:
    """Options of a member whose death is soon noticed: as soon as the broker under test allows."""
    session_ms = 6000 if os.environ.get(OTHER_BROKER) else SHORT_SESSION_MS
    return {"kafka.session.timeout.ms": str(session_ms), "kafka.heartbeat.interval.ms": "200"}


@pytest.fixture(scope="session")
def patient_session() -> dict[str, str]:
    """Options of a member that nobody gives up while a busy machine keeps it waiting."""
    return {"kafka.session.timeout.ms": "30000", "kafka.heartbeat.interval.ms": "200"}


@pytest.fixture
def new_topic(bootstrap: str) -> Callable[..., Topic]:
    """A function that creates a topic with a name of its own: `new_topic(partitions=3)`."""

    def create(*, partitions: int = 1, config: dict[str, str] | None = None) -> Topic:
        return create_topic(bootstrap, f"t-{uuid.uuid4()}", partitions=partitions, config=config or {})

    return create


@pytest.fixture
def group() -> str:
    """A group id of its own."""
    return f"g-{uuid.uuid4()}"


@pytest.fixture
def run() -> Callable[[Any], Any]:
    """Runs a coroutine to its end."""
    return asyncio.run


def register_if_not_found(session: Any) -> None:
    """Register the source in a session where the JVM that looks for sources does not find the Python: one
    whose path has a space (docs/spark.md). Spark looks in the active session for one of that name.
    """
    if " " in sys.executable:
        from pyspark_coterie import DefaultSource

        session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
        session.dataSource.register(DefaultSource)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark session."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    made = (
        SparkSession.builder.master("local[2]")
        .appName("coterie tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    register_if_not_found(made)
    yield made
    made.stop()
