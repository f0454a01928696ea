"""The columns are what `coterie.wire.records.batches.records_of` reads, value by value."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.arrow.compiled import columns_of
from coterie.arrow.plan import (
    HEADER,
    Plan,
    chunks_of,
    plan,
)
from coterie.arrow.records import (
    record_batches,
)
from coterie.arrow.types import (
    schema_of,
)
from coterie.base.errors import Corrupt
from coterie.wire.records.batches import (
    Record,
    build_batch,
    read_header,
    records_of,
    scan,
)
from coterie.wire.records.compression import (
    CODECS,
)
from coterie.wire.records.visible import (
    AbortedTransaction,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALL = {"first": 0, "until": 2**62}
FIELDS = ("offset", "timestamp", "key", "value", "headers")
# Headers' names as bytes: nobody checks that they are UTF-8.
RAW_HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Load the kernel, pandas and the codecs: no example of Hypothesis has time for that."""
    rows_of(build_batch([Record(0, 0, b"", b"", (("", b""),))], codec="zstd"), **ALL)
    for codec in CODECS:
        rows_of(build_batch([Record(0, 0, b"", b"")], codec=codec), **ALL)


blobs = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple)
# Python's datetimes end before Kafka's timestamps do; test_timestamps_beyond has the rest.
stamps = st.integers(-1, 4_000_000_000_000)


@st.composite
def batches(draw, base_offset=0):
    """A run of batches as a topic may hold them: gaps, every codec, both timestamp types, control batches."""
    data, offset = b"", base_offset
    for _ in range(draw(st.integers(0, 4))):
        offset += draw(st.integers(0, 3))
        records = []
        for _ in range(draw(st.integers(1, 5))):
            records.append(Record(offset, draw(stamps), draw(blobs), draw(blobs), draw(headers)))
            offset += draw(st.integers(1, 3))
        data += build_batch(
            records,
            base_offset=records[0].offset,
            codec=draw(st.sampled_from(CODECS)),
            control=draw(st.sampled_from([False, False, False, True])),
            append_time=draw(st.booleans()),
        )
        offset = records[-1].offset + 1
    return data


def rows_of(data, *, first, until, with_headers=True, aborted=None, **more):
    """All rows, in Python's values."""
    planned = plan(data, first=first, until=until, aborted=aborted)
    rows = []
    for batch in record_batches(planned, topic="t", partition=3, headers=with_headers, **more):
        batch.validate(full=True)
        assert batch.schema.equals(schema_of(headers=with_headers))
        rows += batch.to_pylist()
    return rows


