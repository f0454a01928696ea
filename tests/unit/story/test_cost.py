"""What a rebalance cost, of records of a story by hand: who gives up what, when, and what is not known."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from coterie.story.cost import Cost, Costs


def a_rebalance(at_ms: int, owned: dict[str, list[int]], **changes: Any) -> dict[str, Any]:
    """Return a rebalance that took 100 ms, of members that each have some partitions of one topic."""
    members = {
        member_id: {"partitions": {"orders": numbers}, "gained": {}, "lost": {}, "partitions_known": True}
        for member_id, numbers in owned.items()
    }
    document = {"kind": "rebalance", "at": at_ms, "formed_at": at_ms + 100, "protocol": "range"}
    return document | {"members": members, "left": [], "abridged": False} | changes


def a_first(owned: dict[str, list[int]], **changes: Any) -> dict[str, Any]:
    """Return the first rebalance of a group: its members gain all that they have."""
    document = a_rebalance(0, owned, **changes)
    for member in document["members"].values():
        member["gained"] = member["partitions"]
    return document


def costs_of(*story: dict[str, Any]) -> list[Cost | None]:
    """Return what each cost; generations that are not numbered follow each other."""
    costs, numbers = Costs(), count(1)
    return [
        costs.of({"generation": next(numbers), **one} if one["kind"] == "rebalance" else one) for one in story
    ]


def test_eager_members_give_up_all_and_cooperative_ones_what_goes_to_others():
    first, second = {"a": [0, 1, 2, 3]}, {"a": [0, 1, 2], "b": [3]}

    assert costs_of(a_first(first), a_rebalance(1_000, second)) == [Cost(0, 0, 0), Cost(4, 100, 1)]
    cooperative = [
        a_first(first, protocol="cooperative-sticky"),
        a_rebalance(1_000, {"a": [0, 1, 2], "b": []}, protocol="cooperative-sticky"),
        a_rebalance(1_200, second, protocol="cooperative-sticky"),
    ]
    assert costs_of(*cooperative) == [Cost(0, 0, 0), Cost(0, 0, 0), Cost(1, 200, 1)]


@pytest.mark.parametrize(
    ("protocol", "cost"), [("range", Cost(2, 1_100, 1)), ("cooperative-sticky", Cost(1, 1_100, 1))]
)
def test_in_a_generation_that_is_cut_short_cooperative_members_keep_what_they_have(protocol: str, cost: Cost):
    """The one that left has given up its own, as eager ones all."""
    before = a_first({"a": [0], "b": [1]}, protocol=protocol)
    cut_short = a_rebalance(1_000, {"a": []}, protocol=protocol, state="CompletingRebalance", left=["b"])

    assert costs_of(before, cut_short, a_rebalance(2_000, {"a": [0, 1]}, protocol=protocol))[1:] == [
        Cost(0, 0, 0),
        cost,
    ]


def test_what_a_member_leaves_behind_stands_still_from_the_beginning_of_the_rebalance():
    before = a_first({"a": [0], "b": [1]}, protocol="cooperative-sticky")
    after = a_rebalance(1_000, {"a": [0, 1]}, left=["b"], protocol="cooperative-sticky")

    assert costs_of(before, after)[1] == Cost(1, 100, 1)


def test_partitions_without_a_new_owner_stand_still_until_a_later_generation():
    story = a_first({"a": [0, 1]}), a_rebalance(1_000, {"a": [0]}), a_rebalance(5_000, {"a": [0, 1]})

    assert costs_of(*story) == [Cost(0, 0, 0), Cost(1, 100, 0), Cost(2, 4_100, 0)]


def test_a_story_that_is_read_from_its_middle_begins_with_what_members_gained_and_lost():
    document = a_rebalance(1_000, {"a": [0, 1], "b": [2]})
    document["members"]["b"]["gained"] = {"orders": [2]}
    document["members"]["a"]["lost"] = {"orders": [2]}

    assert costs_of(document) == [Cost(3, 100, 1)]


@pytest.mark.parametrize("changes", [{"abridged": True, "members": {}}, {"kind": "move"}])
def test_what_does_not_say_who_its_members_are_has_no_cost_and_changes_nothing(changes: dict[str, Any]):
    owned = {"a": [0], "b": [1]}

    assert costs_of(
        a_first(owned),
        a_rebalance(500, owned, **changes),
        a_rebalance(1_000, {"a": [0, 1]}, left=["b"]),
    )[1:] == [None, Cost(2, 100, 1)]


def test_nothing_is_taken_from_a_member_whose_assignment_cannot_be_read():
    unread = a_rebalance(1_000, {"a": [], "b": [1]})
    unread["members"]["a"] |= {"partitions": {}, "partitions_known": False}

    owned = {"a": [0], "b": [1]}

    assert costs_of(a_first(owned), unread, a_rebalance(2_000, owned))[1:] == [
        Cost(1, 100, 0),
        Cost(2, 100, 0),
    ]


def test_a_group_without_members_stands_still_until_it_has_some_and_is_told_apart():
    owned: dict[str, list[int]] = {"a": [0, 1]}
    story = a_first(owned), a_rebalance(1_000, {}, left=["a"]), a_rebalance(91_000, {"b": [0, 1]})

    assert costs_of(*story) == [Cost(0, 0, 0), Cost(0, 0, 0), Cost(2, 90_100, 2, empty_ms=90_000)]


def test_a_group_that_is_made_anew_takes_nothing_over_from_the_deleted_one_of_its_name():
    ended = a_first({"a": [0, 1]}), a_rebalance(1_000, {}, left=["a"])
    anew = a_first({"b": [0]}, at=91_000, formed_at=91_100), a_rebalance(92_000, {"b": [0, 1]})
    numbers = zip((*ended, *anew), (7, 8, 1, 2), strict=True)

    assert costs_of(*(one | {"generation": number} for one, number in numbers))[2:] == [
        Cost(0, 0, 0),
        Cost(1, 100, 0),
    ]


def test_a_generation_that_the_story_does_not_have_may_have_moved_what_the_next_one_moves():
    """Its coordinator was killed before it wrote that; what each member had, the next one says."""
    third = a_rebalance(9_000, {"a": [0], "c": [1]}, generation=3)
    third["members"]["a"]["lost"] = third["members"]["c"]["gained"] = {"orders": [1]}

    assert costs_of(a_first({"a": [0], "c": [1]}), third)[1] == Cost(2, 100, 1, missing=1)


def test_of_a_group_whose_end_the_story_does_not_have_nobody_knows_how_long_it_stood_still():
    back = a_first({"b": [0]}, at=9_000, formed_at=9_100, generation=3, state_before="Empty")

    assert costs_of(a_first({"a": [0]}), back)[1] == Cost(0, 0, 1, missing=1)
