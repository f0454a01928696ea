"""What a log promises of its files: segments, retention, deletion, and what a start takes away."""

import pytest
from store_rig import (
    NOW,
    ORDERS,
    TOPIC_ID,
    Rig,
    a_batch,
    idempotent,
    offsets,
)

from coterie.storage.log.contract import OffsetAt, OffsetOutOfRange
from coterie.wire.records.batches import scan

DAY = 86_400_000


# -- rolling


def test_a_full_segment_is_followed_by_another_and_reads_go_on_across(rig: Rig):
    log = rig.log_of(segment_bytes=400)

    for value in range(20):
        log.append(a_batch(str(value) * 30), now_ms=NOW)

    assert len([name for name in rig.names() if name.endswith(".log")]) > 5
    assert offsets(log) == list(range(20))
    assert f"{log.end_offset - 1:020d}.log" in rig.names() or len(rig.names()) > 10


def test_a_segment_rolls_when_records_are_younger_than_its_first_by_segment_ms(rig: Rig):
    log = rig.log_of(segment_ms=1000)

    for time in (0, 500, 1000, 1001, 1500):
        log.append(a_batch("a", at=NOW + time), now_ms=NOW)

    assert sorted(name for name in rig.names() if name.endswith(".log")) == [
        "00000000000000000000.log",
        "00000000000000000003.log",
    ]


def test_a_segment_of_records_without_time_rolls_by_the_clock(rig: Rig):
    log = rig.log_of(segment_ms=1000)

    log.append(a_batch("a", at=-1), now_ms=NOW + 900)
    log.append(a_batch("b", at=-1), now_ms=NOW + 1001)

    assert "00000000000000000001.log" in rig.names()


def test_a_segment_rolls_when_its_index_is_full(rig: Rig):
    log = rig.log_of(index_interval_bytes=0, segment_index_bytes=48)

    for value in range(15):
        log.append(a_batch(str(value)), now_ms=NOW)

    # Six entries of eight bytes; the first batch of a segment needs none.
    assert sorted(name for name in rig.names() if name.endswith(".log")) == [
        "00000000000000000000.log",
        "00000000000000000007.log",
        "00000000000000000014.log",
    ]
    assert offsets(log) == list(range(15))


# -- retention


def test_old_segments_go_and_take_the_start_of_the_log_along(rig: Rig):
    log = rig.log_of(segment_bytes=150, retention_ms=10_000, file_delete_delay_ms=0)
    for time in range(5):
        log.append(a_batch("x" * 50, at=NOW + 5000 * time), now_ms=NOW)

    log.tick(NOW + 15_001)

    assert log.start_offset == 2
    assert offsets(log) == [2, 3, 4]
    with pytest.raises(OffsetOutOfRange):
        log.read(1, max_bytes=100)


def test_a_log_whose_records_are_all_old_is_emptied_but_keeps_its_end(rig: Rig):
    log = rig.log_of(retention_ms=1000)
    log.append(a_batch("a", "b"), now_ms=NOW)

    log.tick(NOW + 1001)

    assert (log.start_offset, log.end_offset, log.size_bytes) == (2, 2, 0)
    assert log.append(a_batch("c", at=NOW + 2000), now_ms=NOW + 2000).base_offset == 2


def test_records_without_a_time_are_as_old_as_their_file(rig: Rig):
    log = rig.log_of(retention_ms=1000)
    log.append(a_batch("a", at=-1), now_ms=NOW)
    log.append(a_batch("b", at=-1), now_ms=NOW + 900)

    log.tick(NOW + 1900)
    assert offsets(log) == [0, 1]
    log.tick(NOW + 1901)
    assert offsets(log) == []


def test_surplus_segments_go_when_the_log_is_larger_than_retention_bytes(rig: Rig):
    size = len(a_batch("x" * 50))
    log = rig.log_of(segment_bytes=size, retention_bytes=2 * size, retention_ms=-1)
    for _ in range(5):
        log.append(a_batch("x" * 50), now_ms=NOW)

    log.tick(NOW)

    assert (log.start_offset, log.size_bytes) == (3, 2 * size)


def test_a_compacted_log_keeps_old_records(rig: Rig):
    log = rig.log_of(cleanup_policy="compact", retention_ms=1, retention_bytes=1)
    log.append(a_batch("a", key="k"), now_ms=NOW)

    log.tick(NOW + DAY)

    assert offsets(log) == [0]


def test_files_of_deleted_segments_go_after_their_delay(rig: Rig):
    log = rig.log_of(segment_bytes=150, retention_ms=1000, file_delete_delay_ms=500)
    for _ in range(3):
        log.append(a_batch("x" * 50), now_ms=NOW)

    log.tick(NOW + 2000)
    waiting = {name for name in rig.names() if name.endswith(".deleted")}
    log.tick(NOW + 2499)
    assert {name for name in rig.names() if name.endswith(".deleted")} == waiting
    log.tick(NOW + 2500)

    assert len(waiting) == 9
    assert not any(name.endswith(".deleted") for name in rig.names())


