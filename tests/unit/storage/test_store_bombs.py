"""A few kilobytes that hold millions of records, and headers that lie about time: what becomes of them."""

from __future__ import annotations

import pytest

from coterie.base.codes import Code
from coterie.storage.config import LogConfig
from coterie.storage.log.contract import AppendRefused, TakesLong
from coterie.storage.log.searching import first_from, youngest_of
from coterie.storage.log.validate import (
    ERRORS_MOST,
    PROMPT_BYTES_UNPACKED,
    PROMPT_RECORDS,
    PROMPT_RECORDS_WALKED,
    RECORDS_MOST,
    UNPACKED_BYTES_MOST,
    headed,
    prepare,
    prepared,
    prepared_promptly,
)
from coterie.wire.records.batches import (
    HEADER_SIZE,
    Record,
    build_batch,
    check_crc,
    head_for,
    read_header,
)
from coterie.wire.records.compression import compress
from coterie.wire.varints import varlong

NOW = 1_700_000_000_000
HOUR = 3_600_000
ANY, COMPACTED = LogConfig.of({}), LogConfig.of({"cleanup.policy": "compact"})


def lying(max_timestamp: int, *, at: int = NOW, count: int = 1, codec: str = "none") -> bytes:
    """Return a batch of honest records behind a header that says another greatest time."""
    honest = build_batch([Record(n, at + n, b"k", b"v") for n in range(count)], codec=codec)
    body = honest[HEADER_SIZE:]
    return head_for(body, count=count, base_timestamp=at, max_timestamp=max_timestamp, codec=codec) + body


def bomb(count: int, *, max_timestamp: int = NOW, size: int = 1) -> bytes:
    """Return records of the key "a", or of `size` letters, of which a few bytes are sent."""
    key = varlong(size) + b"a" * size
    record = varlong(5 + len(key)) + bytes(3) + key + b"\1\0"
    body = compress("zstd", record * count)
    return head_for(body, count=count, base_timestamp=NOW, max_timestamp=max_timestamp, codec="zstd") + body


# -- the greatest timestamp is that of the records


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("claimed", [2**63 - 1, NOW + 2 * HOUR, NOW + HOUR, NOW + 3, 0, -1, NOW - 1])
def test_a_header_that_is_not_right_gets_the_greatest_time_of_its_records(claimed: int, codec: str):
    batch = headed(lying(claimed, count=3, codec=codec), ANY)

    header, records = prepared(batch, ANY, NOW)

    assert header.max_timestamp == NOW + 2
    assert read_header(records) == header._replace(crc=read_header(records).crc)
    assert check_crc(records, 0, read_header(records))


def test_an_honest_batch_is_passed_on_as_it_is():
    sent = build_batch([Record(n, NOW + n, b"k", b"v") for n in range(3)])

    assert prepared(headed(sent, ANY), ANY, NOW).records is sent


def test_a_base_time_that_hides_how_young_the_records_are_is_seen_through():
    moved = build_batch([Record(0, 5, b"k", b"v")])[HEADER_SIZE:]
    shifted = moved[:2] + b"\x0a" + moved[3:]  # its first record is 5 ms later

    batch = head_for(shifted, count=1, base_timestamp=0, max_timestamp=0) + shifted
    assert prepared(headed(batch, ANY), ANY, NOW).header.max_timestamp == 5


def test_a_time_beyond_all_that_can_be_written_is_refused():
    body = bytes((14, 0, 2, 0, 2, 97, 1, 0))  # 1 ms after the base
    endless = LogConfig.of({"message.timestamp.after.max.ms": 2**63 - 1})
    batch = head_for(body, count=1, base_timestamp=2**63 - 1, max_timestamp=2**63 - 1) + body

    refused = prepare(batch, endless, NOW)

    assert isinstance(refused, AppendRefused)
    assert refused.code is Code.INVALID_TIMESTAMP


# -- bombs


def test_more_records_than_anybody_would_read_are_refused_by_the_header_alone():
    body = b"rubbish"
    batch = head_for(body, count=RECORDS_MOST + 1, base_timestamp=NOW, max_timestamp=NOW, codec="zstd") + body

    refused = prepare(batch, ANY, NOW)

    assert isinstance(refused, AppendRefused)
    assert refused.code is Code.RECORD_LIST_TOO_LARGE


def test_what_would_be_too_large_unpacked_is_refused():
    body = compress("zstd", bytes(UNPACKED_BYTES_MOST + 1))
    batch = head_for(body, count=1, base_timestamp=NOW, max_timestamp=NOW, codec="zstd") + body

    refused = prepare(batch, COMPACTED, NOW)

    assert isinstance(refused, AppendRefused)
    assert refused.code is Code.INVALID_RECORD


def test_of_many_records_at_fault_some_are_told():
    keyless = build_batch([Record(n, NOW, None, b"v") for n in range(ERRORS_MOST + 50)])

    refused = prepare(keyless, COMPACTED, NOW)

    assert isinstance(refused, AppendRefused)
    assert len(refused.record_errors) == ERRORS_MOST


@pytest.mark.parametrize(
    ("batch", "config", "now_ms", "promptly"),
    [
        (bomb(PROMPT_RECORDS_WALKED), ANY, NOW, True),
        (bomb(PROMPT_RECORDS_WALKED + 1), ANY, NOW, False),
        (bomb(20, size=PROMPT_BYTES_UNPACKED // 20), ANY, NOW, False),
        (bomb(5_000, max_timestamp=NOW + 2 * HOUR), ANY, NOW, True),
        (bomb(10), COMPACTED, NOW, False),
        (build_batch([Record(0, NOW, b"k", b"v")]), COMPACTED, NOW, True),
        (
            build_batch([Record(n, NOW, b"k", b"v") for n in range(PROMPT_RECORDS + 1)]),
            COMPACTED,
            NOW,
            False,
        ),
        (bomb(10), LogConfig.of({"compression.type": "gzip"}), NOW, False),
    ],
    ids=["few", "many", "large", "lying", "packed-compacted", "small-compacted", "many-compacted", "anew"],
)
def test_what_is_to_be_looked_through_at_length_is_known_before(
    batch: bytes, config: LogConfig, now_ms: int, promptly: bool
):
    known = headed(batch, config)

    if promptly:
        assert prepared_promptly(known, config, now_ms) == prepared(known, config, now_ms)
    else:
        with pytest.raises(TakesLong):
            prepared_promptly(known, config, now_ms)


# -- looking for a time


def test_a_record_is_found_among_thousands_without_the_others_being_kept():
    batch = bomb(5_000)

    assert first_from(batch, NOW, 0) is not None
    assert first_from(batch, NOW + 1, 0) is None
    found = youngest_of(batch, 0)
    assert found is not None
    assert found.timestamp == NOW
