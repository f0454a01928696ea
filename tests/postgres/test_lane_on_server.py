"""What a lane's session does where only a real server shows it: locks, warnings, ends of connections."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest
from bench.postgres import Server

from coterie.storage.postgres import lane_session, reading
from coterie.storage.postgres.connecting import SILENT_S, Connections, DatabaseAddress, connect
from coterie.storage.postgres.lane_session import LaneSession
from coterie.storage.postgres.reading import STUCK_S
from coterie.storage.postgres.schema import migrate
from coterie.storage.remote.reading import (
    ALL_DATA,
    LogWanted,
    RetainedLog,
    RetentionWanted,
    StartWanted,
    StoredLog,
)
from coterie.storage.remote.session import Broken, Failed, Inserted, Look, Reopened

from .rigs.lane_places import ANSWERED_WITHIN_S, PLACE, Asking, InPostgres, Play, a_chunk, joined, play_over

pytestmark = pytest.mark.interop

Scene = Callable[[InPostgres, Asking], Awaitable[None]]
HOLD_UP = """
INSERT INTO coterie.chunks_keep SELECT 1, $1, $1, 3, 0, 1, 0, ''::bytea, ''::bytea
"""
A_PARTITION = """
INSERT INTO coterie.partitions (partition_id, topic_id, number, replicas, leader, leader_epoch, version)
VALUES (1, gen_random_uuid(), 0, '{1}', 1, 3, 1)
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = $1"


@pytest.fixture
def play(address: DatabaseAddress) -> Play:
    """Runs a scene over a database."""
    return play_over(address)


@asynccontextmanager
async def held_up(address: DatabaseAddress, base_offset: int) -> AsyncIterator[None]:
    """Have whoever inserts a row in this place wait, behind the gate, until this is left."""
    other = await connect(address)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(HOLD_UP, base_offset)
    yield
    await transaction.rollback()
    other.terminate()


async def until_waits(database: InPostgres, kind: str) -> None:
    """Return once somebody waits in the server."""
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        while not await database.own.fetchval(WAITING, kind):
            pass


async def until_rows(database: InPostgres, count: int) -> None:
    """Return once the partition has so many rows."""
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        while len(await database.rows(1)) != count:
            pass


def test_the_server_reads_and_plans_an_append_once(play: Play):
    async def scene(_: InPostgres, lane: Asking) -> None:
        await lane.reopen(1)
        for offset in range(20):
            assert await lane.append(1, a_chunk(offset)) == Inserted(1)
        assert lane.session._connection is not None
        connection = lane.session._connection._connection
        planned = """SELECT custom_plans, generic_plans FROM pg_prepared_statements
        WHERE statement LIKE '%INSERT INTO coterie.chunks_keep%'"""
        ((custom, generic),) = await connection.fetch(planned)
        assert custom + generic == 20
        assert custom <= 5  # PostgreSQL compares so many with the one that it keeps

    play(scene)  # type: ignore[arg-type]


def test_who_shuts_the_gate_waits_for_what_has_passed_it(play: Play, address: DatabaseAddress):
    async def scene(database: InPostgres, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0))
        async with held_up(address, 1):
            lane.session.append(1, [a_chunk(1)])
            await until_waits(database, "Lock")
            await database.own.execute("SET lock_timeout = 100")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await database.fence(PLACE.broker_id)
        assert await lane.answer_in(1) == Inserted(1)
        await database.fence(PLACE.broker_id)
        assert await lane.append(1, a_chunk(2)) == Inserted(0)

    play(scene)  # type: ignore[arg-type]


def test_a_statement_that_is_given_up_is_not_cancelled(play: Play, address: DatabaseAddress):
    async def scene(database: InPostgres, lane: Asking) -> None:
        await lane.reopen(1)
        async with held_up(address, 0):
            lane.session.append(1, [a_chunk(0)])
            await until_waits(database, "Lock")
            lane.session.abort()
        await until_rows(database, 1)
        assert lane.answers.empty()
        assert await lane.reopen(2, Look((1, 0, 3), None)) == Reopened(True, True)

    play(scene)  # type: ignore[arg-type]


