"""Deadlines (2.7)."""

from __future__ import annotations

import pytest
from group_rig import (
    REBALANCE_MS,
    SESSION_MS,
    Rig,
    a_completing_group,
    a_preparing_group,
    a_stable_group,
    session_of,
)

from coterie.base.codes import Code
from coterie.coordinator.group.commands import Expire
from coterie.coordinator.group.facts import GroupDied
from coterie.coordinator.group.model import State

LONG = 1_800_000


@pytest.mark.row("EX-1")
@pytest.mark.parametrize("build", [a_completing_group, a_stable_group])
def test_a_silent_member_is_removed_and_the_others_rebalance(build):
    rig = Rig()
    ids = build(rig)
    rig.run_ms(SESSION_MS - 1)
    rig.beat(ids["a"])

    rig.run_ms(1)

    assert rig.whys[-1] == "session-expired"
    assert list(rig.group.members) == [ids["a"]]
    assert rig.group.state is State.PREPARING


@pytest.mark.row("EX-1", "RB-8")
def test_the_last_silent_member_leaves_an_empty_group():
    rig = Rig()
    a_stable_group(rig, "a")

    rig.run_ms(SESSION_MS)

    assert rig.group.state is State.EMPTY
    assert rig.group.generation == 2


@pytest.mark.row("EX-1", "CG-4")
def test_a_member_that_waits_for_the_others_cannot_expire():
    """And its timer is not armed again by that."""
    rig = Rig()
    ids = a_stable_group(rig, "a", "b")
    rig.join("a", member_id=ids["a"])
    for _ in range(10):
        rig.run_ms(10_000)
        rig.beat(ids["b"])

    assert ids["a"] in rig.group.members
    assert session_of(rig, ids["a"]) is None


@pytest.mark.row("EX-2", "CG-4", "0.5-4", "2.7-2")
def test_a_parked_newcomer_expires_after_five_minutes():
    """It is told that it is nobody and expected to try again."""
    rig = Rig()
    ids = a_stable_group(rig, "a", session_timeout_ms=LONG, rebalance_timeout_ms=LONG)
    parked = rig.join("late", version=3, rebalance_timeout_ms=LONG)

    rig.run_ms(300_000)

    assert rig.whys[-1] == "join-expired"
    assert (rig.answer(parked).code, rig.answer(parked).member_id) == (Code.UNKNOWN_MEMBER_ID, "")
    assert list(rig.group.members) == [ids["a"]]


@pytest.mark.row("JG-23")
def test_once_a_generation_has_begun_the_session_timeout_holds():
    """JG-23, testNewMemberFailureAfterJoinGroupCompletion"""
    rig = Rig()
    ids = a_completing_group(rig, "a", "b", session_timeout_ms=6_000)
    rig.sync(ids["a"])

    rig.run_ms(6_000)

    assert rig.group.members == {}


@pytest.mark.row("2.7-1")
def test_a_promise_expires_after_the_session_timeout_of_its_request():
    """2.7: the id is dropped; a stable group does not rebalance for that."""
    rig = Rig()
    a_stable_group(rig, session_timeout_ms=LONG)
    promised = rig.answer(rig.join("p", session_timeout_ms=8_000)).member_id

    rig.run_ms(7_999)
    assert promised in rig.group.pending
    rig.run_ms(1)

    assert rig.whys[-1] == "promise-expired"
    assert promised not in rig.group.pending
    assert rig.group.state is State.STABLE


def test_a_promise_that_expires_ends_the_join_phase_it_held_open():
    """2.7"""
    rig = Rig()
    ids = a_stable_group(rig, "a")
    rig.join("p", session_timeout_ms=8_000)
    asked = rig.join("a", member_id=ids["a"])

    rig.run_ms(8_000)

    assert rig.answer(asked).generation == 2


def test_a_promise_expires_in_an_empty_group_too():
    """2.7"""
    rig = Rig()
    rig.join("p")

    rig.run_ms(SESSION_MS)

    assert rig.whys[-1] == "promise-expired"
    assert rig.group.pending == {}
    assert rig.group.state is State.EMPTY


