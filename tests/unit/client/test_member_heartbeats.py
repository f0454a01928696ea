"""Heartbeats, and what a silent application or coordinator leads to (behaviours 4.5)."""

from __future__ import annotations

import pytest
from member_rig import (
    BACKOFF_MS,
    BEAT_MS,
    ME,
    REBALANCE_MS,
    SESSION_MS,
    T0,
    T1,
    a_leader,
    a_member,
    a_stable_member,
    place,
    subscription,
)

from coterie.base.codes import Code
from coterie.client.member import (
    NO_GENERATION,
    Call,
    Disconnect,
    FindCoordinator,
    Generation,
    Heartbeat,
    Join,
    Leave,
    Phase,
    RefreshMetadata,
    Sync,
    Wait,
)
from coterie.client.member.backoff import Backoff


def beats(rig, *, until_ms, step_ms=500, code=Code.NONE):
    """Let time pass; return when heartbeats went out."""
    found = []
    while rig.now_ms < until_ms:
        rig.at(rig.now_ms + step_ms)
        while not isinstance(request := rig.next(), Wait):
            if isinstance(request, Heartbeat):
                found.append(rig.now_ms)
                rig.member.heartbeat_answered(request, code, rig.now_ms)
            elif not isinstance(request, Call):
                rig.serve(request)
    return found


def test_heartbeats_go_out_on_their_own_schedule():
    """HT-3: the sending re-arms them."""
    rig = a_stable_member().at(BEAT_MS)

    beat = rig.next()
    assert beat == Heartbeat(place())
    rig.at(BEAT_MS + 3).serve(beat)

    assert rig.next() == Wait(2 * BEAT_MS)


def test_a_heartbeat_that_is_not_answered_yet_is_not_repeated():
    rig = a_stable_member().at(BEAT_MS)
    rig.expect(Heartbeat)

    assert isinstance(rig.at(2 * BEAT_MS).next(), Wait)


def test_heartbeats_go_on_while_the_application_is_busy():
    """HT-1, HT-2: held by the application, or in a listener that takes its time."""
    held, calling = a_stable_member(), a_stable_member()
    held.member.hold()
    held.recall()
    calling.recall().expect(Call)

    for rig in (held, calling):
        assert len(beats(rig, until_ms=20_000, code=Code.REBALANCE_IN_PROGRESS)) == 9
        assert rig.member.owned == {T0, T1}


def test_a_leader_heartbeats_while_it_looks_for_topics_and_a_follower_while_it_waits():
    """HT-1: in COMPLETING_REBALANCE, too."""
    leader, follower = a_member(), a_member()
    for rig, leads in ((leader, True), (follower, False)):
        rig.let_in(rig.expect(Join), leads=leads)
    leader.expect(RefreshMetadata)
    follower.expect(Sync)

    assert beats(leader, until_ms=5_000) == beats(follower, until_ms=5_000) == [2000, 4000]


def test_nobody_heartbeats_while_joining():
    """HT-1: UNJOINED and PREPARING_REBALANCE are not in the group."""
    rig = a_stable_member().recall()
    rig.expect(Join)

    assert beats(rig, until_ms=10_000) == []


def test_an_answer_of_a_rebalance_counts_for_the_session():
    """HT-4."""
    rig = a_stable_member()
    rig.member.hold()

    beats(rig, until_ms=3 * SESSION_MS, code=Code.REBALANCE_IN_PROGRESS)

    assert Disconnect() not in rig.log


def test_silence_for_the_session_timeout_looks_for_the_coordinator_anew():
    """HT-2: after every heartbeat of a session went unanswered."""
    rig = a_stable_member().at(BEAT_MS)
    rig.expect(Heartbeat)

    rig.at(SESSION_MS)

    assert [rig.next(), rig.next()] == [Disconnect(), FindCoordinator()]
    assert rig.member.generation == place()


def test_a_heartbeat_without_an_answer_looks_for_the_coordinator_anew():
    rig = a_stable_member().at(BEAT_MS)
    beat = rig.expect(Heartbeat)

    rig.member.unanswered(beat, rig.now_ms)

    assert [rig.next(), rig.next()] == [Disconnect(), FindCoordinator()]
    assert rig.member.owned == {T0, T1}


