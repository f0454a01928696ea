"""The rows of a deleted topic go once all brokers know of its end, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest
from bench.postgres import Server

from cluster.engine_kit import Broker, topic
from coterie.broker.cluster.changes import CreateTopics, DeleteTopics
from coterie.broker.cluster.image import Image
from coterie.broker.cluster.postgres import sweeping
from coterie.broker.cluster.postgres.sweeping import SWEEP_EVERY, Sweeper, sweep, sweep_strays
from coterie.storage.postgres import deleting
from coterie.storage.postgres.connecting import DatabaseAddress, connect, read_history, table_of

from .rigs.stage import REPLACED, PostgresStage

pytestmark = pytest.mark.interop

FILL = """
INSERT INTO coterie.chunks_keep
SELECT $1, base, base, 0, 0, 1, $3, ''::bytea, ''::bytea FROM generate_series(0, $2 - 1) AS base
"""
FILL_LATE = "INSERT INTO coterie.chunks_keep VALUES (1, 0, 0, 0, 0, 1, 1, ''::bytea, ''::bytea)"
LATE_EPOCH = "INSERT INTO coterie.leader_epochs VALUES (1, 9, 0)"
LATE_START = "INSERT INTO coterie.logs (partition_id) VALUES (1)"
LATE_ABORTED = "INSERT INTO coterie.aborted VALUES (1, 9, 1, 0, 0)"
TABLES = ("chunks_keep", "aborted", "leader_epochs", "logs", "partitions")


@pytest.fixture
def on(address: DatabaseAddress) -> Callable[[Callable[[asyncpg.Connection], Awaitable[None]]], None]:
    """Runs a scene on a connection."""

    async def play(scene: Callable[[asyncpg.Connection], Awaitable[None]]) -> None:
        connection = await connect(address)
        await scene(connection)
        connection.terminate()

    return lambda scene: asyncio.run(play(scene))


Play = Callable[[Callable[[asyncpg.Connection], Awaitable[None]]], None]


async def fill(connection: asyncpg.Connection, partition_id: int, rows: int, *, size: int = 1) -> None:
    """Have a partition with a row in each table, and so many of records."""
    await connection.execute(FILL, partition_id, rows, size)
    await connection.execute("INSERT INTO coterie.aborted VALUES ($1, 1, 1, 0, 0)", partition_id)
    await connection.execute("INSERT INTO coterie.leader_epochs VALUES ($1, 0, 0)", partition_id)
    await connection.execute("INSERT INTO coterie.logs (partition_id) VALUES ($1)", partition_id)


async def table_there(connection: asyncpg.Connection) -> int:
    """Return the table that has the cluster."""
    return table_of(await read_history(connection))


async def counts(connection: asyncpg.Connection) -> list[int]:
    """Return the number of rows of each table."""
    return [await connection.fetchval(f"SELECT count(*) FROM coterie.{table}") for table in TABLES]


async def make_topics(connection: asyncpg.Connection, *, deleted_at: int) -> None:
    """Have a topic that was deleted at a version, with partition 1, and one that is there, with 2."""
    for number, is_deleted in ((1, True), (2, False)):
        await connection.execute(
            "INSERT INTO coterie.topics VALUES ($1, $2, 1, '{}', 0, $3, $4)",
            *(UUID(int=number), f"t{number}", is_deleted, deleted_at),
        )
        await connection.execute(
            "INSERT INTO coterie.partitions VALUES ($1, $2, 0, '{1}', 1, 0, NULL, 0, 1)",
            number,
            UUID(int=number),
        )


def test_a_slice_has_so_many_rows_or_bytes_and_one_row_at_least(on: Play, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deleting, "SLICE_ROWS", 10)
    monkeypatch.setattr(deleting, "SLICE_BYTES", 50)

    async def scene(connection: asyncpg.Connection) -> None:
        table = await table_there(connection)
        await fill(connection, 1, 25)
        await fill(connection, 2, 25, size=20)
        await fill(connection, 3, 2, size=1_000)
        assert [await deleting.delete_slice(connection, table, 1) for _ in range(4)] == [10, 10, 5, 0]
        assert await deleting.delete_slice(connection, table, 2) == 3
        assert [await deleting.delete_slice(connection, table, 3) for _ in range(3)] == [1, 1, 0]

    on(scene)


def test_a_slice_ends_before_the_row_that_holds_an_offset(on: Play):
    async def scene(connection: asyncpg.Connection) -> None:
        table = await table_there(connection)
        await fill(connection, 1, 5)
        assert await deleting.delete_slice(connection, table, 1, 3) == 3
        left = await connection.fetch("SELECT base_offset FROM coterie.chunks_keep ORDER BY 1")
        assert [row[0] for row in left] == [3, 4]

    on(scene)


def test_the_rows_of_a_deleted_topic_go_once_all_have_seen_that_it_is(on: Play):
    async def scene(connection: asyncpg.Connection) -> None:
        table = await table_there(connection)
        await make_topics(connection, deleted_at=7)
        await fill(connection, 1, 1_500)
        await fill(connection, 2, 4)
        assert await sweep(6, table, connection) == 0
        assert await counts(connection) == [1_504, 2, 2, 2, 2]
        assert await sweep(7, table, connection) == 1
        assert await counts(connection) == [4, 1, 1, 1, 2]
        await connection.execute(FILL, 1, 1, 1)  # it was in flight
        assert await sweep(7, table, connection) == 1
        assert await counts(connection) == [4, 1, 1, 1, 2]
        assert await sweep(7, table, connection) == 1
        assert await counts(connection) == [4, 1, 1, 1, 1]
        assert await sweep(7, table, connection) == 0
        assert await connection.fetchval("SELECT count(*) FROM coterie.topics") == 2

    on(scene)


def test_what_comes_after_a_partition_is_forgotten_goes_as_well(on: Play):
    async def scene(connection: asyncpg.Connection) -> None:
        table = await table_there(connection)
        await make_topics(connection, deleted_at=7)
        await fill(connection, 2, 4)
        assert await sweep(7, table, connection) == 1
        for late in (FILL_LATE, LATE_EPOCH, LATE_START, LATE_ABORTED):
            await connection.execute(late)
            assert await sweep(7, table, connection) == 0
            assert await sweep_strays(table, connection) == 1
            assert await counts(connection) == [4, 1, 1, 1, 1]
            assert await sweep_strays(table, connection) == 0

    on(scene)


def test_strays_are_looked_for_now_and_then(
    server: Server, with_tables: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sweeping, "STRAYS_EVERY", 3)
    stage = PostgresStage(server, server.new_database(with_tables))
    broker = Broker(stage)
    broker.register()

    def strays() -> int:
        return int(server.sql(stage.database, "SELECT count(*) FROM coterie.logs"))

    for sweeps in (1, 3):
        server.sql(stage.database, LATE_START)
        for _ in range(sweeps):
            assert strays() == 1
            for _ in range(SWEEP_EVERY):
                broker.heartbeat()
        stage.until(lambda: strays() == 0)
    stage.close()


def test_nothing_is_swept_in_a_database_of_another_history(server: Server, with_tables: str):
    stage = PostgresStage(server, server.new_database(with_tables))
    broker = Broker(stage)
    broker.register()
    broker.change(CreateTopics((topic(1, "gone"),)))
    answer = broker.heartbeat(broker.change(DeleteTopics((UUID(int=1),))))
    histories, looked = ["another", broker.history], 0

    def history() -> str:
        nonlocal looked
        looked += 1
        return histories[0]

    def sweep_at_once() -> None:
        before, sweeper = looked, Sweeper(stage.connections, 1, history=history)
        for _ in range(SWEEP_EVERY):
            sweeper.heartbeat_answered(answer)
        stage.until(lambda: looked > before)
        stage.until(lambda: sweeper._connection is None or partitions() == 0)
        sweeper.close()

    def partitions() -> int:
        return int(server.sql(stage.database, "SELECT count(*) FROM coterie.partitions"))

    sweep_at_once()
    assert partitions() == 1
    del histories[0]
    sweep_at_once()
    assert partitions() == 0
    stage.close()


def test_nothing_is_swept_in_tables_that_have_taken_the_place_of_those_that_were_there(
    server: Server, with_tables: str
):
    stage = PostgresStage(server, server.new_database(with_tables))
    broker = Broker(stage)
    broker.register()
    broker.change(CreateTopics((topic(1, "gone"),)))
    deleted = broker.change(DeleteTopics((UUID(int=1),)))
    answers = [broker.heartbeat(deleted - 1), broker.heartbeat(deleted)]
    sweeper = Sweeper(stage.connections, 1, history=lambda: broker.history)
    for answer in answers:
        assert partitions_in(stage) == 1
        for _ in range(SWEEP_EVERY):
            sweeper.heartbeat_answered(answer)
        stage.until(lambda: not sweeper._sweeping)
        server.sql(stage.database, REPLACED)

    assert partitions_in(stage) == 1
    sweeper.close()
    stage.close()


def test_a_sweep_whose_tables_others_take_the_place_of_deletes_nothing_in_those(on: Play):
    """It may wait for the lock of whoever brings them back, between any two of its statements."""

    async def scene(connection: asyncpg.Connection) -> None:
        await make_topics(connection, deleted_at=7)
        await fill(connection, 1, 4)
        await fill(connection, 3, 4)
        table, before = await table_there(connection), await counts(connection)
        await connection.execute(REPLACED)
        assert await sweep(7, table, connection) == await sweep_strays(table, connection) == 1
        assert await counts(connection) == before
        await connection.execute("DELETE FROM coterie.chunks_keep")
        assert await sweep(7, table, connection) == 1
        assert (await counts(connection))[1:] == before[1:]

    on(scene)


def partitions_in(stage: PostgresStage) -> int:
    return int(stage.server.sql(stage.database, "SELECT count(*) FROM coterie.partitions"))


def test_the_first_of_the_brokers_sweeps_as_its_heartbeats_are_answered(server: Server, with_tables: str):
    stage = PostgresStage(server, server.new_database(with_tables))
    first, second = Broker(stage, 1), Broker(stage, 2)
    for broker in (first, second):
        broker.register()
    first.change(CreateTopics((topic(1, "gone", (1,), (2,)), topic(2, "stays"))))
    deleted = first.change(DeleteTopics((UUID(int=1),)))

    def partitions() -> int:
        return int(server.sql(stage.database, "SELECT count(*) FROM coterie.partitions"))

    for _ in range(SWEEP_EVERY):
        second.heartbeat(deleted)
        first.heartbeat(deleted - 1)
    assert partitions() == 3
    for _ in range(SWEEP_EVERY):
        second.heartbeat(deleted)
        first.heartbeat(deleted)
    stage.until(lambda: partitions() == 1)

    assert [one.name for one in Image().after(second.read(0)).topics()] == ["stays"]
    stage.close()
