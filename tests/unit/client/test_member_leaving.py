"""Leaving: who says a word, and which (behaviours 4.9)."""

from __future__ import annotations

import pytest
from member_rig import BEAT_MS, ME, T0, T1, a_member, a_stable_member

from coterie.base.codes import Code
from coterie.client.member import (
    NO_GENERATION,
    Call,
    Commit,
    Disconnect,
    FindCoordinator,
    Heartbeat,
    Join,
    Leave,
    Phase,
    Wait,
)


def close(rig, leave=None):
    """Close, and return what the coordinator hears."""
    rig.member.close(leave=leave, timeout_ms=1_000, now_ms=rig.now_ms)
    rig.idle()
    assert rig.member.phase is Phase.STOPPED
    return [one for one in rig.log if isinstance(one, Leave)]


LEFT = [Leave(ME, "the consumer is being closed")]


@pytest.mark.parametrize(
    ("instance_id", "leave", "said"),
    [
        (None, None, LEFT),
        ("i", None, []),
        (None, False, []),
        ("i", True, LEFT),
        (None, True, LEFT),
        ("i", False, []),
    ],
)
def test_a_dynamic_member_leaves_a_static_one_stays_unless_told_otherwise(instance_id, leave, said):
    """CV-1, CV-2, CV-5, CV-6: member id and reason; the default is in the first two lines."""
    rig = a_stable_member(instance_id=instance_id)

    assert close(rig, leave) == said
    assert rig.member.generation == NO_GENERATION


def test_closing_commits_then_calls_then_leaves():
    """CV-4, CB-15."""
    rig = a_stable_member(auto_commit=True)

    close(rig)

    kinds = [type(one) for one in rig.log if isinstance(one, Commit | Call | Leave)]
    assert kinds == [Commit, Call, Leave]


def test_who_is_not_in_a_group_has_nothing_to_leave():
    """CV-1: UNJOINED, no member id, or no coordinator."""
    fresh = a_member()
    joining = a_member()
    joining.expect(Join)
    reset = a_stable_member().at(BEAT_MS)
    reset.member.heartbeat_answered(reset.expect(Heartbeat), Code.ILLEGAL_GENERATION, reset.now_ms)
    lost = a_stable_member().at(BEAT_MS)
    lost.member.heartbeat_answered(lost.expect(Heartbeat), Code.NOT_COORDINATOR, lost.now_ms)
    lost.expect(FindCoordinator)

    for rig in (fresh, joining, reset, lost):
        assert close(rig) == []


def test_an_id_that_was_promised_is_given_back():
    """CV-3: after MEMBER_ID_REQUIRED."""
    rig = a_member()
    rig.let_in(rig.expect(Join), code=Code.MEMBER_ID_REQUIRED, member_id="m-9")

    assert close(rig) == [Leave("m-9", "the consumer is being closed")]


def test_whoever_leaves_while_a_join_is_parked_hangs_up_on_it():
    """Nobody waits for its answer: it would come when all the others have joined."""
    rig = a_stable_member(cooperative=True).recall()
    parked = rig.expect(Join)

    assert close(rig) == LEFT
    assert Disconnect() in rig.log
    rig.member.unanswered(parked, rig.now_ms)
    assert rig.idle() == Wait(None)


def test_a_leave_that_is_not_answered_is_not_repeated():
    rig = a_stable_member()
    rig.member.close(leave=None, timeout_ms=1_000, now_ms=0)

    rig.member.unanswered(rig.expect(Leave), 0)
    rig.idle()

    assert (rig.member.phase, len([one for one in rig.log if isinstance(one, Leave)])) == (Phase.STOPPED, 1)


def test_unsubscribing_leaves_and_joins_nothing_until_something_is_subscribed():
    """CV-1, CV-6, CB-15."""
    rig = a_stable_member()
    rig.member.unsubscribe()

    rig.idle()
    assert Leave(ME, "the consumer unsubscribed from all topics") in rig.log
    assert rig.calls == [("revoked", (T0, T1))]
    assert rig.at(500_000).idle() == Wait(None)

    rig.member.subscribe(["u"], rig.now_ms)
    rig.member.called(rig.now_ms)
    join = rig.expect(Join)
    assert (join.generation, join.reason) == (NO_GENERATION, "consumer pro-actively leaving the group")


def test_a_static_member_unsubscribes_without_a_word():
    """CV-2."""
    rig = a_stable_member(T0, instance_id="i")
    rig.member.unsubscribe()

    rig.idle()

    assert not any(isinstance(one, Leave) for one in rig.log)
    assert rig.calls == [("revoked", (T0,))]


def test_closing_does_not_wait_for_the_batch_under_way():
    rig = a_stable_member()
    rig.member.hold()

    assert close(rig) == LEFT
