"""SyncGroup and Heartbeat (1.4, 1.5, 1.6.1)."""

from __future__ import annotations

import pytest
from group_rig import (
    SESSION_MS,
    Rig,
    a_completing_group,
    a_preparing_group,
    a_stable_group,
    session_of,
)

from coterie.base.codes import Code
from coterie.coordinator.group.facts import (
    Assigned,
    GroupDied,
    GroupStabilized,
    GroupStored,
    MemberSynced,
)
from coterie.coordinator.group.model import State
from coterie.wire.payloads.consumer_offsets import read_group_value


def a_group_in(state: State, rig: Rig) -> dict[str, str]:
    """A group of a dynamic a and a static s in that state, by name; i-s was of another id before."""
    if state is State.PREPARING:
        ids = a_stable_group(rig, "a", "s", static=("s",))
        rig.join("late", version=3)
        return ids
    build = a_completing_group if state is State.COMPLETING else a_stable_group
    return build(rig, "a", "s", static=("s",))


row = pytest.mark.row
WORKING = (State.PREPARING, State.COMPLETING, State.STABLE)
UNKNOWN, FENCED = Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID
STALE, OTHER = Code.ILLEGAL_GENERATION, Code.INCONSISTENT_GROUP_PROTOCOL


# -- SyncGroup: refusals


@pytest.mark.row("SG-4")
def test_a_sync_to_nobody_is_unknown():
    """No group, and an Empty one."""
    rig = Rig()
    nowhere = rig.sync("x")
    rig.commit()
    empty = rig.sync("x")

    assert (nowhere.why, empty.why) == ("no-such-group", "group-empty")
    assert rig.answer(nowhere).code is rig.answer(empty).code is Code.UNKNOWN_MEMBER_ID


@pytest.mark.row("SG-5")
def test_a_sync_to_a_dead_group_is_sent_elsewhere():
    rig = Rig()
    ids = a_stable_group(rig)
    rig.shard.apply(GroupDied("g", 0))

    asked = rig.sync(ids["a"])

    assert asked.why == "group-dead"
    assert rig.answer(asked).code is Code.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize(
    ("who", "terms", "code", "why"),
    [
        pytest.param("x", {}, UNKNOWN, "unknown-member", marks=row("SG-6")),
        pytest.param("a", {"instance_id": "i-none"}, UNKNOWN, "unknown-instance", marks=row("SG-6")),
        pytest.param("a", {"instance_id": "i-s"}, FENCED, "fenced-instance", marks=row("SG-6")),
        pytest.param("x", {"instance_id": "i-s"}, FENCED, "fenced-instance", marks=row("SG-6")),
        pytest.param("", {"instance_id": "i-s"}, FENCED, "fenced-instance", marks=row("SG-6")),
        pytest.param("a", {"generation": 2}, STALE, "stale-generation", marks=row("SG-7")),
        pytest.param("a", {"generation": 0}, STALE, "stale-generation", marks=row("SG-7")),
        pytest.param("a", {"protocol_type": "connect"}, OTHER, "inconsistent-protocol", marks=row("SG-8")),
        pytest.param("a", {"protocol_name": "sticky"}, OTHER, "inconsistent-protocol", marks=row("SG-8")),
    ],
)
def test_a_sync_is_checked_before_the_state_is_looked_at(state, who, terms, code, why):
    rig = Rig()
    ids = a_group_in(state, rig)

    asked = rig.sync(ids.get(who, who), **terms)

    assert asked.why == why
    assert rig.answer(asked).code is code
    assert rig.answer(asked).assignment == b""
    assert (rig.answer(asked).protocol_type, rig.answer(asked).protocol_name) == (None, None)


@pytest.mark.row("SG-6", "HB-5")
@pytest.mark.parametrize("state", WORKING)
def test_a_promised_id_cannot_sync_or_beat(state: State):
    rig = Rig()
    a_group_in(state, rig)
    promised = rig.answer(rig.join("p")).member_id

    assert rig.sync(promised).why == "unknown-member"
    assert rig.beat(promised) is Code.UNKNOWN_MEMBER_ID


@pytest.mark.row("SG-9")
def test_a_sync_in_a_rebalance_is_sent_back_to_join():
    rig = Rig()
    ids = a_group_in(State.PREPARING, rig)

    asked = rig.sync(ids["a"])

    assert asked.why == "rebalance-in-progress"
    assert rig.answer(asked).code is Code.REBALANCE_IN_PROGRESS


# -- SyncGroup: the generation


@pytest.mark.row("SG-10")
def test_followers_wait_for_the_leader():
    rig = Rig()
    ids = a_completing_group(rig)

    asked = rig.sync(ids["b"])

    assert asked.why == "follower-waits"
    assert asked.decision.waits
    assert rig.group.pending_sync == {ids["a"]}


