"""The table that runs (2.1), its page, and what the package shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie.group
from coterie.group.apply import APPLY, ARRIVES_FROM, MOVES
from coterie.group.facts import GroupCreated, GroupDied, GroupEmptied, GroupStabilized, RebalanceStarted
from coterie.group.model import State
from coterie.group.settings import GroupSettings
from coterie.group.shard import Shard
from coterie.group.table import ANSWERS, NOWHERE, printed

PAGE = Path(__file__).parents[3] / "docs" / "states.md"


def test_every_state_answers_everything():
    assert ANSWERS.keys() == set(State)
    assert {frozenset(row) for row in ANSWERS.values()} == {frozenset(NOWHERE)}


def test_the_page_is_what_the_table_prints():
    assert PAGE.read_text(encoding="utf-8") == printed()


def test_states_arrive_from_where_kafka_lets_them():
    """2.1"""
    assert {
        State.EMPTY: {State.PREPARING},
        State.PREPARING: {State.EMPTY, State.COMPLETING, State.STABLE},
        State.COMPLETING: {State.PREPARING},
        State.STABLE: {State.COMPLETING},
        State.DEAD: set(State),
    } == ARRIVES_FROM


@pytest.mark.parametrize("fact", [GroupEmptied("g", 1, 0), GroupStabilized("g", 0)])
def test_a_move_that_is_not_in_the_table_is_our_mistake(fact):
    """2.1: and stops at an assert."""
    shard = Shard(settings=GroupSettings(), new_id=lambda: "")
    shard.apply(GroupCreated("g", 0))

    with pytest.raises(AssertionError, match="does not lead to"):
        shard.apply(fact)


def test_a_move_is_stamped_and_remembered():
    """2.1"""
    shard = Shard(settings=GroupSettings(), new_id=lambda: "")
    shard.apply(GroupCreated("g", 5))
    group = shard.groups["g"]
    assert (group.state, group.previous_state, group.since_ms) == (State.EMPTY, State.DEAD, 5)

    shard.apply(RebalanceStarted("g", 7))
    assert (group.state, group.previous_state, group.since_ms) == (State.PREPARING, State.EMPTY, 7)
    shard.apply(GroupDied("g", 9))
    shard.apply(GroupDied("g", 9))

    assert (group.state, group.previous_state) == (State.DEAD, State.DEAD)


def test_only_facts_move_states():
    assert set(MOVES) <= set(APPLY)


def test_the_package_shows_what_it_lists():
    assert coterie.group.__all__ == ["GroupSettings", "Shard"]
    assert coterie.group.Shard is Shard
