"""The sparse indexes: what they find, and what they take for theirs."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.storage.log.index import OffsetIndex, TimeIndex

numbers = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=50).map(sorted)
moments = st.lists(st.integers(0, 2**62), unique=True, max_size=50).map(sorted)


def an_index(*entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in entries:
        index.add(offset, position)
    return index


@given(numbers, st.integers(0, 2**31 - 1))
def test_the_last_batch_that_ends_at_or_before_an_offset_is_found(ends: list[int], offset: int):
    index = an_index(*((end, 10 + place) for place, end in enumerate(ends)))

    found = index.at_or_before(offset)

    place = bisect_right(ends, offset) - 1
    assert found == ((ends[place], 10 + place) if place >= 0 else (-1, 0))


def test_the_last_batch_that_starts_at_or_before_a_position_is_found():
    index = an_index((5, 100), (9, 300))

    assert [index.position_at_or_before(position) for position in (0, 99, 100, 299, 300, 999)] == [
        0,
        0,
        100,
        100,
        300,
        300,
    ]


def test_entries_are_kafka_s_bytes():
    assert an_index((1, 2), (3, 0x04050607)).entries().hex() == "00000001000000020000000304050607"
    assert an_index((1, 2), (3, 4)).entries(since=1).hex() == "0000000300000004"
    times = TimeIndex()
    times.add(0x0102030405060708, 9)
    assert times.entries().hex() == "010203040506070800000009"


@given(numbers)
def test_an_offset_index_reads_back(ends: list[int]):
    index = an_index(*((end, place) for place, end in enumerate(ends)))

    back = OffsetIndex.read(index.entries(), log_size=2**31 - 1)

    assert (back.offsets, back.positions) == (index.offsets, index.positions)


@given(moments)
def test_a_time_index_reads_back(times: list[int]):
    index = TimeIndex()
    for place, time in enumerate(times):
        index.add(time, place)

    back = TimeIndex.read(index.entries())

    assert (back.timestamps, back.offsets) == (index.timestamps, index.offsets)


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 7,
        an_index((5, 0), (5, 9)).entries(),
        an_index((5, 9), (6, 9)).entries(),
        an_index((5, 100)).entries(),
        an_index((5, 10)).entries() + bytes(16),
        an_index((5, -1)).entries(),
    ],
    ids=["cut", "offsets-stand", "positions-stand", "beyond-the-log", "padded-by-kafka", "negative"],
)
def test_an_offset_index_that_is_not_of_the_log_is_corrupt(data: bytes):
    with pytest.raises(Corrupt):
        OffsetIndex.read(data, log_size=100)


def test_a_time_index_that_does_not_grow_is_corrupt():
    later, earlier = TimeIndex(), TimeIndex()
    later.add(9, 1)
    earlier.add(8, 2)

    for data in (later.entries() + earlier.entries(), later.entries()[:11]):
        with pytest.raises(Corrupt):
            TimeIndex.read(data)


def test_a_time_index_notes_only_what_is_higher():
    times = TimeIndex()
    for time, offset in ((5, 0), (5, 1), (4, 2), (6, 3), (-1, 4)):
        times.add(time, offset)

    assert (list(times.timestamps), list(times.offsets)) == ([5, 6], [0, 3])
    assert [times.at_or_before(time) for time in (4, 5, 6, 7)] == [-1, 0, 3, 3]