def test_the_next_life_waits_for_the_statement_of_the_last(play: Play, address: DatabaseAddress):
    async def scene(database: InPostgres, lane: Asking) -> None:
        await lane.reopen(1)
        async with held_up(address, 0):
            lane.session.append(1, [a_chunk(0)])
            await until_waits(database, "Lock")
            lane.session.abort()
            lane.session.reopen(2, Look((1, 0, 3), None))
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                while await database.own.fetchval(WAITING, "Lock") < 2:
                    pass
            assert lane.answers.empty()
        assert await lane.answer_in(2) == Reopened(True, True)

    play(scene)  # type: ignore[arg-type]


def test_a_cancelled_wait_for_the_replica_leaves_the_outcome_open(server: Server, database: str):
    """All of it: the append is there, its session says that it may be lost again, and so does the life after
    it as long as nobody confirms.
    """

    async def scene() -> None:
        tables = await InPostgres.at(DatabaseAddress(server.url(database)))
        await tables.open_lanes(PLACE.broker_id, PLACE.broker_epoch)
        waits = DatabaseAddress(f"{server.url(database)}&synchronous_commit=on")
        lane = Asking(tables, PLACE)
        await lane.reopen(1)
        lane.session.abort()
        connections = Connections(waits, asyncio.get_running_loop())
        lane.session = LaneSession(connections, PLACE, lambda *one: lane.answers.put_nowait(one))
        await tables.own.execute("UPDATE coterie.lanes SET life = 2")
        for act in (
            lambda: lane.session.reopen(3, Look(None, None)),
            lambda: lane.session.reopen(4, Look(None, None)),
        ):
            act()
            await until_waits(tables, "IPC")
            await tables.own.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            )
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                _, answer = await lane.answers.get()
            assert isinstance(answer, Failed)
            assert answer.sqlstate == "01000"
            lane.session.abort()
        assert await tables.own.fetchval("SELECT max(life) FROM coterie.lanes") == 4
        tables.close()

    asyncio.run(scene())


def test_lives_that_are_given_up_do_not_pile_up_in_the_server(
    play: Play, address: DatabaseAddress, monkeypatch: pytest.MonkeyPatch
):
    soon = lane_session.BEGIN_LIFE.replace("'8000'", "'50'")
    assert soon != lane_session.BEGIN_LIFE
    monkeypatch.setattr(lane_session, "BEGIN_LIFE", soon)

    async def scene(database: InPostgres, lane: Asking) -> None:
        await lane.reopen(1)
        async with held_up(address, 0):
            lane.session.append(1, [a_chunk(0)])
            await until_waits(database, "Lock")
            for life in range(2, 6):
                answer = await lane.reopen(life)
                assert isinstance(answer, Failed)
                assert answer.sqlstate == "55P03"
            assert await database.own.fetchval(WAITING, "Lock") == 1
        assert await lane.reopen(6, Look((1, 0, 3), None)) == Reopened(True, True)

    play(scene)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
def test_the_end_of_the_server_is_no_answer(number: signal.Signals):
    with Server({"max_prepared_transactions": "1"}) as server:
        asyncio.run(_end_of_server(server, number))


async def _end_of_server(server: Server, number: signal.Signals) -> None:
    address = DatabaseAddress(server.url(server.new_database()))
    await migrate(address)
    database = await InPostgres.at(address)
    await database.open_lanes(PLACE.broker_id, PLACE.broker_epoch)
    lane = Asking(database, PLACE)
    await lane.reopen(1)
    await lane.append(1, a_chunk(0))
    other = await connect(address)
    await other.execute("BEGIN")
    await other.execute(HOLD_UP, 1)
    await other.execute("PREPARE TRANSACTION 'held up'")  # which the server's end does not end
    other.terminate()
    lane.session.append(1, [a_chunk(1)])
    await until_waits(database, "Lock")
    await asyncio.to_thread(server.stop, number)
    assert isinstance(await lane.answer_in(1), Broken)
    assert isinstance(await lane.reopen(2, Look((1, 1, 3), (1, 0, 3))), Broken | Failed)
    await asyncio.to_thread(server.start)
    other = await connect(address)
    await other.execute("ROLLBACK PREPARED 'held up'")
    assert await lane.reopen(3, Look((1, 1, 3), (1, 0, 3))) == Reopened(False, True)
    assert await lane.append(3, a_chunk(1)) == Inserted(1)
    assert lane.answers.empty()
    lane.session.abort()
    other.terminate()
    database.close()


