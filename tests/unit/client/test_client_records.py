"""The quick reader of a batch's records is the careful one's equal, and refuses rubbish as it does."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.client.records import ConsumerRecord, PlainRows, compiled_rows, payload_of
from coterie.wire.batches import CODECS, HEADER_SIZE, Record, build_batch, read_header, records_of

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


def all_rows(data, header, topic, partition, *, decode=PlainRows, at_once=3):
    """All records, taken a few at a time."""
    rows, taken = decode(data, header, topic, partition), []
    while rows.left:
        taken += rows.take(at_once)
    return taken


def read_as(batch, topic, partition):
    header = read_header(batch)
    return all_rows(payload_of(batch, 0, header, check=True), header, topic, partition)


def read(batch):
    return read_as(batch, "t", 3)


@given(batches())
def test_the_quick_reader_sees_what_the_careful_one_sees(batch):
    header = read_header(batch)
    kind = int(header.append_time)

    assert read(batch) == [
        ("t", 3, one.offset, one.timestamp, kind, one.key, one.value, one.headers)
        for one in records_of(batch)
    ]


@pytest.fixture(scope="module")
def compiled():
    """The compiled reader, where it is installed."""
    pytest.importorskip("numba")
    return compiled_rows()


@given(batch=batches())
def test_the_compiled_reader_sees_what_the_others_see(compiled, batch):
    header = read_header(batch)
    payload = payload_of(batch, 0, header, check=True)

    assert all_rows(payload, header, "t", 3, decode=compiled) == read(batch)


def test_a_timestamp_that_no_arrow_column_holds_is_read_all_the_same(compiled):
    batch = build_batch([Record(0, 2**63 - 1, None, b"a"), Record(1, -(2**63), b"k", None)])
    header = read_header(batch)

    rows = all_rows(batch[HEADER_SIZE:], header, "t", 0, decode=compiled)

    assert rows == read_as(batch, "t", 0)


@given(batch=batches(), data=st.data())
def test_bad_bytes_are_corrupt_and_nothing_else(compiled, batch, data):
    header = read_header(batch)
    payload = bytearray(payload_of(batch, 0, header, check=True))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))

    for bad in (bytes(payload), bytes(payload[:cut])):
        for decode in (PlainRows, compiled):
            with contextlib.suppress(Corrupt):
                all_rows(bad, header, "t", 0, decode=decode)


def test_each_cut_of_a_batch_is_refused():
    records = [Record(n, 0, b"key", b"v" * 100, (("name", b"tag"),)) for n in range(3)]
    batch = build_batch(records)
    header = read_header(batch)

    for end in range(len(batch) - HEADER_SIZE):
        with pytest.raises(Corrupt):
            all_rows(batch[HEADER_SIZE:][:end], header, "t", 0)


def test_an_offset_beyond_the_batch_s_last_is_refused():
    batch = build_batch([Record(0, 0, None, b"a"), Record(9, 0, None, b"b")])
    header = read_header(batch)._replace(last_offset_delta=8)

    with pytest.raises(Corrupt):
        all_rows(batch[HEADER_SIZE:], header, "t", 0)


def test_a_checksum_that_is_not_the_batch_s_is_refused_if_it_is_looked_at():
    batch = bytearray(build_batch([Record(0, 0, None, b"value")]))
    batch[-2] ^= 1
    header = read_header(batch)

    with pytest.raises(Corrupt, match="checksum"):
        payload_of(bytes(batch), 0, header, check=True)
    assert payload_of(bytes(batch), 0, header, check=False) == bytes(batch[HEADER_SIZE:])


def test_a_record_is_light_and_its_fields_have_names():
    record = ConsumerRecord("t", 0, 5, 1000, 0, b"key", b"value", ())

    assert record[2] == record.offset == 5
    assert not hasattr(record, "__dict__")
