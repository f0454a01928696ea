"""The order of a group's story, of which several coordinators have written a part each."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coterie.story.order import CLOCKS_APART_MS, dated, in_story_order


def a_move(at_ms: int, epoch: int = 1) -> dict[str, Any]:
    return {"kind": "move", "at": at_ms, "coordinator_epoch": epoch}


def a_rebalance(at_ms: int, formed_ms: int, over_ms: int, epoch: int = 1) -> dict[str, Any]:
    return {
        "kind": "rebalance",
        "at": at_ms,
        "formed_at": formed_ms,
        "stopped_ms": over_ms - at_ms,
        "coordinator_epoch": epoch,
    }


def test_a_rebalance_stands_behind_what_happened_until_it_was_over():
    """It was printed where it began, before those who joined it, as soon as there was a second partition."""
    mine = [a_move(1_000), a_move(2_000), a_rebalance(1_000, 2_500, 2_600), a_move(9_000)]
    others = [a_move(500), a_rebalance(500, 600, 650), a_move(2_550)]

    assert in_story_order([mine, others]) == [*others[:2], *mine[:2], others[2], *mine[2:]]
    assert in_story_order([[], mine]) == mine


def test_where_clocks_may_mislead_the_earlier_coordinator_comes_first():
    """The second one's clock is three seconds behind."""
    first = [a_move(10_000, 4), a_rebalance(10_000, 10_500, 10_600, 4)]
    second = [a_move(8_000, 5), a_rebalance(8_000, 8_100, 8_200, 5)]

    assert in_story_order([second, first]) == [*first, *second]


def test_where_no_clock_can_mislead_time_has_the_word():
    """A cluster that a story was brought into numbers its epochs from where it begins."""
    brought, new = [a_move(1_000, 40)], [a_move(1_000 + CLOCKS_APART_MS + 1, 2)]

    assert in_story_order([new, brought]) == [*brought, *new]


def test_what_an_older_broker_wrote_without_an_epoch_is_put_by_its_time():
    old, new = {"kind": "move", "at": 3_000}, {"kind": "move", "at": 2_000}

    assert in_story_order([[old], [new]]) == [new, old]


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=6), max_size=4))
def test_all_that_a_partition_has_stays_in_its_order(parts: list[list[tuple[int, int]]]):
    story = [
        [
            a_move(at_s * 10_000, epoch) | {"place": (part, place)}
            for place, (at_s, epoch) in enumerate(written)
        ]
        for part, written in enumerate(parts)
    ]

    found = in_story_order(story)

    assert sorted(one["place"] for one in found) == [one["place"] for written in story for one in written]
    for part, written in enumerate(story):
        assert [one for one in found if one["place"][0] == part] == written


def test_a_coordinator_whose_clock_is_behind_tells_of_rebalances_as_long_as_they_were():
    first, second = a_rebalance(9_000, 10_000, 10_100), a_rebalance(6_000, 6_500, 6_600)
    third = a_rebalance(11_000, 11_300, 11_400)

    assert [(one["at"], one["formed_at"]) for one in dated([first, second, third])] == [
        (5_500, 6_500), (6_000, 6_500), (11_000, 11_300)
    ]  # fmt: skip
    assert [one["formed_at"] for one in dated([first, second], [10_000, 10_200])] == [10_000, 10_200]
