"""How much of a long history is looked at for one row of it: few places, however long it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coterie.history.from_story import gave_up, while_owned
from coterie.history.ownership import (
    NO_OWNER,
    NO_PROGRESS,
    Empty,
    Silence,
    cut,
    ms_within,
)
from coterie.history.tables import Ownership, Stall

MANY, EVERY_MS = 10_000, 10_000
LATE_MS = (MANY - 10) * EVERY_MS
LOOKED_AT_MOST = 50  # to find the place by halves, and to look on from there


class Looked(list[Any]):
    """A list that counts how many of its items were looked at."""

    count = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.count += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Iterator[Any]:
        for one in super().__iter__():
            self.count += 1
            yield one


def owned(from_ms: int) -> Ownership:
    return Ownership("g", "t", 0, "a/1", "a", None, 1, from_ms, from_ms + EVERY_MS)


def stall(kind: str) -> Stall:
    """Return one late in the history, from the middle of a generation to its end."""
    return Stall("g", "t", 0, kind, LATE_MS + 5_000, LATE_MS + EVERY_MS, 1, "a/1")


def times() -> range:
    return range(0, MANY * EVERY_MS, EVERY_MS)


def test_when_an_owner_gave_up_is_found_among_few_generations():
    formed = Looked(times())
    at_ms = LATE_MS + EVERY_MS - 200
    began = {
        LATE_MS + EVERY_MS: {"at": at_ms, "protocol": "range", "left": [], "members": {}, "state": "Stable"}
    }
    assert gave_up(owned(LATE_MS), None, formed, began) == at_ms
    assert formed.count <= LOOKED_AT_MOST


@pytest.mark.parametrize("until_ms", [LATE_MS + 8_000, LATE_MS + EVERY_MS + 300])
def test_the_owner_that_stood_still_is_found_among_few(until_ms: int):
    ends = Looked((at, at + EVERY_MS, at + EVERY_MS - 200) for at in times() if at != LATE_MS)
    one = stall(NO_PROGRESS)
    assert while_owned(one, ends) == one  # the story knows no better when its owner gave up

    ends[LATE_MS // EVERY_MS : 0] = [(LATE_MS, LATE_MS + EVERY_MS, until_ms)]
    ends.count = 0
    assert while_owned(one, ends) == one._replace(to_ms=until_ms)
    assert ends.count <= LOOKED_AT_MOST


def test_a_silence_is_laid_over_the_few_owners_of_its_time():
    mine = Looked(map(owned, times()))
    silence = Silence(LATE_MS + 1_000, LATE_MS + EVERY_MS + 6_000, 5_000)
    found = [(one.from_ms, one.to_ms) for one in cut("g", silence, mine)]
    assert found == [
        (LATE_MS + 1_000, LATE_MS + EVERY_MS),
        (LATE_MS + EVERY_MS, LATE_MS + EVERY_MS + 6_000),
    ]
    assert mine.count <= LOOKED_AT_MOST


def test_what_stood_still_without_members_is_compared_with_few_times_without():
    empty = Looked(Empty(at, at + 7_000, 1) for at in times())
    assert ms_within(stall(NO_OWNER), empty) == 2_000
    assert empty.count <= LOOKED_AT_MOST
