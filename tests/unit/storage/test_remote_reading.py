"""Opening logs in a database: an epoch begins where the log ends, once, and never behind a later one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coterie.storage.remote import pretended
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.pretended import BROKEN, Fate, PretendedEngine, PretendedReader, PretendedSession
from coterie.storage.remote.reading import LogWanted, StartWanted, StoredLog, epochs_of, pieces_of
from coterie.storage.remote.session import Broken, Look, Reopened
from coterie.wire.records.batches import HEADER_SIZE

PARTITION = 7


class Scene:
    """An engine with one partition, and what a reader is answered; everything takes a moment."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.fate = Fate()
        self.engine = PretendedEngine(lambda _: self.fate, lambda _, do: self.soon.append(do))
        self.reader = PretendedReader(self.engine)
        self.broker_epoch = self.engine.tables.register(1, 1)

    def answer(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        """Return the one answer to a question."""
        answers: list[Any] = []
        ask(answers.append)
        assert not answers
        while self.soon:
            self.soon.pop(0)()
        (answer,) = answers
        return answer

    def read(self, epoch: int, *, history: str = "0") -> StoredLog | Broken:
        wanted = [LogWanted(PARTITION, epoch)]
        answer = self.answer(lambda done: self.reader.read_logs(wanted, done, history=history))
        return answer if isinstance(answer, Broken) else answer[0]

    def save_start(self, offset: int, *, epoch: int = 1, history: str = "0") -> list[int] | Broken:
        """Write down a start in a leader epoch; return the partition if it has a later one."""
        starts = [StartWanted(PARTITION, epoch, offset)]
        found: list[int] | Broken = self.answer(
            lambda done: self.reader.save_starts(starts, done, history=history)
        )
        return found

    def append(self, *ends: int) -> list[Chunk]:
        """Append rows that reach up to offsets, and return them."""
        tables, rows = self.engine.tables, []
        for end in ends:
            rows.append(Chunk(PARTITION, tables.end(PARTITION), end - 1, 3, 0, 1, b"head", b"data"))
            tables._insert(rows[-1])
        return rows


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_epoch_begins_where_the_log_ends_and_all_of_it_is_read(scene: Scene):
    first, _ = scene.append(3, 5)

    rows = [first._replace(last_offset=4, batches=2, heads=2 * b"head", data=2 * b"data")]
    assert scene.read(4) == StoredLog(PARTITION, 0, 5, [(4, 5)], rows, [])


def test_rows_come_joined_where_they_are_of_one_leader_epoch_and_all_or_none_compacted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pretended, "PIECE_BYTES", 100)
    scene.append(*range(1, 7))
    for base_offset in (4, 5):
        key = (PARTITION, base_offset)
        scene.engine.tables.chunks[key] = scene.engine.tables.chunks[key]._replace(leader_epoch=4)
    scene.engine.tables.compacted_to[PARTITION] = 2

    stored = scene.read(5)
    assert isinstance(stored, StoredLog)
    assert [(row.base_offset, row.last_offset) for row in stored.chunks] == [(0, 1), (2, 3), (4, 5)]


@pytest.mark.parametrize("data_bytes", range(0, 45, 3))
def test_joined_rows_are_no_longer_than_a_piece_and_those_without_data_count_by_their_heads(
    scene: Scene, data_bytes: int
):
    rows = scene.append(*range(1, 11))

    newest, older = pieces_of(rows, data_bytes, 0, 3 * HEADER_SIZE)

    assert b"".join(bytes(row.data) for row in newest) == min(10, -(-data_bytes // 4)) * b"data"
    assert sum(row.size for row in older) + sum(len(row.data) for row in newest) == 40
    assert [row.last_offset + 1 for row in (*older, *newest)][:-1] == [
        row.base_offset for row in (*older, *newest)
    ][1:]
    assert all(row.size <= 3 * len(b"data") for row in older)


def test_an_epoch_that_has_begun_stays_where_it_has(scene: Scene):
    scene.read(4)
    scene.append(3)

    again = scene.read(4)

    assert isinstance(again, StoredLog)
    assert (again.epochs, again.end_offset) == ([(4, 0)], 3)


def test_nothing_begins_where_a_later_epoch_has(scene: Scene):
    scene.read(6)

    late = scene.read(5)

    assert isinstance(late, StoredLog)
    assert (late.epochs, late.newest_epoch) == ([(6, 0)], 6)


def test_a_start_moves_up_and_never_back(scene: Scene):
    _, second, _ = scene.append(2, 4, 6)

    assert scene.save_start(3) == []
    assert scene.save_start(1) == []

    stored = scene.read(1)
    assert isinstance(stored, StoredLog)
    rows = [second._replace(last_offset=5, batches=2, heads=2 * b"head", data=2 * b"data")]
    assert (stored.start_offset, stored.chunks) == (3, rows)


def test_a_start_is_not_moved_by_who_led_in_an_earlier_epoch(scene: Scene):
    scene.append(4)
    scene.read(1)
    scene.read(2)

    assert scene.save_start(3, epoch=1) == [PARTITION]
    assert scene.engine.tables.start_offsets == {}
    assert scene.save_start(3, epoch=2) == []
    assert scene.engine.tables.start_offsets == {PARTITION: 3}


def test_an_engine_of_another_history_is_not_asked(scene: Scene):
    scene.append(3)

    assert isinstance(scene.read(4, history="1"), Broken)
    assert isinstance(scene.save_start(2, history="1"), Broken)

    assert not scene.engine.tables.leader_epochs
    assert not scene.engine.tables.start_offsets


@pytest.mark.parametrize("failure", [BROKEN, "53100"])
def test_a_statement_that_fails_is_answered_so(scene: Scene, failure: str):
    scene.fate = Fate(effect_ms=None, failure=failure)

    assert isinstance(scene.read(4), Broken)
    assert not scene.engine.connections


def test_an_engine_that_has_gone_back_has_another_history(scene: Scene):
    mark = scene.engine.tables.journal.mark()
    scene.append(3)

    scene.engine.go_away(to=mark)
    scene.engine.come_back()

    assert isinstance(scene.read(4), Broken)
    assert isinstance(scene.read(4, history=scene.engine.history), StoredLog)


def test_a_lane_begins_no_life_on_an_engine_of_another_history(scene: Scene):
    answers: list[Any] = []
    known = ["1"]
    session = PretendedSession(
        scene.engine, (1, 0, scene.broker_epoch), lambda _, answer: answers.append(answer), lambda: known[0]
    )

    def reopen(life: int) -> None:
        session.reopen(life, Look(None, None))
        while scene.soon:
            scene.soon.pop(0)()

    reopen(1)
    known[0] = "0"
    reopen(2)

    assert isinstance(answers[0], Broken)
    assert answers[1:] == [Reopened(in_doubt_there=True, acknowledged_there=True)]
    assert scene.engine.tables.lanes[1, 0].life == 2


def test_epochs_are_in_order_and_those_without_records_are_left_out():
    assert epochs_of([(5, 7), (1, 0), (3, 4), (4, 4)], 0) == [(1, 0), (4, 4), (5, 7)]
    assert epochs_of([(5, 7), (1, 0), (4, 4)], 5) == [(4, 5), (5, 7)]
    assert epochs_of([(5, 7), (6, 7)], 7) == [(6, 7)]
