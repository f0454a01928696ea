"""Rows that consumers want from the database: so much of them is in memory at once, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coterie.storage.kind import OVERDUE_MS
from coterie.storage.log.contract import StorageFailed
from coterie.storage.remote.chunk import CHUNK_BYTES, Chunk
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.reading import RowsWanted, StoredRows
from coterie.storage.remote.recalled import Rows
from coterie.storage.remote.recalling import ROW_COSTS, SHARE, Recall, RecallCache, RecallReading
from planting import GENERATED, Faults, instead

LIMIT = 8 * CHUNK_BYTES
MOST = LIMIT // SHARE
"""So much is read at once at most, and a row more."""
QUICK = settings(GENERATED, max_examples=200, stateful_step_count=30)


class ALog:
    """A log, as far as it matters here: whether it is closed."""

    closed = False


class Consumer:
    """Somebody who reads: what they were told."""

    def __init__(self, cache: RecallCache, log: ALog, offset: int, max_bytes: int) -> None:
        self.log, self.offset = log, offset
        self.came = self.was_pressed = self.gone = False
        wanted = RowsWanted(1, offset, 1 << 20, max_bytes)
        # It is told from within if it is there.
        self.reading: RecallReading | None = None
        self.reading = cache.ask(cast(RemoteLog, log), wanted, self._come, self._press)

    def _come(self, found: object) -> None:
        assert [self.came, self.gone] == [False, False]
        self.came = True

    def _press(self) -> None:
        assert self.came
        if self.reading is not None:
            assert self.reading.found is not None  # it is gone only when this returns
        self.was_pressed = True

    def release(self) -> None:
        self.gone = True
        assert self.reading is not None
        self.reading.release()


class Consumers(RuleBasedStateMachine):
    """Consumers of two logs, and a database that answers as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.asked: list[tuple[RowsWanted, Callable[[Rows], None]]] = []
        self.cache = RecallCache(
            lambda wanted, done: self.asked.append((wanted, done)), lambda: self.now_ms, LIMIT
        )
        self.logs = [ALog(), ALog()]
        self.consumers: list[Consumer] = []

    @rule(log=st.integers(0, 1), offset=st.integers(0, 20), max_bytes=st.sampled_from((0, 1, MOST, LIMIT)))
    def ask(self, log: int, offset: int, max_bytes: int) -> None:
        self.consumers.append(Consumer(self.cache, self.logs[log], offset, max_bytes))

    @precondition(lambda self: self.asked)
    @rule(place=st.integers(0, 50), size=st.sampled_from((1, CHUNK_BYTES, MOST)), rows=st.integers(-1, 1))
    def answer(self, place: int, size: int, rows: int) -> None:
        wanted, done = self.asked.pop(place % len(self.asked))
        if rows < 0:
            done(StorageFailed("the database is away"))
        else:
            end = wanted.offset + rows
            row = Chunk(1, wanted.offset, end, 0, 0, 1, b"", bytes(size))
            done(StoredRows([row] * rows))

    @precondition(lambda self: self.consumers)
    @rule(place=st.integers(0, 50))
    def release(self, place: int) -> None:
        self.consumers.pop(place % len(self.consumers)).release()

    @rule(log=st.integers(0, 1))
    def close(self, log: int) -> None:
        self.logs[log].closed = True
        self.cache.close(cast(RemoteLog, self.logs[log]))
        self.logs[log] = ALog()

    @rule(log=st.integers(0, 1))
    def renew(self, log: int) -> None:
        self.cache.renew(cast(RemoteLog, self.logs[log]))
        assert not any(recall.log is self.logs[log] for recall in self.cache._there)

    @invariant()
    def no_more_is_in_memory_than_there_is_room_for(self) -> None:
        sizes = [wanted.max_bytes + CHUNK_BYTES for wanted, _ in self.asked]
        sizes += [self._size(one) for one in self._held()]
        assert sum(sizes) <= LIMIT or len(sizes) == 1
        assert self.cache.bytes == sum(sizes)

    @invariant()
    def whoever_was_told_that_it_is_there_has_it_until_they_are_pressed(self) -> None:
        for one in self.consumers:
            assert one.reading is not None
            if one.came and not (one.was_pressed or one.log.closed):
                assert one.reading.found is not None

    @invariant()
    def something_is_read_if_anything_is_wanted(self) -> None:
        assert self.asked or all(one.came or one.gone for one in self.consumers)

    @invariant()
    def nothing_waits_for_room_that_nobody_wants(self) -> None:
        assert all(recall.readings for recall in self.cache._queued)

    def teardown(self) -> None:
        while self.asked:
            self.answer(0, CHUNK_BYTES, 1)
        assert all(one.came for one in self.consumers)
        for one in self.consumers:
            one.release()
        for log in self.logs:
            self.cache.close(cast(RemoteLog, log))
        assert (self.cache.bytes, self.cache._recalls) == (0, {})

    def _held(self) -> list[Recall]:
        """Return what is in memory: of the cache, and by whoever holds it."""
        there = dict.fromkeys(self.cache._there)
        for one in self.consumers:
            assert one.reading is not None
            if one.reading.found is not None and self._size(one.reading._recall):
                there[one.reading._recall] = None
        return [*there]

    @staticmethod
    def _size(recall: Recall) -> int:
        rows = recall.rows
        assert rows is not None
        return 0 if isinstance(rows, StorageFailed) or recall.log.closed else _size_of(rows)


