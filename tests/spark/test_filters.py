"""Filters that are pushed into a batch read: what they leave, and what Spark must look at again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from coterie.spark.source.filters import pushed
from coterie.spark.source.offsets import Range

RANGES = [Range(topic, partition, 10, 20) for topic in ("a", "b") for partition in range(3)]
COMPARISONS = {
    EqualTo: lambda value, wanted: value == wanted,
    GreaterThan: lambda value, wanted: value > wanted,
    GreaterThanOrEqual: lambda value, wanted: value >= wanted,
    LessThan: lambda value, wanted: value < wanted,
    LessThanOrEqual: lambda value, wanted: value <= wanted,
}


def at(seconds):
    return datetime.fromtimestamp(seconds, UTC)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*COMPARISONS]), st.sampled_from(["partition", "offset"]), st.integers(-1, 25)
        )
    )
)
def test_exactly_the_rows_that_the_filters_keep_are_left(drawn):
    wanted, again = pushed([kind((column,), value) for kind, column, value in drawn])

    assert again == []
    assert {
        (one.topic, one.partition, offset)
        for one in wanted.narrowed(RANGES)
        for offset in range(one.first, one.until)
    } == {
        (one.topic, one.partition, offset)
        for one in RANGES
        for offset in range(one.first, one.until)
        if all(
            COMPARISONS[kind](one.partition if column == "partition" else offset, value)
            for kind, column, value in drawn
        )
    }


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        (EqualTo(("topic",), "a"), "a"),
        (Not(EqualTo(("topic",), "a")), "b"),
        (In(("topic",), ("b", "c")), "b"),
        (StringStartsWith(("topic",), "a"), "a"),
        (StringEndsWith(("topic",), "b"), "b"),
        (StringContains(("topic",), "z"), ""),
        (IsNotNull(("topic",)), "ab"),
        (IsNull(("topic",)), ""),
    ],
)
def test_filters_on_the_topic_choose_topics(one, kept):
    wanted, again = pushed([one])

    assert again == []
    assert {found.topic for found in wanted.narrowed(RANGES)} == set(kept)


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("topic",), None),
        In(("partition",), (1, None)),
        Not(EqualTo(("offset",), 12)),
        In(("offset",), (12, 14)),
        EqualTo(("source", "offset"), 3),
        LessThan(("timestamp",), at(5)),
    ],
)
def test_what_is_not_understood_is_left_to_spark(one):
    wanted, again = pushed([one])

    assert again == [one]
    assert wanted.narrowed(RANGES) == RANGES


def test_a_lower_bound_of_the_time_says_where_to_begin_and_spark_looks_again():
    filters = [GreaterThan(("timestamp",), at(5)), EqualTo(("timestamp",), at(9))]

    wanted, again = pushed(filters)

    assert again == filters
    assert wanted.since_ms == 9_000
    assert pushed([GreaterThan(("timestamp",), at(-0.001))])[0].since_ms is None
