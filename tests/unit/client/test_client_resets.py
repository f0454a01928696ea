"""Where resets set offsets, and how people write them; the rules are those of Kafka's tool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.admin.resets import (
    ByDuration,
    FromFile,
    Known,
    Reset,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    duration_ms,
    file_of,
    moves_of,
    partitions_of,
    time_ms,
)

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
KNOWN = Known(earliest=10, latest=90, committed=50, at_time=33)


def move(reset: Reset, known: Known = KNOWN) -> tuple[int, str]:
    """Return where a reset sets one partition's offset, and the note."""
    (found,) = moves_of(reset, {A: known})
    assert (found.partition, found.before) == (A, known.committed)
    return found.after, found.note


@pytest.mark.parametrize(
    ("reset", "after"),
    [
        (ToEarliest(), 10),
        (ToLatest(), 90),
        (ToCurrent(), 50),
        (ToOffset(42), 42),
        (ShiftBy(7), 57),
        (ShiftBy(-7), 43),
        (ToTime(1_000), 33),
        (ByDuration(1_000), 33),
        (FromFile({A: 44}), 44),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
def test_each_form_has_its_offset(reset: Reset, after: int):
    assert move(reset) == (after, "")


@pytest.mark.parametrize(
    ("reset", "after", "note"),
    [
        (ToOffset(91), 90, "91 is past the end"),
        (ToOffset(9), 10, "9 is before the first record"),
        (ShiftBy(1_000), 90, "1050 is past the end"),
        (ShiftBy(-1_000), 10, "-950 is before the first record"),
        (FromFile({A: 5}), 10, "5 is before the first record"),
    ],
)
def test_what_is_out_of_range_becomes_the_nearest_offset(reset: Reset, after: int, note: str):
    assert move(reset) == (after, note)


def test_a_time_that_no_record_reaches_is_the_end():
    known = KNOWN._replace(at_time=None)

    assert move(ToTime(1), known) == (90, "no record is that young: the end")
    assert move(ByDuration(1), known) == (90, "no record is that young: the end")


def test_where_nothing_is_committed_the_current_offset_is_the_end():
    assert move(ToCurrent(), KNOWN._replace(committed=None)) == (90, "nothing was committed: the end")


def test_where_nothing_is_committed_nothing_can_be_shifted():
    with pytest.raises(CoterieError, match="has committed nothing for a-0"):
        move(ShiftBy(1), KNOWN._replace(committed=None))


numbers = st.integers(0, 2**40)
resets = st.one_of(
    st.builds(ToEarliest),
    st.builds(ToLatest),
    st.builds(ToOffset, st.integers(-(2**40), 2**41)),
    st.builds(ShiftBy, st.integers(-(2**41), 2**41)),
    st.builds(lambda offset: FromFile({A: offset}), numbers),
)


@given(resets, numbers, numbers, numbers)
def test_whatever_is_asked_the_offset_is_in_the_log(reset: Reset, first: int, length: int, committed: int):
    after, _ = move(reset, Known(first, first + length, committed))

    assert first <= after <= first + length


def test_partitions_come_in_order():
    moves = moves_of(ToEarliest(), {B: KNOWN, A: KNOWN})

    assert [one.partition for one in moves] == [A, B]


# -- as people write them


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01.000", 1_000),
        ("1970-01-01T01:00:01.5+01:00", 1_500),
        ("1970-01-01T00:00:02Z", 2_000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_time_is_utc_unless_it_names_a_zone(text: str, ms: int):
    assert time_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P1DT2H30M", 95_400_000),
        ("PT15S", 15_000),
        ("PT0.25S", 250),
        ("p2d", 172_800_000),
        ("-PT1M", -60_000),
    ],
)
def test_a_duration_is_written_as_java_reads_it(text: str, ms: int):
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1D", "P1H", "P1M", "P1DT", "PT1.5H"])
def test_what_is_no_duration_is_one_sentence(text: str):
    with pytest.raises(CoterieError, match="is no duration"):
        duration_ms(text)


def test_a_duration_of_hundreds_of_digits_is_one_sentence():
    with pytest.raises(CoterieError, match="is longer than any time there is"):
        duration_ms("P" + "9" * 400 + "D")


def test_what_is_no_time_is_one_sentence():
    with pytest.raises(CoterieError, match="'soon' is no time"):
        time_ms("soon")


def test_a_file_has_a_line_for_each_partition():
    assert file_of(["a,0,5", "", '"b",1,6'], "g") == FromFile({A: 5, B: 6})


def test_of_a_file_with_several_groups_one_is_read():
    lines = ["g,a,0,5", "other,a,0,77", "g,b,1,6"]

    assert file_of(lines, "g") == FromFile({A: 5, B: 6})


@pytest.mark.parametrize("line", ["a,0", "a,x,5", "a,0,-5", "g,a,0,5,6", "a"])
def test_a_line_that_makes_no_sense_is_shown(line: str):
    with pytest.raises(CoterieError, match=r"line 2 of the file is '.*'; write topic,partition,offset"):
        file_of(["a,0,5", line], "g")


def test_a_file_that_has_no_lines_of_fields_is_one_sentence():
    with pytest.raises(CoterieError, match="no lines of topic,partition,offset"):
        file_of(["a,0,5", "z" * 200_000], "g")


def test_a_file_without_a_line_for_the_group_is_a_mistake():
    with pytest.raises(CoterieError, match="no line for group g"):
        file_of(["other,a,0,5"], "g")


def test_partitions_are_named_by_topic_or_one_by_one():
    named = partitions_of(["t", "u:3,1"], {"t": 2}.__getitem__)

    assert [str(one) for one in named] == ["t-0", "t-1", "u-1", "u-3"]
    with pytest.raises(CoterieError, match="'t:x' names no partitions"):
        partitions_of(["t:x"], lambda _: 1)
