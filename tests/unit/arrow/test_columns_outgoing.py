"""Rows in columns become batches that `records_of` reads back, the bytes that `build_batch` gives."""

from collections import defaultdict
from itertools import chain

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.arrow.outgoing import HEADERS, ROUND_BYTES, ROUND_HEADER_BYTES, Rows, pack
from coterie.base.errors import CoterieError
from coterie.client.producer.partitioner import partition_for_key
from coterie.wire.records.batches import (
    HEADER_SIZE,
    build_batch,
    check_crc,
    head_for,
    read_header,
    records_of,
)
from coterie.wire.records.compression import (
    CODECS,
    compress,
)

NOW = 1_700_000_000_000

blobs = st.none() | st.binary(max_size=40)
headers = st.none() | st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3)
rows = st.lists(
    st.tuples(blobs, blobs, headers, st.none() | st.integers(-1, 2**62), st.none() | st.integers(0, 4)),
    max_size=30,
)


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Load the kernels and the codecs: no example of Hypothesis has time for that."""
    for codec in CODECS:
        pack(columns([(b"", b"", [("", b"")], 0, None)]), partitions=1, most_bytes=9, now_ms=0, codec=codec)


def columns(rows, left_out=(), before=()):
    """The rows in columns, which begin in the middle of their buffers where there are some `before`."""
    every = [*before, *rows]

    def column(at, kind):
        return pa.array([row[at] for row in every], kind).slice(len(before))

    named = [
        None if row[2] is None else [{"key": name, "value": tag} for name, tag in row[2]] for row in every
    ]
    made = Rows(
        value=column(1, pa.binary()),
        key=column(0, pa.binary()),
        headers=pa.array(named, HEADERS).slice(len(before)),
        stamps=column(3, pa.int64()),
        partition=column(4, pa.int32()),
    )
    return made._replace(**dict.fromkeys(left_out))


def read(packed, codec="none"):
    """What is in a batch, as its rows were."""
    head = head_for(
        packed.body,
        count=packed.records,
        base_timestamp=packed.base_timestamp,
        max_timestamp=packed.max_timestamp,
        codec=codec,
    )
    batch = head + packed.body
    header = read_header(batch)
    assert check_crc(batch, 0, header)
    found = list(records_of(batch))
    assert [one.offset for one in found] == list(range(packed.records))
    assert header.max_timestamp == max(one.timestamp for one in found)
    assert packed.body == compress(codec, build_batch(found)[HEADER_SIZE:])
    return [(one.key, one.value, list(one.headers), one.timestamp) for one in found]


def expected(rows, partitions):
    """The same by partition, in their order."""
    found = defaultdict(list)
    for key, value, named, stamp, number in rows:
        if number is None:
            number = -1 if key is None else partition_for_key(key, partitions)
        found[number].append((key, value, named or [], NOW if stamp is None else stamp))
    return found


@given(
    rows=rows,
    before=rows,
    codec=st.sampled_from(CODECS),
    most=st.integers(1, 400),
    left_out=st.sets(st.sampled_from(["key", "headers", "stamps", "partition"])),
)
def test_what_is_packed_is_what_is_read_in_the_bytes_of_the_plain_writer(rows, before, codec, most, left_out):
    at = {"key": 0, "headers": 2, "stamps": 3, "partition": 4}
    absent = {at[name] for name in left_out}
    blanked = [tuple(None if place in absent else one for place, one in enumerate(row)) for row in rows]

    made = pack(columns(rows, left_out, before), partitions=5, most_bytes=most, now_ms=NOW, codec=codec)

    found = defaultdict(list)
    for one in made:
        found[one.partition].append(read(one, codec))
    joined = {number: [*chain.from_iterable(batches)] for number, batches in found.items()}
    assert joined == expected(blanked, 5)
    for number, batches in found.items():
        assert [len(batch) for batch in batches] == filled(joined[number], most)


def filled(records, most):
    """How many records each batch takes: the next begins where one more would make it larger than `most`."""
    counts, size = [], 0
    for key, value, named, _ in records:
        taken = ROUND_BYTES + len(key or b"") + len(value or b"")
        taken += sum(ROUND_HEADER_BYTES + len(name.encode()) + len(tag or b"") for name, tag in named)
        if counts and size + taken <= most:
            counts[-1], size = counts[-1] + 1, size + taken
        else:
            counts, size = [*counts, 1], taken
    return counts


def test_a_batch_ends_before_it_is_too_large_and_a_larger_record_has_its_own():
    sizes = [10, 10, 100, 10, 10, 10, 10]
    values = [(None, b"v" * size, None, None, None) for size in sizes]

    made = pack(columns(values), partitions=3, most_bytes=3 * 22, now_ms=NOW)

    assert [one.records for one in made] == [2, 1, 3, 1]
    assert {one.partition for one in made} == {-1}


def test_many_and_large_records_are_counted_right():
    """Varints grow by a byte at 64, 8,192 and 1,048,576."""
    values = [(b"k", b"%d" % number, None, None, 0) for number in range(8_300)]
    values += [(None, b"v" * size, None, None, 0) for size in (63, 64, 8_191, 8_192, 1_048_576)]

    made = pack(columns(values), partitions=1, most_bytes=1 << 30, now_ms=NOW)

    (one,) = made
    assert read(one) == expected(values, 1)[0]


def test_rows_that_can_not_be_written_are_refused():
    nameless = pa.array([[{"key": None, "value": b"v"}]], HEADERS)
    value = pa.array([b"v"])

    with pytest.raises(CoterieError, match="a header has no key"):
        pack(Rows(value, headers=nameless), partitions=1, most_bytes=1, now_ms=0)
    with pytest.raises(CoterieError, match="names partition 3; the topic has 0 to 2"):
        pack(Rows(value, partition=pa.array([3], pa.int32())), partitions=3, most_bytes=1, now_ms=0)