def test_heartbeats_that_fail_are_repeated_with_growing_pauses():
    """HT-3, 4.5-6 and 4.5-7: heartbeat "other" and 30, which are not the member's end."""
    rig, sent = a_stable_member().at(BEAT_MS), []

    for code in (Code.UNKNOWN_SERVER_ERROR, Code.GROUP_AUTHORIZATION_FAILED, Code.UNKNOWN_SERVER_ERROR):
        beat = rig.expect(Heartbeat)
        sent.append(rig.now_ms)
        rig.member.heartbeat_answered(beat, code, rig.now_ms)
        rig.at(rig.next().until_ms)

    assert [later - sooner for sooner, later in zip(sent, [*sent[1:], rig.now_ms], strict=True)] == [
        BACKOFF_MS,
        2 * BACKOFF_MS,
        4 * BACKOFF_MS,
    ]


@pytest.mark.parametrize("code", [Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR])
def test_a_heartbeat_that_went_to_the_wrong_one_looks_for_the_coordinator_anew(code):
    """4.5-1: heartbeat 15 and 16; what is owned stays."""
    rig = a_stable_member()
    rig.at(BEAT_MS)
    rig.member.heartbeat_answered(rig.expect(Heartbeat), code, rig.now_ms)

    assert rig.next() == Disconnect()
    assert rig.next() == FindCoordinator()
    assert rig.member.owned == {T0, T1}


def test_a_rebalance_is_joined_when_the_member_is_stable():
    """4.5-2: heartbeat 27, "group is already rebalancing"."""
    rig = a_stable_member().recall()

    join = rig.expect(Join)

    assert (join.generation, join.reason) == (place(), "group is already rebalancing")


def test_a_rebalance_that_is_told_while_syncing_is_not_joined():
    """4.5-2: heartbeat 27, "other states: ignored"."""
    rig = a_member()
    rig.let_in(rig.expect(Join))
    sync = rig.expect(Sync)

    beats(rig, until_ms=BEAT_MS, code=Code.REBALANCE_IN_PROGRESS)
    rig.give(sync)
    rig.idle()

    assert rig.member.ready


@pytest.mark.parametrize("code", [Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID, Code.ILLEGAL_GENERATION])
def test_a_member_that_lost_its_place_while_its_sync_was_parked_waits_for_no_answer_to_it(code):
    """LG-9: a coordinator never answers the sync of a member that it removed."""
    rig = a_member()
    rig.let_in(rig.expect(Join))
    sync = rig.expect(Sync)
    beat = rig.at(BEAT_MS).expect(Heartbeat)

    rig.member.heartbeat_answered(beat, code, rig.now_ms)

    assert isinstance(rig.next(), Disconnect)
    rig.member.unanswered(sync, rig.now_ms)
    if code is not Code.FENCED_INSTANCE_ID:
        assert rig.at(BEAT_MS + BACKOFF_MS).expect(Join)


@pytest.mark.parametrize(
    ("code", "keeps", "lost"),
    [
        (Code.ILLEGAL_GENERATION, Generation(-1, ME), (T0, T1)),
        (Code.UNKNOWN_MEMBER_ID, NO_GENERATION, (T0, T1)),
    ],
)
def test_a_place_that_is_gone_is_lost_with_all_that_was_owned(code, keeps, lost):
    """4.5-3, 4.5-4: heartbeat 22 and 25, CB-2; nothing of it is handed out from that moment on."""
    rig = a_stable_member().at(BEAT_MS)

    rig.member.heartbeat_answered(rig.expect(Heartbeat), code, rig.now_ms)

    assert rig.member.fetchable == frozenset()
    join = rig.expect(Join)
    assert rig.calls == [("lost", lost)]
    assert (join.generation, join.reason) == (keeps, f"encountered {code.name} from HEARTBEAT response")
    assert subscription(join).generation == -1


@pytest.mark.parametrize("code", [Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID])
def test_an_answer_to_a_generation_that_has_passed_is_ignored(code):
    """4.5-3 to 4.5-5: heartbeat 22, 25 and 82, "changed: ignored"."""
    rig = a_stable_member(instance_id="i").at(BEAT_MS)
    late = rig.expect(Heartbeat)
    rig.member.enforce_rebalance(None, rig.now_ms)
    rig.join(T0)

    rig.member.heartbeat_answered(late, code, rig.now_ms)

    assert rig.member.ready
    assert rig.member.owned == {T0}


