"""A log in a database keeps the newest record of each key, as one in files does; whoever stops in between
loses nothing, and who leads no more changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_rig import (
    NOW,
    ORDERS,
    TOPIC_ID,
    a_config,
    a_marker,
    committed,
    everything,
    idempotent,
    keyed,
    offsets,
)

from coterie.base.ids import TopicPartition
from coterie.storage import cleaning
from coterie.storage.compaction import run_compaction
from coterie.storage.config import LogConfig
from coterie.storage.log.aborted import AbortedIndex
from coterie.storage.log.contract import OffsetAt
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.storage.remote import compaction as machine
from coterie.storage.remote import pretended_compaction, recalled
from coterie.storage.remote.compacting import (
    ACTIVE_BATCHES,
    ACTIVE_BYTES,
    AGAIN_MS,
    OTHERWISE_MS,
    LogCompaction,
)
from coterie.storage.remote.compaction import (
    Compacted,
    CompactedTo,
    CompactionWanted,
    Leads,
    RowsReplaced,
)
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.pretended import BROKEN, Fate, Tables
from coterie.storage.remote.reading import RowsWanted, StoredRows
from coterie.storage.remote.session import Broken
from coterie.wire.records.batches import Record, scan
from unit.storage.remote_rig import BROKER, PARTITION, OneLog

SETTINGS = {
    "cleanup_policy": "compact",
    "segment_bytes": 230,
    "min_cleanable_dirty_ratio": 0.01,
    "delete_retention_ms": 1_000,
    "file_delete_delay_ms": 0,
    "retention_ms": -1,
}
CONFIG = a_config(**SETTINGS)
ROWS = 30


def a_store(tables: Tables | None = None, config: LogConfig = CONFIG, tail_bytes: int = 0) -> OneLog:
    """Return a store, with the log open if there are tables."""
    return OneLog(tables, config, prompt=True, tail_bytes=tail_bytes)


def a_log(store: OneLog, config: LogConfig = CONFIG) -> RemoteLog:
    """Return a log in which each of three keys was written ten times, each time in a row of its own."""
    log = store.create_log(*ORDERS, TOPIC_ID, config)
    for place in range(ROWS):
        log.append(keyed((f"k{place % 3}", f"v{place:060d}")), now_ms=NOW)
    return log


def keep_house(store: OneLog, now_ms: int = NOW) -> None:
    """Have what is due done."""
    store.now_ms += OTHERWISE_MS

    def tick() -> None:
        store.store.compaction.tick(now_ms, now_ms, tick)

    tick()
    store.settle()


def state_of(records: list[Record]) -> dict[bytes, bytes]:
    """Return what a reader of all knows of each key in the end."""
    known = {record.key or b"": record.value for record in records}
    return {key: value for key, value in known.items() if value is not None}


def rows_of(store: OneLog) -> list[tuple[int, int]]:
    """Return the first and last offsets of the rows that are there."""
    return [(row.base_offset, row.last_offset) for row in store.engine.tables.rows(PARTITION)]


@pytest.fixture(params=[0, 1 << 20], ids=["recalled", "in-memory"])
def store(request: pytest.FixtureRequest) -> OneLog:
    return a_store(tail_bytes=request.param)


def test_only_the_newest_record_of_each_key_stays_and_rows_are_joined(store: OneLog):
    log = a_log(store)
    before = state_of(everything(log))
    size = log.size_bytes

    keep_house(store)

    assert offsets(log) == [26, 27, 28, 29]
    assert state_of(everything(log)) == before
    assert rows_of(store) == [(26, 28), (29, 29)]
    assert (log.start_offset, log.end_offset, log.size_bytes) == (0, ROWS, size * 4 // ROWS)
    assert store.engine.tables.compacted_to == {PARTITION: 29}


def test_what_a_consumer_holds_of_a_log_is_read_anew_once_it_was_compacted(store: OneLog):
    log = a_log(store)
    said: list[str] = []
    reading = log.read_soon(0, 1 << 20, lambda _: said.append("come"), lambda: said.append("pressed"))
    store.settle()
    assert reading is not None
    assert said == ["come"]

    keep_house(store)

    assert (said, reading.found, store.store.recalls.bytes) == (["come", "pressed"], None, 0)
    reading.release()


@pytest.mark.parametrize("lost", ["replace-rows", "save-compacted"])
def test_a_log_is_as_large_as_its_rows_though_the_answer_of_a_compaction_was_lost(lost: str):
    store = a_store()
    log = a_log(store)
    store.engine.choose = lambda name: Fate(failure=BROKEN) if name == lost else Fate()  # type: ignore[method-assign]
    keep_house(store)
    store.engine.choose = lambda _: Fate()  # type: ignore[method-assign]

    store.now_ms += 3_600_000
    store.store.retention.tick(store.now_ms, NOW)
    store.settle()

    assert log.size_bytes == sum(len(row.data) for row in store.engine.tables.rows(PARTITION))
    before = log.size_bytes
    keep_house(store)
    assert log.size_bytes == sum(len(row.data) for row in store.engine.tables.rows(PARTITION)) <= before


@pytest.mark.parametrize("row_bytes", [1, 200, 1 << 17], ids=["each-alone", "by-two", "in-one"])
def test_the_youngest_record_is_found_though_batches_that_were_emptied_say_to_be_younger(
    store: OneLog, monkeypatch: pytest.MonkeyPatch, row_bytes: int
):
    monkeypatch.setattr(machine, "CHUNK_BYTES", row_bytes)
    monkeypatch.setattr(recalled, "LOOKED_AT_BYTES", 1)
    log = store.create_log(*ORDERS, TOPIC_ID, CONFIG)
    for key, time, pid in (
        ("first", 1, None),
        ("k", 900, 1),
        ("x", 100, None),
        ("y", 500, None),
        ("z", 500, None),
        ("k", 800, 2),
        ("k", 2, None),
        ("last", 0, None),
    ):
        producer = {} if pid is None else {"producer_id": pid, "producer_epoch": 0, "base_sequence": 0}
        value = "v" * (150 if key == "first" else 60)
        log.append(keyed((key, value), at=NOW + time, **producer), now_ms=NOW)
    keep_house(store)
    assert offsets(log) == [0, 2, 3, 4, 6, 7]
    assert [
        header.count for row in store.engine.tables.rows(PARTITION) for _, header in scan(row.data)
    ].count(0) == 2

    assert log.offset_of_max_timestamp() == OffsetAt(3, NOW + 500, 0)


@pytest.mark.parametrize(
    ("value", "beside"), [("v", [1, 0]), ("v" * 60, [0])], ids=["beside-a-record", "alone-in-its-row"]
)
def test_the_youngest_record_is_found_in_a_few_rows_of_a_long_log_whose_last_batch_was_emptied(
    store: OneLog, monkeypatch: pytest.MonkeyPatch, value: str, beside: list[int]
):
    monkeypatch.setattr(machine, "CHUNK_BYTES", 170)
    monkeypatch.setattr(recalled, "LOOKED_AT_BYTES", 170)
    log = store.create_log(*ORDERS, TOPIC_ID, CONFIG)
    for place in range(30):
        log.append(keyed((f"key{place}", "v" * 60), at=NOW + place), now_ms=NOW)
    log.append(keyed(("x", value), at=NOW), now_ms=NOW)
    log.append(keyed(("k", "v"), at=NOW + 900, producer_id=1, producer_epoch=0, base_sequence=0), now_ms=NOW)
    log.append(keyed(("k", "v" * 60), at=NOW), now_ms=NOW)
    for key in "yz":
        log.append(keyed((key, "v" * 60), at=NOW), now_ms=NOW)
    keep_house(store)
    emptied = [row for row in store.engine.tables.rows(PARTITION) if row.max_timestamp == NOW + 900]
    assert [[header.count for _, header in scan(row.data)] for row in emptied] == [beside]
    read: list[int] = []
    read_rows = Tables.read_rows

    def counting(tables: Tables, wanted: RowsWanted) -> StoredRows:
        found = read_rows(tables, wanted)
        read.extend(row.base_offset for row in found.chunks)
        return found

    monkeypatch.setattr(Tables, "read_rows", counting)

    assert log.offset_of_max_timestamp() == OffsetAt(29, NOW + 29, 0)
    assert len(read) <= 4


def test_who_opens_it_reads_what_is_left_and_compacts_on(store: OneLog):
    a_log(store)
    keep_house(store)

    again = a_store(store.engine.tables)
    log = again.logs[ORDERS]
    assert (offsets(log), log.compaction.compacted_to) == ([26, 27, 28, 29], 29)
    assert log.compaction.need(NOW) is None
    for place in range(ROWS):
        log.append(keyed((f"k{place % 2}", f"w{place:060d}")), now_ms=NOW)
    before = state_of(everything(log))
    keep_house(again)

    assert state_of(everything(log)) == before
    assert offsets(log) == [29, 57, 58, 59]


def test_reads_lead_from_every_offset_to_what_is_left(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, CONFIG)
    for key in "aabbbcccb":
        log.append(keyed((key, "v" * 50)), now_ms=NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "PAGE_BYTES", 2 * log.size_bytes // 9)
        keep_house(store)
    assert offsets(log) == [1, 4, 7, 8]

    for offset in range(log.end_offset):
        _, first = scan(log.read(offset, max_bytes=1))[0]
        assert first.last_offset >= offset


def test_what_has_come_since_the_last_time_is_left_as_it_is_while_it_is_small_and_young(store: OneLog):
    log = a_log(store, a_config(**{**SETTINGS, "segment_bytes": 1 << 30, "segment_ms": 5_000}))
    keep_house(store, NOW + 4_999)
    assert len(offsets(log)) == ROWS

    keep_house(store, NOW + 5_000)
    assert len(offsets(log)) == 4


def test_of_a_large_part_not_all_of_the_segment_that_would_grow_is_waited_for(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(**{**SETTINGS, "segment_bytes": 1 << 30}))
    value = "v" * (ACTIVE_BYTES // 8)
    for _ in range(7):
        log.append(keyed(("k", value)), now_ms=NOW)
    assert log.compaction.need(NOW) is None

    log.append(keyed(("k", value)), now_ms=NOW)
    assert log.compaction.need(NOW)


def test_records_of_old_times_are_as_young_as_the_compaction_before_them(store: OneLog):
    settings = {"segment_bytes": 1 << 30, "max_compaction_lag_ms": 5_000, "min_cleanable_dirty_ratio": 1}
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(**{**SETTINGS, **settings}))
    for _ in range(9):
        log.append(keyed(("k", "v"), at=NOW - 1_000_000), now_ms=NOW)
    keep_house(store, NOW + 5_000)
    assert len(offsets(log)) == 2

    for _ in range(9):
        log.append(keyed(("k", "v"), at=NOW - 900_000), now_ms=NOW + 5_001)
    assert log.compaction.need(NOW + 9_999) is None
    assert log.compaction.need(NOW + 10_001)


def test_what_a_transaction_held_back_is_as_old_as_it_was(store: OneLog):
    settings = {"segment_bytes": 1 << 30, "max_compaction_lag_ms": 5_000}
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(**{**SETTINGS, **settings}))
    for _ in range(3):
        log.append(keyed(("k", "v"), at=NOW), now_ms=NOW)
    written = keyed(("k", "v"), at=NOW, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(written, now_ms=NOW)
    for _ in range(3):
        log.append(keyed(("k", "v"), at=NOW), now_ms=NOW)
    keep_house(store, NOW + 5_000)
    assert log.compaction.compacted_to == 3

    log.append(a_marker(commit=True, pid=1, at=NOW + 5_000), now_ms=NOW + 5_000, origin="coordinator")

    assert log.compaction.need(NOW + 5_001)


def test_where_a_transaction_begins_in_the_first_row_nothing_is_looked_for_in_vain_twice(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, CONFIG)
    plain = keyed(*[("k", "v")] * 5)
    written = keyed(("k", "v"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    for batch in (plain, written):
        RemoteLog.append(log, batch, now_ms=NOW)
    store.settle()
    assert rows_of(store) == [(0, 5)]
    log.append(keyed(("k", "v" * 100)), now_ms=NOW)
    assert log.compaction.need(NOW)
    keep_house(store)
    assert (log.compaction.compacted_to, log.compaction.need(NOW)) == (0, None)

    log.append(a_marker(commit=True, pid=1), now_ms=NOW, origin="coordinator")
    log.append(keyed(("k", "v")), now_ms=NOW)
    keep_house(store)
    assert log.compaction.compacted_to == 8


def test_records_of_old_times_that_come_in_transactions_are_as_young_as_the_compaction_before(store: OneLog):
    settings = {"segment_bytes": 1 << 30, "max_compaction_lag_ms": 5_000, "min_cleanable_dirty_ratio": 1}
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(**{**SETTINGS, **settings}))
    open_ones: list[int] = []

    def write(pid: int) -> None:
        """Begin a transaction, and end the one before: one is open at any time."""
        written = keyed(
            ("k", "v"),
            at=NOW - 900_000,
            producer_id=pid,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append(written, now_ms=NOW)
        open_ones.append(pid)
        if len(open_ones) > 1:
            log.append(a_marker(commit=True, pid=open_ones.pop(0)), now_ms=NOW, origin="coordinator")

    for place in range(3):
        for pid in range(4 * place, 4 * place + 4):
            write(pid)
        keep_house(store, NOW + place * 5_000)

    assert log.compaction.compacted_to > 16, "the third has come behind the end of the second"
    write(12)
    write(13)
    assert log.compaction.need(NOW + 9_999) is None, "what is left has come since the second"
    assert log.compaction.need(NOW + 10_001)


def test_a_newest_row_that_is_old_is_looked_at_in_vain_but_once_though_young_ones_are_waited_for(
    store: OneLog,
):
    settings = {"min_compaction_lag_ms": 1_000, "max_compaction_lag_ms": 5_000}
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(**{**SETTINGS, **settings}))
    for value in "vw":
        RemoteLog.append(log, keyed(("k", value)), now_ms=NOW)
    store.settle()
    assert rows_of(store) == [(0, 1)]
    assert log.compaction.need(NOW + 6_000)

    keep_house(store, NOW + 6_000)

    assert (log.compaction.compacted_to, log.compaction.need(NOW + 7_000)) == (0, None)
    for value in "xy":
        log.append(keyed(("k", value), at=NOW + 7_000), now_ms=NOW + 7_000)
    keep_house(store, NOW + 7_001)
    assert log.compaction.compacted_to == 2


def test_nor_of_many_batches_though_they_are_small_whoever_opens_the_log_then(store: OneLog):
    config = a_config(**{**SETTINGS, "segment_bytes": 1 << 30})
    log = store.create_log(*ORDERS, TOPIC_ID, config)
    for _ in range(ACTIVE_BATCHES - 1):
        log.append(keyed(("k", "v")), now_ms=NOW)
    assert log.compaction.need(NOW) is None
    store.close()
    store = a_store(store.engine.tables, config, tail_bytes=store.store.cache.limit)
    log = store.logs[ORDERS]
    assert log.compaction.need(NOW) is None

    log.append(keyed(("k", "v")), now_ms=NOW)
    assert log.compaction.need(NOW)
    keep_house(store)
    assert offsets(log) == [ACTIVE_BATCHES - 2, ACTIVE_BATCHES - 1]

    for _ in range(ACTIVE_BATCHES - 1):
        log.append(keyed(("k", "v")), now_ms=NOW)
    assert log.compaction.need(NOW) is None
    log.append(keyed(("k", "v")), now_ms=NOW)
    assert log.compaction.need(NOW)


def test_logs_are_compacted_one_after_the_other_until_none_needs_it():
    store = a_store()
    others = [TopicPartition("orders", 1 + number) for number in range(3)]
    logs = [a_log(store)]
    for number, name in enumerate(others):
        logs.append(store.create_log(*name, TOPIC_ID, CONFIG, PARTITION + 1 + number))
        for place in range(ROWS):
            logs[-1].append(keyed((f"k{place % 3}", f"v{place:060d}")), now_ms=NOW)

    keep_house(store)

    assert [len(offsets(log)) for log in logs] == [4] * 4


@pytest.mark.parametrize(
    "settings",
    [
        {"cleanup_policy": "delete"},
        {"min_cleanable_dirty_ratio": 1},
        {"min_compaction_lag_ms": 10_000},
    ],
    ids=lambda one: next(iter(one)),
)
def test_what_the_settings_leave_alone_stays(store: OneLog, settings: dict[str, object]):
    log = a_log(store, a_config(**{**SETTINGS, **settings}))

    keep_house(store, NOW + 9_999)

    assert len(offsets(log)) == ROWS


def test_rows_that_are_too_young_stay_and_those_before_them_do_not(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(**{**SETTINGS, "min_compaction_lag_ms": 10_000}))
    for place in range(10):
        log.append(keyed(("k", "v" * 50), at=NOW + place), now_ms=NOW)

    keep_house(store, NOW + 10_004)

    assert offsets(log) == [4, 5, 6, 7, 8, 9]
    assert log.compaction.need(NOW + 10_004) is None
    assert log.compaction.need(NOW + 10_006)
    keep_house(store, NOW + 20_000)
    assert offsets(log) == [8, 9]


def test_records_without_a_time_are_not_too_young_for_ever(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(**{**SETTINGS, "min_compaction_lag_ms": 10_000}))
    for _ in range(10):
        log.append(keyed(("k", "v" * 50), at=-1), now_ms=NOW)

    keep_house(store, NOW)

    assert offsets(log) == [8, 9]


def test_a_tombstone_stays_for_a_while_and_what_it_deletes_does_not(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, CONFIG)
    log.append(keyed(("a", "1")), now_ms=NOW)
    log.append(keyed(("a", None)), now_ms=NOW)
    for value in "xyz":
        log.append(keyed(("b", value * 100)), now_ms=NOW)
    keep_house(store)
    assert everything(log)[0][2:4] == (b"a", None)

    log = _written_on(log)
    keep_house(store, NOW + 999)
    assert b"a" in {record.key for record in everything(log)}

    log = _written_on(log)
    keep_house(store, NOW + 1_000)
    assert b"a" not in {record.key for record in everything(log)}


def _written_on(log: RemoteLog) -> RemoteLog:
    for value in "xyz":
        log.append(keyed(("b", value * 90)), now_ms=NOW)
    return log


def test_what_was_aborted_goes_and_is_passed_over_as_long_as_somebody_may_read_it(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, CONFIG)
    how = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
    log.append(keyed(("a", "1"), base_sequence=0, **how), now_ms=NOW)
    log.append(a_marker(commit=False), now_ms=NOW, origin="coordinator")
    log.append(keyed(("a", "2"), base_sequence=1, **how), now_ms=NOW)
    log.append(a_marker(commit=True), now_ms=NOW, origin="coordinator")
    expected = state_of(committed(log))

    for pass_ms in (0, 0, 2_000, 4_000, 4_000):
        _written_on(log)
        keep_house(store, NOW + pass_ms)
        assert state_of(committed(log)).get(b"a") == expected[b"a"] == b"2"

    assert not {0, 1} & {header.base_offset for _, header in scan(log.read(0, max_bytes=10_000))}
    assert log.aborted_spans() == []
    again = a_store(store.engine.tables).logs[ORDERS]
    assert state_of(committed(again))[b"a"] == b"2"


def test_a_marker_stays_as_long_as_its_transaction_is_listed(store: OneLog):
    """A compaction that was not finished may have dated it."""
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(**{**SETTINGS, "delete_retention_ms": 0}))
    how = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
    log.append(keyed(("a", "1"), base_sequence=0, **how), now_ms=NOW)
    log.append(a_marker(commit=False), now_ms=NOW, origin="coordinator")
    log.append(keyed(("a", "2"), base_sequence=1, **how), now_ms=NOW)
    log.append(a_marker(commit=True), now_ms=NOW, origin="coordinator")
    _written_on(log)
    keep_house(store)
    _written_on(log)
    store.engine.choose = lambda name: Fate() if name != "save-compacted" else Fate(None, 1, BROKEN)
    keep_house(store)  # which dates it

    store.engine.choose = lambda name: Fate() if name != "save-compacted" else Fate(1, 1, BROKEN)
    keep_house(store)

    assert log.aborted_spans() != []
    assert state_of(committed(log)).get(b"a") == b"2"


def test_what_is_not_decided_replaces_nothing(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, CONFIG)
    how = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
    for value in "xyz":
        log.append(keyed(("a", value * 50)), now_ms=NOW)
    log.append(keyed(("a", "1"), base_sequence=0, **how), now_ms=NOW)
    _written_on(log)

    keep_house(store)

    assert offsets(log) == [2, 3, 4, 5, 6]


def test_a_producer_is_known_by_what_is_left(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, CONFIG)
    log.append(idempotent(0, key="k"), now_ms=NOW)
    log.append(idempotent(1, key="k"), now_ms=NOW)
    _written_on(log).append(keyed(("k", "v")), now_ms=NOW)
    log.append(keyed(("z", "v")), now_ms=NOW)
    keep_house(store)
    assert not {0, 1} & {*offsets(log)}

    log = a_store(store.engine.tables).logs[ORDERS]

    assert log.append(idempotent(1, key="k"), now_ms=NOW).base_offset == 1
    assert log.append(idempotent(2, key="k"), now_ms=NOW).base_offset == 7


def test_a_log_is_left_alone_for_a_while_once_it_was_compacted(store: OneLog):
    a_log(store)
    asked: list[str] = []
    choose = store.engine.choose
    store.engine.choose = lambda name: [asked.append(name), choose(name)][1]  # type: ignore[func-returns-value]

    ended_ms: list[int] = []

    def tick() -> None:
        store.store.compaction.tick(NOW, NOW, again)

    def again() -> None:
        ended_ms.append(store.now_ms)
        tick()

    for _ in range(5):
        tick()
        _written_on(store.logs[ORDERS])
    store.now_ms = ended_ms[0] + AGAIN_MS - 1
    tick()
    store.settle()
    assert asked.count("save-compacted") == 1

    store.now_ms = ended_ms[0] + AGAIN_MS
    tick()
    store.settle()
    assert asked.count("save-compacted") == 2


def test_a_log_that_is_damaged_is_compacted_no_more_and_stays_as_it_is(store: OneLog):
    a_log(store)
    tables = store.engine.tables
    row = tables.chunks[PARTITION, 3]
    tables.chunks[PARTITION, 3] = row._replace(data=bytes(row.data)[:-1] + b"!")
    before = dict(tables.chunks)

    for _ in range(2):
        keep_house(store)

    assert tables.chunks == before
    assert [*store.store.compaction._uncleanable] == [store.logs[ORDERS]]


def test_a_database_that_is_away_is_told_once_and_asked_again(
    store: OneLog, caplog: pytest.LogCaptureFixture
):
    log = a_log(store)
    store.fate = Fate(effect_ms=None, failure=BROKEN)
    for _ in range(3):
        keep_house(store)
    assert [record.message for record in caplog.records] == [
        f"{ORDERS} cannot be compacted for now: the connection is gone"
    ]

    store.fate = Fate()
    keep_house(store)

    assert len(offsets(log)) == 4


# -- who may change something, and what


def compact(store: OneLog, **terms: Any) -> Compacted | Broken:
    """Have the log compacted, by other terms than it has."""
    wanted = store.logs[ORDERS].compaction.begin(store.epoch, NOW, NOW)
    answered: list[Compacted | Broken] = []
    compactor = pretended_compaction.PretendedCompactor(store.engine, BROKER)
    compactor.compact(wanted._replace(**terms), answered.append, history=store.engine.history)
    store.settle()
    return answered[0]


@pytest.mark.parametrize("broker_epochs", [0, 1], ids=["leader", "broker"])
def test_who_leads_no_more_changes_nothing(store: OneLog, broker_epochs: int):
    log = a_log(store)
    tables = store.engine.tables
    if broker_epochs:
        tables.register(BROKER, 3)
    else:
        tables.lead(PARTITION, log.latest_epoch + 1)
    before = dict(tables.chunks)

    assert compact(store) == Compacted(0)
    assert (tables.chunks, tables.compacted_to) == (before, {})


def test_rows_that_are_not_as_they_were_read_are_not_replaced(store: OneLog):
    a_log(store)
    tables = store.engine.tables

    def choose(name: str) -> Fate:
        if name == "replace-rows":
            tables.delete(PARTITION, 1)
        return Fate()

    store.engine.choose = choose
    assert compact(store) == Compacted(0)
    assert len(rows_of(store)) == ROWS - 1


def test_a_database_of_another_history_is_not_asked(store: OneLog):
    a_log(store)
    store.engine.history = "another"

    keep_house(store)

    assert len(rows_of(store)) == ROWS


def test_a_log_that_was_compacted_is_led_anew_where_the_database_has_gone_back(store: OneLog):
    a_log(store)
    mark = store.engine.tables.journal.mark()
    keep_house(store)
    store.engine.go_away(to=mark)
    store.engine.come_back()

    store.store.go_on(store.engine.history)
    store.pass_ms(1_000)

    assert store.told == ["lost"]


def test_a_log_that_was_compacted_goes_on_where_another_database_has_all_of_it(store: OneLog):
    """A standby that is promoted has another history, and all that was committed."""
    log = a_log(store)
    keep_house(store)
    assert offsets(log) == [26, 27, 28, 29]

    store.engine.history = "promoted"
    store.store.go_on("promoted")
    store.settle()

    assert store.told == []
    assert log.append(keyed(("k0", "v")), now_ms=NOW).base_offset == ROWS


def test_a_lane_misses_nothing_that_was_compacted(store: OneLog):
    a_log(store)
    keep_house(store)

    store.lane.look_again()
    store.pass_ms(1_000)

    assert store.told == []


# -- a stop between any two statements


def each_stop() -> Iterator[tuple[OneLog, OneLog]]:
    """Yield stores that were stopped behind their first statement, their second and so on, before or after
    it took effect, and the next leader of each.
    """
    for effect_ms in (1, None):
        for statements in count():
            store = a_store()
            a_log(store)
            done = count()
            stop = Fate(effect_ms=effect_ms, failure=BROKEN)
            store.engine.choose = lambda _, done=done, stop=stop, at=statements: (  # type: ignore[misc]
                Fate() if next(done) < at else stop
            )
            keep_house(store)
            if next(done) <= statements:
                break
            yield store, a_store(store.engine.tables)


def look_at_stops(patch: pytest.MonkeyPatch) -> None:
    """Raise AssertionError where a stop leaves less than should be, or a next leader does not go on."""
    patch.setattr(machine, "PAGE_BYTES", 300)
    stops = 0
    for stopped, following in each_stop():
        stops += 1
        log = following.logs[ORDERS]
        expected = {b"k%d" % place: b"v%060d" % (27 + place) for place in range(3)}
        assert (log.end_offset, state_of(everything(log))) == (ROWS, expected)
        keep_house(following)
        assert (offsets(log), state_of(everything(log))) == ([26, 27, 28, 29], expected)
        assert stopped.told == following.told == []
    assert stops >= 20


def test_a_stop_between_any_two_statements_loses_nothing_and_the_next_leader_goes_on(
    monkeypatch: pytest.MonkeyPatch,
):
    look_at_stops(monkeypatch)


def test_what_deletes_goes_behind_what_it_deletes_wherever_compactions_stop(store: OneLog):
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(**{**SETTINGS, "delete_retention_ms": 0}))
    for pair in (("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("a", None), ("d", "2"), ("e", "1")):
        log.append(keyed(pair), now_ms=NOW)
    store.engine.choose = lambda name: Fate(1, 1, BROKEN if name == "replace-rows" else "")
    expected = state_of(everything(log))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "PAGE_BYTES", 1)
        for _ in range(8):
            keep_house(store)
            assert state_of(everything(log)) == expected

    assert offsets(log) == [1, 2, 5, 6]


# -- as in files


PRODUCERS = st.integers(1, 3)
PAIRS = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.sampled_from(["", "v" * 40])), min_size=1, max_size=3
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PAIRS),
        st.tuples(st.just("transact"), PRODUCERS, PAIRS),
        st.tuples(st.just("end"), PRODUCERS, st.booleans()),
        st.tuples(st.just("compact")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("pass"), st.sampled_from([1, 60, 2_000])),
    ),
    max_size=40,
)


class SideBySide:
    """The same appended to three logs: one in files and one in rows that are compacted, each over the same
    part at the same time, and one that is not.
    """

    def __init__(self, *, tail_bytes: int) -> None:
        self.now_ms = NOW
        self.tail_bytes = tail_bytes
        self.disk = MemoryDisk(seed=1)
        self.files = MemoryStore.open(now_ms=NOW, disk=self.disk, configs=lambda *_: CONFIG)
        self.files.create_log(*ORDERS, UUID(int=1), CONFIG)
        self.plain = MemoryStore.open(now_ms=NOW, disk=MemoryDisk(seed=1), configs=lambda *_: CONFIG)
        self.plain.create_log(*ORDERS, UUID(int=1), CONFIG)
        self.remote = a_store(tail_bytes=tail_bytes)
        self.remote.create_log(*ORDERS, TOPIC_ID, CONFIG)
        self.sequences = {1: 0, 2: 0, 3: 0}

    @property
    def logs(self) -> list[Any]:
        return [one.logs[ORDERS] for one in (self.files, self.remote, self.plain)]

    def append(self, batch: bytes, **how: Any) -> None:
        assert len({log.append(batch, now_ms=self.now_ms, **how).base_offset for log in self.logs}) == 1

    def write(self, pairs: list[tuple[str, str | None]]) -> None:
        self.append(keyed(*pairs, at=self.now_ms))

    def transact(self, producer: int, pairs: list[tuple[str, str | None]]) -> None:
        how = {"producer_id": producer, "producer_epoch": 0, "transactional": True}
        self.append(keyed(*pairs, at=self.now_ms, base_sequence=self.sequences[producer], **how))
        self.sequences[producer] += len(pairs)

    def end(self, producer: int, commit: bool) -> None:
        self.append(a_marker(commit=commit, pid=producer, at=self.now_ms), origin="coordinator")

    def compact(self) -> None:
        in_files, in_rows, _ = self.logs
        in_files.flush()
        plan = in_files.compacting.plan(self.now_ms)
        if plan is None:
            return
        in_rows.compaction.begin(self.remote.epoch, self.now_ms, self.now_ms)
        wanted = CompactionWanted(  # by the terms that files have
            Leads(PARTITION, self.remote.epoch, in_rows.latest_epoch),
            0,
            plan.first_dirty,
            plan.upto,
            1 << 62,
            *plan[4:7],
            plan.producers,
            frozenset(),
        )
        answered: list[Compacted | Broken] = []
        compactor = pretended_compaction.PretendedCompactor(self.remote.engine, BROKER)
        compactor.compact(wanted, answered.append, history=self.remote.engine.history)
        self.remote.settle()
        assert in_files.compacting.finish(run_compaction(plan, self.disk), self.now_ms)
        assert isinstance(answered[0], Compacted)
        assert (answered[0].whole, answered[0].upto) == (True, plan.upto)
        in_rows.compaction.finish(answered[0])

    def reopen(self) -> None:
        self.files.close()
        self.files = MemoryStore.open(now_ms=self.now_ms, disk=self.disk, configs=lambda *_: CONFIG)
        self.remote.close()
        self.remote = a_store(self.remote.engine.tables, tail_bytes=self.tail_bytes)

    def look(self) -> None:
        """See that both have left the same, and what matters of that which is not compacted."""
        in_files, in_rows, plain = self.logs
        assert _bytes_of(in_rows) == _bytes_of(in_files)
        assert state_of(committed(in_rows)) == state_of(committed(plain))
        assert in_rows.last_stable_offset == in_files.last_stable_offset == plain.last_stable_offset
        for offset in range(in_rows.end_offset):
            assert scan(in_rows.read(offset, max_bytes=1))[0][1].last_offset >= offset
        there = sum(len(row.data) for row in self.remote.engine.tables.rows(PARTITION))
        assert in_rows.size_bytes == there


def _bytes_of(log: Any) -> bytes:
    """Return all batches, but for the leader epochs that they were written in."""
    found = []
    offset = 0
    while data := log.read(offset, max_bytes=1 << 20):
        found += [data[at : at + 12] + data[at + 16 : at + header.size] for at, header in scan(data)]
        offset = scan(data)[-1][1].last_offset + 1
    return b"".join(found)


def play(steps: list[tuple[Any, ...]], tail_bytes: int) -> None:
    """Have steps done, and look after each."""
    both = SideBySide(tail_bytes=tail_bytes)
    for name, *terms in steps:
        if name == "pass":
            both.now_ms += terms[0]
        else:
            getattr(both, name)(*terms)
        both.look()


@given(steps=STEPS, tail_bytes=st.sampled_from([0, 500, 1 << 20]))
def test_rows_keep_byte_for_byte_what_files_keep(steps: list[tuple[Any, ...]], tail_bytes: int):
    play(steps, tail_bytes)


# -- faults that this finds


def any_row_is_the_one_that_was_read(patch: pytest.MonkeyPatch) -> None:
    real = pretended_compaction._replace

    def replace(tables: Tables, statement: RowsReplaced) -> bool:
        there = [one for one in statement.old if (PARTITION, one.base_offset) in tables.chunks]
        return real(tables, statement._replace(old=there))

    patch.setattr(pretended_compaction, "_replace", replace)


def no_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tables, "leads", lambda *_: True)


def rows_end_where_they_did(patch: pytest.MonkeyPatch) -> None:
    real = machine._Run.row
    patch.setattr(
        machine._Run, "row", lambda run, gone: real(run, gone)._replace(last_offset=run.rows[-1].last_offset)
    )


def what_is_in_memory_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RemoteLog, "take_compacted", lambda *_: None)


def rows_are_replaced_from_the_end_on(patch: pytest.MonkeyPatch) -> None:
    """What deletes goes before what it deletes."""
    real = machine._sweep

    def sweep(wanted: CompactionWanted, *terms: Any) -> Any:
        statements = real(wanted, *terms)
        late: list[RowsReplaced] = []
        answer: Any = None
        while True:
            try:
                statement = statements.send(answer)
            except StopIteration as ended:
                return ended.value
            if isinstance(statement, RowsReplaced):
                late.append(statement)
                answer = True
                continue
            if isinstance(statement, CompactedTo):
                yield from reversed(late)
            answer = yield statement

    patch.setattr(machine, "_sweep", sweep)


def transactions_are_listed_for_good(patch: pytest.MonkeyPatch) -> None:
    real = RemoteLog.take_compacted

    def take(log: RemoteLog, done: Compacted) -> None:
        before = tuple(log.aborted_spans())
        real(log, done)
        log._aborted = AbortedIndex(before)

    patch.setattr(RemoteLog, "take_compacted", take)
    a_marker_goes_whose_transaction_is_listed(patch)


def a_marker_goes_whose_transaction_is_listed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleaning, "_may_go", cleaning._horizon_passed)


def what_is_not_decided_is_compacted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogCompaction, "_settled", property(lambda of: of._log.high_watermark - 1))


def a_log_goes_on_that_is_as_it_was_before_it_was_compacted(patch: pytest.MonkeyPatch) -> None:
    real = Tables.lacking
    patch.setattr(
        Tables, "lacking", lambda tables, led: real(tables, [one._replace(compacted_to=0) for one in led])
    )


@pytest.mark.parametrize(
    ("plant", "look"),
    [
        (any_row_is_the_one_that_was_read, test_rows_that_are_not_as_they_were_read_are_not_replaced),
        (no_guard, lambda store: test_who_leads_no_more_changes_nothing(store, 0)),
        (rows_end_where_they_did, test_reads_lead_from_every_offset_to_what_is_left),
        (
            rows_are_replaced_from_the_end_on,
            test_what_deletes_goes_behind_what_it_deletes_wherever_compactions_stop,
        ),
        (what_is_in_memory_stays, test_only_the_newest_record_of_each_key_stays_and_rows_are_joined),
        (
            transactions_are_listed_for_good,
            test_what_was_aborted_goes_and_is_passed_over_as_long_as_somebody_may_read_it,
        ),
        (a_marker_goes_whose_transaction_is_listed, test_a_marker_stays_as_long_as_its_transaction_is_listed),
        (what_is_not_decided_is_compacted, test_what_is_not_decided_replaces_nothing),
        (
            a_log_goes_on_that_is_as_it_was_before_it_was_compacted,
            test_a_log_that_was_compacted_is_led_anew_where_the_database_has_gone_back,
        ),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    look: Callable[[OneLog], None],
    monkeypatch: pytest.MonkeyPatch,
):
    plant(monkeypatch)

    with pytest.raises((AssertionError, IndexError)):
        look(a_store(tail_bytes=1 << 20))


def test_what_is_written_down_before_it_is_done_is_found_by_a_stop(monkeypatch: pytest.MonkeyPatch):
    real = machine._sweep

    def sweep(wanted: CompactionWanted, *terms: Any) -> Any:
        yield CompactedTo(wanted.leads, terms[-1])
        return (yield from real(wanted, *terms))

    monkeypatch.setattr(machine, "_sweep", sweep)

    with pytest.raises(AssertionError):
        look_at_stops(monkeypatch)
