"""The pretended database: a statement is whole at one moment, the gate keeps out, faults are as chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

import pytest

from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.pretended import (
    BROKEN,
    DatabaseError,
    Fate,
    PretendedConnection,
    PretendedEngine,
    PretendedSession,
    Tables,
)
from coterie.storage.remote.session import Broken, Failed, Fenced, Inserted, LaneAnswer, Look, Reopened

BROKER, LANE = 7, 1


def a_chunk(base_offset: int, last_offset: int | None = None, *, partition: int = 0) -> Chunk:
    last_offset = base_offset if last_offset is None else last_offset
    return Chunk(partition, base_offset, last_offset, 0, 0, 1, b"head of %d" % base_offset, b"data")


class Scene:
    """An engine in time that passes when a test lets it, and a session of one lane with it."""

    def __init__(self, *fates: Fate) -> None:
        self.now_ms = 0
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.numbers = count()
        self.fates = [*fates]
        self.engine = PretendedEngine(lambda _: self.fates.pop(0) if self.fates else Fate(), self.later)
        self.tables = self.engine.tables
        self.epoch = self.tables.register(BROKER, 2)
        self.answers: list[tuple[int, int, LaneAnswer]] = []
        self.session = PretendedSession(
            self.engine,
            (BROKER, LANE, self.epoch),
            lambda life, answer: self.answers.append((self.now_ms, life, answer)),
        )

    def later(self, delay_ms: int, do: Callable[[], None]) -> None:
        heappush(self.agenda, (self.now_ms + delay_ms, next(self.numbers), do))

    def pass_time(self, milliseconds: int) -> None:
        until_ms = self.now_ms + milliseconds
        while self.agenda and self.agenda[0][0] <= until_ms:
            self.now_ms, _, do = heappop(self.agenda)
            do()
        self.now_ms = until_ms

    def opened(self, *fates: Fate) -> Scene:
        """Have the lane be in life 1, and these be the fates of what comes."""
        self.session.reopen(1, Look(None, None))
        self.pass_time(10)
        assert self.answers.pop()[1:] == (1, Reopened(True, True))
        self.fates = [*fates]
        self.now_ms = 0
        return self

    def append(self, *chunks: Chunk) -> None:
        self.session.append(1, chunks)


# -- statements


@pytest.fixture
def tables() -> Tables:
    return Tables()


def inserted(tables: Tables, epoch: int, chunks: Sequence[Chunk], *, life: int = 0) -> int:
    return tables.append(BROKER, LANE, epoch, life, chunks)


def test_an_append_in_the_broker_epoch_and_life_of_its_lane_is_there(tables: Tables):
    epoch = tables.register(BROKER, 2)

    assert inserted(tables, epoch, [a_chunk(0, 4), a_chunk(0, partition=1)]) == 2

    assert tables.end(0) == 5
    assert tables.heads(1) == [(0, b"head of 0")]


def test_an_append_of_another_epoch_life_lane_or_broker_inserts_nothing(tables: Tables):
    epoch = tables.register(BROKER, 2)

    for place in [
        (BROKER, LANE, epoch + 1, 0),
        (BROKER, LANE, epoch, 1),
        (BROKER, 2, epoch, 0),
        (8, LANE, epoch, 0),
    ]:
        assert tables.append(*place, [a_chunk(0)]) == 0

    assert not tables.chunks


def test_a_row_that_is_there_fails_the_whole_statement(tables: Tables):
    epoch = tables.register(BROKER, 2)
    inserted(tables, epoch, [a_chunk(3)])

    with pytest.raises(DatabaseError) as error:
        inserted(tables, epoch, [a_chunk(4), a_chunk(3)])

    assert error.value.sqlstate == "23505"
    assert [*tables.chunks] == [(0, 3)]


def test_a_fenced_broker_has_no_lanes_until_it_registers_anew(tables: Tables):
    first = tables.register(BROKER, 2)
    tables.fence(BROKER)
    assert inserted(tables, first, [a_chunk(0)]) == 0

    second = tables.register(BROKER, 2)

    assert second > first
    assert inserted(tables, first, [a_chunk(0)]) == 0
    assert inserted(tables, second, [a_chunk(0)]) == 1


def test_a_life_begins_once_and_never_goes_back(tables: Tables):
    epoch = tables.register(BROKER, 2)

    assert tables.begin_life(BROKER, LANE, epoch, 2)
    assert not tables.begin_life(BROKER, LANE, epoch, 2)
    assert not tables.begin_life(BROKER, LANE, epoch, 1)
    assert not tables.begin_life(BROKER, LANE, epoch + 1, 3)

    assert inserted(tables, epoch, [a_chunk(0)], life=1) == 0
    assert inserted(tables, epoch, [a_chunk(0)], life=2) == 1


def test_rows_are_read_from_the_one_that_holds_an_offset(tables: Tables):
    epoch = tables.register(BROKER, 2)
    inserted(tables, epoch, [a_chunk(0, 4), a_chunk(5, 5), a_chunk(6, 9)])

    assert [chunk.base_offset for chunk in tables.rows(0, 4)] == [0, 5, 6]
    assert [chunk.base_offset for chunk in tables.rows(0, 5, 6)] == [5]
    assert tables.rows(0, 10) == []
    assert tables.rows(9) == []


def test_what_is_deleted_is_gone_and_the_partition_goes_on_behind_it(tables: Tables):
    epoch = tables.register(BROKER, 2)
    inserted(tables, epoch, [a_chunk(0, 4), a_chunk(5, 5)])

    assert tables.delete(0, 5) == 1
    assert [chunk.base_offset for chunk in tables.rows(0)] == [5]
    assert tables.delete(0, 6) == 1

    assert tables.end(0) == 6
    assert tables.lead(0, 3) == 6
    assert tables.leader_epochs == {(0, 3): 6}


def test_a_database_that_goes_back_is_as_it_was(tables: Tables):
    epoch = tables.register(BROKER, 2)
    inserted(tables, epoch, [a_chunk(0)])
    mark = tables.journal.mark()
    before = {**tables.chunks}, {**tables.lanes}, tables.end(0)

    inserted(tables, epoch, [a_chunk(1), a_chunk(2)])
    tables.begin_life(BROKER, LANE, epoch, 5)
    tables.delete(0, 2)
    tables.lead(0, 1)
    tables.fence(BROKER)
    tables.journal.roll_back(mark)

    assert (tables.chunks, tables.lanes, tables.end(0)) == before
    assert [chunk.base_offset for chunk in tables.rows(0)] == [0]


# -- fates


def test_a_statement_takes_effect_before_it_is_answered():
    scene = Scene().opened(Fate(3, 5))
    scene.append(a_chunk(0))

    scene.pass_time(2)
    assert not scene.tables.chunks
    scene.pass_time(1)
    assert scene.tables.chunks
    assert not scene.answers
    scene.pass_time(2)

    assert scene.answers == [(5, 1, Inserted(1))]


@pytest.mark.parametrize(
    ("fate", "there_at_last"),
    [(Fate(None, 1, BROKEN), False), (Fate(1, 2, BROKEN), True), (Fate(4_000, 1, BROKEN), True)],
    ids=["before", "after", "late"],
)
def test_a_connection_breaks_before_the_effect_after_it_or_long_before_it(fate: Fate, there_at_last: bool):
    scene = Scene().opened(fate)
    scene.append(a_chunk(0))

    scene.pass_time(2)
    (answer,) = scene.answers
    assert isinstance(answer[2], Broken)
    scene.pass_time(4_000)

    assert bool(scene.tables.chunks) is there_at_last
    assert len(scene.answers) == 1


@pytest.mark.parametrize(
    ("fate", "there"),
    [(Fate(None, 2, "53100"), False), (Fate(1, 2, "57014"), True)],
    ids=["refused", "unknown"],
)
def test_an_error_is_answered_with_its_sqlstate(fate: Fate, there: bool):
    scene = Scene().opened(fate)
    scene.append(a_chunk(0))

    scene.pass_time(2)

    assert scene.answers == [(2, 1, Failed("53100" if not there else "57014", "by chance"))]
    assert bool(scene.tables.chunks) is there


def test_a_late_effect_of_an_earlier_life_does_not_happen():
    scene = Scene().opened(Fate(50, 1, BROKEN))
    scene.append(a_chunk(0))
    scene.pass_time(2)

    scene.session.abort()
    scene.session.reopen(2, Look((0, 0, 0), None))
    scene.pass_time(100)

    assert scene.answers[-1][1:] == (2, Reopened(in_doubt_there=False, acknowledged_there=True))
    assert not scene.tables.chunks


def test_a_silent_connection_never_answers():
    scene = Scene().opened(Fate(1, None))
    scene.append(a_chunk(0))

    scene.pass_time(1 << 30)

    assert scene.tables.chunks
    assert not scene.answers


def test_a_reopening_of_a_fenced_lane_is_answered_so():
    scene = Scene().opened()
    scene.tables.fence(BROKER)
    scene.session.abort()

    scene.session.reopen(2, Look(None, None))
    scene.pass_time(10)

    assert [answer[1:] for answer in scene.answers] == [(2, Fenced())]


@pytest.mark.parametrize("name", ["begin-life", "look"])
def test_a_reopening_may_break_at_either_of_its_statements(name: str):
    scene = Scene(*([Fate()] if name == "look" else []), Fate(1, 2, BROKEN))

    scene.session.reopen(1, Look(None, None))
    scene.pass_time(10)

    ((_, life, answer),) = scene.answers
    assert (life, type(answer)) == (1, Broken)
    assert scene.tables.lanes[BROKER, LANE].life == 1


# -- outages


def test_what_is_under_way_when_the_database_goes_away_never_happens():
    scene = Scene().opened(Fate(50, 60))
    scene.append(a_chunk(0))
    scene.pass_time(10)

    scene.engine.go_away()
    scene.engine.come_back()
    scene.pass_time(100)

    assert [type(answer) for _, _, answer in scene.answers] == [Broken]
    assert not scene.tables.chunks


def test_an_idle_connection_hears_that_the_database_went_away_and_makes_no_new_one_meanwhile():
    scene = Scene().opened()
    scene.engine.go_away()
    scene.pass_time(10)
    assert [type(answer) for _, _, answer in scene.answers] == [Broken]

    scene.session.abort()
    scene.session.reopen(2, Look(None, None))
    scene.pass_time(10)
    assert [life for _, life, _ in scene.answers] == [1, 2]
    scene.engine.come_back()
    scene.session.abort()
    scene.session.reopen(3, Look(None, None))
    scene.pass_time(10)

    assert scene.answers[-1][1:] == (3, Reopened(True, True))


def test_a_database_that_was_behind_lacks_what_was_acknowledged():
    scene = Scene().opened()
    mark = scene.tables.journal.mark()
    scene.append(a_chunk(0))
    scene.pass_time(10)

    scene.engine.go_away(to=mark)
    scene.engine.come_back()
    scene.session.abort()
    scene.session.reopen(2, Look(None, (0, 0, 0)))
    scene.pass_time(10)

    assert scene.answers[-1][2] == Reopened(in_doubt_there=True, acknowledged_there=False)


def test_another_leaders_row_in_the_same_place_is_not_the_one_in_doubt():
    scene = Scene().opened(Fate(None, 1, BROKEN), Fate(), Fate(10, 11))
    scene.append(a_chunk(0))
    scene.pass_time(2)
    scene.session.abort()
    scene.session.reopen(2, Look((0, 0, 0), None))
    scene.pass_time(3)  # in the new life, and the look under way

    scene.tables.fence(BROKER)
    other = scene.tables.register(8, 1)
    scene.tables.append(8, 0, other, 0, [a_chunk(0)._replace(leader_epoch=1)])
    scene.pass_time(20)

    assert scene.answers[-1][1:] == (2, Reopened(in_doubt_there=False, acknowledged_there=True))


def test_whoever_else_asks_the_database_uses_the_same_connections():
    scene = Scene(Fate(2, 4), Fate(None, 3, "57P01"))
    heard: list[object] = []
    connection: PretendedConnection = scene.engine.connect(heard.append)

    connection.execute("count", lambda: len(scene.tables.lanes), heard.append, heard.append)
    scene.pass_time(4)
    connection.execute("count", lambda: len(scene.tables.lanes), heard.append, heard.append)
    scene.pass_time(4)
    connection.cut("a cut")
    scene.pass_time(4)

    assert heard == [2, Failed("57P01", "by chance"), "a cut"]