@pytest.mark.row("SG-11", "SG-16", "RC-1", "RC-2", "2.1-4", "RC-3", "3.1-3", "3.2-3")
def test_the_leaders_sync_stores_the_assignment_and_answers_everybody():
    """The record has the time of entering CompletingRebalance."""
    rig = Rig()
    ids = a_completing_group(rig)
    completed_ms = rig.now_ms
    follower = rig.sync(ids["b"])
    rig.run_ms(700)

    leader = rig.sync(ids["a"], {ids["a"]: b"A", ids["b"]: b"B"})

    assert leader.why == "assignment-stored"
    assert [type(f) for f in leader.decision.facts] == [MemberSynced, Assigned, GroupStored, GroupStabilized]
    assert rig.group.state is State.STABLE
    for asked, assignment in ((leader, b"A"), (follower, b"B")):
        answer = rig.answer(asked)
        assert (answer.code, answer.assignment) == (Code.NONE, assignment)
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    value = read_group_value(rig.log[-1][1] or b"")
    assert value.current_state_timestamp == completed_ms
    assert [(m.member_id, m.assignment) for m in value.members] == [(ids["a"], b"A"), (ids["b"], b"B")]
    assert rig.group.since_ms == rig.now_ms


@pytest.mark.row("SG-11", "SG-17")
def test_answered_members_get_a_whole_session():
    """The arrival of a sync restarts nothing, its answer does."""
    rig = Rig()
    ids = a_completing_group(rig)
    started = rig.now_ms
    rig.run_ms(5_000)
    rig.sync(ids["b"])
    assert session_of(rig, ids["b"]) == started + SESSION_MS

    rig.run_ms(5_000)
    rig.sync(ids["a"])

    assert session_of(rig, ids["a"]) == session_of(rig, ids["b"]) == rig.now_ms + SESSION_MS


@pytest.mark.row("SG-17", "CG-4", "EX-1")
def test_a_parked_syncer_cannot_expire():
    """Nor is its timer armed again by that."""
    rig = Rig()
    ids = a_completing_group(rig, "a", "b")
    rig.sync(ids["b"])

    for _ in range(10):
        rig.run_ms(10_000)
        rig.beat(ids["a"])

    assert "session-satisfied" in rig.whys
    assert ids["b"] in rig.group.members
    assert session_of(rig, ids["b"]) is None


@pytest.mark.row("SG-11")
def test_who_is_forgotten_by_the_leader_gets_nothing_and_strangers_are_dropped():
    """SG-11, testSyncGroupEmptyAssignment"""
    rig = Rig()
    ids = a_completing_group(rig)
    follower = rig.sync(ids["b"])

    rig.sync(ids["a"], {ids["a"]: b"A", "stranger": b"S"})

    assert rig.answer(follower).assignment == b""
    assert rig.answer(follower).code is Code.NONE
    assert "stranger" not in rig.group.members


@pytest.mark.row("SG-14", "SG-15")
def test_a_sync_in_a_stable_group_is_told_what_is_stored():
    """A late follower, and a leader whose list counts no more; SG-15."""
    rig = Rig()
    ids = a_completing_group(rig)
    rig.sync(ids["a"], {ids["a"]: b"A", ids["b"]: b"B"})
    assert rig.group.pending_sync == {ids["b"]}
    assert rig.deadlines.at(("sync", "g")) is not None

    late = rig.sync(ids["b"])
    again = rig.sync(ids["a"], {ids["a"]: b"other"})

    assert late.why == again.why == "assignment-told"
    assert rig.answer(late).assignment == b"B"
    assert rig.answer(again).assignment == b"A"
    assert rig.group.pending_sync == set()
    assert rig.deadlines.at(("sync", "g")) is None
    assert rig.group.sync_due_ms is None


@pytest.mark.row("SG-15")
def test_the_last_sync_takes_the_deadline_off():
    rig = Rig()
    ids = a_completing_group(rig)

    rig.sync(ids["b"])
    assert rig.deadlines.at(("sync", "g")) is not None
    rig.sync(ids["a"])

    assert rig.deadlines.at(("sync", "g")) is None


@pytest.mark.row("SG-8")
def test_consistent_names_and_missing_names_pass():
    """Null on either side."""
    for terms in ({}, {"protocol_type": "consumer"}, {"protocol_type": "consumer", "protocol_name": "range"}):
        rig = Rig()
        ids = a_completing_group(rig, "a")
        assert rig.sync(ids["a"], **terms).why == "assignment-stored"


