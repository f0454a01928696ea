"""Regular expressions in RE2's language, matched in time linear in the text: nobody hangs who uses them.

Apache Kafka takes patterns of clients in this language (RE2/J). A pattern is a graph of steps, and all ways
through it are followed at once; what followed from where is remembered, so most characters cost a look-up.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias

from coterie.base.characters import WORD, Test
from coterie.base.errors import CoterieError

__all__ = ["BadPattern", "Pattern", "Program"]

STEPS_MOST = 5_000  # x{1000} in y{1000} would need more
REMEMBERED_MOST = 500_000  # places in states
LOOKS_AT_ONCE = 5_000  # after so many others may have their turn


class BadPattern(CoterieError):
    """A text that is no pattern, or one that is not supported; says what is wrong with it."""


class Consume(NamedTuple):
    """Go on after a character that passes a test."""

    test: Test
    after: int


class Fork(NamedTuple):
    """Go all of these ways."""

    ways: tuple[int, ...]


class Check(NamedTuple):
    """Go on where the place between two characters is of a kind."""

    kind: str
    after: int


MATCHED = 0  # the step that ends a pattern
# What stands on a side of a place between characters: one of them, or nothing at the text's ends.
Side: TypeAlias = str | None


class Program:
    """The steps of a pattern; each is known by its number."""

    def __init__(self) -> None:
        self.steps: list[Consume | Fork | Check] = [Fork(())]

    def add(self, step: Consume | Fork | Check) -> int:
        """Return the number of a new step."""
        if len(self.steps) >= STEPS_MOST:
            raise BadPattern(f"the pattern needs more than {STEPS_MOST} steps")
        self.steps.append(step)
        return len(self.steps) - 1

    def loop(self) -> int:
        """Return the number of a fork whose ways are still to be told: they come back to it."""
        return self.add(Fork(()))

    def close(self, loop: int, *ways: int) -> None:
        """Tell the ways of a fork."""
        self.steps[loop] = Fork(ways)


def holds(kind: str, before: Side, behind: Side) -> bool:
    """Return whether the place between two characters is of a kind."""
    match kind:
        case "^":
            return before is None
        case "$":
            return behind is None
        case "line^":
            return before is None or before == "\n"
        case "line$":
            return behind is None or behind == "\n"
    boundary = is_word(before) != is_word(behind)
    return boundary if kind == "b" else not boundary


def is_word(side: Side) -> bool:
    return side is not None and WORD(side)


class State:
    """Where all the ways are after a character, and what was found to follow."""

    __slots__ = ("before", "known", "places")

    def __init__(self, places: frozenset[int], before: Side) -> None:
        self.places = places
        self.before = before
        self.known: dict[Side, State] = {}


class Pattern:
    """A pattern that was read."""

    def __init__(self, program: Program, start: int) -> None:
        self._steps = program.steps
        self._start = State(frozenset({start}), None)
        self._states: dict[tuple[frozenset[int], Side], State] = {}
        self._remembered = 0

    def matches(self, text: str) -> bool:
        """Return whether the whole text is as the pattern says."""
        looking = self.look(text)
        while True:
            try:
                next(looking)
            except StopIteration as found:
                return bool(found.value)

    def look(self, text: str) -> Generator[None, None, bool]:
        """Return whether the whole text is as the pattern says; yield now and then on the way."""
        state, looks = self._start, 0
        for character in (*text, None):
            following = state.known.get(character)
            looks += 1
            if following is None:
                reached = self._reach(state, character)
                following = self._follow(state, character, reached)
                looks += len(reached)
            state = following
            if not state.places:
                return False
            if looks > LOOKS_AT_ONCE:
                looks = 0
                yield
        return True

    def _follow(self, state: State, character: Side, reached: set[int]) -> State:
        """Return where the ways are after one more character, and remember it."""
        if character is None:
            places = frozenset(reached & {MATCHED})
        else:
            steps = [step for at in reached if isinstance(step := self._steps[at], Consume)]
            # Copies of one part have one test, which may be a long one.
            passed = {test for test in {step.test for step in steps} if test(character)}
            places = frozenset(step.after for step in steps if step.test in passed)
        self._remembered += 1 + len(places)
        if self._remembered > REMEMBERED_MOST:
            self._remembered = 0
            self._states.clear()
            self._start.known.clear()
            state.known.clear()
        before = sort_of(character)
        following = self._states.setdefault((places, before), State(places, before))
        state.known[character] = following
        return following

    def _reach(self, state: State, behind: Side) -> set[int]:
        """Return every step that is reached without a character."""
        reached: set[int] = set()
        waiting = list(state.places)
        while waiting:
            at = waiting.pop()
            if at in reached:
                continue
            reached.add(at)
            match self._steps[at]:
                case Fork(ways):
                    waiting += ways
                case Check(kind, after) if holds(kind, state.before, behind):
                    waiting.append(after)
        return reached


def sort_of(character: Side) -> Side:
    """Return one character for all that no place between two tells apart."""
    if character is None or character == "\n":
        return character
    return "w" if is_word(character) else " "
