"""What every log promises, tried on files and on the fake in memory alike."""

import pytest
from store_rig import (
    NOW,
    ORDERS,
    TOPIC_ID,
    Rig,
    a_batch,
    a_config,
    a_marker,
    everything,
    idempotent,
    offsets,
    records_in,
)

from coterie.base.codes import Code
from coterie.storage.log.contract import Appended, AppendRefused, OffsetAt, OffsetOutOfRange
from coterie.wire.records.batches import check_crc, read_header, scan

DAY = 86_400_000


def test_records_get_the_next_offsets_and_read_back_as_they_came(rig: Rig):
    log = rig.log_of()

    first = log.append(a_batch("a", "b"), now_ms=NOW)
    second = log.append(a_batch("c", key="k"), now_ms=NOW)

    assert first == Appended(base_offset=0, last_offset=1, append_time_ms=-1, start_offset=0)
    assert second == Appended(base_offset=2, last_offset=2, append_time_ms=-1, start_offset=0)
    assert (log.start_offset, log.end_offset, log.high_watermark) == (0, 3, 3)
    assert [(r.offset, r.key, r.value) for r in everything(log)] == [
        (0, None, b"a"),
        (1, None, b"b"),
        (2, b"k", b"c"),
    ]


def test_a_batch_is_stamped_and_otherwise_kept_byte_for_byte(rig: Rig):
    log = rig.log_of()
    log.append(a_batch("a"), now_ms=NOW)
    sent = a_batch("b", "c", codec="zstd")

    log.append(sent, now_ms=NOW, leader_epoch=4)

    stored = log.read(1, max_bytes=10_000)
    header = read_header(stored)
    assert (header.base_offset, header.leader_epoch) == (1, 4)
    assert stored[16:] == sent[16:]
    assert check_crc(stored, 0, header)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_passes(rig: Rig, codec: str):
    log = rig.log_of()

    log.append(a_batch("a" * 1000, "b", codec=codec), now_ms=NOW)

    assert [record.value for record in everything(log)] == [b"a" * 1000, b"b"]


def test_a_read_returns_whole_batches_from_the_one_that_holds_the_offset(rig: Rig):
    log = rig.log_of()
    for value in "abcd":
        log.append(a_batch(value, value), now_ms=NOW)
    size = len(a_batch("a", "a"))

    assert [h.base_offset for _, h in scan(log.read(3, max_bytes=2 * size + 5))] == [2, 4]
    assert [h.base_offset for _, h in scan(log.read(2, max_bytes=2 * size))] == [2, 4]
    assert [h.base_offset for _, h in scan(log.read(0, max_bytes=10_000))] == [0, 2, 4, 6]


def test_the_first_batch_of_a_read_may_be_too_large_only_where_one_is_wanted_at_least(rig: Rig):
    log = rig.log_of()
    log.append(a_batch("x" * 500), now_ms=NOW)
    log.append(a_batch("y"), now_ms=NOW)

    assert len(scan(log.read(0, max_bytes=1))) == 1
    assert log.read(0, max_bytes=1, at_least_one=False) == b""
    assert log.read(0, max_bytes=0, at_least_one=False) == b""


def test_a_read_stops_before_its_end_offset(rig: Rig):
    log = rig.log_of()
    for value in "abcd":
        log.append(a_batch(value), now_ms=NOW)

    assert [r.offset for r in records_in(log.read(1, max_bytes=10_000, end_offset=3))] == [1, 2]
    assert log.read(3, max_bytes=10_000, end_offset=3) == b""
    assert log.read(1, max_bytes=10_000, end_offset=99) == log.read(1, max_bytes=10_000)


def test_the_end_of_the_log_reads_empty_and_beyond_it_is_out_of_range(rig: Rig):
    log = rig.log_of()
    log.append(a_batch("a"), now_ms=NOW)

    assert log.read(1, max_bytes=100) == b""
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(offset, max_bytes=100)
        assert caught.value.code == Code.OFFSET_OUT_OF_RANGE


def test_a_reader_that_follows_the_writer_gets_each_batch_once(rig: Rig):
    log = rig.log_of()
    seen = []

    for value in range(50):
        appended = log.append(a_batch(str(value), "x" * (value * 37 % 200)), now_ms=NOW)
        seen += records_in(log.read(appended.base_offset, max_bytes=1000))

    assert [record.offset for record in seen] == list(range(100))


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


