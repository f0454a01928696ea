"""What every log promises, tried on files, on a disk in memory, and on rows of a pretended database: all of
them in memory, or none.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.base.codes import Code
from coterie.storage.log.contract import Appended, AppendRefused, OffsetAt, OffsetOutOfRange
from coterie.wire.records.batches import check_crc, read_header, scan
from unit.storage.store_rig import (
    NOW,
    Rig,
    a_batch,
    a_config,
    a_marker,
    everything,
    idempotent,
    offsets,
    records_in,
)

DAY = 86_400_000


@pytest.fixture(params=["files", "memory", "remote", "recalled"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Yield a store of each kind, closed again after the test."""
    made = Rig(request.param, tmp_path)
    yield made
    made.store.abandon()


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


# -- DeleteRecords


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


@pytest.mark.parametrize("segment_bytes", [1 << 20, 2 * len(a_batch("v"))], ids=["one-segment", "three"])
def test_the_youngest_record_is_not_looked_for_before_the_start(rig: Rig, segment_bytes: int):
    log = rig.log_of(index_interval_bytes=0, segment_bytes=segment_bytes)
    for time in (500, 900, 200, 300, 300, 100):
        log.append(a_batch("v", at=NOW + time), now_ms=NOW)

    found = []
    for start in range(7):
        log.delete_before(start, NOW)
        found.append(log.offset_of_max_timestamp())

    youngest = OffsetAt(3, NOW + 300, 0)
    assert found[:4] == [OffsetAt(1, NOW + 900, 0), OffsetAt(1, NOW + 900, 0), youngest, youngest]
    assert found[4:] == [OffsetAt(4, NOW + 300, 0), OffsetAt(5, NOW + 100, 0), None]


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
