"""Records packed in columns, held against the batches that are built record by record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.wire.records.batches import Record, build_batch, head_for, records_of
from coterie.wire.records.columns import LARGEST_LOOKED_UP, pack_records

TEXTS = st.text(max_size=5)
DATA = st.binary(max_size=100)
HEADERS = st.lists(st.tuples(TEXTS, st.none() | st.binary(max_size=5)), max_size=3).map(tuple)


def records_in(body: bytes, *, count: int, stamps: list[tuple[int, int]]) -> list[Record]:
    """Return the records of a batch with this body."""
    times = [when for _, when in stamps]
    head = head_for(body, count=count, base_timestamp=times[0], max_timestamp=max(times))
    return list(records_of(head + body))


def expected(values, stamps, keys=None, headers=None) -> list[Record]:
    times = dict(stamps)
    when, records = 0, []
    for offset, value in enumerate(values):
        when = times.get(offset, when)
        key = None if keys is None else keys[offset]
        records.append(Record(offset, when, key, value, () if headers is None else tuple(headers[offset])))
    return records


@st.composite
def columns(draw):
    """Values of a batch, with keys or without, some null or not, headers, and times that may go back."""
    count = draw(st.integers(1, 200))
    nullable = draw(st.sampled_from([DATA, st.none() | DATA]))
    values = draw(st.lists(nullable, min_size=count, max_size=count))
    keys = draw(st.none() | st.lists(nullable, min_size=count, max_size=count))
    headers = draw(st.none() | st.lists(HEADERS, min_size=count, max_size=count))
    starts = sorted({0, *draw(st.lists(st.integers(0, count - 1), max_size=4))})
    stamps = [(start, draw(st.integers(0, 2**41))) for start in starts]
    return values, stamps, keys, headers


@given(columns())
def test_columns_pack_to_the_records_that_they_hold(given_columns):
    values, stamps, keys, headers = given_columns

    body = pack_records(values, stamps, keys=keys, headers=headers)

    assert records_in(body, count=len(values), stamps=stamps) == expected(values, stamps, keys, headers)


@given(columns())
def test_columns_pack_to_the_bytes_of_records_that_are_built_one_by_one(given_columns):
    values, stamps, keys, headers = given_columns
    records = expected(values, stamps, keys, headers)

    body = pack_records(values, stamps, keys=keys, headers=headers)

    assert body == build_batch(records)[61:]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8_191, 8_192, 8_193])
def test_offsets_of_every_width_are_packed(count):
    values = [b"v"] * count

    body = pack_records(values, [(0, 5)], keys=values)

    assert records_in(body, count=count, stamps=[(0, 5)]) == expected(values, [(0, 5)], values)


@pytest.mark.parametrize("size", [0, 63, 64, 8_191, 8_192, LARGEST_LOOKED_UP, LARGEST_LOOKED_UP + 1, 300_000])
def test_records_of_every_size_are_packed(size):
    values = [bytes(size), b"small"]

    body = pack_records(values, [(0, 5)])

    assert records_in(body, count=2, stamps=[(0, 5)]) == expected(values, [(0, 5)])
