"""What may be committed when, and what a refusal means (behaviours 4.8)."""

from __future__ import annotations

import pytest
from member_rig import (
    BACKOFF_MS,
    BEAT_MS,
    COMMIT_MS,
    ME,
    T0,
    T1,
    a_member,
    a_stable_member,
    place,
)

from coterie.base.codes import Code
from coterie.base.ids import OffsetAndMetadata
from coterie.client.errors import WrongUse
from coterie.client.member import (
    NO_GENERATION,
    Call,
    Commit,
    Disconnect,
    Generation,
    Heartbeat,
    Join,
    Phase,
    Sync,
    Wait,
)
from coterie.client.net import messages
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

# Automatic commits


def test_consumed_positions_are_committed_now_and_then():
    """CC-1, CP-7: every auto.commit.interval.ms, from the assignment on."""
    rig = a_stable_member(auto_commit=True, heartbeat_interval_ms=5_900)

    assert rig.next() == Wait(COMMIT_MS)
    commit = rig.at(COMMIT_MS).next()
    assert commit == Commit(place(), frozenset({T0, T1}))
    rig.serve(commit)
    assert isinstance(rig.at(2 * COMMIT_MS).expect(Commit), Commit)


def test_nothing_is_committed_without_being_asked_to():
    rig = a_stable_member().at(COMMIT_MS)

    rig.idle()

    assert not any(isinstance(one, Commit) for one in rig.log)


def test_nothing_is_committed_while_the_application_works_on_it():
    """CC-1: in poll, when what was handed out before is done with."""
    rig = a_stable_member(auto_commit=True)
    rig.member.hold()
    rig.at(COMMIT_MS).idle()
    assert not any(isinstance(one, Commit) for one in rig.log)

    rig.member.release()

    assert isinstance(rig.next(), Commit)


@pytest.mark.parametrize(
    ("code", "pause_ms"),
    [(Code.COORDINATOR_LOAD_IN_PROGRESS, BACKOFF_MS), (Code.INVALID_COMMIT_OFFSET_SIZE, COMMIT_MS)],
)
def test_an_automatic_commit_that_fails_comes_again(code, pause_ms):
    """CC-1: soon, if that may pass; else as usual."""
    rig = a_stable_member(auto_commit=True, session_timeout_ms=100_000, heartbeat_interval_ms=90_000)
    commit = rig.at(COMMIT_MS).expect(Commit)

    rig.member.committed(commit, code, rig.now_ms)

    assert rig.next() == Wait(COMMIT_MS + pause_ms)


def test_a_rebalance_waits_for_the_automatic_commit_under_way():
    """An older commit must not arrive after the one that is sent before the revocation."""
    rig = a_stable_member(auto_commit=True).at(COMMIT_MS)
    commit = rig.expect(Commit)
    rig.recall()
    assert isinstance(rig.idle(), Wait)

    rig.serve(commit)

    assert isinstance(rig.expect(Commit), Commit)
    assert rig.calls == []


def test_closing_commits_first():
    """CC-1, CV-4."""
    rig = a_stable_member(auto_commit=True)
    rig.member.close(leave=None, timeout_ms=1_000, now_ms=0)

    commit = rig.next()

    assert commit == Commit(place(), frozenset({T0, T1}))
    assert rig.member.fetchable == frozenset()


def test_closing_tries_to_commit_as_long_as_it_may():
    """CC-1: sync, bounded."""
    rig = a_stable_member(auto_commit=True)
    rig.member.close(leave=None, timeout_ms=250, now_ms=0)

    tries = 0
    while isinstance(request := rig.next(), Commit):
        tries += 1
        rig.member.committed(request, Code.COORDINATOR_LOAD_IN_PROGRESS, rig.now_ms)
        rig.at(rig.now_ms + BACKOFF_MS)

    assert (tries, request.kind) == (3, "revoked")


# Who may commit


def test_only_a_stable_member_may_commit():
    """CC-2: no request is sent otherwise."""
    rig, seen = a_member(), {}
    seen["unjoined"] = rig.member.commit_refusal()
    join = rig.expect(Join)
    seen["preparing"] = rig.member.commit_refusal()
    rig.let_in(join)
    sync = rig.expect(Sync)
    seen["completing"] = rig.member.commit_refusal()
    rig.give(sync)
    seen["stable"] = rig.member.commit_refusal()

    assert seen == {
        "unjoined": Code.UNKNOWN_MEMBER_ID,
        "preparing": Code.REBALANCE_IN_PROGRESS,
        "completing": Code.REBALANCE_IN_PROGRESS,
        "stable": Code.NONE,
    }


def test_a_listener_that_is_called_may_commit():
    rig = a_stable_member().recall()

    rig.expect(Call)

    assert rig.member.commit_refusal() is Code.NONE


# What the coordinator answers


def refused(rig, code):
    return rig.member.commit_answered(rig.member.generation, code, rig.now_ms)


def test_a_commit_during_a_rebalance_asks_for_the_rejoin():
    """4.8-5: commit 27."""
    rig = a_stable_member()

    assert refused(rig, Code.REBALANCE_IN_PROGRESS) is Code.REBALANCE_IN_PROGRESS
    assert rig.expect(Join).reason == "offset commit failed since group is already rebalancing"


