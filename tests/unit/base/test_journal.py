"""What is changed through a journal comes back as it was, and in time for whoever restores something else."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.journal import Journal


@dataclass
class Other:
    """Something that is changed with what it belongs to."""

    number: int = 0


@dataclass
class State:
    """Something of each kind that can be changed."""

    number: int = 0
    text: str = ""
    table: dict[int, int] = field(default_factory=lambda: {1: 1, 2: 2})
    elements: set[int] = field(default_factory=lambda: {1, 2, 3})
    other: Other = field(default_factory=Other)


steps = st.lists(
    st.tuples(
        st.sampled_from(("set", "set all", "put", "drop", "discard", "mark")),
        st.integers(0, 4),
        st.integers(),
    )
)


def change(journal: Journal, state: State, kind: str, where: int, value: int) -> None:
    if kind == "set":
        journal.set(state, number=value, text=str(value))
    elif kind == "set all":
        journal.set_all([state, state.other], number=value)
    elif kind == "put":
        journal.put(state.table, where, value)
    elif kind == "drop" and where in state.table:
        was = state.table[where]
        assert journal.drop(state.table, where) == was
    elif kind == "discard":
        journal.discard(state.elements, where)


@given(steps)
def test_every_mark_leads_back_to_the_state_that_was(script):
    journal, state = Journal(), State()
    before = [(journal.mark(), deepcopy(state))]
    for kind, where, value in script:
        change(journal, state, kind, where, value)
        if kind == "mark":
            before.append((journal.mark(), deepcopy(state)))

    for mark, there in reversed(before):
        journal.roll_back(mark)
        assert state == there


def test_what_is_settled_stays():
    journal, state = Journal(), State()
    journal.set(state, number=1)
    settled = journal.mark()
    journal.set(state, number=2)

    journal.settle(settled)
    journal.roll_back(settled)

    assert state.number == 1
    with pytest.raises(AssertionError):
        journal.roll_back(settled - 1)


def test_what_is_forgotten_stays_and_what_came_before_it_does_not():
    journal, state = Journal(), State()
    start = journal.mark()
    journal.set(state, number=1)
    mark = journal.mark()
    journal.set(state, text="loaded")
    journal.forget(mark)

    journal.roll_back(start)

    assert (state.number, state.text) == (0, "loaded")


def test_whoever_restores_something_else_finds_what_came_later_rolled_back():
    journal, state, seen = Journal(), State(), []
    journal.set(state, number=1)
    journal.add(lambda *what: seen.append((state.number, *what)), "target", "key", "old")
    journal.set(state, number=2)

    journal.roll_back(0)

    assert seen == [(1, "target", "key", "old")]
    assert state.number == 0
