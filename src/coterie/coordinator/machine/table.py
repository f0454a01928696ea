"""A state machine as a table that runs: every state answers every kind of command, checked at import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeAlias

from coterie.coordinator.machine.decision import Decision

Handler: TypeAlias = Callable[[Any, Any, Any], Decision]
"""Of a draft, of the group or the transactional id, None where there is none, and of a command."""
Row: TypeAlias = Mapping[type, Handler]


def check(absent: Row, answers: Mapping[Any, Row], states: type[Enum], *, asked: Iterable[type]) -> None:
    """Raise AssertionError unless every state answers whatever may be asked, and so does what is absent."""
    assert answers.keys() == set(states)
    assert set(absent) == set(asked)
    assert all(row.keys() == absent.keys() for row in answers.values())
