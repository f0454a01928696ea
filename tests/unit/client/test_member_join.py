"""From the first look for a coordinator to the first partition (behaviours 4.2 to 4.4)."""

from __future__ import annotations

import re

import pytest
from member_rig import (
    BACKOFF_MS,
    BEAT_MS,
    LEADER,
    ME,
    REBALANCE_MS,
    SESSION_MS,
    T0,
    T1,
    T2,
    U0,
    a_leader,
    a_member,
    a_stable_member,
    place,
    subscription,
)

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.client.member import (
    NO_GENERATION,
    Call,
    DescribeGroup,
    Disconnect,
    FindCoordinator,
    Generation,
    GroupDescription,
    Heartbeat,
    Join,
    Joined,
    Phase,
    RefreshMetadata,
    Sync,
    Synced,
    Wait,
)
from coterie.wire.payloads.consumer_protocol import Assignment

# Finding the coordinator


def test_a_member_finds_its_coordinator_before_it_joins():
    """CP-4, CL-1: one lookup at a time."""
    rig = a_member()

    lookup, look = rig.next(), rig.next()
    assert (lookup, look, rig.next()) == (
        FindCoordinator(),
        RefreshMetadata(frozenset("t")),
        Wait(REBALANCE_MS),
    )
    rig.serve(lookup)

    assert isinstance(rig.next(), Join)


def test_lookups_that_fail_are_tried_again_with_growing_pauses():
    """CL-4, CL-5: 100, 200, 400, 800, and never more than 1000 ms."""
    rig, pauses = a_member(), []

    for _ in range(6):
        rig.expect(FindCoordinator)
        rig.member.found(Code.COORDINATOR_NOT_AVAILABLE, rig.now_ms)
        wait = rig.idle()
        pauses.append(wait.until_ms - rig.now_ms)
        rig.at(wait.until_ms)

    assert pauses == [100, 200, 400, 800, 1000, 1000]


def test_a_lookup_without_an_answer_counts_as_one_that_failed():
    """CL-5."""
    rig = a_member()
    lookup = rig.expect(FindCoordinator)

    rig.member.unanswered(lookup, 0)

    assert rig.idle() == Wait(BACKOFF_MS)


@pytest.mark.parametrize("code", [Code.GROUP_AUTHORIZATION_FAILED, Code.INVALID_REQUEST])
def test_a_lookup_that_is_refused_for_good_ends_the_membership(code):
    """CL-4: raised to the poller by every call."""
    rig = a_member()
    rig.expect(FindCoordinator)

    rig.member.found(code, 0)

    assert rig.next() == Wait(None)
    assert rig.member.failure.code is code


def test_finding_the_coordinator_renews_the_session():
    """CL-3."""
    rig = a_stable_member().at(SESSION_MS)
    assert isinstance(rig.next(), Disconnect)
    rig.serve(rig.next())
    rig.idle()

    rig.at(2 * SESSION_MS - 1)

    assert Disconnect() not in [rig.next(), rig.next()]


