"""What a log answers to batches that are not as they should be. The codes were seen on Apache Kafka 4.3.1."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from store_rig import NOW, Rig, a_batch, a_config, everything, keyed

from coterie.base.codes import Code
from coterie.storage.config import (
    LogConfig,
)
from coterie.storage.log.contract import (
    AppendRefused,
)
from coterie.storage.log.validate import Prepared, coordinator_batches, headed, prepared
from coterie.wire.records.batches import (
    HEADER,
    BatchHeader,
    head_for,
    read_header,
)
from coterie.wire.records.compression import (
    CODECS,
    compress,
)

GOOD = a_batch("a", "b", key="k")
ANY = LogConfig.of({})


def client_batch(records: bytes, config: LogConfig, now_ms: int) -> Prepared:
    """Return a producer's batch as its log would take it."""
    return prepared(headed(records, config), config, now_ms)


def altered(batch: bytes = GOOD, *, crc: int | None = None, **fields: int) -> bytes:
    """Return a batch with other header fields and, unless one is given, the checksum that fits them."""
    header = read_header(batch)._replace(**fields)
    head = bytearray(HEADER.pack(*header))
    right = crc32c(batch[61:], crc32c(bytes(head[21:])))
    struct.pack_into(">I", head, 17, right if crc is None else crc)
    return bytes(head) + batch[61:]


def answer(records: bytes, config: LogConfig = ANY) -> Code:
    """Return the code that `records` are answered with."""
    try:
        client_batch(records, config, NOW)
    except AppendRefused as refused:
        return refused.code
    return Code.NONE


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (GOOD, Code.NONE),
        (altered(base_offset=5), Code.INVALID_RECORD),
        (GOOD + GOOD, Code.INVALID_RECORD),
        (b"", Code.INVALID_RECORD),
        (GOOD + b"12345", Code.NONE),
        (GOOD + bytes(20), Code.CORRUPT_MESSAGE),
        (GOOD + GOOD[:40], Code.NONE),
        (GOOD[:-3], Code.INVALID_RECORD),
        (GOOD[:10], Code.INVALID_RECORD),
        (GOOD[:15], Code.INVALID_RECORD),
        (GOOD[:40], Code.INVALID_RECORD),
        (altered(crc=1), Code.CORRUPT_MESSAGE),
        (altered(magic=0), Code.INVALID_RECORD),
        (altered(magic=1), Code.INVALID_RECORD),
        (altered(magic=3), Code.CORRUPT_MESSAGE),
        (altered(magic=-1), Code.CORRUPT_MESSAGE),
        (altered(length=5), Code.CORRUPT_MESSAGE),
        (altered(length=-1), Code.CORRUPT_MESSAGE),
        (altered(length=20), Code.CORRUPT_MESSAGE),
        (altered(length=48), Code.CORRUPT_MESSAGE),
        (altered(count=3), Code.INVALID_RECORD),
        (altered(count=-1), Code.INVALID_RECORD),
        (altered(count=0, last_offset_delta=-1), Code.INVALID_RECORD),
        (altered(count=0, last_offset_delta=0), Code.INVALID_RECORD),
        (altered(last_offset_delta=-5), Code.INVALID_RECORD),
        (altered(attributes=5), Code.UNKNOWN_SERVER_ERROR),
        (altered(attributes=7), Code.UNKNOWN_SERVER_ERROR),
        (altered(attributes=32), Code.INVALID_RECORD),
        (altered(attributes=8), Code.NONE),
        (altered(attributes=64), Code.NONE),
        (altered(attributes=128), Code.NONE),
        (altered(producer_id=900, producer_epoch=0, base_sequence=-1), Code.INVALID_RECORD),
        (altered(producer_id=900, producer_epoch=-1, base_sequence=0), Code.NONE),
        (altered(base_sequence=5), Code.NONE),
        (altered(producer_id=-2, producer_epoch=0, base_sequence=0), Code.NONE),
        (altered(crc=1, count=9), Code.CORRUPT_MESSAGE),
        (a_batch("a", at=NOW + 3_600_001), Code.INVALID_TIMESTAMP),
        (a_batch("a", at=NOW + 3_600_000), Code.NONE),
        (a_batch("a", at=1), Code.NONE),
        (a_batch("a", at=-1), Code.NONE),
        (a_batch("a", at=-5), Code.NONE),
    ],
)
def test_a_batch_is_answered_as_kafka_answers_it(records: bytes, code: Code):
    assert answer(records) == code
    assert answer(bytearray(records)) == code


