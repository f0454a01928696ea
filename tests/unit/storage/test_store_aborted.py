"""The index of aborted transactions: Kafka's bytes, and what a range of offsets finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.storage.log.aborted import AbortedIndex, AbortedSpan

# As Apache Kafka 4.3.1 wrote it: three transactions of three producers, in and over one another.
OF_KAFKA = bytes.fromhex(
    "0000" "0000000000000002" "0000000000000002" "0000000000000079" "000000000000007a"
    "0000" "0000000000000000" "000000000000007a" "00000000000000f4" "00000000000000f5"
    "0000" "0000000000000001" "00000000000000f5" "000000000000016d" "00000000000000f6"
)  # fmt: skip
SPANS = [AbortedSpan(2, 2, 121, 122), AbortedSpan(0, 122, 244, 245), AbortedSpan(1, 245, 365, 246)]


@st.composite
def histories(draw: st.DrawFn) -> list[AbortedSpan]:
    """Return aborted transactions of several producers as a log would note them."""
    opened: dict[int, int] = {}
    spans = []
    for offset, (producer, begins) in enumerate(draw(st.lists(st.tuples(st.integers(0, 3), st.booleans())))):
        if begins:
            opened.setdefault(producer, offset)
        elif producer in opened:
            began = opened.pop(producer)
            spans.append(AbortedSpan(producer, began, offset, min(opened.values(), default=offset + 1)))
    return spans


def test_the_bytes_are_kafka_s():
    assert list(AbortedIndex.read(OF_KAFKA, base_offset=0)) == SPANS
    assert AbortedIndex(SPANS).entries() == OF_KAFKA


@given(histories(), st.integers(0, 20))
def test_what_ends_before_an_offset_is_forgotten(spans: list[AbortedSpan], offset: int):
    index = AbortedIndex(spans)
    index.drop_before(offset)
    assert [*index] == [span for span in spans if span.last_offset >= offset]


@given(histories())
def test_an_index_comes_back_as_it_was_written(spans: list[AbortedSpan]):
    index = AbortedIndex(spans)

    assert list(AbortedIndex.read(index.entries(), base_offset=0)) == spans
    assert index.entries(0)[34 * (len(spans) // 2) :] == index.entries(len(spans) // 2)


@given(histories(), st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_a_range_finds_what_touches_it_across_segments(
    spans: list[AbortedSpan], first: int, length: int, split: int
):
    end = first + length
    older = AbortedIndex(span for span in spans if span.last_offset < split)
    newer = AbortedIndex(span for span in spans if span.last_offset >= split)

    found, complete = older.within(first, end)
    if not complete:
        found += newer.within(first, end)[0]

    assert found == [span for span in spans if span.last_offset >= first and span.first_offset < end]


@pytest.mark.parametrize(
    "damage",
    [
        OF_KAFKA[:-1],
        b"\1" + OF_KAFKA[1:],
        OF_KAFKA[34:68] + OF_KAFKA[:34],
        OF_KAFKA[:34] + OF_KAFKA[:34],
        AbortedIndex([AbortedSpan(1, 5, 5, 6)]).entries(),
        AbortedIndex([AbortedSpan(1, -2, 5, 6)]).entries(),
    ],
)
def test_bytes_that_cannot_be_an_index_are_corrupt(damage: bytes):
    with pytest.raises(Corrupt):
        AbortedIndex.read(damage, base_offset=0)


def test_an_index_of_an_earlier_segment_is_corrupt():
    with pytest.raises(Corrupt):
        AbortedIndex.read(OF_KAFKA, base_offset=SPANS[0].last_offset + 1)


@given(st.binary(max_size=200))
def test_rubbish_is_read_or_corrupt(rubbish: bytes):
    try:
        index = AbortedIndex.read(rubbish, base_offset=0)
    except Corrupt:
        return
    assert index.entries() == rubbish
