"""Layouts that people write: how they are read, and what Kafka's controller says of those it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.broker.placement.manual import (
    brokers_of,
    layout_of,
    layout_text,
    problem_of_growth,
    problem_of_new,
)
from coterie.broker.placement.model import Broker, Replicas

THREE = brokers_of("1:a,2:b,3:c:fenced")


def test_a_layout_that_is_whole_is_taken_in_any_order():
    assert problem_of_new([(1, (2, 1)), (0, (1, 3))], THREE) is None


@pytest.mark.parametrize(
    ("assigned", "text"),
    [
        ([(0, (1,)), (0, (2,))], "Found multiple manual partition assignments for partition 0"),
        ([(0, ())], "The manual partition assignment includes an empty replica list."),
        (
            [(0, (4,))],
            "The manual partition assignment includes broker 4, but no such broker is registered.",
        ),
        ([(0, (1, 1, 4))], "The manual partition assignment includes the broker 1 more than once."),
        (
            [(0, (1, 2)), (1, (1,))],
            "The manual partition assignment includes a partition with 1 replica(s), but this is not "
            "consistent with previous partitions, which have 2 replica(s).",
        ),
        (
            [(0, (3,))],
            "All brokers specified in the manual partition assignment for partition 0 are fenced or in "
            "controlled shutdown.",
        ),
        ([(0, (1,)), (2, (1,))], "partitions should be a consecutive 0-based integer sequence"),
    ],
)
def test_a_new_topics_layout_is_refused_in_kafkas_words(assigned: list[tuple[int, Replicas]], text: str):
    problem = problem_of_new(assigned, THREE)

    assert problem == (Code.INVALID_REPLICA_ASSIGNMENT, text)


@pytest.mark.parametrize(
    ("added", "text"),
    [
        (
            [(1, 2)],
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            [(1, 2), (1,)],
            "The manual partition assignment includes a partition with 1 replica(s), but this is not "
            "consistent with previous partitions, which have 2 replica(s).",
        ),
    ],
)
def test_what_a_topic_shall_get_beside_what_it_has_is_refused_in_kafkas_words(
    added: list[Replicas], text: str
):
    problem = problem_of_growth(added, THREE, existing=3, total=5, factor=2)

    assert problem == (Code.INVALID_REPLICA_ASSIGNMENT, text)
    assert problem_of_growth([(1, 2), (2, 1)], THREE, existing=3, total=5, factor=2) is None


layouts = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1).map(tuple), min_size=1)


@given(layouts)
def test_a_layout_reads_as_it_was_written(layout: list[Replicas]):
    assert layout_of(layout_text(layout)) == layout


def test_brokers_are_described_by_id_rack_and_whether_they_are_fenced():
    assert brokers_of("0-1:a, 2:b:fenced, 7") == [
        Broker(0, "a"),
        Broker(1, "a"),
        Broker(2, "b", fenced=True),
        Broker(7),
    ]


@pytest.mark.parametrize("text", ["", "a", "0:a:gone", "0,0", "1-", "0,,1", "-1"])
def test_brokers_that_make_no_sense_are_one_sentence(text: str):
    with pytest.raises(CoterieError):
        brokers_of(text)


@pytest.mark.parametrize("text", ["", "0:", "0:1,", "0:x", "0;1"])
def test_a_layout_that_makes_no_sense_is_one_sentence(text: str):
    with pytest.raises(CoterieError, match="is no broker id"):
        layout_of(text)
