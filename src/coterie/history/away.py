"""Times in which nobody could write, as the logs of all groups together show, and what came of them.

One group that is silent may have nothing to read. Where several that committed regularly are silent at once,
no coordinator writes anything, and the very clients whose sessions then end are back in the generation that
is formed without them, the cluster was away: they had lived, and could not say so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from coterie.base.plain import moment_text
from coterie.history.activity import REGULAR_COMMITS
from coterie.history.causes import LIKELY
from coterie.history.departures import (
    HEARTBEAT_MS,
    LEFT,
    POLL_EXCEEDED,
    SESSION_EXPIRED,
    SESSION_MS,
)
from coterie.history.log.segments import GroupLog
from coterie.history.ownership import NO_PROGRESS, SILENT_TIMES, STALL_LEAST_MS
from coterie.history.tables import Assignment, Generation, History, Ownership, Stall

CLUSTER_AWAY = "cluster-away"
GOING = frozenset({LEFT, SESSION_EXPIRED, POLL_EXCEEDED})
GROUPS_LEAST = 2
"""Of fewer groups that fall silent at once nothing is said: they may have nothing to read."""
BACK_WITHIN_MS = 60_000
"""So soon after the end of it those groups commit again, whatever their members had to do before."""
JOINS_WITHIN_MS = 30_000
"""So long after the end of their sessions the others form a generation without those that are gone."""
ABOUT_MEMBERS = ("session time-out", "longer than a session")
"""What is in the evidence of how members were gone, which is another now."""


class Away(NamedTuple):
    """A time in which nobody could write: from the last record before it to the first after it."""

    from_ms: int
    to_ms: int

    def __str__(self) -> str:
        """Return the sentence that says so."""
        return f"nobody could write from {moment_text(self.from_ms)} to {moment_text(self.to_ms)}"


class Voice(NamedTuple):
    """A time in which a group committed, without a longer silence than its own usual one."""

    from_ms: int
    to_ms: int
    cadence_ms: float | None
    """None where too few commits tell."""


def aways_of(logs: Sequence[GroupLog], story_ms: Iterable[int] = ()) -> list[Away]:
    """Return the times in which nobody could write, in order. `logs` are those of all groups, `story_ms` are
    those at which their coordinators told of them.
    """
    voices = [[*voices_of(one)] for one in logs]
    written = sorted(
        [*(one[:2] for mine in voices for one in mine)]
        + [(entry.at_ms, entry.at_ms) for one in logs for entry in one.entries]
        + [(at_ms, at_ms) for at_ms in story_ms]
    )
    found, until_ms = list[Away](), written[0][0] if written else 0
    for from_ms, to_ms in written:
        if from_ms - until_ms >= STALL_LEAST_MS:
            away = Away(until_ms, from_ms)
            if sum(fell_silent(mine, away) for mine in voices) >= GROUPS_LEAST:
                found.append(away)
        until_ms = max(until_ms, to_ms)
    return found


def voices_of(log: GroupLog) -> Iterator[Voice]:
    """Yield the times in which a group committed: a run each, or two where it was silent for long."""
    for run in log.runs:
        silent_ms = run.silent_to_ms - run.silent_from_ms
        regular = run.count >= REGULAR_COMMITS
        cadence_ms = (run.last_ms - run.first_ms - silent_ms) / (run.count - 2) if regular else None
        if silent_ms >= STALL_LEAST_MS:
            yield Voice(run.first_ms, run.silent_from_ms, cadence_ms)
            yield Voice(run.silent_to_ms, run.last_ms, cadence_ms)
        else:
            yield Voice(run.first_ms, run.last_ms, cadence_ms)


def fell_silent(voices: Sequence[Voice], away: Away) -> bool:
    """Return whether a group committed regularly until then, far more often, and does again."""
    length_ms = away.to_ms - away.from_ms
    regular = any(
        one.cadence_ms is not None
        and SILENT_TIMES * one.cadence_ms <= length_ms
        and away.from_ms - one.to_ms <= 2 * one.cadence_ms <= one.to_ms - one.from_ms
        for one in voices
        if one.to_ms <= away.from_ms
    )
    return regular and any(away.to_ms <= one.from_ms <= away.to_ms + BACK_WITHIN_MS for one in voices)


def with_aways(history: History, aways: Sequence[Away]) -> History:
    """Return the history in which nobody has died or left of whom a session ended only as nobody could write:
    what such a one had stood still from the beginning of that time.
    """
    if not aways:
        return history
    members = {one.member_id: one for one in history.assignments}
    found = {
        (one.generation, one.formed_at): away
        for one in history.generations
        if (away := away_before(one, aways, members)) is not None
    }
    if not found:
        return history
    stalls = list(history.stalls)
    for one in history.generations:
        away = found.get((one.generation, one.formed_at))
        if away is not None:
            stalls = stood_still(history, stalls, one, away)
    return history._replace(
        generations=tuple(
            one if (away := found.get((one.generation, one.formed_at))) is None else come_of(one, away)
            for one in history.generations
        ),
        stalls=tuple(sorted(stalls, key=lambda one: (one.topic, one.partition, one.from_ms, one.kind))),
        waves=tuple(
            wave
            for wave in history.waves
            if not any(wave.from_ms <= formed_at <= wave.to_ms for _, formed_at in found)
        ),
    )


def away_before(one: Generation, aways: Sequence[Away], members: Mapping[str, Assignment]) -> Away | None:
    """Return the time for which members are gone with a generation; None where they had gone by themselves.

    They are gone too late for a session that began with the last thing heard of them, and all are back.
    """
    place = bisect_left(aways, one.formed_at + 1, key=lambda away: away.to_ms) - 1
    if place < 0 or not one.left or GOING.isdisjoint(one.causes):
        return None
    away = aways[place]
    known = [members[who] for who in one.left if who in members]
    session_ms = max((each.session_timeout_ms for each in known), default=-1)
    session_ms = session_ms if session_ms > 0 else SESSION_MS
    due_ms = away.from_ms + session_ms + HEARTBEAT_MS
    if not due_ms < one.formed_at <= away.to_ms + session_ms + JOINS_WITHIN_MS:
        return None
    gone, back = (
        Counter((each.client_id, each.instance_id) for who in ids if (each := members.get(who)) is not None)
        for ids in (one.left, one.joined)
    )
    return away if gone.total() == len(one.left) and gone <= back else None


def come_of(one: Generation, away: Away) -> Generation:
    """Return the row of a generation that came of such a time."""
    kept = [cause for cause in one.causes if cause not in GOING]
    others = [words for words in one.evidence if not any(part in words for part in ABOUT_MEMBERS)]
    words = f"{away}: the members' sessions ended while the cluster was away"
    return one._replace(
        causes=(CLUSTER_AWAY, *kept),
        confidence=LIKELY,
        evidence=(words, *others),
    )


def stood_still(history: History, stalls: Sequence[Stall], one: Generation, away: Away) -> list[Stall]:
    """Return the stand-stills of a group, with what those that are gone had counted from the beginning."""
    found = list(stalls)
    for owned in history.ownership:
        if owned.to_ms is None or owned.member_id not in one.left:
            continue
        if not away.from_ms <= owned.to_ms <= one.formed_at or owned.from_ms >= away.to_ms:
            continue
        from_ms = max(away.from_ms, owned.from_ms)
        if from_ms < owned.to_ms:
            found = [each for each in found if not is_within(each, owned, from_ms, owned.to_ms)]
            what = owned.topic, owned.partition, NO_PROGRESS, from_ms, owned.to_ms
            found.append(Stall(one.group_id, *what, owned.generation, owned.member_id))
    return found


def is_within(stall: Stall, owned: Ownership, from_ms: int, to_ms: int) -> bool:
    """Return whether it is a time without progress of what somebody owned, and lies in this time."""
    mine = (stall.topic, stall.partition) == (owned.topic, owned.partition)
    return mine and stall.kind == NO_PROGRESS and stall.from_ms < to_ms and stall.to_ms > from_ms