def test_a_time_leads_to_the_first_record_that_is_not_older(rig: Rig):
    log = rig.log_of(segment_bytes=500, index_interval_bytes=100)
    for value in range(30):
        base = NOW + 100 * value
        log.append(a_batch("x" * 50, "y", at=(base, base + 10)), now_ms=NOW, leader_epoch=value // 20)

    assert log.offset_for_timestamp(NOW) == OffsetAt(0, NOW, 0)
    assert log.offset_for_timestamp(NOW + 1) == OffsetAt(1, NOW + 10, 0)
    assert log.offset_for_timestamp(NOW + 2500) == OffsetAt(50, NOW + 2500, 1)
    assert log.offset_for_timestamp(NOW + 2501) == OffsetAt(51, NOW + 2510, 1)
    assert log.offset_for_timestamp(NOW + 2911) is None


def test_times_out_of_order_lead_to_the_earliest_offset(rig: Rig):
    log = rig.log_of(index_interval_bytes=0)
    for time in (500, 300, 900, 200, 900, 700):
        log.append(a_batch("v", at=NOW + time), now_ms=NOW)

    assert log.offset_for_timestamp(NOW + 250) == OffsetAt(0, NOW + 500, 0)
    assert log.offset_for_timestamp(NOW + 501) == OffsetAt(2, NOW + 900, 0)
    assert log.offset_of_max_timestamp() == OffsetAt(2, NOW + 900, 0)


def test_a_time_finds_nothing_before_the_start_of_the_log(rig: Rig):
    log = rig.log_of()
    for value in range(4):
        log.append(a_batch("v", at=NOW + value), now_ms=NOW)
    log.delete_before(2, NOW)

    assert log.offset_for_timestamp(NOW) == OffsetAt(2, NOW + 2, 0)


def test_an_empty_log_has_no_times(rig: Rig):
    log = rig.log_of()

    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None


def test_the_broker_stamps_its_time_where_the_topic_says_so(rig: Rig):
    log = rig.log_of(message_timestamp_type="LogAppendTime")

    appended = log.append(a_batch("a", "b", at=5), now_ms=NOW)

    stored = log.read(0, max_bytes=1000)
    assert appended.append_time_ms == NOW
    assert [record.timestamp for record in records_in(stored)] == [NOW, NOW]
    assert check_crc(stored, 0, read_header(stored))
    assert log.offset_for_timestamp(NOW) == OffsetAt(0, NOW, 0)


# -- epochs


def test_an_epoch_ends_where_the_next_began(rig: Rig):
    log = rig.log_of()
    for epoch in (0, 0, 3, 5):
        log.append(a_batch("v"), now_ms=NOW, leader_epoch=epoch)

    log = rig.kill()

    assert log.end_of_epoch(0) == (0, 2)
    assert log.end_of_epoch(4) == (3, 3)
    assert log.end_of_epoch(5) == (5, 4)
    assert log.end_of_epoch(6) == (-1, -1)
    assert log.end_of_epoch(-1) == (-1, -1)


def test_a_new_log_is_in_epoch_zero(rig: Rig):
    assert rig.log_of().end_of_epoch(0) == (0, 0)


# -- refusals leave no trace


def test_a_refused_batch_leaves_the_log_as_it_was(rig: Rig):
    log = rig.log_of()
    log.append(a_batch("a"), now_ms=NOW)
    broken = bytearray(a_batch("b"))
    broken[-1] ^= 1

    with pytest.raises(AppendRefused) as caught:
        log.append(bytes(broken), now_ms=NOW)

    assert caught.value.code == Code.CORRUPT_MESSAGE
    assert (log.end_offset, offsets(log)) == (1, [0])


def test_the_coordinator_appends_several_batches_at_once(rig: Rig):
    log = rig.log_of()

    appended = log.append(a_batch("a", "b") + a_batch("c"), now_ms=NOW, origin="coordinator")

    assert (appended.base_offset, appended.last_offset) == (0, 2)
    assert [(r.offset, r.value) for r in everything(log)] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_the_topic_s_compression_replaces_the_producer_s(rig: Rig):
    log = rig.log_of(compression_type="zstd")

    log.append(a_batch("a" * 500, "b", codec="gzip"), now_ms=NOW)
    log.append(a_batch("c", codec="zstd"), now_ms=NOW)

    assert {header.codec for _, header in scan(log.read(0, max_bytes=5000))} == {4}
    assert [record.value for record in everything(log)] == [b"a" * 500, b"b", b"c"]


def test_a_false_claim_of_append_time_is_dropped(rig: Rig):
    """Apache Kafka 4.3.1 takes such a batch into a topic of CreateTime and clears its flag."""
    log = rig.log_of()

    log.append(a_batch("a", "b", at=(NOW, NOW + 7), append_time=True), now_ms=NOW)

    assert [record.timestamp for record in everything(log)] == [NOW, NOW + 7]


# -- transactions


def test_an_open_transaction_holds_the_last_stable_offset(rig: Rig):
    log = rig.log_of()
    log.append(a_batch("a"), now_ms=NOW)

    log.append(idempotent(0, transactional=True), now_ms=NOW)
    log.append(idempotent(0, pid=10, transactional=True), now_ms=NOW)
    assert log.last_stable_offset == 1
    log.append(a_marker(commit=True), now_ms=NOW, origin="coordinator")
    assert log.last_stable_offset == 2
    log = rig.kill()
    assert log.last_stable_offset == 2
    log.append(a_marker(commit=False, pid=10), now_ms=NOW, origin="coordinator")

    assert log.last_stable_offset == log.end_offset == 5


# -- life


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_what_was_appended_is_there_after_the_next_start(rig: Rig, how: str):
    log = rig.log_of(segment_bytes=2000, index_interval_bytes=200)
    for value in range(100):
        log.append(a_batch(str(value) * 20, at=NOW + value), now_ms=NOW)
    before = everything(log)

    log = getattr(rig, how)()

    assert everything(log) == before
    assert log.end_offset == 100
    assert log.offset_for_timestamp(NOW + 73) == OffsetAt(73, NOW + 73, 0)
    assert log.offset_of_max_timestamp() == OffsetAt(99, NOW + 99, 0)
    assert log.append(a_batch("z"), now_ms=NOW).base_offset == 100


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_repeated_batch_is_known_after_the_next_start(rig: Rig, how: str):
    log = rig.log_of()
    first = log.append(idempotent(0, count=3), now_ms=NOW)
    last = log.append(idempotent(3), now_ms=NOW)

    log = getattr(rig, how)()
    again = log.append(idempotent(3), now_ms=NOW)

    assert again == last._replace(append_time_ms=NOW, duplicate=True)
    assert (first.base_offset, log.end_offset) == (0, 4)
    assert log.append(idempotent(4), now_ms=NOW).base_offset == 4


def test_all_five_batches_are_known_after_a_kill(rig: Rig):
    log = rig.log_of()
    for sequence in range(6):
        log.append(idempotent(sequence), now_ms=NOW)

    log = rig.kill()

    assert [log.append(idempotent(s), now_ms=NOW).base_offset for s in range(1, 6)] == [1, 2, 3, 4, 5]
    with pytest.raises(AppendRefused) as caught:
        log.append(idempotent(0), now_ms=NOW)
    assert caught.value.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_are_known_across_segments_after_a_kill(rig: Rig):
    log = rig.log_of(segment_bytes=300)
    log.append(idempotent(0, pid=1), now_ms=NOW)
    for sequence in range(20):
        log.append(idempotent(sequence, pid=2), now_ms=NOW)

    log = rig.kill()

    assert log.append(idempotent(0, pid=1), now_ms=NOW).duplicate
    assert log.append(idempotent(19, pid=2), now_ms=NOW).duplicate


def test_a_producer_that_is_silent_for_a_day_is_forgotten(rig: Rig):
    log = rig.log_of()
    log.append(idempotent(0), now_ms=NOW)

    log.tick(NOW + DAY)

    assert not log.producers.producers
    assert log.append(idempotent(7), now_ms=NOW).base_offset == 1


def test_a_closed_log_says_so_and_closing_twice_is_once(rig: Rig):
    log = rig.log_of()

    log.close()
    log.close()

    assert log.closed


def test_a_log_takes_other_settings_while_it_is_open(rig: Rig):
    log = rig.log_of()
    log.configure(a_config(max_message_bytes=100))

    with pytest.raises(AppendRefused) as caught:
        log.append(a_batch("x" * 200), now_ms=NOW)

    assert caught.value.code == Code.MESSAGE_TOO_LARGE


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