def test_the_system_notices_a_server_that_is_gone_without_a_word(address: DatabaseAddress):
    async def options() -> tuple[int, int]:
        connection = await connect(address)
        peer = connection._transport.get_extra_info("socket")
        found = (
            peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        )
        connection.terminate()
        return found

    assert asyncio.run(options()) == (1, SILENT_S * 1_000)


def test_a_reader_that_is_stuck_is_followed_by_one_that_is_not(play: Play, address: DatabaseAddress):
    async def scene(database: InPostgres, lane: Asking) -> None:
        database.connections.loop = Ahead(asyncio.get_running_loop())  # type: ignore[assignment]
        reader = database.reader()
        answers: asyncio.Queue[object] = asyncio.Queue()
        other = await connect(address)
        async with other.transaction():
            await other.execute("LOCK TABLE coterie.logs")
            reader.save_starts([StartWanted(1, 0, 3)], answers.put_nowait, history=database.history)
            await until_waits(database, "Lock")
            reader.save_starts([StartWanted(1, 0, 4)], answers.put_nowait, history=database.history)
            database.connections.loop.ahead_s = 2 * STUCK_S  # type: ignore[attr-defined]
            reader.save_starts([StartWanted(1, 0, 5)], answers.put_nowait, history=database.history)
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                assert [isinstance(await answers.get(), Broken) for _ in range(2)] == [True, True]
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            assert await answers.get() == []
        other.terminate()

    play(scene)  # type: ignore[arg-type]


def test_a_start_moves_neither_while_a_partition_is_given_another_leader_nor_then(
    play: Play, address: DatabaseAddress
):
    async def scene(database: InPostgres, lane: Asking) -> None:
        reader = database.reader()
        answers: asyncio.Queue[object] = asyncio.Queue()
        other = await connect(address)
        await other.execute(
            "INSERT INTO coterie.partitions (partition_id, topic_id, number, replicas, leader, leader_epoch,"
            " version) SELECT id, gen_random_uuid(), 0, '{1}', 1, 3, 1 FROM generate_series(1, 2) AS id"
        )

        async def save(epoch: int) -> object:
            starts = [StartWanted(1, epoch, 5), StartWanted(2, 3, 5)]
            reader.save_starts(starts, answers.put_nowait, history=database.history)
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                return await answers.get()

        async with other.transaction():
            await other.execute("UPDATE coterie.partitions SET leader_epoch = 4 WHERE partition_id = 1")
            assert isinstance(await save(3), Broken)
        assert await save(3) == [1]
        assert await other.fetch("SELECT partition_id, start_offset FROM coterie.logs") == [(2, 5)]
        assert await save(4) == []
        other.terminate()

    play(scene)  # type: ignore[arg-type]


def test_no_log_is_shortened_while_its_partition_is_given_another_leader_nor_then(
    play: Play, address: DatabaseAddress
):
    async def scene(database: InPostgres, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0), a_chunk(1))
        reader = database.reader()
        answers: asyncio.Queue[object] = asyncio.Queue()
        other = await connect(address)
        await other.execute(A_PARTITION)

        def retain(epoch: int) -> None:
            wanted = RetentionWanted(1, epoch, 0, 9, before_ms=-1, surplus_bytes=1)
            reader.retain(wanted, answers.put_nowait, history=database.history)

        async with other.transaction():
            await other.execute("UPDATE coterie.partitions SET leader_epoch = 4")
            retain(3)
            await until_waits(database, "Lock")
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            answer = await answers.get()
            assert isinstance(answer, RetainedLog)
            assert answer.start_offset == 0
            assert await other.fetch("SELECT FROM coterie.logs") == []
            retain(4)
            answer = await answers.get()
            assert isinstance(answer, RetainedLog)
            assert answer.start_offset == 1
        other.terminate()

    play(scene)  # type: ignore[arg-type]


def test_whoever_waits_for_a_reader_that_is_stuck_is_answered_though_nobody_asks_anew(
    play: Play, address: DatabaseAddress, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading, "STUCK_S", 0.2)

    async def scene(database: InPostgres, lane: Asking) -> None:
        reader = database.reader()
        answers: asyncio.Queue[object] = asyncio.Queue()
        other = await connect(address)
        async with other.transaction():
            await other.execute("LOCK TABLE coterie.logs")
            reader.save_starts([StartWanted(1, 0, 3)], answers.put_nowait, history=database.history)
            async with asyncio.timeout(reading.ROWS_LOCK_MS / 2_000):
                assert isinstance(await answers.get(), Broken)
        other.terminate()

    play(scene)  # type: ignore[arg-type]


