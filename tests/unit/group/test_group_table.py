"""The table that runs (2.1), its page, and what the package shows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from coterie.base.reasons import CHOICE, reasons
from coterie.base.reasons import GROUP as DECISIONS
from coterie.coordinator.group.apply import APPLY, ARRIVES_FROM, MOVES
from coterie.coordinator.group.facts import (
    GroupCreated,
    GroupDied,
    GroupEmptied,
    GroupStabilized,
    RebalanceStarted,
)
from coterie.coordinator.group.model import State
from coterie.coordinator.group.settings import GroupSettings
from coterie.coordinator.group.shard import Draft, Shard
from coterie.coordinator.group.table import ABSENT, ANSWERS, printed
from trees import tree_of

SOURCE = Path(__file__).parents[3] / "src" / "coterie"
CORE = SOURCE / "coordinator" / "group"
SLUG = re.compile(r"[a-z]+(-[a-z0-9]+)+")
PAGE = Path(__file__).parents[3] / "docs" / "states.md"


def test_every_state_answers_everything():
    assert ANSWERS.keys() == set(State)
    assert {frozenset(row) for row in ANSWERS.values()} == {frozenset(ABSENT)}


def test_the_page_is_what_the_table_prints():
    assert PAGE.read_text(encoding="utf-8") == printed()


def test_every_reason_is_used_somewhere():
    source = "".join(
        path.read_text(encoding="utf-8") for path in (CORE.parent / "machine.py", *CORE.rglob("*.py"))
    )
    for name in reasons(DECISIONS):
        assert f'"{name}"' in source, f"{name} is in the catalogue and nowhere else"


def test_what_reads_like_a_reason_is_in_the_catalogue():
    for path in CORE.rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and SLUG.fullmatch(node.value):
                assert node.value in {**reasons(DECISIONS), **reasons(CHOICE)}, f"{path.name}:{node.lineno}"


def test_a_decision_cannot_have_a_reason_that_is_in_no_catalogue():
    draft = Draft(Shard(settings=GroupSettings(), new_id=lambda: ""), 0, None)

    for say in (draft.decision, draft.then):
        with pytest.raises(AssertionError, match="unheard-of"):
            say("unheard-of")


def test_what_is_marked_is_in_the_catalogue():
    known = {*reasons(DECISIONS), *reasons(CHOICE)}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Call(func=ast.Name(id="mark"), args=[slug, *_]) if path.name != "compiled.py":
                    texts = (one.value for one in ast.walk(slug) if isinstance(one, ast.Constant))
                    unknown = {text for text in texts if isinstance(text, str)} - known
                    assert not unknown, f"{path.name}:{node.lineno} marks {unknown}"


def test_every_mark_is_left_somewhere():
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))

    for name in reasons(CHOICE):
        assert f'"{name}"' in source, f"{name} is in the catalogue and nowhere else"


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