@pytest.mark.parametrize("code", [Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_is_no_more_is_hung_up_on(code):
    """CL-6: whatever else waits there is not answered; its place the member keeps."""
    rig = a_stable_member().at(BEAT_MS)
    beat = rig.expect(Heartbeat)

    rig.member.heartbeat_answered(beat, code, rig.now_ms)

    assert [rig.next(), rig.next()] == [Disconnect(), FindCoordinator()]
    rig.member.found(Code.NONE, rig.now_ms)
    rig.at(rig.now_ms + BACKOFF_MS)
    assert rig.next() == Heartbeat(place())
    assert rig.member.owned == {T0, T1}


# Joining


def test_the_first_join_subscribes_with_every_assignor_and_no_member_id():
    """CJ-2, CA-7: protocols as configured; nothing owned, no generation, the rack; no reason yet (4.1)."""
    rig = a_member(("u", "t"), assignors=("roundrobin", "range"), rack="r1")

    join = rig.expect(Join)

    assert (join.member_id, join.reason) == ("", "")
    assert [name for name, _ in join.protocols] == ["roundrobin", "range"]
    for which in (0, 1):
        said = subscription(join, which)
        assert (said.topics, said.owned, said.generation, said.rack) == (("t", "u"), (), -1, "r1")


def test_nobody_is_called_before_the_first_join():
    """CB-2: nothing was owned, so nothing is lost."""
    rig = a_member()

    rig.expect(Join)

    assert rig.calls == []


def test_a_member_id_that_is_required_is_joined_with_at_once():
    """4.4-6, CJ-8: JoinGroup 79 (KIP-394): the id is kept, without a generation."""
    rig = a_member()
    join = rig.expect(Join)

    rig.let_in(join, code=Code.MEMBER_ID_REQUIRED, member_id="m-9")

    again = rig.next()
    assert again.generation == Generation(-1, "m-9")
    assert again.reason == "need to re-join with the given member-id: m-9"


def test_a_follower_syncs_with_nothing_and_gets_its_share():
    """CJ-4, CJ-5, CB-8."""
    rig = a_member()
    rig.let_in(rig.expect(Join))

    sync = rig.next()
    assert sync == Sync(place(), {})
    rig.give(sync, T1)
    rig.idle()

    assert (rig.member.phase, rig.member.owned) == (Phase.STABLE, {T1})
    assert rig.calls == [("assigned", (T1,))]
    assert rig.member.ready


def test_timers_begin_with_the_answer_to_the_join():
    """CJ-4: heartbeats are due an interval later, the session ends a session later."""
    rig = a_member()
    join = rig.expect(Join)

    rig.at(50_000).let_in(join)
    rig.expect(Sync)

    assert rig.next() == Wait(50_000 + BEAT_MS)


def test_a_join_whose_member_has_left_meanwhile_is_of_no_use():
    """CJ-4: "must still be PREPARING"."""
    rig = a_member()
    join = rig.expect(Join)
    rig.member.unsubscribe()
    rig.idle()

    rig.let_in(join)

    assert (rig.member.phase, rig.member.generation) == (Phase.UNJOINED, NO_GENERATION)
    assert isinstance(rig.idle(), Wait)


def test_a_subscription_that_changes_while_the_join_is_under_way_is_joined_with_again():
    """CP-8: "subscription has changed"."""
    rig = a_member()
    join = rig.expect(Join)
    rig.member.subscribe(["t", "u"], 0)
    rig.let_in(join)
    rig.give(rig.expect(Sync), T0)

    again = rig.expect(Join)

    assert again.reason == "subscription has changed"
    assert subscription(again).topics == ("t", "u")


def test_an_assignment_that_was_not_subscribed_is_not_applied():
    """CB-7."""
    rig = a_member()
    rig.let_in(rig.expect(Join))

    rig.give(rig.expect(Sync), T0, U0)

    assert rig.member.owned == frozenset()
    assert rig.expect(Join).reason == "received assignment does not match the current subscription"
    assert ("assigned", (T0, U0)) not in rig.calls


def test_an_assignment_of_no_bytes_is_told_and_means_nothing():
    """CB-6: Java's client raises it from every poll; here it is raised once, and the member goes on."""
    rig = a_member()
    rig.let_in(rig.expect(Join))
    sync = rig.expect(Sync)

    rig.member.synced(sync, Synced(Code.NONE, b""), 0)
    rig.idle()

    assert "gave no assignment" in str(rig.member.pending_error())
    assert (rig.member.pending_error(), rig.member.owned, rig.member.ready) == (None, frozenset(), True)


def test_an_assignment_that_cannot_be_read_is_told():
    """CB-6."""
    rig = a_member()
    rig.let_in(rig.expect(Join))

    rig.member.synced(rig.expect(Sync), Synced(Code.NONE, b"\x00\x00\x7f\xff\xff\xff"), 0)
    rig.idle()

    assert "array" in str(rig.member.pending_error())
    assert rig.member.ready


def test_a_generation_that_was_reset_while_the_sync_was_under_way_gives_nothing():
    """CJ-5: retried at once, as if the generation were illegal."""
    rig = a_member()
    rig.let_in(rig.expect(Join))
    sync = rig.expect(Sync)
    beat = rig.at(BEAT_MS).expect(Heartbeat)
    rig.member.heartbeat_answered(beat, Code.UNKNOWN_MEMBER_ID, rig.now_ms)

    rig.give(sync)

    assert rig.member.owned == frozenset()
    assert rig.expect(Join).member_id == ""


def test_a_generation_that_was_reset_before_the_application_took_its_share_is_joined_anew():
    """CJ-6: with a full reset, and nobody is called."""
    rig = a_member()
    rig.let_in(rig.expect(Join))
    sync = rig.expect(Sync)
    rig.member.hold()
    rig.give(sync)
    beat = rig.at(BEAT_MS).expect(Heartbeat)
    rig.member.heartbeat_answered(beat, Code.ILLEGAL_GENERATION, rig.now_ms)

    rig.member.release()

    join = rig.expect(Join)
    assert (join.generation, rig.calls) == (NO_GENERATION, [])


@pytest.mark.parametrize(
    "wrong", [{"protocol_type": "connect"}, {"protocol": "sticky"}], ids=["its type", "its name"]
)
@pytest.mark.parametrize("at", ["join", "sync"])
def test_an_answer_of_another_protocol_ends_the_membership(wrong, at):
    """4.4-14, "type mismatch": E23."""
    rig = a_member()
    join = rig.expect(Join)
    if at == "join":
        rig.let_in(join, **wrong)
    else:
        rig.let_in(join)
        sync = rig.expect(Sync)
        rig.member.synced(sync, Synced(Code.NONE, Assignment((T0,)).encode(), **wrong), 0)

    assert rig.member.failure.code is Code.INCONSISTENT_GROUP_PROTOCOL


# What the coordinator refuses: the table of 4.4


def a_join_refused(code):
    rig = a_stable_member().recall()
    join = rig.expect(Join)
    rig.let_in(join, code=code, generation=-1, member_id=ME, protocol="")
    return rig


def a_sync_refused(code):
    rig = a_stable_member().recall()
    rig.let_in(rig.expect(Join))
    rig.member.synced(rig.expect(Sync), Synced(code), rig.now_ms)
    return rig


@pytest.mark.parametrize(
    "code",
    [
        Code.GROUP_MAX_SIZE_REACHED,
        Code.FENCED_INSTANCE_ID,
        Code.INCONSISTENT_GROUP_PROTOCOL,
        Code.INVALID_GROUP_ID,
        Code.INVALID_SESSION_TIMEOUT,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.UNSUPPORTED_VERSION,
    ],
)
def test_a_join_that_is_refused_for_good_ends_the_membership_with_its_reason(code):
    """4.4-7 to 4.4-11: JoinGroup 81, 82, 23, 24, 26, 30, 35."""
    rig = a_join_refused(code)

    assert rig.idle() == Wait(None)
    assert (rig.member.phase, rig.member.failure.code) == (Phase.FAILED, code)
    assert len(str(rig.member.failure)) > len(code.name) + 10


@pytest.mark.parametrize(
    "code",
    [
        Code.FENCED_INSTANCE_ID,
        Code.INCONSISTENT_GROUP_PROTOCOL,
        Code.INVALID_GROUP_ID,
        Code.INVALID_SESSION_TIMEOUT,
        Code.GROUP_AUTHORIZATION_FAILED,
    ],
)
def test_a_sync_that_is_refused_for_good_ends_the_membership(code):
    """4.4-8 to 4.4-10: SyncGroup 82, 23, 24, 26, 30."""
    assert a_sync_refused(code).member.failure.code is code


@pytest.mark.parametrize("refused", [a_join_refused, a_sync_refused])
@pytest.mark.parametrize("code", [Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR])
def test_a_coordinator_that_is_elsewhere_is_looked_for_after_a_pause(refused, code):
    """4.4-2: JoinGroup and SyncGroup 15, 16, CJ-8. Without the pause a group spins while a disk is full."""
    rig = refused(code)

    assert rig.next() == Disconnect()
    assert rig.next() == Wait(rig.now_ms + BACKOFF_MS)
    rig.at(rig.now_ms + BACKOFF_MS)
    join = rig.expect(Join)
    assert rig.log[-2] == FindCoordinator()
    name = "NotCoordinator" if code is Code.NOT_COORDINATOR else "CoordinatorNotAvailable"
    assert (join.member_id, join.reason) == (ME, f"rebalance failed due to {name}Exception")


def test_a_coordinator_that_loads_is_asked_again_after_a_pause():
    """4.4-1: JoinGroup 14."""
    rig = a_join_refused(Code.COORDINATOR_LOAD_IN_PROGRESS)

    assert rig.next() == Wait(rig.now_ms + BACKOFF_MS)
    join = rig.at(rig.now_ms + BACKOFF_MS).next()
    assert (join.member_id, join.reason) == (ME, "rebalance failed due to CoordinatorLoadInProgressException")


@pytest.mark.parametrize("refused", [a_join_refused, a_sync_refused])
def test_a_member_that_is_forgotten_joins_at_once_as_a_new_one(refused):
    """4.4-4: JoinGroup and SyncGroup 25, CJ-8."""
    join = refused(Code.UNKNOWN_MEMBER_ID).next()

    assert (join.generation, join.reason) == (
        NO_GENERATION,
        "rebalance failed due to UnknownMemberIdException",
    )


def test_a_generation_that_is_over_is_joined_at_once_under_the_same_id():
    """4.4-3: SyncGroup 22."""
    join = a_sync_refused(Code.ILLEGAL_GENERATION).next()

    assert join.generation == Generation(-1, ME)
    assert join.reason == "rebalance failed due to IllegalGenerationException"


@pytest.mark.parametrize("refused", [a_join_refused, a_sync_refused])
def test_a_rebalance_that_began_meanwhile_is_joined_at_once(refused):
    """4.4-5: JoinGroup and SyncGroup 27."""
    join = refused(Code.REBALANCE_IN_PROGRESS).next()

    assert (join.member_id, join.reason) == (ME, "rebalance failed due to RebalanceInProgressException")


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (a_join_refused, Code.UNKNOWN_SERVER_ERROR),
        (a_join_refused, Code.ILLEGAL_GENERATION),
        (a_sync_refused, Code.UNKNOWN_SERVER_ERROR),
        (a_sync_refused, Code.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_an_unexpected_refusal_is_told_and_tried_again_after_a_pause(refused, code):
    """4.4-12: JoinGroup and SyncGroup "other", JoinGroup 22, SyncGroup 14."""
    rig = refused(code)

    pending_error = rig.member.pending_error()
    assert isinstance(pending_error, RefusedBy)
    assert pending_error.code is code
    assert rig.next() == Wait(rig.now_ms + BACKOFF_MS)
    assert isinstance(rig.at(rig.now_ms + BACKOFF_MS).next(), Join)


@pytest.mark.parametrize("at", ["join", "sync"])
def test_a_lost_connection_joins_again_under_the_same_id(at):
    """4.4-13: disconnect, in both columns."""
    rig = a_stable_member().recall()
    request = rig.expect(Join)
    if at == "sync":
        rig.let_in(request)
        request = rig.expect(Sync)

    rig.member.unanswered(request, rig.now_ms)

    assert rig.next() == Disconnect()
    assert rig.next() == Wait(rig.now_ms + BACKOFF_MS)
    join = rig.at(rig.now_ms + BACKOFF_MS).expect(Join)
    assert (join.member_id, join.reason) == (ME, "rebalance failed due to DisconnectException")


# Topics that come, go and grow


def test_a_topic_that_grew_makes_the_leader_rebalance_and_no_follower():
    """CP-1, CP-8, CP-9, CP-10, CB-6."""
    leader, follower = a_leader(), a_stable_member()

    for rig in (leader, follower):
        rig.cluster = rig.cluster.__class__(partition_counts={"t": 4})
        rig.at(1_000_000).member.called(rig.now_ms)
        rig.serve(rig.expect(RefreshMetadata))

    assert leader.expect(Join).reason == "cached metadata has changed"
    follower.idle()
    assert follower.member.ready


def test_a_topic_that_only_another_member_named_is_watched_too():
    """CA-2: the union of all subscribed topics."""
    rig = a_member()
    join = rig.expect(Join)
    other = subscription(join)._replace(topics=("new",)).encode()
    rig.let_in(join, leads=True, members=((ME, None, join.protocols[0][1]), ("m-2", None, other)))
    rig.give(rig.expect(Sync))
    rig.idle()
    rig.cluster = rig.cluster.__class__(partition_counts={"t": 3, "new": 1})

    rig.at(1_000_000).member.called(rig.now_ms)

    assert rig.expect(RefreshMetadata).topics == {"t", "new"}
    rig.look(rig.log[-1])
    assert rig.expect(Join).reason == "cached metadata has changed"


def test_racks_count_where_the_client_has_one():
    """CP-9."""
    changed = {}
    for rack in (None, "r1"):
        rig = a_leader(rack=rack)
        there = dict.fromkeys((T0, T1, T2), frozenset({"r2"}))
        rig.cluster = rig.cluster.__class__(partition_counts={"t": 3}, racks=there)
        rig.at(1_000_000).member.called(rig.now_ms)
        rig.serve(rig.expect(RefreshMetadata))
        rig.next()
        changed[rack] = rig.member.rejoin_why

    assert changed == {None: None, "r1": "cached metadata has changed"}


def test_a_topic_that_is_not_there_yet_is_looked_for_every_second():
    rig = a_stable_member(topics=("t", "later"))

    looks = [
        one for at in range(0, 6_000, 500) for one in rounds(rig.at(at)) if isinstance(one, RefreshMetadata)
    ]

    assert 4 <= len(looks) <= 6


def rounds(rig):
    before = len(rig.log)
    rig.member.called(rig.now_ms)
    rig.idle()
    return rig.log[before:]


def test_a_pattern_is_matched_against_all_topics_before_every_join():
    """CP-5: fresh metadata is required; the whole name must match, as Java's `matches` has it."""
    rig = a_member(re.compile("[tu]|x"))
    rig.cluster = rig.cluster.__class__(partition_counts={"t": 1, "tu": 1, "x": 1})

    join = rig.expect(Join)

    assert RefreshMetadata(None) in rig.log
    assert subscription(join).topics == ("t", "x")


def test_a_new_topic_that_a_pattern_matches_is_joined_for():
    """CP-1, CP-8."""
    rig = a_member(re.compile("t|new.*")).join(T0)
    rig.cluster = rig.cluster.__class__(partition_counts={"t": 1, "new-1": 1})
    rig.at(1_000_000).member.called(rig.now_ms)

    join = rig.expect(Join)

    assert join.reason == "subscription has changed"
    assert subscription(join).topics == ("new-1", "t")


def test_an_assigned_topic_that_the_pattern_matches_is_taken_though_it_was_not_seen():
    """CB-7: the leader knew of it first."""
    rig = a_member(re.compile("t|new"))
    rig.let_in(rig.expect(Join))
    from_leader = T0._replace(topic="new")

    rig.give(rig.expect(Sync), T0, from_leader)
    rig.idle()

    assert rig.member.owned == {T0, from_leader}
    assert rig.member.ready


def test_enforcing_a_rebalance_joins_with_the_reason():
    """CV-6."""
    plain, worded = a_stable_member(), a_stable_member()
    plain.member.enforce_rebalance(None, 0)
    worded.member.enforce_rebalance("new weights", 0)

    assert plain.expect(Join).reason == "rebalance enforced by user"
    assert worded.expect(Join).reason == "new weights"


def test_a_leader_is_told_of_all_and_a_follower_waits():
    """CJ-1, CJ-4: the answer says who leads."""
    rig = a_member()
    join = rig.expect(Join)

    rig.member.joined(join, Joined(Code.NONE, 1, ME, "range", LEADER), 0)

    assert rig.next() == Sync(place(), {})


def test_join_completes_before_anything_else_is_begun():
    """CJ-7 and CB-13: what interrupts the listener is raised at once; the listener is called again later."""
    rig = a_member()
    rig.let_in(rig.expect(Join))
    rig.give(rig.expect(Sync), T0)
    rig.expect(Call)

    rig.member.called_back(KeyboardInterrupt(), 0)

    assert isinstance(rig.member.pending_error(), KeyboardInterrupt)
    rig.idle()
    assert len(rig.calls) == 1
    rig.member.called(1)
    rig.idle()
    assert rig.calls == [("assigned", (T0,))] * 2
    assert rig.member.ready


def test_what_is_owned_counts_only_when_the_application_has_taken_it():
    rig = a_member()
    rig.let_in(rig.expect(Join))
    rig.member.hold()
    rig.give(rig.expect(Sync), T0)
    rig.idle()
    assert (rig.member.phase, rig.member.at_work) == (Phase.STABLE, False)

    rig.member.release()
    rig.expect(Call)

    assert (rig.member.at_work, rig.member.ready) == (True, False)


# A static member that is back


def a_member_that_is_back(**changed):
    """A static member that was given t-0 and t-1, and asks who has what."""
    rig = a_member(cooperative=True, instance_id="i", **changed)
    rig.let_in(rig.expect(Join))
    rig.give(rig.expect(Sync), T0, T1)
    return rig, rig.expect(DescribeGroup)


def surveyed(rig, survey, *owned, code=Code.NONE, state="Stable"):
    rig.member.group_described(survey, GroupDescription(code, state, frozenset(owned)), rig.now_ms)


def test_what_a_static_member_was_to_give_up_when_it_ended_has_the_group_rebalance_when_it_is_back():
    rig, survey = a_member_that_is_back()
    assert not rig.member.ready
    surveyed(rig, survey, T0, T1)
    assert "t-2" in rig.expect(Join).reason


def test_a_static_member_that_is_back_to_a_group_that_has_everything_disturbs_nobody():
    rig, survey = a_member_that_is_back()
    surveyed(rig, survey, T0, T1, T2)
    rig.idle()
    rig.at(rig.now_ms + BEAT_MS).idle()
    assert rig.member.ready
    assert rig.log.count(survey) == 1


@pytest.mark.parametrize(
    "answer",
    [
        GroupDescription(Code.GROUP_AUTHORIZATION_FAILED),
        GroupDescription(Code.NONE, "PreparingRebalance", frozenset()),
        GroupDescription(Code.NONE, "Stable", None),
    ],
)
def test_who_cannot_be_told_who_has_what_goes_on_with_what_it_has(answer):
    rig, survey = a_member_that_is_back()
    rig.member.group_described(survey, answer, rig.now_ms)
    rig.idle()
    assert rig.member.ready


def test_a_question_who_has_what_that_is_not_answered_is_asked_again():
    rig, survey = a_member_that_is_back()
    rig.member.unanswered(survey, rig.now_ms)
    again = rig.at(rig.now_ms + BACKOFF_MS).expect(DescribeGroup)
    surveyed(rig, again, code=Code.COORDINATOR_LOAD_IN_PROGRESS)
    surveyed(rig, rig.at(rig.now_ms + BACKOFF_MS).expect(DescribeGroup), T0, T1)
    assert "t-2" in rig.expect(Join).reason
