"""The short names of a group's members, from their assignments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from coterie.base.ids import ShortNames
from coterie.history.tables import Assignment


def short_names(assignments: Iterable[Assignment]) -> ShortNames:
    """Return the short names of all members that had an assignment."""
    generations: dict[tuple[int, int], dict[str, Assignment]] = defaultdict(dict)
    for one in assignments:
        generations[one.formed_at, one.generation][one.member_id] = one
    return ShortNames(members.values() for members in generations.values())
