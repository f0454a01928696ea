"""Rules that are wrong, put in the place of the right ones: the pretended driver must find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.client.member import machine
from coterie.spark.source.group import session
from coterie.spark.source.group.session import GroupSession

from .driving import instead

Fault = Callable[[], Any]


def the_logged_batch() -> Any:
    """Whatever was logged is taken for read: the rule before, which lost records."""
    return instead(GroupSession, "_ranges_read", lambda self, last: last.ranges)


def whoever_planned_it() -> Any:
    """A restart answers for what an earlier process finished, whatever the notes say."""
    right = GroupSession._ranges_read

    def read_of(self: GroupSession, last: Any) -> Any:
        ours = self._given is not None and self._given[0].plan == last.plan
        return right(self, last) if ours else last.ranges

    return instead(GroupSession, "_ranges_read", read_of)


def a_part_for_the_whole() -> Any:
    """A range counts as read when any piece of it was given."""

    def covered(planned: Any, left: Any) -> Any:
        some = {one.at for one in left if one is not None}
        return tuple(one for one in planned if one.at in some)

    right = GroupSession.left_to_read

    async def left_to_read(self: GroupSession, document: Any, pieces: Any) -> Any:
        found = await right(self, document, pieces)
        if len(found) > 2:
            found[1] = None  # a task that is never started
        self._given = (document, covered(document.ranges, found))
        return found

    return instead(GroupSession, "left_to_read", left_to_read)


def any_offset() -> Any:
    """A finished batch is committed wherever the group stands."""

    def due(ranges: Any, *, owned: Any, committed: Any) -> Any:
        return {one.at: one.until for one in ranges if one.at in owned}

    return instead(session, "due", due)


def what_is_not_owned() -> Any:
    """A finished batch is committed whole, whoever owns its partitions by then."""
    right = session.due

    def due(ranges: Any, *, owned: Any, committed: Any) -> Any:
        return right(ranges, owned={one.at for one in ranges}, committed=committed)

    return instead(session, "due", due)


def what_is_owned_again() -> Any:
    """A replay gives what is owned, though a replay before may have left it out and filled the sink."""
    right = session.replayed

    def replayed(pieces: Any, *, owned: Any, mine: Any, **rest: Any) -> Any:
        return right(pieces, owned=owned, mine=owned, **rest)

    return instead(session, "replayed", replayed)


def what_is_nobody_s() -> Any:
    """A static member that is back takes what it is given, and asks for nothing that is nobody's."""

    def content(self: machine.Member, now_ms: int) -> None:
        self._returned = False

    looks = tuple(content if one is machine.Member._describe_group else one for one in machine.LOOKS)
    return instead(machine, "LOOKS", looks)


def any_end() -> Any:
    """Whatever batch is said to have ended, the one under way is taken for finished."""

    def has_ended(self: GroupSession, plan: int) -> bool:
        return self._given is not None and self._settled != self._given[0].plan

    return instead(GroupSession, "has_ended", has_ended)


FAULTS: dict[str, Fault] = {
    one.__name__: one
    for one in (
        the_logged_batch,
        whoever_planned_it,
        a_part_for_the_whole,
        any_offset,
        what_is_not_owned,
        what_is_owned_again,
        what_is_nobody_s,
        any_end,
    )
}
