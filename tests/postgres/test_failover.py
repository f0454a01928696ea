"""Another server takes over: with all that was acknowledged, or behind, which is noticed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest
from bench.postgres import Server

from coterie.broker.cluster.engine import MetadataSession
from coterie.broker.cluster.postgres.engine import PostgresEngine
from coterie.broker.cluster.statements import ProducerIds, ReserveProducerIds
from coterie.storage.postgres.connecting import Connections, DatabaseAddress, connect, read_history
from coterie.storage.postgres.lane_session import LaneSession
from coterie.storage.postgres.schema import migrate
from coterie.storage.remote.session import Broken, Inserted, Look, Reopened

from .rigs.lane_places import ANSWERED_WITHIN_S, PLACE, Asking, InPostgres, a_chunk

pytestmark = pytest.mark.interop

FOLLOWS = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1"
DATABASE = "cluster"


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """A server with a database of ours, and a synchronous standby of it. Only who asks waits for that."""
    with Server({"synchronous_standby_names": "*"}) as primary:
        primary.sql("postgres", f"CREATE DATABASE {DATABASE}")
        asyncio.run(migrate(DatabaseAddress(primary.url(DATABASE))))
        standby = primary.standby()
        try:
            standby.start()
            yield primary, standby
        finally:
            standby.__exit__(None, None, None)


class Scene:
    """A lane that knows both servers, and the history that its broker goes by."""

    def __init__(self, pair: tuple[Server, Server], database: InPostgres, *, synchronous: bool) -> None:
        self.primary, self.standby = pair
        self.database = database
        self.history = database.history
        self.both = DatabaseAddress(
            f"postgresql://postgres@127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}/{DATABASE}"
            f"?sslmode=disable&synchronous_commit={'on' if synchronous else 'local'}"
        )
        self.lane = Asking(database, PLACE)
        connections = Connections(self.both, asyncio.get_running_loop())
        self.lane.session = LaneSession(
            connections, PLACE, lambda *one: self.lane.answers.put_nowait(one), lambda: self.history
        )

    @classmethod
    async def begun(cls, pair: tuple[Server, Server], *, synchronous: bool) -> Scene:
        """Return a scene with a lane in life 1 that has one row, once the standby follows."""
        primary, _ = pair
        database = await InPostgres.at(DatabaseAddress(primary.url(DATABASE)))
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            while not await database.own.fetchval(FOLLOWS, "sync"):
                pass
        await database.open_lanes(PLACE.broker_id, PLACE.broker_epoch)
        scene = cls(pair, database, synchronous=synchronous)
        assert await scene.lane.reopen(1) == Reopened(True, True)
        assert await scene.lane.append(1, a_chunk(0)) == Inserted(1)
        return scene

    async def fail_over(self) -> None:
        """Have the primary die, and the other take its place."""
        await asyncio.to_thread(self.primary.stop, signal.SIGKILL)
        assert isinstance(await self.lane.answer_in(1), Broken)
        await asyncio.to_thread(self.standby.promote)

    async def end(self) -> None:
        self.lane.session.abort()
        self.database.close()


def test_a_synchronous_standby_has_all_that_was_acknowledged(pair: tuple[Server, Server]):
    async def play() -> None:
        scene = await Scene.begun(pair, synchronous=True)
        assert await scene.lane.append(1, a_chunk(1)) == Inserted(1)
        await scene.fail_over()

        other_history = await scene.lane.reopen(2, Look((1, 2, 3), (1, 1, 3)))
        own = await connect(scene.both)
        scene.history = await read_history(own)
        own.terminate()

        assert isinstance(other_history, Broken)
        assert scene.history != scene.database.history
        assert await scene.lane.reopen(3, Look((1, 2, 3), (1, 1, 3))) == Reopened(False, True)
        assert await scene.lane.append(3, a_chunk(2)) == Inserted(1)
        await scene.end()

    asyncio.run(play())


def test_a_standby_that_was_behind_is_found_out(pair: tuple[Server, Server]):
    async def play() -> None:
        scene = await Scene.begun(pair, synchronous=False)
        receiver = scene.standby.sql("postgres", "SELECT pid FROM pg_stat_wal_receiver")
        until = time.monotonic() + ANSWERED_WITHIN_S
        while scene.standby.sql(DATABASE, "SELECT count(*) FROM coterie.chunks_keep") != "1":
            assert time.monotonic() < until
        os.kill(int(receiver), signal.SIGSTOP)
        assert await scene.lane.append(1, a_chunk(1)) == Inserted(1)
        await asyncio.to_thread(scene.primary.stop, signal.SIGKILL)
        assert isinstance(await scene.lane.answer_in(1), Broken)
        os.kill(int(receiver), signal.SIGKILL)  # what it has not read it never will; the server recovers
        await asyncio.to_thread(scene.standby.until_ready)
        await asyncio.to_thread(scene.standby.promote)

        own = await connect(scene.both)
        scene.history = await read_history(own)
        own.terminate()

        assert await scene.lane.reopen(2, Look(None, (1, 1, 3))) == Reopened(True, False)
        await scene.end()

    asyncio.run(play())


NEXT_ID = "SELECT next_producer_id FROM coterie.cluster"


async def reserved(address: DatabaseAddress) -> range:
    """Return a block of producer ids that a broker is given."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[MetadataSession] = loop.create_future()
    answered: asyncio.Future[object] = loop.create_future()
    engine = PostgresEngine(Connections(address, loop), 1, lanes=3)
    engine.connect(opened=lambda session, _: opened.set_result(session), ended=lambda: None)
    session = await opened
    session.send(ReserveProducerIds(), answered.set_result)
    block = await answered
    session.close()
    assert isinstance(block, ProducerIds)
    return range(block.first, block.first + block.size)


def test_a_standby_that_was_behind_gives_out_no_producer_id_again(pair: tuple[Server, Server]):
    async def play() -> None:
        scene = await Scene.begun(pair, synchronous=False)
        known = await reserved(scene.both)
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            while await asyncio.to_thread(scene.standby.sql, DATABASE, NEXT_ID) != f"{known.stop}":
                pass
        receiver = int(scene.standby.sql("postgres", "SELECT pid FROM pg_stat_wal_receiver"))
        os.kill(receiver, signal.SIGSTOP)
        before = await reserved(scene.both)
        await asyncio.to_thread(scene.primary.stop, signal.SIGKILL)
        assert isinstance(await scene.lane.answer_in(1), Broken)
        os.kill(receiver, signal.SIGKILL)  # as above
        await asyncio.to_thread(scene.standby.until_ready)
        await asyncio.to_thread(scene.standby.promote)

        after = [await reserved(scene.both), await reserved(scene.both)]

        assert (known, before) == (range(1_000), range(1_000, 2_000))
        assert after[0].start == (1 << 40) + known.stop, "on from what it knows, which may be a restore's"
        assert after[1] == range(after[0].stop, after[0].stop + 1_000)
        await scene.end()

    asyncio.run(play())