# -- DeleteRecords


def test_delete_before_moves_the_start_and_drops_whole_segments(rig: Rig):
    log = rig.log_of(segment_bytes=400)
    for value in range(20):
        log.append(a_batch(str(value) * 30), now_ms=NOW)

    assert log.delete_before(13, NOW) == 13

    assert offsets(log) == list(range(13, 20))
    assert "00000000000000000000.log" not in rig.names()
    assert log.delete_before(5, NOW) == 13


def test_delete_before_refuses_what_lies_beyond_the_end(rig: Rig):
    log = rig.log_of()
    log.append(a_batch("a"), now_ms=NOW)

    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRange):
            log.delete_before(offset, NOW)


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_deleted_records_stay_deleted(rig: Rig, how: str):
    log = rig.log_of()
    for value in "abcd":
        log.append(a_batch(value), now_ms=NOW)
    log.delete_before(2, NOW)

    log = getattr(rig, how)()

    assert log.start_offset == 2
    assert offsets(log) == [2, 3]


def test_everything_may_be_deleted_and_the_offsets_go_on(rig: Rig):
    log = rig.log_of()
    log.append(a_batch("a", "b"), now_ms=NOW)

    log.delete_before(2, NOW)
    log = rig.kill()

    assert (log.start_offset, log.end_offset) == (2, 2)
    assert log.append(a_batch("c"), now_ms=NOW).base_offset == 2


# -- times


def test_a_time_finds_nothing_before_the_start_of_the_log(rig: Rig):
    log = rig.log_of()
    for value in range(4):
        log.append(a_batch("v", at=NOW + value), now_ms=NOW)
    log.delete_before(2, NOW)

    assert log.offset_for_timestamp(NOW) == OffsetAt(2, NOW + 2, 0)


# -- life


def test_a_producer_that_is_silent_for_a_day_is_forgotten(rig: Rig):
    log = rig.log_of()
    log.append(idempotent(0), now_ms=NOW)

    log.tick(NOW + DAY)

    assert not log.producers.producers
    assert log.append(idempotent(7), now_ms=NOW).base_offset == 1


def test_a_deleted_partition_is_out_of_sight_at_once_and_off_the_disk_later(rig: Rig):
    log = rig.log_of(file_delete_delay_ms=1000)
    log.append(a_batch("a"), now_ms=NOW)

    rig.store.delete_log(*ORDERS, now_ms=NOW)

    assert ORDERS not in rig.store.logs
    assert log.closed
    left = [name for name in rig.store.disk.directories(rig.store.path) if name.startswith("orders-0")]
    assert [name.endswith("-delete") for name in left] == [True]
    rig.store.tick(NOW + 1000)
    assert not [name for name in rig.store.disk.directories(rig.store.path) if name.startswith("orders-0")]


def test_a_partition_may_be_made_anew_while_the_old_one_waits_to_go(rig: Rig):
    rig.log_of().append(a_batch("a"), now_ms=NOW)

    rig.store.delete_log(*ORDERS, now_ms=NOW)
    log = rig.log_of()

    assert log.end_offset == 0
    assert rig.kill().end_offset == 0


def test_a_start_takes_away_what_was_left_of_deleted_partitions(rig: Rig):
    rig.log_of()
    rig.store.delete_log(*ORDERS, now_ms=NOW)
    rig.log_of()

    rig.kill()
    rig.store.tick(NOW)

    assert not [name for name in rig.store.disk.directories(rig.store.path) if name.endswith("-delete")]


def test_the_store_knows_its_partitions_and_whose_it_is_after_a_restart(rig: Rig):
    rig.log_of()
    meta = rig.store.meta

    rig.restart()

    assert [tuple(found) for found in rig.store.partitions()] == [("orders", 0, TOPIC_ID)]
    assert rig.store.meta == meta
    assert len(meta.cluster_id) == len(meta.directory_id) == 22


# -- reading on


@pytest.mark.parametrize("size", [100, 2_000, 6_000])  # of batches: none, some, each with an index entry
def test_a_reader_that_goes_on_where_it_was_served_reads_two_stretches_at_most(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, size: int
):
    log = rig.log_of()
    for _ in range(120_000 // size):
        log.append(a_batch("v" * size), now_ms=NOW)
    kind = type(log._segments.last.file)
    read, reads = kind.read, []
    monkeypatch.setattr(kind, "read", lambda self, *where: reads.append(where) or read(self, *where))

    offset, counts = 0, []
    while data := log.read(offset, max_bytes=20_000):
        counts.append(len(reads))
        offset = scan(data)[-1][1].last_offset + 1
        reads.clear()

    assert offset == log.end_offset
    assert max(counts[1:]) <= 2, "where the batch lies that does not fit any more, and what is answered"
