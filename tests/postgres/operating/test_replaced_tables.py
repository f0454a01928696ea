"""Nothing is written about logs in tables that have taken the place of those that a broker goes by.

A `pg_restore --clean` holds its lock for as long as it takes, and what has waited for that is done in what it
has brought. So each statement that writes goes by the table that the cluster is in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg
import pytest
from bench.postgres import Server

from coterie.storage.postgres import compacting, lane_session
from coterie.storage.postgres.connecting import (
    OTHER_HISTORY,
    DatabaseAddress,
    read_history,
    table_of,
)
from coterie.storage.postgres.reading import PostgresReader
from coterie.storage.remote.compaction import CompactedTo, Leads, RowPlace, RowsReplaced, Statement
from coterie.storage.remote.reading import LogLed, LogWanted, RetentionWanted, SizeWanted, StartWanted
from coterie.storage.remote.session import Broken, Look, Reopened

from ..rigs.lane_places import PLACE, Asking, InPostgres, a_chunk
from ..rigs.stage import REPLACED

pytestmark = pytest.mark.interop

LED = """
INSERT INTO coterie.partitions (partition_id, topic_id, number, replicas, leader, leader_epoch, version)
VALUES (1, '00000000-0000-0000-0000-000000000001', 0, '{}', $1, 3, 1)
"""
SPANS = "INSERT INTO coterie.aborted VALUES (1, 1, 7, 0, 0)"
STARTS = "INSERT INTO coterie.logs (partition_id, start_offset) VALUES (1, 2)"
ALL_ROWS = """
SELECT (SELECT jsonb_agg(to_jsonb(each) ORDER BY to_jsonb(each)) FROM coterie.lanes AS each)::text,
  (SELECT jsonb_agg(to_jsonb(each) ORDER BY to_jsonb(each)) FROM coterie.chunks_keep AS each)::text,
  (SELECT jsonb_agg(to_jsonb(each) ORDER BY to_jsonb(each)) FROM coterie.aborted AS each)::text,
  (SELECT jsonb_agg(to_jsonb(each) ORDER BY to_jsonb(each)) FROM coterie.leader_epochs AS each)::text,
  (SELECT jsonb_agg(to_jsonb(each) ORDER BY to_jsonb(each)) FROM coterie.logs AS each)::text
"""
Write = Callable[[PostgresReader, Callable[[object], None], str], None]


async def with_a_log(address: DatabaseAddress) -> InPostgres:
    """Return a database with a log of three rows, which a broker leads in epoch 3."""
    database = await InPostgres.at(address)
    await database.open_lanes(PLACE.broker_id, PLACE.broker_epoch)
    await database.own.execute(LED, PLACE.broker_id)
    lane = Asking(database, PLACE)
    await lane.reopen(1)
    await lane.append(1, *map(a_chunk, range(3)))
    lane.session.abort()
    for row in (SPANS, STARTS):
        await database.own.execute(row)
    return database


async def rows_of(connection: asyncpg.Connection) -> tuple[str, ...]:
    """Return all that is known of logs, and of who appends to them."""
    return tuple(await connection.fetchrow(ALL_ROWS))


async def answer_to(write: Write, reader: PostgresReader, history: str) -> object:
    answer = asyncio.get_running_loop().create_future()
    write(reader, answer.set_result, history)
    return await answer


def connected(reader: PostgresReader, done: Callable[[object], None], history: str) -> None:
    """Have a reader's connections be open."""
    reader.find_lacking(
        [LogLed(1, 3)],
        lambda _: reader.measure(SizeWanted(1, 0, 0, 0), done, history=history),
        history=history,
    )


@pytest.mark.parametrize(
    "write",
    [
        lambda reader, done, history: reader.save_starts([StartWanted(1, 3, 3)], done, history=history),
        lambda reader, done, history: reader.retain(
            RetentionWanted(1, 3, 0, 9, before_ms=1 << 60, surplus_bytes=0), done, history=history
        ),
        lambda reader, done, history: reader.delete_rows(1, 2, done, history=history),
        lambda reader, done, history: reader.read_logs([LogWanted(1, 4)], done, history=history),
    ],
    ids=["start", "retention", "rows", "epoch"],
)
def test_what_is_written_beside_lanes_is_written_to_no_other_tables(address: DatabaseAddress, write: Write):
    async def scene() -> None:
        database = await with_a_log(address)
        reader = database.reader()
        assert not isinstance(await answer_to(connected, reader, database.history), Broken)
        await database.own.execute(REPLACED)
        before = await rows_of(database.own)

        assert await answer_to(write, reader, database.history) == Broken(OTHER_HISTORY)
        assert await rows_of(database.own) == before
        history = await read_history(database.own)
        assert not isinstance(await answer_to(write, reader, history), Broken)
        assert await rows_of(database.own) != before
        database.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "statement",
    [
        CompactedTo(Leads(1, PLACE.broker_epoch, 3), 2),
        RowsReplaced(Leads(1, PLACE.broker_epoch, 3), [RowPlace(1, 1, 1)], []),
    ],
    ids=["upto", "rows"],
)
def test_nothing_is_compacted_in_other_tables(address: DatabaseAddress, statement: Statement):
    async def scene() -> None:
        database = await with_a_log(address)
        await database.own.execute(REPLACED)
        before = await rows_of(database.own)

        for history, is_done in ((database.history, False), (await read_history(database.own), True)):
            terms = (database.own, PLACE.broker_id, table_of(history), statement)
            assert await compacting.carry_out(*terms) is is_done
            assert (await rows_of(database.own) != before) is is_done
        database.close()

    asyncio.run(scene())


def test_a_lane_begins_no_life_in_other_tables(
    address: DatabaseAddress, monkeypatch: pytest.MonkeyPatch, server: Server, database: str
):
    """They take the place of its own once it has looked whose these are."""

    async def looked(connection: asyncpg.Connection) -> str:
        history = await read_history(connection)
        if replaced:
            server.sql(database, replaced.pop())
        return history

    replaced: list[str] = []
    monkeypatch.setattr(lane_session, "read_history", looked)

    async def scene() -> None:
        tables = await with_a_log(address)
        lane, before = Asking(tables, PLACE), await rows_of(tables.own)
        replaced.append(REPLACED)
        assert await lane.reopen(2, Look(None, None)) == Broken(OTHER_HISTORY)
        assert await rows_of(tables.own) == before
        assert await lane.reopen(3, Look(None, None)) == Reopened(True, True)
        lane.session.abort()
        tables.close()

    asyncio.run(scene())