def expected_rows(data, *, first, until):
    """The same by way of `records_of`, in the columns of Spark's Kafka source."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 3,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
            "timestampType": int(header.append_time),
            "headers": [{"key": name, "value": tag} for name, tag in record.headers] or None,
        }
        for at, header in scan(data)
        if not header.control
        for record in records_of(data, at)
        if first <= record.offset < until
    ]


@given(data=batches(), first=st.integers(0, 20), size=st.integers(0, 40))
def test_rows_are_the_records_of_the_range(data, first, size):
    until = first + size

    assert rows_of(data, first=first, until=until) == expected_rows(data, first=first, until=until)


@given(data=batches(base_offset=2**40), chunk_bytes=st.integers(1, 300))
def test_rows_do_not_depend_on_how_many_batches_make_a_chunk(data, chunk_bytes):
    assert rows_of(data, **ALL, chunk_bytes=chunk_bytes) == expected_rows(data, **ALL)


@given(batches())
def test_rows_stay_when_what_they_were_read_from_is_written_over(data):
    room = bytearray(data)
    planned = plan(memoryview(room).toreadonly(), **ALL)

    made = list(record_batches(planned, topic="t", partition=3, headers=True))
    room[:] = bytes(len(room))

    assert [row for batch in made for row in batch.to_pylist()] == rows_of(data, **ALL)


def test_headers_are_left_out_where_they_are_not_asked_for():
    data = build_batch([Record(0, 1, b"k", b"v", (("h", b"1"),))])

    (row,) = rows_of(data, **ALL, with_headers=False)

    assert "headers" not in row
    assert row["value"] == b"v"


@given(data=batches(), columns=st.sets(st.sampled_from(schema_of(headers=True).names), min_size=1))
def test_columns_that_are_not_named_are_left_out_and_the_others_are_as_ever(data, columns):
    planned = plan(data, **ALL)
    given = {"topic": "t", "partition": 3, "headers": True}

    some = record_batches(planned, **given, columns=columns)

    assert [row for batch in some for row in batch.to_pylist()] == [
        {name: value for name, value in row.items() if name in columns}
        for batch in record_batches(planned, **given)
        for row in batch.to_pylist()
    ]


def test_many_records_of_every_size_are_read():
    """A column's bytes are copied by memcpy: sizes around a machine's words, and values of several MiB."""
    sizes = [*range(70), 1000, 65_536, 3_000_000]
    records = [Record(n, n, b"k" * size, b"v" * size) for n, size in enumerate(sizes)]
    data = build_batch(records)

    rows = rows_of(data, **ALL)

    assert [(row["key"], row["value"]) for row in rows] == [(one.key, one.value) for one in records]


@given(batches(), st.data())
def test_a_tail_cut_by_the_fetch_is_left_for_the_next(data, draw):
    cut = data[: draw.draw(st.integers(0, len(data)))]

    planned = plan(cut, **ALL)

    whole = scan(cut)
    assert planned.next_offset == (whole[-1][1].last_offset + 1 if whole else 0)
    assert rows_of(cut, **ALL) == expected_rows(cut, **ALL)


def test_the_next_fetch_goes_on_after_control_batches_and_what_compaction_removed():
    control = build_batch([Record(7, 0, b"\0\0\0\0", b"\0" * 6)], base_offset=7, control=True)

    assert plan(control, first=5, until=100).next_offset == 8
    assert plan(b"", first=5, until=100).next_offset == 5


@given(batches(), st.data())
def test_a_flipped_bit_of_what_the_checksum_covers_is_corrupt(data, draw):
    wanted = [(at, header) for at, header in scan(data) if not header.control]
    if not wanted:
        return
    at, header = draw.draw(st.sampled_from(wanted))
    spot = draw.draw(st.integers(at + 61, at + header.size - 1))
    broken = bytearray(data)
    broken[spot] ^= 1 << draw.draw(st.integers(0, 7))

    with pytest.raises(Corrupt, match="checksum"):
        plan(bytes(broken), **ALL)


@given(payload=st.binary(max_size=60), count=st.integers(0, 12))
def test_rubbish_is_refused_where_the_plain_reader_refuses_it(payload, count):
    """Bytes whose checksum is right may still be anything: neither reads beyond them, nor disagrees."""
    if count <= len(payload) // 7:
        assert columns_read(payload, count) == plainly_read(payload, count)


@given(records=st.lists(st.tuples(blobs, blobs, headers), min_size=1, max_size=4), data=st.data())
def test_damage_is_refused_where_the_plain_reader_refuses_it(records, data):
    """One byte of a sound payload changed: the likeliest way to meet a length that lies."""
    sound = build_batch([Record(n, n, *each) for n, each in enumerate(records)])
    payload = bytearray(sound[61:])
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))

    assert columns_read(bytes(payload), len(records)) == plainly_read(bytes(payload), len(records))


def columns_read(payload, count):
    """The records in columns: offset, microseconds, key, value, headers; None where they are refused."""
    (chunk,) = chunks_of(with_payload(payload, count))
    try:
        columns = columns_of(chunk, **ALL, headers=True)
    except Corrupt:
        return None
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    columns["headers"] = columns["headers"].cast(RAW_HEADERS)
    rows = zip(*(columns[name].to_pylist() for name in FIELDS), strict=True)
    return [
        (*row, [(pair["key"].decode(errors="replace"), pair["value"]) for pair in named or ()])
        for *row, named in rows
    ]


def plainly_read(payload, count):
    """The same by way of `records_of`, and None for an offset beyond what the batch says is its last."""
    planned = with_payload(payload, count)
    try:
        records = list(records_of(planned.headers.tobytes() + payload))
    except Corrupt:
        return None
    if not all(0 <= one.offset < planned.next_offset for one in records):
        return None
    return [(one.offset, micros(one.timestamp), one.key, one.value, list(one.headers)) for one in records]


def micros(stamp_ms):
    """Milliseconds that wrap at 64 bits, as Java's do, in microseconds held at the ends of Spark's range."""
    wrapped = (stamp_ms + 2**63) % 2**64 - 2**63
    most = (2**63 - 1) // 1000
    return max(-most, min(most, wrapped)) * 1000


def with_payload(payload, count):
    """A plan of one batch whose checksum is not asked for again, and whose records are these bytes."""
    header = read_header(build_batch([Record(0, 0, None, None)]))._replace(
        length=49 + len(payload), count=count, last_offset_delta=9
    )
    starts, headers = np.zeros(1, np.int64), np.array([tuple(header)], HEADER)
    return Plan(bytes(61) + payload, starts, headers, first=0, until=2**62, next_offset=10)


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1])
def test_a_count_that_the_bytes_can_not_hold_is_corrupt(count):
    with pytest.raises(Corrupt, match="records in"):
        list(chunks_of(with_payload(build_batch([Record(0, 0, None, None)])[61:], count)))


@pytest.mark.parametrize(
    ("stamp_ms", "stamp_us"),
    [
        (-1, -1000),
        (2**63 - 1, (2**63 - 1) // 1000 * 1000),
        (-(2**63), -((2**63 - 1) // 1000) * 1000),
    ],
)
def test_timestamps_beyond_what_spark_can_hold_stay_at_the_end_of_it(stamp_ms, stamp_us):
    (chunk,) = chunks_of(plan(build_batch([Record(0, stamp_ms, None, None)]), **ALL))

    columns = columns_of(chunk, **ALL, headers=False)

    assert columns["timestamp"].cast(pa.int64()).to_pylist() == [stamp_us]


def test_a_read_committed_reader_does_not_see_aborted_transactions():
    """Producer 1 commits 0-1 and aborts 4-5; producer 2 aborts 2-3; what has no transaction is seen."""

    def batch(offset, producer_id, *, control=False):
        records = [
            Record(offset + n, 0, b"\0\0\0\0", b"%d" % (offset + n)) for n in range(1 if control else 2)
        ]
        return build_batch(
            records,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
            control=control,
        )

    data = (
        batch(0, 1) + batch(2, 2) + batch(4, 1, control=True) + batch(5, 1) + batch(7, 2, control=True)
        + build_batch([Record(8, 0, None, b"8")], base_offset=8) + batch(9, 1, control=True) + batch(10, 1)
    )  # fmt: skip
    aborted = [AbortedTransaction(producer_id=1, first_offset=5), AbortedTransaction(2, 2)]

    seen = rows_of(data, **ALL, aborted=aborted)
    everything = rows_of(data, **ALL)

    assert [row["offset"] for row in seen] == [0, 1, 8, 10, 11]
    assert [row["offset"] for row in everything] == [0, 1, 2, 3, 5, 6, 8, 10, 11]
