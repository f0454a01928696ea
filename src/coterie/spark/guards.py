"""What a query in a group must not do, found where it can be seen: by the application, from Spark's progress
or plan. A reader sees neither.

State does not follow a partition to another member, and two members of one query get half of the partitions
each. Both look right as long as an application is alone in its group.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any

from coterie.base.errors import CoterieError

STATE, SHARED_GROUP = "state", "sharedGroup"
"""The guards, as offset documents name those that a query goes without."""


class QueryRefused(CoterieError):
    """A query in a group that is refused; `guard` is what it is refused by."""

    guard = ""


class StateInGroup(QueryRefused):
    """A query that keeps state reads as a dynamic member of a group: its state would stay behind."""

    guard = STATE

    def __init__(self, group: str, topics: str = "") -> None:
        super().__init__(
            f"this query keeps state, and is a dynamic member of group {group!r}: state does not follow a"
            " partition to another application. Let this be the group's only application and make it a static"
            " member (group.instance.id), or leave group.id out; allowState=true lets it be as it is"
        )


class SharedGroup(QueryRefused):
    """Two sources of one query would share the partitions of a topic: give each a group of its own."""

    guard = SHARED_GROUP

    def __init__(self, group: str, topics: str, loads: str = "") -> None:
        super().__init__("in this query " + two_loads(group, topics, loads))


GUARDS: Mapping[str, Callable[[str, str], QueryRefused]] = {STATE: StateInGroup, SHARED_GROUP: SharedGroup}
"""By which guard a query is refused: the error, of the group and the topics that its source reads."""


def refusal_of(documents: Iterable[Mapping[str, Any]], *, stateful: bool) -> QueryRefused | None:
    """Return why a query is refused whose sources are members with these offset documents; None if it is not.
    `stateful` says whether it keeps state.
    """
    members = [*documents]
    if stateful:
        for one in members:
            if one.get("instance") is None and STATE not in allowed_in(one):
                return StateInGroup(str(one["group"]))
    for one, other in combinations(members, 2):
        both = topics_of(one) & topics_of(other) if one["group"] == other["group"] else ()
        if both and SHARED_GROUP not in allowed_in(one) & allowed_in(other):
            return SharedGroup(str(one["group"]), ", ".join(sorted(both)))
    return None


def allowed_in(document: Mapping[str, Any]) -> frozenset[str]:
    """Return the guards that a member's query goes without."""
    found = document.get("allowed")
    return frozenset(found) if isinstance(found, list) else frozenset()


def topics_of(document: Mapping[str, Any]) -> frozenset[str]:
    """Return the topics of a member's offset document, as far as it names them."""
    return frozenset(document.get("topics") or ()) | frozenset(document.get("positions") or ())


def two_loads(group: str, topics: str, loads: str) -> str:
    """Return the explanation of what is wrong with two members that read the same, and the ways out."""
    return (
        f"group {group!r} has two loads of {topics}{loads}: as two members each gets a part of the"
        " partitions, so a join or union of them misses records. Leave group.id and kafka.group.id out, and"
        " each reads everything; or call load() for each, with a group.id of its own. allowSharedGroup=true,"
        " for both, lets it be as it is"
    )
