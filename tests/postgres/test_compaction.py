"""Compactions, asked of the database in memory and of PostgreSQL alike; and one beside the broker."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Any
from uuid import UUID

import pytest

from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.postgres import compacting
from coterie.storage.postgres.compacting import PostgresCompactor
from coterie.storage.postgres.connecting import DatabaseAddress, connect, read_history, table_of
from coterie.storage.remote import pretended_compaction
from coterie.storage.remote.compaction import (
    Compacted,
    CompactedTo,
    Leads,
    RowPlace,
    RowsReplaced,
    SpansWanted,
    Statement,
)
from coterie.storage.remote.reading import LogLed
from coterie.storage.remote.session import Broken
from unit.storage.store_rig import NOW, a_config, everything, keyed

from .rigs.lane_places import PLACE, Asking, InMemory, LaneDatabase, Play, a_chunk, joined
from .rigs.log_in_postgres import BROKER, PARTITION, OneLogInPostgres
from .test_reading_contract import one_of

LEADS = Leads(1, PLACE.broker_epoch, 4)
LEAD = """
INSERT INTO coterie.partitions (partition_id, topic_id, number, replicas, leader, leader_epoch, version)
VALUES ($1, $2, 0, '{}', $3, $4, 1)
ON CONFLICT (partition_id) DO UPDATE SET leader = excluded.leader, leader_epoch = excluded.leader_epoch
"""
SETTINGS = {"cleanup_policy": "compact", "segment_bytes": 230, "min_cleanable_dirty_ratio": 0.01}


async def led(database: Any, leader_epoch: int = 4, leader: int = PLACE.broker_id) -> None:
    """Have a broker lead the partition."""
    await one_of(database, 1, leader_epoch)
    if not isinstance(database, InMemory):
        await database.own.execute(LEAD, 1, UUID(int=1), leader, leader_epoch)


async def ask(database: Any, statement: Statement) -> Any:
    """Return what a statement is answered with."""
    if isinstance(database, InMemory):
        return pretended_compaction.carry_out(database.tables, PLACE.broker_id, statement)
    table = table_of(database.history)
    return await compacting.carry_out(database.own, PLACE.broker_id, table, statement)


async def four_rows(database: LaneDatabase, lane: Asking) -> None:
    """Have a log of four rows of two offsets, of a byte each."""
    await led(database)
    await lane.reopen(1)
    await lane.append(1, *[a_chunk(base, base + 1) for base in range(0, 8, 2)], a_chunk(0, partition=2))


def test_rows_take_the_places_of_others_and_how_far_is_written_down(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await four_rows(database, lane)
        made = a_chunk(2, 4)._replace(batches=7, max_timestamp=9, data=b"what stays", heads=b"heads")
        old = [RowPlace(base, base + 1, 1) for base in (0, 2, 4)]
        assert await ask(database, RowsReplaced(LEADS, old, [made])) is True
        assert await database.rows(1) == [made, a_chunk(6, 7)]
        assert await ask(database, CompactedTo(LEADS, 6)) is True
        assert await ask(database, CompactedTo(LEADS, 5)) is True
        log = await one_of(database, 1, 5)
        assert (log.compacted_to, log.chunks, log.end_offset) == (6, joined([made, a_chunk(6, 7)]), 8)
        assert (await one_of(database, 2, 5)).compacted_to == 0
        assert len(await database.rows(2)) == 1

    play(scene)


def test_rows_of_which_nothing_stays_go(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await four_rows(database, lane)
        assert await ask(database, RowsReplaced(LEADS, [RowPlace(2, 3, 1), RowPlace(4, 5, 1)], [])) is True
        assert await database.rows(1) == [a_chunk(0, 1), a_chunk(6, 7)]

    play(scene)


def test_aborted_transactions_of_which_nothing_is_left_go_with_the_rows(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await led(database)
        await lane.reopen(1)
        spans = [AbortedSpan(7, 0, 1, 0), AbortedSpan(8, 0, 3, 2), AbortedSpan(7, 4, 5, 4)]
        rows = [
            a_chunk(at, at + 1)._replace(aborted=(span,)) for at, span in zip((0, 2, 4), spans, strict=True)
        ]
        await lane.append(1, *rows)
        assert await ask(database, SpansWanted(1, 4)) == spans[:2]
        made = rows[0]._replace(last_offset=3, data=b"both", aborted=(spans[1],))
        replaced = RowsReplaced(LEADS, [RowPlace(0, 1, 1), RowPlace(2, 3, 1)], [made], [spans[0]])
        assert await ask(database, replaced._replace(leads=LEADS._replace(leader_epoch=3))) is False
        assert await ask(database, SpansWanted(1, 9)) == spans
        assert await ask(database, replaced) is True
        assert await ask(database, SpansWanted(1, 9)) == spans[1:]
        assert await database.rows(1) == [made, rows[2]]

    play(scene)


@pytest.mark.parametrize(
    "old", [RowPlace(3, 3, 1), RowPlace(2, 4, 1), RowPlace(2, 3, 2)], ids=["gone", "longer", "larger"]
)
def test_nothing_happens_unless_all_rows_are_there_as_they_were_read(play: Play, old: RowPlace):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await four_rows(database, lane)
        before = await database.rows(1)
        made = before[0]._replace(data=b"what stays")
        assert await ask(database, RowsReplaced(LEADS, [RowPlace(0, 1, 1), old], [made])) is False
        assert await database.rows(1) == before

    play(scene)


@pytest.mark.parametrize(
    "leads",
    [LEADS._replace(broker_epoch=4), LEADS._replace(leader_epoch=3), None],
    ids=["broker", "leader", "fenced"],
)
def test_who_leads_no_more_changes_nothing(play: Play, leads: Leads | None):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await four_rows(database, lane)
        before = await database.rows(1)
        if leads is None:
            await database.fence(PLACE.broker_id)
        terms = leads or LEADS
        assert await ask(database, RowsReplaced(terms, [RowPlace(0, 1, 1)], [])) is False
        assert await ask(database, CompactedTo(terms, 6)) is False
        assert (await database.rows(1), (await one_of(database, 1, 5)).compacted_to) == (before, 0)

    play(scene)


@pytest.mark.interop
@pytest.mark.parametrize(
    "taken",
    ["DELETE FROM coterie.lanes", "UPDATE coterie.partitions SET leader = 9"],
    ids=["taken over", "given away"],
)
def test_a_statement_waits_for_whoever_takes_the_partition_and_does_nothing_then(
    address: DatabaseAddress, taken: str
):
    async def scene() -> None:
        own, other, looking = [await connect(address) for _ in range(3)]
        await other.execute("INSERT INTO coterie.lanes VALUES ($1, 0, $2)", *PLACE[::2])
        await other.execute(LEAD, 1, UUID(int=1), PLACE.broker_id, 4)
        await other.execute("BEGIN")
        await other.execute(taken)
        table = table_of(await read_history(own))
        asked = asyncio.ensure_future(
            compacting.carry_out(own, PLACE.broker_id, table, CompactedTo(LEADS, 6))
        )
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = $1"
        while not await looking.fetchval(waits, own.get_server_pid()):
            assert not asked.done()
        await other.execute("COMMIT")
        assert await asked is False
        assert await other.fetchval("SELECT count(*) FROM coterie.logs") == 0
        for one in (own, other, looking):
            one.terminate()

    asyncio.run(scene())


@pytest.mark.interop
def test_a_log_is_compacted_beside_the_broker(address: DatabaseAddress):
    life = OneLogInPostgres(address, 1, None, tail_bytes=0)
    with contextlib.closing(life):
        log = life.create_log("orders", 0, UUID(int=7), a_config(**SETTINGS))
        life.loop.run_until_complete(_lead(address, log.latest_epoch))
        for place in range(30):
            log.append(keyed((f"k{place % 3}", f"v{place:060d}")), now_ms=NOW)
        history = life.store.history
        assert log.compaction.need(NOW)

        compactor = PostgresCompactor(address, BROKER, partial(in_a_thread, life.loop))
        answered: list[Compacted | Broken] = []
        wanted = log.compaction.begin(1, NOW, NOW)
        compactor.compact(wanted, answered.append, history="another")
        life.until(lambda: len(answered) == 1)
        compactor.compact(wanted, answered.append, history=history)
        life.until(lambda: len(answered) == 2)

        assert isinstance(answered[0], Broken)
        assert isinstance(answered[1], Compacted)
        assert (answered[1].whole, answered[1].upto) == (True, 29)
        log.compaction.finish(answered[1])
        assert [record.offset for record in everything(log)] == [26, 27, 28, 29]  # type: ignore[arg-type]

        lacking: list[Sequence[int] | Broken] = []
        for upto in (29, 30):
            led = [LogLed(PARTITION, log.latest_epoch, upto)]
            life.store._reader.find_lacking(led, lacking.append, history=history)
        life.until(lambda: len(lacking) == 2)
        assert lacking == [[], [PARTITION]]
    again = OneLogInPostgres(address, 2, a_config(**SETTINGS), tail_bytes=1 << 20)
    with contextlib.closing(again):
        opened = next(iter(again.logs.values()))
        assert [record.offset for record in everything(opened)] == [26, 27, 28, 29]  # type: ignore[arg-type]
        assert opened.compaction.need(NOW) is None


def in_a_thread(
    loop: asyncio.AbstractEventLoop,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    finish: Callable[[Any], None],
    *,
    computes: bool,
) -> None:
    """Have work done on what another process would be given, and whoever waits be told by the loop."""
    assert computes

    def do() -> None:
        loop.call_soon_threadsafe(finish, work(*pickle.loads(pickle.dumps(arguments))))

    Thread(target=do).start()


async def _lead(address: DatabaseAddress, leader_epoch: int) -> None:
    connection = await connect(address)
    await connection.execute(LEAD, PARTITION, UUID(int=7), BROKER, leader_epoch)
    assert await read_history(connection)
    connection.terminate()
