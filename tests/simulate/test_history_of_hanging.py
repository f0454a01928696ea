"""Members that hang together, told of the log of their group; and what it costs to tell of hundreds."""

from __future__ import annotations

from collections import Counter
from math import isfinite

import pytest

from coterie.client.member import MemberSettings
from coterie.history import departures
from coterie.history.activity import Presence
from coterie.history.departures import Leaver, Return, Scene, Window, verdicts
from coterie.simulate.scenario import Kind
from coterie.simulate.timetable import Act
from coterie.simulate.what_if.recorded import Life, ended_ms
from coterie.simulate.what_if.replay import Change
from simulate.lives_by_chance import lived

HUNG_AT_MS = 120_000
GONE = {"member-left", "session-expired", "poll-interval-exceeded"}


def hanging(members: int, hung: int, limit_ms: int, assignor: str, *, within_ms: int = 0) -> Life:
    """Return the life of a group of which some hang at once, as if at a dead database, until long after."""
    settings = MemberSettings(
        group_id="",
        session_timeout_ms=45_000,
        heartbeat_interval_ms=3_000,
        max_poll_interval_ms=limit_ms,
        assignors=(assignor,),
    )
    kind = Kind(count=1, static=False, batch_ms=20, settings=settings)
    acts = [Act(place * 100, "start", place + 1, 0) for place in range(members)]
    acts += [
        Act(HUNG_AT_MS + within_ms * place // hung, "stall", place + 1, limit_ms + 120_000)
        for place in range(hung)
    ]
    topics, until_ms = {"t": 12}, HUNG_AT_MS + limit_ms + 180_000
    nothing = ((), until_ms, {}, (), 0, 0, "", ended_ms(acts))
    return Life("g", (kind,) * members, tuple(acts), topics, ((0, topics),), *nothing)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize(
    ("members", "hung", "limit_ms", "within_ms"),
    [(4, 2, 60_000, 0), (6, 3, 300_000, 500), (10, 5, 300_000, 300)],
)
def test_members_that_hang_together_have_all_polled_too_late(assignor, members, hung, limit_ms, within_ms):
    said: Counter[str] = Counter()
    for seed in (1, 2, 3):
        life = hanging(members, hung, limit_ms, assignor, within_ms=within_ms)
        told = lived(life, Change(), seed=seed, commits_every_ms=1_000).told()
        said.update(cause for one in told.generations for cause in one.causes if cause in GONE)

    assert said.keys() == {"poll-interval-exceeded"}


def gone_together(count: int, returned: Return) -> list[Leaver]:
    """Return members that were all seen last five minutes before, within half a second."""
    names = [f"m{place}" for place in range(count)]
    seen = [Presence(9_700_000 - 7 * place % 500, 1_000.0, True) for place in range(count)]
    return [
        Leaver(name, name, False, 45_000, 300_000, presence, True, returned)
        for name, presence in zip(names, seen, strict=True)
    ]


def ended(joined_ms: float | None, *, eager: bool = True) -> Scene:
    at_ms = 10_000_000
    began = (
        Window(at_ms - 3_250, at_ms + 250)
        if joined_ms is None
        else Window(joined_ms - 3_250, joined_ms + 250)
    )
    return Scene(began, Window(at_ms - 250, at_ms + 250), 0.4, joined_ms, eager=eager)


@pytest.mark.parametrize("joined_ms", [None, 9_700_100.0])
@pytest.mark.parametrize("eager", [True, False])
def test_to_tell_of_hundreds_that_are_gone_takes_a_few_weighings_of_each(monkeypatch, joined_ms, eager):
    weighings = 0
    weighed = departures.weighed

    def counted(leaver, scene):
        nonlocal weighings
        weighings += 1
        return weighed(leaver, scene)

    monkeypatch.setattr(departures, "weighed", counted)
    for returned in Return:
        weighings = 0
        verdicts(gone_together(150, returned), ended(joined_ms, eager=eager))
        assert weighings <= 10 * 150, returned


def test_of_hundreds_that_are_gone_the_one_that_was_waited_for_is_still_found():
    """What is likely of each of them, multiplied, is less than a number can be."""
    leavers = [one._replace(rebalance_ms=900_000) for one in gone_together(300, Return.NEVER)]
    dead = leavers[150]._replace(session_ms=300_000, member_id="dead")
    told = verdicts([*leavers[:150], dead, *leavers[151:]], ended(9_700_100.0))

    assert {one.member_id for one in told if one.cause == "session-expired" and one.confidence > 0.9} == {
        "dead"
    }
    assert all(isfinite(one.confidence) for one in told)


def test_who_stopped_when_another_did_and_is_not_back_is_not_taken_to_have_left():
    """The others are cooperative, and do not show when the rebalance began."""
    for returned in (Return.LATER, Return.NEVER, Return.UNKNOWN, Return.WITH_THIS_GENERATION):
        for count in (2, 5, 50, 300):
            said = Counter(one.cause for one in verdicts(gone_together(count, returned), ended(None)))
            assert said == {"poll-interval-exceeded": count}, (returned, count)