def test_a_fenced_static_member_learns_it_from_its_heartbeat():
    """4.5-5: heartbeat 82, every call raises it; what it owned is lost when it closes."""
    rig = a_stable_member(instance_id="i").at(BEAT_MS)

    rig.member.heartbeat_answered(rig.expect(Heartbeat), Code.FENCED_INSTANCE_ID, rig.now_ms)

    assert rig.idle() == Wait(None)
    assert rig.member.phase is Phase.FAILED
    assert "same group.instance.id" in str(rig.member.failure)
    rig.member.close(leave=None, timeout_ms=1000, now_ms=rig.now_ms)
    rig.idle()
    assert rig.calls == [("lost", (T0, T1))]


# max.poll.interval.ms


def called_until(rig, ms):
    """Heartbeats are answered, and nobody calls."""
    beats(rig, until_ms=ms)
    return rig


def test_a_member_that_nobody_calls_leaves_and_comes_back_with_the_next_call():
    """HT-2, CP-3, CV-1: its partitions are lost when the application is back, and not before."""
    rig = called_until(a_stable_member(), REBALANCE_MS)

    assert Leave(ME, "consumer poll timeout has expired.") in rig.log
    assert (rig.member.phase, rig.member.fetchable, rig.calls) == (Phase.ASLEEP, frozenset(), [])
    assert rig.at(90_000).next() == Wait(None)

    rig.member.called(90_000)
    join = rig.expect(Join)
    assert rig.calls == [("lost", (T0, T1))]
    assert (join.generation, join.reason) == (NO_GENERATION, "consumer pro-actively leaving the group")


def test_a_call_puts_the_poll_timeout_off():
    """CP-3."""
    rig = called_until(a_stable_member(), REBALANCE_MS - 1000)

    rig.member.called(rig.now_ms)
    called_until(rig, 2 * REBALANCE_MS - 2000)

    assert rig.member.ready


def test_a_static_member_that_nobody_calls_goes_without_a_word():
    """HT-5, CV-2."""
    rig = called_until(a_stable_member(instance_id="i"), REBALANCE_MS)

    assert not any(isinstance(one, Leave) for one in rig.log)
    assert rig.member.generation == NO_GENERATION
    rig.member.called(rig.now_ms)
    assert rig.expect(Join).member_id == ""


def test_a_member_whose_application_never_calls_does_not_join_for_ever():
    """A join is no sign of life of the application."""
    rig = a_member()
    lookup = rig.expect(FindCoordinator)
    rig.member.unanswered(lookup, 0)

    rig.at(REBALANCE_MS)

    assert rig.next() == Wait(None)
    assert rig.member.phase is Phase.ASLEEP


def test_a_listener_that_never_returns_does_not_keep_a_dead_application_in_its_group():
    """HT-2: the heartbeats would, so the poll timeout must not wait for the agenda."""
    rig = a_stable_member().recall()
    rig.expect(Call)

    beats(rig, until_ms=REBALANCE_MS, code=Code.REBALANCE_IN_PROGRESS)

    assert rig.member.phase is Phase.ASLEEP
    assert Leave(ME, "consumer poll timeout has expired.") in rig.log


def test_the_wait_ends_with_whatever_comes_first():
    """CP-11: the next heartbeat, or the next automatic commit."""
    rig = a_stable_member(auto_commit=True, auto_commit_interval_ms=500)

    assert rig.next() == Wait(500)
    assert a_leader().next() == Wait(BEAT_MS)


@pytest.mark.parametrize(
    "settings",
    [{"heartbeat_interval_ms": 0}, {"metadata_max_age_ms": 0}, {"auto_commit_interval_ms": 0}],
    ids=lambda one: next(iter(one)),
)
def test_a_member_that_is_set_to_no_time_at_all_asks_no_faster_than_anybody_needs(settings):
    rig = a_stable_member(auto_commit=True, **settings)

    for now_ms in range(0, 1_000, 5):
        rig.at(now_ms).idle()

    assert len([one for one in rig.log if not isinstance(one, Wait)]) <= 12


def test_pauses_of_no_time_at_all_grow_too():
    backoff = Backoff(0, 0)

    assert sum(backoff.next_ms() for _ in range(20)) > 1_000