def test_what_follows_a_batch_is_dropped():
    header, records = client_batch(GOOD + b"12345", ANY, NOW)

    assert records == GOOD
    assert header == read_header(GOOD)


def test_a_large_batch_is_refused_by_its_whole_size():
    assert answer(GOOD, a_config(max_message_bytes=len(GOOD))) == Code.NONE
    assert answer(GOOD, a_config(max_message_bytes=len(GOOD) - 1)) == Code.MESSAGE_TOO_LARGE
    assert answer(altered(crc=1), a_config(max_message_bytes=50)) == Code.MESSAGE_TOO_LARGE
    assert answer(altered(base_offset=1), a_config(max_message_bytes=50)) == Code.INVALID_RECORD


def test_a_batch_that_no_segment_could_hold_is_refused():
    assert answer(GOOD, a_config(segment_bytes=50)) == Code.RECORD_LIST_TOO_LARGE


def test_records_too_young_are_named():
    batch = a_batch("a", "b", "c", at=(NOW, NOW + 10**8, NOW))

    with pytest.raises(AppendRefused) as caught:
        client_batch(batch, ANY, NOW)

    assert caught.value.code == Code.INVALID_TIMESTAMP
    assert [place for place, _ in caught.value.record_errors] == [1]


@pytest.mark.parametrize(("at", "code"), [(NOW - 1000, Code.NONE), (NOW - 1001, Code.INVALID_TIMESTAMP)])
def test_records_too_old_are_refused_where_the_topic_says_so(at: int, code: Code):
    assert answer(a_batch("a", at=at), a_config(message_timestamp_before_max_ms=1000)) == code


def test_records_without_a_time_pass_however_strict_the_topic_is():
    assert answer(a_batch("a", at=-1), a_config(message_timestamp_before_max_ms=1000)) == Code.NONE


def test_the_time_of_a_record_is_no_matter_where_the_broker_stamps_its_own():
    config = a_config(message_timestamp_type="LogAppendTime")

    assert answer(a_batch("a", at=NOW + 10**9), config) == Code.NONE
    assert answer(altered(attributes=8), config) == Code.INVALID_TIMESTAMP


def test_a_compacted_topic_names_the_records_without_a_key():
    compacted = a_config(cleanup_policy="compact,delete")

    assert answer(keyed(("a", "1"), ("b", None)), compacted) == Code.NONE
    with pytest.raises(AppendRefused) as caught:
        client_batch(a_batch("x", "y"), compacted, NOW)

    assert caught.value.code == Code.INVALID_RECORD
    assert [place for place, _ in caught.value.record_errors] == [0, 1]


def test_no_topic_takes_what_nobody_can_read():
    compacted = a_config(cleanup_policy="compact")
    batch = keyed(("a", "1"))
    header = read_header(batch)
    rubbish = batch[:61] + b"\xff" * (len(batch) - 61)

    for config in (compacted, ANY):
        assert answer(altered(rubbish, count=header.count), config) == Code.UNKNOWN_SERVER_ERROR


def test_a_coordinator_is_told_when_its_batch_is_too_large():
    with pytest.raises(AppendRefused) as caught:
        coordinator_batches(GOOD + GOOD, a_config(max_message_bytes=50))
    assert caught.value.code == Code.MESSAGE_TOO_LARGE

    with pytest.raises(AppendRefused) as caught:
        coordinator_batches(GOOD + GOOD, a_config(segment_bytes=len(GOOD)))
    assert caught.value.code == Code.RECORD_LIST_TOO_LARGE