@pytest.mark.row("SG-10")
def test_a_second_sync_of_a_parked_member_takes_the_place_of_the_first():
    """SG-10; as JG-21."""
    rig = Rig()
    ids = a_completing_group(rig)
    first = rig.sync(ids["b"])

    second = rig.sync(ids["b"])
    rig.sync(ids["a"], {ids["b"]: b"B"})

    assert second.decision.dropped == (first.call,)
    assert rig.answer(second).assignment == b"B"
    assert rig.answer(first) is None


@pytest.mark.row("CG-10")
def test_a_member_with_rubbish_for_metadata_is_carried_along():
    """Design 5, CG-10: its bytes are neither refused nor altered, and nobody else notices."""
    for rubbish in (b"", b"\xff", b"\x00\x00\x7f\xff\xff\xff", b"\xff" * 40):
        rig = Rig()
        good = rig.join("a", version=3)
        bad = rig.join("b", version=3, protocols=(("range", rubbish),))
        rig.run_ms(6_000)
        assert [m[2] for m in rig.answer(good).members][1] == rubbish
        rig.sync(rig.answer(bad).member_id)

        rig.sync(rig.answer(good).member_id)

        assert rig.group.state is State.STABLE
        assert rig.group.topics() is None
        assert read_group_value(rig.log[-1][1] or b"").members[1].subscription == rubbish


# -- Heartbeat


@pytest.mark.row("HB-3", "HB-5")
def test_a_heartbeat_to_nobody_is_unknown():
    rig = Rig()
    assert rig.beat("x", 0) is Code.UNKNOWN_MEMBER_ID
    assert rig.whys[-1] == "no-such-group"

    rig.commit()

    assert rig.beat("x", 0) is Code.UNKNOWN_MEMBER_ID
    assert rig.whys[-1] == "unknown-member"


@pytest.mark.row("HB-4")
def test_a_heartbeat_to_a_dead_group_is_sent_elsewhere():
    rig = Rig()
    ids = a_stable_group(rig)
    rig.shard.apply(GroupDied("g", 0))

    assert rig.beat(ids["a"], 7) is Code.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize(
    ("who", "terms", "code"),
    [
        pytest.param("x", {}, UNKNOWN, marks=row("HB-5")),
        pytest.param("a", {"instance_id": "i-none"}, UNKNOWN, marks=row("HB-5")),
        pytest.param("a", {"instance_id": "i-s"}, FENCED, marks=row("HB-5")),
        pytest.param("a", {"generation": 2}, STALE, marks=row("HB-6")),
        pytest.param("s", {"instance_id": "i-s", "generation": 0}, STALE, marks=row("HB-6")),
    ],
)
def test_a_heartbeat_is_checked_before_the_state_is_looked_at(state, who, terms, code):
    rig = Rig()
    ids = a_group_in(state, rig)
    before = {member_id: session_of(rig, member_id) for member_id in ids.values()}
    rig.now_ms += 100

    assert rig.beat(ids.get(who, who), **terms) is code

    assert {member_id: session_of(rig, member_id) for member_id in ids.values()} == before


@pytest.mark.row("HB-6", "HB-8")
def test_a_member_of_the_passing_generation_is_called_to_the_rebalance():
    """And its session starts anew."""
    rig = Rig()
    ids = a_group_in(State.PREPARING, rig)
    rig.run_ms(1_000)

    assert rig.beat(ids["a"], 1) is Code.REBALANCE_IN_PROGRESS

    assert rig.whys[-1] == "recalled"
    assert session_of(rig, ids["a"]) == rig.now_ms + SESSION_MS


@pytest.mark.row("HB-9")
@pytest.mark.parametrize("build", [a_completing_group, a_stable_group])
def test_a_heartbeat_of_the_generation_keeps_the_session(build):
    rig = Rig()
    ids = build(rig)
    rig.run_ms(1_000)

    assert rig.beat(ids["b"]) is Code.NONE

    assert rig.whys[-1] == "heard"
    assert session_of(rig, ids["b"]) == rig.now_ms + SESSION_MS


@pytest.mark.row("HB-9", "2.7-3")
def test_heartbeats_maintain_a_session_for_as_long_as_they_come():
    """EX-1, testClassicGroupMemberHeartbeatMaintainsSession"""
    rig = Rig()
    ids = a_stable_group(rig, "a")

    for _ in range(20):
        rig.run_ms(SESSION_MS - 1)
        assert rig.beat(ids["a"]) is Code.NONE


@pytest.mark.row("HB-6")
def test_a_parked_member_may_be_told_the_generation_it_waits_for_is_not_there_yet():
    """HB-6 in the initial delay: the generation is 0."""
    rig = Rig()
    a_preparing_group(rig)
    member_id = rig.group.leader or ""

    assert rig.beat(member_id, 1) is Code.ILLEGAL_GENERATION
    assert rig.beat(member_id, 0) is Code.REBALANCE_IN_PROGRESS
