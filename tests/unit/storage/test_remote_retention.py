"""What logs in a database need not keep goes: by time, by size, before a start; and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, count

import pytest
from store_rig import NOW, ORDERS, TOPIC_ID, a_batch, a_config, offsets

from coterie.base.ids import TopicPartition
from coterie.storage.config import LogConfig
from coterie.storage.remote import pretended
from coterie.storage.remote.lane import Lane
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.pretended import BROKEN, Fate, Tables
from coterie.storage.remote.reading import RetainedLog, RetentionWanted
from coterie.storage.remote.store import LogToOpen
from coterie.storage.remote.tail import BATCH_COSTS
from unit.storage.remote_rig import PARTITION, OneLog

DAY = 86_400_000
SIZE = len(a_batch("a", key="k"))
ROWS = 8
FOREVER = a_config(retention_ms=-1)


def a_store(config: LogConfig = FOREVER, tables: Tables | None = None, tail_bytes: int = 0) -> OneLog:
    """Return a store, with the log open if there are tables."""
    return OneLog(tables, config, prompt=True, tail_bytes=tail_bytes)


def a_log(store: OneLog, config: LogConfig, *, step_ms: int = 1_000) -> RemoteLog:
    """Return a log of eight rows, each younger than the one before."""
    log = store.create_log(*ORDERS, TOPIC_ID, config)
    for place in range(ROWS):
        log.append(a_batch(chr(ord("a") + place), key="k", at=NOW + place * step_ms), now_ms=NOW)
    return log


def keep_house(store: OneLog, today_ms: int = NOW) -> None:
    """Have what is due done."""
    store.now_ms += 3_600_000
    store.store.retention.tick(store.now_ms, today_ms)
    store.settle()


def left(store: OneLog) -> list[int]:
    """Return the first offsets of the rows that are there."""
    return [row.base_offset for row in store.engine.tables.rows(PARTITION)]


@pytest.fixture(params=[0, 1 << 20], ids=["recalled", "in-memory"])
def tail_bytes(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def store(tail_bytes: int) -> OneLog:
    return a_store(tail_bytes=tail_bytes)


def test_records_that_are_too_old_go(store: OneLog):
    log = a_log(store, a_config(retention_ms=DAY))

    keep_house(store, NOW + DAY + 4_001)

    assert (log.start_offset, offsets(log), left(store)) == (5, [5, 6, 7], [5, 6, 7])
    assert log.size_bytes == 3 * SIZE


def test_what_is_beyond_the_size_goes_and_never_more(store: OneLog):
    log = a_log(store, a_config(retention_ms=-1, retention_bytes=3 * SIZE - 1))

    keep_house(store)

    assert (offsets(log), left(store), log.size_bytes) == ([5, 6, 7], [5, 6, 7], 3 * SIZE)


@pytest.mark.parametrize(
    "config",
    [FOREVER, a_config(retention_ms=1, retention_bytes=1, cleanup_policy="compact"), a_config()],
    ids=["for ever", "compacted", "a week"],
)
def test_what_the_settings_keep_stays(store: OneLog, config: LogConfig):
    log = a_log(store, config)

    keep_house(store, NOW + DAY)

    assert (len(offsets(log)), len(left(store))) == (ROWS, ROWS)


def test_the_rows_before_a_start_that_an_administrator_has_moved_go(store: OneLog):
    log = a_log(store, FOREVER)
    store.store.save_starts({ORDERS: 6}, lambda _: None)
    store.settle()
    log.delete_before(6, NOW)

    keep_house(store)

    assert (offsets(log), left(store), log.size_bytes) == ([6, 7], [6, 7], 2 * SIZE)


def test_a_log_of_which_all_is_deleted_goes_on_where_it_has_ended(store: OneLog):
    log = a_log(store, a_config(retention_ms=DAY))

    keep_house(store, NOW + 2 * DAY)
    assert (log.start_offset, log.end_offset, log.size_bytes, left(store)) == (ROWS, ROWS, 0, [])
    again = a_store(tables=store.engine.tables)

    log = again.logs[ORDERS]
    assert log.append(a_batch("i"), now_ms=NOW).base_offset == ROWS
    assert (log.start_offset, offsets(log)) == (ROWS, [ROWS])


def test_a_lane_that_reconnects_does_not_miss_what_was_deleted(store: OneLog):
    a_log(store, a_config(retention_ms=DAY))
    keep_house(store, NOW + 2 * DAY)

    store.lane.look_again()
    store.pass_ms(1_000)

    assert store.told == []


def test_who_leads_no_more_moves_no_start(store: OneLog):
    a_log(store, a_config(retention_ms=DAY))
    a_store(tables=store.engine.tables)

    keep_house(store, NOW + 2 * DAY)

    assert (store.engine.tables.start_offsets, len(left(store))) == ({}, ROWS)


def test_what_is_not_answered_is_asked_for_again(store: OneLog):
    log = a_log(store, a_config(retention_ms=DAY))
    store.fate = Fate(effect_ms=None, failure=BROKEN)
    keep_house(store, NOW + 2 * DAY)
    assert (log.start_offset, len(left(store))) == (0, ROWS)

    store.fate = Fate()
    keep_house(store, NOW + 2 * DAY)

    assert (log.start_offset, left(store)) == (ROWS, [])


def test_a_log_is_left_alone_for_a_while_once_it_was_looked_at(store: OneLog):
    a_log(store, a_config(retention_ms=DAY))
    asked: list[str] = []
    choose = store.engine.choose
    store.engine.choose = lambda name: [asked.append(name), choose(name)][1]  # type: ignore[func-returns-value]

    for _ in range(5):
        store.store.retention.tick(store.now_ms, NOW + DAY + 2_001)
        store.settle()

    assert asked.count("retain") == 1


@pytest.fixture
def left_over() -> Tables:
    """The rows of a log that starts at the fifth, of which those before are there still."""
    store = a_store()
    a_log(store, FOREVER)
    store.store.save_starts({ORDERS: 4}, lambda _: None)
    store.settle()
    return store.engine.tables


def test_rows_that_a_leader_before_has_left_are_not_taken_off_the_size(left_over: Tables, tail_bytes: int):
    store = a_store(FOREVER, left_over, tail_bytes)
    log = store.logs[ORDERS]
    assert log.size_bytes == 4 * SIZE

    keep_house(store)

    assert (left(store), log.size_bytes) == ([4, 5, 6, 7], 4 * SIZE)


def test_rows_left_and_rows_of_a_start_that_moves_are_told_apart(left_over: Tables, tail_bytes: int):
    store = a_store(FOREVER, left_over, tail_bytes)
    log = store.logs[ORDERS]
    store.store.save_starts({ORDERS: 6}, lambda _: None)
    store.settle()
    log.delete_before(6, NOW)

    keep_house(store)

    assert (left(store), log.size_bytes) == ([6, 7], 2 * SIZE)


@pytest.mark.parametrize(
    "room", [0, 2 * SIZE, 5 * SIZE, ROWS * SIZE], ids=lambda room: f"room-for-{room // SIZE}"
)
@pytest.mark.parametrize("starts", [*combinations(range(1, ROWS + 1), 2)], ids=str)
def test_of_rows_that_have_come_joined_each_is_taken_off_the_size_once(
    starts: tuple[int, ...], room: int, monkeypatch: pytest.MonkeyPatch
):
    before = a_store()
    a_log(before, FOREVER)
    before.close()
    monkeypatch.setattr(pretended, "PIECE_BYTES", 3 * SIZE)
    pieces = room // (3 * SIZE) + 1 if room else 0
    store = a_store(FOREVER, before.engine.tables, room + pieces * BATCH_COSTS)
    log = store.logs[ORDERS]

    for start in starts:
        store.store.save_starts({ORDERS: start}, lambda _: None)
        store.settle()
        log.delete_before(start, NOW)
        keep_house(store)

        there = list(range(start, ROWS))
        assert (left(store), log.size_bytes) == (there, len(there) * SIZE)
        assert offsets(log) == there


# -- answers that are lost


def lose(store: OneLog, *names: str) -> None:
    """Have statements take effect from now on, and their answers not come."""
    store.engine.choose = lambda name: Fate(failure=BROKEN) if name in names else Fate()  # type: ignore[method-assign]


def size_of_rows(store: OneLog) -> int:
    """Return the size of the rows that are there."""
    return sum(len(row.data) for row in store.engine.tables.rows(PARTITION))


def test_no_more_goes_than_the_size_asks_for_though_it_is_not_known_what_was_deleted(store: OneLog):
    log = a_log(store, a_config(retention_ms=-1, retention_bytes=5 * SIZE - 1))
    lose(store, "delete-rows")
    keep_house(store)
    assert left(store) == [3, 4, 5, 6, 7]

    lose(store)
    for _ in range(3):
        keep_house(store)

    assert (offsets(log), left(store), log.size_bytes) == ([3, 4, 5, 6, 7], [3, 4, 5, 6, 7], 5 * SIZE)


@pytest.mark.parametrize("room", range(0, ROWS + 1, 2))
@pytest.mark.parametrize("start", [1, 2, 5, ROWS])
def test_a_size_that_is_in_doubt_is_read_anew_whatever_of_the_log_is_in_memory(start: int, room: int):
    store = a_store(tail_bytes=room * (SIZE + BATCH_COSTS))
    log = a_log(store, FOREVER)
    store.store.save_starts({ORDERS: start}, lambda _: None)
    store.settle()
    log.delete_before(start, NOW)
    lose(store, "delete-rows")
    keep_house(store)

    lose(store)
    store.engine.tables.delete_rows(PARTITION, start)
    keep_house(store)
    keep_house(store)

    assert (log.size_bytes, size_of_rows(store)) == ((ROWS - start) * SIZE,) * 2


def test_what_leaves_the_memory_while_a_size_is_read_is_counted_once():
    store = a_store(tail_bytes=3 * (SIZE + BATCH_COSTS))
    log = a_log(store, a_config(retention_ms=-1, retention_bytes=5 * SIZE - 1))
    lose(store, "delete-rows")
    keep_house(store)
    store.engine.choose = lambda name: Fate(50, 100) if name == "measure" else Fate()  # type: ignore[method-assign]

    store.now_ms += 3_600_000
    store.store.retention.tick(store.now_ms, NOW)
    store.pass_ms(70)
    RemoteLog.append(log, a_batch("i", "j", key="k"), now_ms=NOW)
    store.settle()

    assert log.size_bytes == size_of_rows(store)


def test_batches_of_a_row_of_which_only_the_first_are_in_memory_no_more_are_counted():
    store = a_store(tail_bytes=2 * (SIZE + BATCH_COSTS))
    log = a_log(store, a_config(retention_ms=-1))
    for value in "ijk":
        RemoteLog.append(log, a_batch(value, key="k"), now_ms=NOW)
    store.settle()
    assert len(left(store)) == ROWS + 1
    store.store.retention.doubt(log)
    log.tail.older_bytes = 12_345

    keep_house(store)

    assert log.size_bytes == size_of_rows(store) == (ROWS + 3) * SIZE


def some_logs(store: OneLog, count: int, config: LogConfig) -> list[RemoteLog]:
    """Return so many logs with a record each."""
    names = [TopicPartition("orders", number) for number in range(count)]
    wanted = [LogToOpen(name, PARTITION + name.partition, 0, config) for name in names]
    store.store.open(wanted, lambda *opened: None)
    store.until(lambda: len(store.logs) == count)
    found = [store.logs[name] for name in names]
    for one in found:
        RemoteLog.append(one, a_batch("a"), now_ms=NOW)
    store.settle()
    return found


def slowly(store: OneLog, slow: str, asked: list[str]) -> None:
    """Have one kind of statement take 300 s from now on; take note of all."""

    def choose(name: str) -> Fate:
        asked.append(name)
        return Fate(300_000, 300_000) if name == slow else Fate()

    store.engine.choose = choose  # type: ignore[method-assign]


def test_a_size_is_read_anew_a_while_after_it_came_to_be_in_doubt_however_long_a_statement_takes():
    store = a_store()
    log = a_log(store, a_config(retention_ms=-1, retention_bytes=5 * SIZE - 1))
    asked: list[str] = []
    slowly(store, "retain", asked)
    at: list[int] = []
    for second in range(0, 400, 10):
        if second == 290:
            store.store.retention.doubt(log)
        store.store.retention.tick(store.now_ms, NOW)
        store.pass_ms(10_000)
        at += [second] if "measure" in asked and not at else []

    assert at == [340]


def test_a_log_that_comes_to_be_in_doubt_while_another_is_seen_to_is_left_alone_for_a_while():
    store = a_store()
    _, second = some_logs(store, 2, a_config(retention_ms=-1, retention_bytes=0))
    asked: list[str] = []
    slowly(store, "retain", asked)

    store.store.retention.tick(store.now_ms, NOW)
    store.store.retention.doubt(second)
    store.pass_ms(310_000)

    assert (asked.count("retain"), asked.count("measure")) == (1, 0)


def test_logs_that_have_nothing_to_forget_any_more_when_their_turn_comes_are_passed_over():
    store = a_store()
    logs = some_logs(store, 600, a_config(retention_ms=-1, retention_bytes=0))
    asked: list[str] = []
    slowly(store, "retain", asked)

    store.store.retention.tick(store.now_ms, NOW)
    for one in logs:
        one.configure(FOREVER)
    store.settle()

    assert asked.count("retain") == 1
    assert [one for one in logs if one.start_offset] == logs[:1]


# -- a stop between any two statements


def each_stop(config: LogConfig, today_ms: int) -> Iterator[tuple[OneLog, OneLog]]:
    """Yield stores that were stopped behind their first statement, their second and so on, before or after
    it took effect, and the next leader of each.
    """
    for effect_ms in (1, None):
        for statements in count():
            store = a_store()
            a_log(store, config)
            done = count()
            stop = Fate(effect_ms=effect_ms, failure=BROKEN)
            store.engine.choose = lambda _, done=done, stop=stop, at=statements: (  # type: ignore[misc]
                Fate() if next(done) < at else stop
            )
            keep_house(store, today_ms)
            if next(done) <= statements:
                break
            yield store, a_store(config, store.engine.tables)


def look_at_stops() -> None:
    """Raise AssertionError where a stop leaves less than should be, or a next leader does not go on."""
    config = a_config(retention_ms=DAY)
    stops = 0
    for stopped, following in each_stop(config, NOW + DAY + 4_001):
        stops += 1
        log = following.logs[ORDERS]
        assert log.end_offset == ROWS
        assert offsets(log)[-3:] == [5, 6, 7]
        assert set(range(log.start_offset, ROWS)) <= set(left(following))
        keep_house(following, NOW + DAY + 4_001)
        assert (log.start_offset, left(following)) == (5, [5, 6, 7])
        assert stopped.told == following.told == []
    assert stops >= 6


def test_a_stop_between_any_two_statements_loses_nothing_and_the_next_leader_goes_on():
    look_at_stops()


# -- faults that this finds


def no_end_floor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tables, "end", lambda tables, partition_id: _end_of_rows(tables, partition_id))


def _end_of_rows(tables: Tables, partition_id: int) -> int:
    rows = tables.rows(partition_id)
    return rows[-1].last_offset + 1 if rows else 0


def rows_are_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lane, "forget", lambda *_: None)


def no_guard(patch: pytest.MonkeyPatch) -> None:
    def retain(tables: Tables, wanted: RetentionWanted) -> RetainedLog:
        return real(tables, wanted._replace(leader_epoch=99))

    real = Tables.retain
    patch.setattr(Tables, "retain", retain)


def one_row_too_many(patch: pytest.MonkeyPatch) -> None:
    def retain(tables: Tables, wanted: RetentionWanted) -> RetainedLog:
        return real(tables, wanted._replace(before_ms=wanted.before_ms + 1_000))

    real = Tables.retain
    patch.setattr(Tables, "retain", retain)


def rows_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tables, "delete_rows", lambda *_: [])


@pytest.mark.parametrize(
    ("plant", "look"),
    [
        (no_end_floor, test_a_log_of_which_all_is_deleted_goes_on_where_it_has_ended),
        (rows_are_missed, test_a_lane_that_reconnects_does_not_miss_what_was_deleted),
        (no_guard, test_who_leads_no_more_moves_no_start),
        (one_row_too_many, lambda _: look_at_stops()),
        (rows_stay, lambda _: look_at_stops()),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    look: Callable[[OneLog], None],
    monkeypatch: pytest.MonkeyPatch,
):
    plant(monkeypatch)

    with pytest.raises((AssertionError, AttributeError)):
        look(a_store())