def test_of_logs_that_hold_much_the_first_are_read_and_one_at_least(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading, "FEW_BYTES", 0)
    monkeypatch.setattr(reading, "READ_BYTES", 1)
    monkeypatch.setattr(reading, "ROWS_AT_ONCE", 2)
    rows = [*(a_chunk(number) for number in range(5)), a_chunk(0, partition=2), a_chunk(1, partition=2)]

    async def scene(database: InPostgres, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, *rows)
        reader = database.reader()
        answers: asyncio.Queue[list[StoredLog]] = asyncio.Queue()
        for wanted in ((1, 3, 2), (2, 3)):
            asked = [LogWanted(one, 4) for one in wanted]
            reader.read_logs(asked, answers.put_nowait, history=database.history)  # type: ignore[arg-type]
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            first, second = await answers.get(), await answers.get()
        assert [(log.partition_id, joined(log.chunks)) for log in first] == [(1, joined(rows[:5])), (3, [])]
        assert [(log.partition_id, joined(log.chunks)) for log in second] == [(2, joined(rows[5:])), (3, [])]

    play(scene)  # type: ignore[arg-type]


def test_short_logs_that_have_come_with_their_epochs_are_not_asked_for_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading, "FEW_BYTES", 6)
    monkeypatch.setattr(reading, "READ_BYTES", 1)
    rows = [*(a_chunk(number) for number in range(5)), a_chunk(0, partition=2), a_chunk(1, partition=2)]

    async def scene(database: InPostgres, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, *rows)
        answers: asyncio.Queue[list[StoredLog]] = asyncio.Queue()
        asked = [LogWanted(one, 4) for one in (1, 2, 3)]
        database.reader().read_logs(asked, answers.put_nowait, history=database.history)  # type: ignore[arg-type]
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            found = await answers.get()
        chunks = [(log.partition_id, joined(log.chunks)) for log in found]
        assert chunks == [(1, joined(rows[:5])), (2, joined(rows[5:])), (3, [])]

    play(scene)  # type: ignore[arg-type]


@pytest.mark.parametrize("few_bytes", [reading.FEW_BYTES, 0], ids=["with-the-epochs", "after-them"])
def test_rows_come_joined_as_long_as_they_are_small_and_of_one_kind(
    play: Play, monkeypatch: pytest.MonkeyPatch, few_bytes: int
):
    """Of one leader epoch, and either compacted or not, however the server orders them."""
    monkeypatch.setattr(reading, "FEW_BYTES", few_bytes)
    size = reading.PIECE_BYTES // 4
    rows = [a_chunk(at, epoch=at // 6)._replace(data=bytes([at]) * size) for at in range(18)]

    async def scene(database: InPostgres, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, *rows)
        await database.own.execute("INSERT INTO coterie.logs (partition_id, compacted_to) VALUES (1, 5)")
        answers: asyncio.Queue[list[StoredLog]] = asyncio.Queue()
        reader = database.reader()
        for data_bytes in (ALL_DATA, 3 * size):
            asked = [LogWanted(1, 9, data_bytes)]
            reader.read_logs(asked, answers.put_nowait, history=database.history)  # type: ignore[arg-type]
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            (whole,), (newest,) = await answers.get(), await answers.get()
        ends = [(0, 2), (3, 4), (5, 5), (6, 6), (7, 10), (11, 11), (12, 14), (15, 17)]
        assert whole.chunks == [row for first, last in ends for row in joined(rows[first : last + 1])]
        assert newest.chunks == joined(rows[15:])
        heads = [(row.base_offset, row.last_offset, row.size) for row in newest.older]
        assert heads == [(0, 4, 5 * size), (5, 5, size), (6, 11, 6 * size), (12, 14, 3 * size)]

    play(scene)  # type: ignore[arg-type]


class Ahead:
    """A loop whose clock is ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.ahead_s = 0.0

    def time(self) -> float:
        return self._loop.time() + self.ahead_s

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)