def _size_of(rows: StoredRows) -> int:
    return sum(len(row.data) + ROW_COSTS for row in rows.chunks)


TestConsumers = Consumers.TestCase
TestConsumers.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


# -- that the net holds


FAULTS = fault = Faults()


@fault
def there_is_room_for_any_number(patch: pytest.MonkeyPatch) -> None:
    def make(read_next: Callable[..., bool]) -> Callable[..., bool]:
        def without_limit(cache: RecallCache) -> bool:
            cache.limit, limit = 1 << 40, cache.limit
            found = read_next(cache)
            cache.limit = limit
            return found

        return without_limit

    instead(patch, RecallCache, "_read_next", make)


@fault
def what_is_being_read_takes_no_room(patch: pytest.MonkeyPatch) -> None:
    def make(take_room: Callable[..., None]) -> Callable[..., None]:
        return lambda cache, recall, room: take_room(cache, recall, 0 if recall.rows is None else room)

    instead(patch, RecallCache, "_take_room", make)


@fault
def what_is_held_is_taken_away_without_a_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecallReading, "pressed", property(lambda _: lambda: None, lambda *_: None), raising=False)


@fault
def what_nobody_waits_for_any_more_is_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecallCache, "give_up", lambda *_: None)


@fault
def who_waits_for_room_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def make(take: Callable[..., None]) -> Callable[..., None]:
        def without_the_next(cache: RecallCache, recall: Recall, rows: Rows) -> None:
            cache._looking = True
            take(cache, recall, rows)
            cache._looking = False

        return without_the_next

    instead(patch, RecallCache, "_take", make)


@fault
def what_was_read_of_a_log_that_is_closed_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecallCache, "close", lambda *_: None)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_reading_for_consumers_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(AssertionError):
        FAULTS.hunt(name, Consumers, monkeypatch, QUICK)


# -- one by one


class Scene(Consumers):
    """The same, by hand."""

    def wants(self, offset: int, max_bytes: int = MOST) -> Consumer:
        self.ask(0, offset, max_bytes)
        return self.consumers[-1]


def test_consumers_who_read_the_same_together_have_it_read_once():
    scene = Scene()
    together = [scene.wants(0) for _ in range(50)]

    assert len(scene.asked) == 1
    scene.answer(0, CHUNK_BYTES, 1)
    late = scene.wants(0)

    assert all(one.came for one in (*together, late))
    assert scene.asked == []


def test_who_finds_no_room_waits_and_is_served_in_the_order_of_asking():
    scene = Scene()
    many = [scene.wants(offset) for offset in range(100)]
    assert len(scene.asked) == LIMIT // (MOST + CHUNK_BYTES)

    order = []
    while scene.asked:
        order.append(scene.asked[0][0].offset)
        scene.answer(0, MOST, 1)
        scene.no_more_is_in_memory_than_there_is_room_for()

    assert order == [*range(100)]
    assert all(one.came for one in many)
    assert [one.was_pressed for one in many].count(True) > 90


def test_what_could_not_be_read_is_read_again_for_who_asks_then():
    scene = Scene()
    first = scene.wants(0)
    scene.answer(0, 1, -1)
    assert first.reading is not None
    found: Any = first.reading.found
    with pytest.raises(StorageFailed):
        found.size_between(0, 1)

    scene.wants(0)

    assert len(scene.asked) == 1


def test_a_database_that_is_silent_is_overdue_in_time_and_who_waits_for_room_is_not():
    scene = Scene()
    many = [scene.wants(offset) for offset in range(10)]
    asked = len(scene.asked)

    scene.now_ms += OVERDUE_MS - 1
    assert not any(one.reading and one.reading.overdue for one in many)
    scene.now_ms += 1

    assert [one.reading is not None and one.reading.overdue for one in many] == [True] * asked + [False] * (
        10 - asked
    )
