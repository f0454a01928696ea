"""What a lane may rely on, asked of the database in memory and of PostgreSQL alike."""

from __future__ import annotations

import asyncio

import pytest

from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.postgres.lane_session import LanePlace
from coterie.storage.remote.session import Broken, Failed, Fenced, Inserted, Look, Reopened

from .rigs.lane_places import NOTHING, PLACE, Asking, LaneDatabase, Play, a_chunk


def test_rows_are_there_as_they_were_sent(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        span = AbortedSpan(producer_id=1 << 40, first_offset=1, last_offset=3, last_stable_offset=1)
        rows = [a_chunk(0, 2), a_chunk(3)._replace(aborted=(span,)), a_chunk(0, partition=2)]
        assert await lane.reopen(1) == Reopened(True, True)
        assert await lane.append(1, *rows[:1]) == Inserted(1)
        assert await lane.append(1, *rows[1:]) == Inserted(2)
        assert await database.rows(1) == rows[:2]
        assert await database.rows(2) == rows[2:]

    play(scene)


def test_data_may_be_any_buffer_and_a_megabyte_long(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        data = bytes(range(256)) * 4_096
        await lane.reopen(1)
        assert await lane.append(1, a_chunk(0)._replace(data=memoryview(data))) == Inserted(1)
        assert await lane.append(1, a_chunk(1)._replace(data=bytearray(data))) == Inserted(1)
        assert [bytes(row.data) for row in await database.rows(1)] == [data, data]

    play(scene)


@pytest.mark.parametrize(
    "other", [PLACE._replace(broker_epoch=4), PLACE._replace(broker_id=8), PLACE._replace(lane=2)]
)
def test_a_lane_that_is_not_there_in_the_epoch_is_fenced(play: Play, other: LanePlace):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        fenced = Asking(database, other)
        assert await fenced.reopen(1) == Fenced()
        fenced.session.abort()

    play(scene)


def test_nothing_is_inserted_once_the_broker_is_taken_over(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0))
        await database.fence(PLACE.broker_id)
        assert await lane.append(1, a_chunk(1), a_chunk(0, partition=2)) == Inserted(0)
        assert await lane.reopen(2) == Fenced()
        await database.open_lanes(PLACE.broker_id, 6)
        assert await lane.reopen(3) == Fenced()
        assert len(await database.rows(1)) == 1

    play(scene)


def test_the_spans_of_a_marker_stay_outside_the_gate_too(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        marker = a_chunk(0)._replace(aborted=(AbortedSpan(1, 0, 0, 0),))
        await lane.reopen(1)
        await database.fence(PLACE.broker_id)
        assert await lane.append(1, marker) == Inserted(0)
        await database.open_lanes(PLACE.broker_id, PLACE.broker_epoch)
        await lane.reopen(2)
        assert await lane.append(2, marker) == Inserted(1)
        assert await database.rows(1) == [marker]

    play(scene)


def test_an_earlier_life_inserts_nothing_and_begins_no_more(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        earlier = Asking(database, PLACE)
        assert await earlier.reopen(1) == Reopened(True, True)
        assert await lane.reopen(3) == Reopened(True, True)
        assert await earlier.append(1, a_chunk(0)) == Inserted(0)
        assert await earlier.reopen(2) == Fenced()
        assert await earlier.reopen(3) == Fenced()
        assert await lane.append(3, a_chunk(0)) == Inserted(1)
        earlier.session.abort()

    play(scene)


def test_a_look_finds_rows_by_place_and_leader_epoch(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0, epoch=3), a_chunk(1, epoch=4))
        looks = {
            Look((1, 0, 3), (1, 1, 4)): Reopened(True, True),
            Look((1, 0, 4), (1, 1, 4)): Reopened(False, True),
            Look((1, 0, 3), (1, 1, 3)): Reopened(True, False),
            Look((1, 2, 4), None): Reopened(False, True),
            Look(None, (2, 0, 3)): Reopened(True, False),
        }
        for life, (look, found) in enumerate(looks.items(), 2):
            assert await lane.reopen(life, look) == found

    play(scene)


def test_a_round_is_inserted_whole_or_not_at_all(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0))
        answer = await lane.append(1, a_chunk(0, partition=2), a_chunk(0), a_chunk(1))
        assert isinstance(answer, Failed)
        assert answer.sqlstate == "23505"
        assert not await database.rows(2)
        assert len(await database.rows(1)) == 1
        assert await lane.append(1, a_chunk(1)) == Inserted(1)

    play(scene)


def test_a_connection_that_ends_while_nothing_is_under_way_is_broken_once(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0))
        await database.end_connections()
        assert isinstance(await lane.answer_in(1), Broken)
        assert await lane.reopen(2, Look(None, (1, 0, 3))) == Reopened(True, True)
        assert await lane.append(2, a_chunk(1)) == Inserted(1)
        assert lane.answers.empty()

    play(scene)


def test_a_session_that_was_given_up_before_it_had_a_connection_says_nothing(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        lane.session.reopen(1, NOTHING)
        await asyncio.sleep(0)
        lane.session.abort()
        lane.session.reopen(2, NOTHING)
        answers = [await lane.answers.get()]
        while answers[-1][0] != 2:  # that of a life before decides nothing
            answers.append(await lane.answers.get())
        assert answers[-1][1] == Reopened(True, True)
        assert await lane.append(2, a_chunk(0)) == Inserted(1)

    play(scene)


def test_nobody_is_called_back_from_within(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        lane.session.reopen(1, NOTHING)
        assert lane.answers.empty()
        await lane.answer_in(1)
        lane.session.append(1, [a_chunk(0)])
        assert lane.answers.empty()
        await lane.answer_in(1)

    play(scene)


def test_a_lane_begins_no_life_in_a_database_of_another_history(play: Play):
    async def scene(database: LaneDatabase, _: Asking) -> None:
        known = ["another"]
        lane = Asking(database, PLACE, lambda: known[0])
        assert isinstance(await lane.reopen(1), Broken)
        known[0] = database.history
        assert await lane.reopen(1) == Reopened(True, True)
        lane.session.abort()

    play(scene)