@given(
    st.binary(max_size=200) | st.tuples(st.binary(max_size=30), st.integers(0, 90)).map(lambda t: _mix(*t))
)
def test_rubbish_is_refused_and_raises_nothing_else(records: bytes):
    assert answer(records, a_config(cleanup_policy="compact")) in (
        Code.INVALID_RECORD,
        Code.CORRUPT_MESSAGE,
        Code.UNKNOWN_SERVER_ERROR,
        Code.NONE,
    )


def _mix(noise: bytes, at: int) -> bytes:
    return GOOD[:at] + noise + GOOD[at + len(noise) :]


def test_the_header_that_is_returned_is_the_one_that_came():
    header, _ = client_batch(GOOD, ANY, NOW)

    assert isinstance(header, BatchHeader)
    assert header.count == 2


# -- what is in a batch: seen on Apache Kafka 4.3.1 as well


def packed(codec: str, body: bytes, count: int) -> bytes:
    """Return a batch of these bytes of records, behind a header that says there are so many."""
    return head_for(body, count=count, base_timestamp=NOW, max_timestamp=NOW, codec=codec) + body


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("count", "cut", "more"), [(500, 0, b""), (3, 0, b""), (1, 0, b""), (2, 1, b""), (2, 0, b"\0\1\2")]
)
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_records_that_are_not_as_many_as_the_header_says_are_refused(
    codec: str, count: int, cut: int, more: bytes, policy: str
):
    records = GOOD[61 : len(GOOD) - cut] + more
    batch = packed(codec, compress(codec, records), count)

    assert answer(batch, a_config(cleanup_policy=policy)) == Code.INVALID_RECORD
    assert answer(batch, a_config(compression_type="zstd")) == Code.INVALID_RECORD
    assert answer(batch, a_config(message_timestamp_type="LogAppendTime")) == Code.INVALID_RECORD


@pytest.mark.parametrize("timestamp", [-(2**63), -3, -2, -1, 0, NOW, 2**63 - 1])
def test_no_time_in_the_header_makes_records_pass_that_cannot_be_read(rig: Rig, timestamp: int):
    cut = head_for(GOOD[61:-1], count=2, base_timestamp=timestamp, max_timestamp=timestamp) + GOOD[61:-1]
    log = rig.log_of()

    for promptly in (True, False):
        with pytest.raises(AppendRefused):
            log.append(cut, now_ms=NOW, promptly=promptly)


@pytest.mark.parametrize("promptly", [True, False])
def test_times_before_all_times_are_written_as_none(rig: Rig, promptly: bool):
    log = rig.log_of()
    log.append(a_batch("a", at=-5), now_ms=NOW, promptly=promptly)

    assert read_header(log.read(0, max_bytes=1_000)).max_timestamp == -1


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("body", [b"\x13\x37" * 30, b""])
def test_what_cannot_be_decompressed_is_refused(codec: str, body: bytes):
    assert answer(packed(codec, body, 2)) == Code.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_right_is_taken_in_every_compression(codec: str):
    batch = packed(codec, compress(codec, GOOD[61:]), 2)

    assert client_batch(batch, ANY, NOW).records == batch


def test_a_log_that_has_refused_what_would_stop_its_readers_goes_on(rig: Rig):
    log = rig.log_of()
    log.append(GOOD, now_ms=NOW)
    for codec in CODECS:
        for promptly in (False, True):
            with pytest.raises(AppendRefused):
                log.append(packed(codec, compress(codec, GOOD[61:-1]), 2), now_ms=NOW, promptly=promptly)
    log.append(GOOD, now_ms=NOW)

    assert [record.offset for record in everything(log)] == [0, 1, 2, 3]
