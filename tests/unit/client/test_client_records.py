"""The quick reader of a batch's records is the careful one's equal, and refuses rubbish as it does."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.client.consumer.records import (
    COMPILED_FROM,
    ConsumerRecord,
    Payload,
    PlainRows,
    compiled_rows,
    payload_of,
)
from coterie.wire.records.batches import (
    HEADER_SIZE,
    Record,
    build_batch,
    read_header,
    records_of,
)
from coterie.wire.records.columns import LEAST
from coterie.wire.records.compression import (
    CODECS,
)

sizes = st.one_of(st.integers(0, 200), st.sampled_from([63, 64, 127, 128, 8191, 8192, 70_000]))
blobs = st.one_of(st.none(), sizes.map(lambda size: b"\xa7" * size))
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=2)
rows = st.tuples(st.integers(1, 40_000), st.integers(-(2**40), 2**40), blobs, blobs, headers.map(tuple))


@st.composite
def batches(draw):
    """A batch of records of every shape, with gaps between their offsets."""
    offset, records = draw(st.integers(0, 2**40)), []
    base = offset
    for gap, stamp, key, value, tags in draw(st.lists(rows, min_size=1, max_size=8)):
        records.append(Record(offset, stamp, key, value, tags))
        offset += gap
    codec = draw(st.sampled_from(CODECS))
    return build_batch(records, base_offset=base, codec=codec, append_time=draw(st.booleans()))


alike_sizes = st.sampled_from([None, 0, 1, 20, 63, 64, 300])
steps = st.sampled_from([[0], [1], [0, 0, 0, 1], [64], [-1, 5], [7_000], [-(2**34), 2**34]])


@st.composite
def alike_batches(draw):
    """A batch of records of one size, but for some that are not; as many as a program sends in a hurry."""
    count = draw(st.integers(1, 200))
    key_size, value_size = draw(alike_sizes), draw(alike_sizes)
    gaps, ticks = draw(st.sampled_from([[1], [1, 1, 3], [100]])), draw(steps)
    odd = draw(st.dictionaries(st.integers(0, count - 1), rows, max_size=3))
    offset, stamp, records = (
        draw(st.sampled_from([0, 2**40])),
        draw(st.sampled_from([0, 1_700_000_000_000])),
        [],
    )
    base = offset
    for number in range(count):
        key = None if key_size is None else b"%d" % number * key_size
        value = None if value_size is None else b"%d" % (number % 10) * value_size
        record = Record(offset, stamp, key and key[:key_size], value, ())
        if number in odd:
            _, _, key, value, tags = odd[number]
            record = Record(offset, stamp, key, value, tags)
        records.append(record)
        offset += gaps[number % len(gaps)]
        stamp += ticks[number % len(ticks)]
    return build_batch(records, base_offset=base, append_time=draw(st.booleans()))


def alone(data, before=b""):
    """A payload of these bytes, which end its data."""
    return Payload(before + data, len(before), len(before) + len(data))


def bytes_of(payload):
    return payload.data[payload.start : payload.end]


def all_rows(payload, header, topic, partition, *, decode=PlainRows, at_once=3):
    """All records, taken a few at a time."""
    rows, taken = decode(payload, header, topic, partition), []
    while rows.left:
        taken += rows.take(at_once)
    return taken


def read_as(batch, topic, partition):
    header = read_header(batch)
    return all_rows(payload_of(batch, 0, header, check=True), header, topic, partition)


def read(batch):
    return read_as(batch, "t", 3)


@pytest.fixture(scope="module")
def compiled():
    """The compiled reader, where it is installed, for batches of any size."""
    pytest.importorskip("numba")
    from coterie.arrow.rows import ColumnRows

    def decode(payload, header, *place):
        return ColumnRows.of(*payload, header, ConsumerRecord, place) or PlainRows(payload, header, *place)

    return decode


@given(batches())
def test_the_quick_reader_sees_what_the_careful_one_sees(batch):
    header = read_header(batch)
    kind = int(header.append_time)

    assert read(batch) == [
        ("t", 3, one.offset, one.timestamp, kind, one.key, one.value, one.headers)
        for one in records_of(batch)
    ]


@given(batch=alike_batches(), others=st.binary(max_size=40), at_once=st.sampled_from([1, 17, 64, 500]))
def test_records_that_are_alike_are_read_in_columns_and_are_the_same(compiled, batch, others, at_once):
    header = read_header(batch)
    payload = Payload(others + batch + others, len(others) + HEADER_SIZE, len(others) + len(batch))

    for decode in (PlainRows, compiled):
        taken = all_rows(payload, header, "t", 3, decode=decode, at_once=at_once)

        assert [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in taken] == [
            tuple(record) for record in records_of(batch)
        ]
        assert all(one.timestamp_type == header.append_time for one in taken)


@pytest.mark.parametrize(
    ("count", "value", "by"),
    [(300, b"-", "ColumnRows"), (100, b"-", "PlainRows"), (300, b"", "PlainRows")],
    ids=["many that differ in size", "few", "many of one size"],
)
def test_the_compiled_reader_takes_what_it_is_faster_at(count, value, by):
    pytest.importorskip("numba")
    batch = build_batch([Record(n, n, b"key", b"-" * 50 + value * n) for n in range(count)])
    header = read_header(batch)

    rows = compiled_rows()(payload_of(batch, 0, header, check=True), header, "t", 0)

    assert type(rows).__name__ == by
    assert [record.value for record in rows.take(500)] == [record.value for record in records_of(batch)]


def test_names_of_headers_that_are_no_text_are_read_all_the_same(compiled):
    records = [Record(n, 0, None, b"v" * n, (("name", b"tag"), ("other", None))) for n in range(3)]
    batch = build_batch(records).replace(b"name", b"n\xffme")
    header = read_header(batch)

    rows = all_rows(alone(batch[HEADER_SIZE:]), header, "t", 0, decode=compiled)

    assert [row.headers for row in rows] == [(("n\ufffdme", b"tag"), ("other", None))] * 3


def test_slow_records_are_those_of_batches_that_the_compiled_reader_takes():
    """Else it would be loaded for a consumer whose batches it leaves to the plain reader."""
    alike = build_batch([Record(n, n, b"key", b"v" * 50) for n in range(300)])
    few = build_batch([Record(n, n, b"key", b"v" * n) for n in range(COMPILED_FROM - 1)])
    sizes = build_batch([Record(n, n, b"key", b"v" * n) for n in range(COMPILED_FROM)])

    slow_records = []
    for batch in (alike, few, sizes):
        rows = PlainRows(payload_of(batch, 0, read_header(batch), check=True), read_header(batch), "t", 0)
        while rows.left:
            rows.take(500)
        slow_records.append(rows.slow_records)

    assert slow_records == [0, 0, COMPILED_FROM]


@given(batch=alike_batches(), data=st.data())
def test_damaged_records_that_were_alike_are_read_as_one_by_one_or_refused(batch, data):
    header = read_header(batch)
    broken = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(st.integers(0, 255))
    payload = Payload(bytes(broken), HEADER_SIZE, len(broken))

    with contextlib.suppress(Corrupt):
        taken = all_rows(payload, header, "t", 3, at_once=500)
        assert taken == all_rows(payload, header, "t", 3, at_once=LEAST - 1)


@given(batch=batches())
def test_the_compiled_reader_sees_what_the_others_see(compiled, batch):
    header = read_header(batch)
    payload = payload_of(batch, 0, header, check=True)

    assert all_rows(payload, header, "t", 3, decode=compiled) == read(batch)


def test_a_timestamp_that_no_arrow_column_holds_is_read_all_the_same(compiled):
    batch = build_batch([Record(0, 2**63 - 1, None, b"a"), Record(1, -(2**63), b"k", None)])
    header = read_header(batch)

    rows = all_rows(alone(batch[HEADER_SIZE:]), header, "t", 0, decode=compiled)

    assert rows == read_as(batch, "t", 0)


@given(batch=batches(), data=st.data())
def test_bad_bytes_are_corrupt_and_nothing_else(compiled, batch, data):
    header = read_header(batch)
    payload = bytearray(bytes_of(payload_of(batch, 0, header, check=True)))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))

    for bad in (bytes(payload), bytes(payload[:cut])):
        for decode in (PlainRows, compiled):
            with contextlib.suppress(Corrupt):
                all_rows(alone(bad), header, "t", 0, decode=decode)


def test_each_cut_of_a_batch_is_refused():
    records = [Record(n, 0, b"key", b"v" * 100, (("name", b"tag"),)) for n in range(3)]
    batch = build_batch(records)
    header = read_header(batch)

    for end in range(len(batch) - HEADER_SIZE):
        with pytest.raises(Corrupt):
            all_rows(alone(batch[HEADER_SIZE:][:end]), header, "t", 0)


def test_an_offset_beyond_the_batch_s_last_is_refused():
    batch = build_batch([Record(0, 0, None, b"a"), Record(9, 0, None, b"b")])
    header = read_header(batch)._replace(last_offset_delta=8)

    with pytest.raises(Corrupt):
        all_rows(alone(batch[HEADER_SIZE:]), header, "t", 0)


def test_a_checksum_that_is_not_the_batch_s_is_refused_if_it_is_looked_at():
    batch = bytearray(build_batch([Record(0, 0, None, b"value")]))
    batch[-2] ^= 1
    header = read_header(batch)

    with pytest.raises(Corrupt, match="checksum"):
        payload_of(bytes(batch), 0, header, check=True)
    assert bytes_of(payload_of(bytes(batch), 0, header, check=False)) == bytes(batch[HEADER_SIZE:])


def test_a_record_is_light_and_its_fields_have_names():
    record = ConsumerRecord("t", 0, 5, 1000, 0, b"key", b"value", ())

    assert record[2] == record.offset == 5
    assert not hasattr(record, "__dict__")