@pytest.mark.row("EX-3", "2.7-6")
def test_who_never_syncs_is_removed():
    """Followers, and parked ones are sent back."""
    rig = Rig()
    ids = a_completing_group(rig, "a", "b", "c", session_timeout_ms=LONG)
    parked = rig.sync(ids["b"])

    rig.run_ms(REBALANCE_MS)

    assert rig.whys[-1] == "sync-timeout"
    assert list(rig.group.members) == [ids["b"]]
    assert rig.answer(parked).code is Code.REBALANCE_IN_PROGRESS
    assert session_of(rig, ids["c"]) is None
    assert rig.group.leader == ids["b"]


@pytest.mark.row("EX-4")
def test_a_follower_that_never_syncs_is_removed_from_a_stable_group():
    rig = Rig()
    ids = a_completing_group(rig, session_timeout_ms=LONG)
    rig.sync(ids["a"])
    assert rig.group.state is State.STABLE

    rig.run_ms(REBALANCE_MS)

    assert rig.whys[-1] == "sync-timeout"
    assert list(rig.group.members) == [ids["a"]]
    assert rig.group.state is State.PREPARING


@pytest.mark.row("EX-6")
def test_heartbeats_do_not_save_who_never_syncs():
    rig = Rig()
    ids = a_completing_group(rig)
    rig.sync(ids["a"])
    for _ in range(REBALANCE_MS // 10_000 - 1):
        rig.run_ms(10_000)
        assert rig.beat(ids["a"]) is rig.beat(ids["b"]) is Code.NONE

    rig.run_ms(10_000)

    assert rig.whys[-1] == "sync-timeout"
    assert list(rig.group.members) == [ids["a"]]


@pytest.mark.row("SG-15")
def test_nothing_expires_when_everybody_synced():
    """EX-3, testRebalanceDoesNotTimeOutWhenAllSyncAreReceived"""
    rig = Rig()
    a_stable_group(rig, session_timeout_ms=LONG)

    rig.run_ms(2 * REBALANCE_MS)

    assert rig.group.state is State.STABLE
    assert rig.whys[-1] == "assignment-stored"


@pytest.mark.row("EX-3", "EX-7")
def test_the_sync_deadline_of_another_generation_means_nothing():
    rig = Rig()
    ids = a_completing_group(rig, session_timeout_ms=LONG)
    rig.run_ms(1_000)
    rig.join("a", member_id=ids["a"], protocols=(("range", b""),), session_timeout_ms=LONG)
    rig.join("b", member_id=ids["b"], session_timeout_ms=LONG)
    assert rig.group.generation == 2
    rig.run_ms(REBALANCE_MS - 1_000)

    asked = rig.ask(Expire(key=("sync", "g")))

    assert asked.why == "deadline-passed-over"
    assert len(rig.group.members) == 2


@pytest.mark.row("EX-5", "EX-7")
@pytest.mark.parametrize("key", [("session", "g", "x"), ("join", "g"), ("sync", "g")])
def test_a_deadline_that_outlived_its_cause_is_passed_over(key: tuple[str, ...]):
    """Without a group, and in every state."""
    rig = Rig()
    assert rig.ask(Expire(key=key)).why == "no-such-group"
    for build in (lambda r: r.commit(), a_preparing_group, a_completing_group, a_stable_group):
        rig = Rig()
        build(rig)
        asked = rig.ask(Expire(key=key))
        assert asked.why == "deadline-passed-over"
        assert asked.decision.facts == ()
    rig.shard.apply(GroupDied("g", 0))
    assert rig.ask(Expire(key=key)).why == "deadline-passed-over"


@pytest.mark.row("2.7-3", "RB-9")
def test_deadlines_that_come_due_together_do_not_undo_each_other():
    """The join phase ends first and gives the member a new session; that moves its deadline."""
    rig = Rig()
    ids = a_stable_group(rig, "a", "b", session_timeout_ms=60_000, rebalance_timeout_ms=60_000)
    start = rig.now_ms
    asked = rig.join("a", member_id=ids["a"], session_timeout_ms=60_000, rebalance_timeout_ms=60_000)
    assert session_of(rig, ids["b"]) == rig.deadlines.at(("join", "g")) == start + 60_000

    rig.run_to(start + 60_000)

    assert rig.answer(asked).generation == 2
    assert list(rig.group.members) == [ids["a"]]