@pytest.mark.parametrize(
    ("code", "keeps"),
    [(Code.ILLEGAL_GENERATION, Generation(-1, ME)), (Code.UNKNOWN_MEMBER_ID, NO_GENERATION)],
)
def test_a_commit_of_a_place_that_is_gone_loses_it(code, keeps):
    """4.8-4: commit 22 and 25, CommitFailed, and a reset."""
    rig = a_stable_member()

    assert refused(rig, code) is code

    join = rig.expect(Join)
    assert (join.generation, join.reason) == (keeps, f"encountered {code.name} from OFFSET_COMMIT response")
    assert rig.calls == [("lost", (T0, T1))]


def test_a_fenced_commit_ends_the_membership():
    """4.8-8, CP-2: commit 82, the next call raises it."""
    rig = a_stable_member(instance_id="i")

    assert refused(rig, Code.FENCED_INSTANCE_ID) is Code.FENCED_INSTANCE_ID
    assert rig.member.failure.code is Code.FENCED_INSTANCE_ID


@pytest.mark.parametrize("code", [Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID])
@pytest.mark.parametrize(
    ("rejoined", "told"), [(False, Code.REBALANCE_IN_PROGRESS), (True, Code.UNKNOWN_MEMBER_ID)]
)
def test_a_commit_of_a_generation_before_tells_nothing_of_this_one(code, rejoined, told):
    """4.8-4, 4.8-8: commit 22, 25, 82, "generation changed" is RebalanceInProgress while PREPARING, else
    CommitFailed.

    Java's client gives up its new place as well, which the answer says nothing of; this one keeps it.
    """
    rig = a_stable_member(instance_id="i", cooperative=True)
    before = place(0, "little-sticky")
    rig.recall()
    join = rig.expect(Join)
    if rejoined:
        rig.let_in(join)
        rig.give(rig.expect(Sync), T0, T1)
        rig.idle()

    assert rig.member.commit_answered(before, code, rig.now_ms) is told
    assert rig.member.generation.valid
    assert rig.member.failure is None


@pytest.mark.parametrize(
    "code", [Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR, Code.REQUEST_TIMED_OUT]
)
def test_a_commit_that_found_no_coordinator_looks_for_it(code):
    """4.8-2: commit 7, 15, 16."""
    rig = a_stable_member()

    assert refused(rig, code) is code
    assert rig.next() == Disconnect()
    assert rig.member.owned == {T0, T1}


@pytest.mark.parametrize(
    "code",
    [
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.OFFSET_METADATA_TOO_LARGE,
        Code.INVALID_COMMIT_OFFSET_SIZE,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.UNKNOWN_SERVER_ERROR,
    ],
)
def test_what_is_the_committer_s_to_deal_with_leaves_the_member_as_it_is(code):
    """4.8-1, 4.8-3, 4.8-6, 4.8-7, 4.8-9: commit 3, 12, 14, 28, 29, 30 and "other"."""
    rig = a_stable_member()

    assert refused(rig, code) is code
    assert rig.member.ready
    assert isinstance(rig.next(), Wait)


def test_a_late_heartbeat_of_the_commit_s_generation_changes_nothing():
    rig = a_stable_member().at(BEAT_MS)
    beat = rig.expect(Heartbeat)
    refused(rig, Code.UNKNOWN_MEMBER_ID)

    rig.member.heartbeat_answered(beat, Code.UNKNOWN_MEMBER_ID, rig.now_ms)

    assert rig.expect(Join).generation == NO_GENERATION
    assert rig.member.phase is Phase.JOINING


# The request and its answer


def a_commit(offsets, **terms):
    identity = {"generation": -1, "member_id": "", "instance_id": None, **terms}
    return messages.offset_commit(9, "g", offsets, **identity)


def test_a_commit_says_all_there_is_to_say():
    """CC-3: without membership, generation -1, no member and no instance. CC-7: names, version 9 at most."""
    request = a_commit({T0: 5, T1: OffsetAndMetadata(7, 3, "noted")})

    parts = [
        (one.partition_index, one.committed_offset, one.committed_leader_epoch, one.committed_metadata)
        for one in request.topics[0].partitions
    ]
    assert parts == [(0, 5, -1, ""), (1, 7, 3, "noted")]
    assert (request.generation_id_or_member_epoch, request.member_id, request.group_instance_id) == (
        -1,
        "",
        None,
    )
    assert (request.topics[0].name, messages.SPEAKS[ApiKey.OFFSET_COMMIT][1]) == ("t", 9)


def test_an_offset_below_zero_is_refused():
    """CC-8."""
    with pytest.raises(WrongUse, match="t-0"):
        a_commit({T1: 0, T0: -1})


def answer_of(*codes):
    topic = entity("offset_commit", 9, "OffsetCommitResponseTopic", "response")
    partition = entity("offset_commit", 9, "OffsetCommitResponsePartition", "response")
    parts = tuple(build(partition, partition_index=at, error_code=code) for at, code in enumerate(codes))
    return build(response_type(ApiKey.OFFSET_COMMIT, 9), topics=(build(topic, name="t", partitions=parts),))


@pytest.mark.parametrize(
    ("codes", "read"),
    [
        ((0, 0), Code.NONE),
        ((0, 25), Code.UNKNOWN_MEMBER_ID),
        ((29, 0), Code.TOPIC_AUTHORIZATION_FAILED),
        ((29, 28), Code.INVALID_COMMIT_OFFSET_SIZE),
        ((12, 14), Code.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_the_first_error_counts_but_a_topic_that_is_not_allowed_counts_last(codes, read):
    """4.8-6: commit 29 is "collected, TopicAuthorization after the loop"."""
    assert messages.read_offset_commit(answer_of(*codes)) is read
