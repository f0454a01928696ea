"""Who is called for which partitions, in which order; what is committed before (behaviours 4.6)."""

from __future__ import annotations

import pytest
from member_rig import (
    BACKOFF_MS,
    BEAT_MS,
    ME,
    REBALANCE_MS,
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
from coterie.base.ids import TopicPartition
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.member import Call, Commit, Heartbeat, Join, Phase, Sync, Wait

EVERYTHING = (T0, T1, T2)


# Eager


def test_eager_members_give_up_everything_before_they_rejoin():
    """CB-3, CB-8, CA-7: what the join says is owned is nothing."""
    rig = a_stable_member().recall()

    join = rig.expect(Join)

    assert rig.calls == [("revoked", (T0, T1))]
    assert (rig.member.owned, subscription(join).owned) == (frozenset(), ())
    rig.let_in(join)
    rig.give(rig.expect(Sync), T1, T2)
    rig.idle()
    assert rig.calls[1:] == [("assigned", (T1, T2))]


def test_eager_members_are_called_even_for_nothing():
    """CB-3, CB-8."""
    rig = a_member()
    rig.cluster = rig.cluster.__class__(partition_counts={})
    rig.join(leads=True)
    rig.log.clear()

    rig.recall().join(leads=True)

    assert rig.calls == [("revoked", ()), ("assigned", ())]


def test_the_generation_is_known_before_anybody_is_called():
    """CB-14: whoever commits in the callback commits as who the member is now."""
    rig = a_stable_member().recall().join(T0)
    rig.log.clear()

    rig.recall().expect(Call)
    assert rig.member.metadata(current=True) == ("g", 2, ME, None)
    assert rig.member.commit_refusal() is Code.NONE


def test_nothing_is_handed_out_while_it_is_being_given_up_and_before_it_is_assigned():
    """CB-1, CB-8: the order of `fetchable` and the callbacks."""
    rig, seen = a_stable_member(), []
    rig.recall()

    call = rig.expect(Call)
    seen.append((call.kind, rig.member.owned, rig.member.fetchable))
    rig.serve(call)
    rig.let_in(rig.expect(Join))
    rig.give(rig.expect(Sync), T2)
    call = rig.expect(Call)
    seen.append((call.kind, rig.member.owned, rig.member.fetchable))

    assert seen == [("revoked", {T0, T1}, frozenset()), ("assigned", {T2}, {T2})]


def test_partitions_come_sorted():
    """CB-12: by topic, then by number, not as text."""
    many = [TopicPartition("t", number) for number in (10, 9, 2)]
    rig = a_member(("t", "a"))
    rig.let_in(rig.expect(Join))

    rig.give(rig.expect(Sync), *many, TopicPartition("a", 1))
    rig.idle()

    assert rig.calls == [("assigned", (TopicPartition("a", 1), *sorted(many)))]


def test_what_the_listener_raises_is_told_and_the_join_goes_on():
    """CB-5: the preparation is not repeated."""
    rig = a_stable_member().recall()
    rig.expect(Call)

    rig.member.called_back(ValueError("mine"), rig.now_ms)

    assert isinstance(rig.expect(Join), Join)
    assert isinstance(rig.member.pending_error(), ValueError)
    assert rig.member.pending_error() is None
    assert (len(rig.calls), rig.member.owned) == (1, frozenset())


class Forgetting(RebalanceListener):
    """Says what it was called for."""

    def __init__(self):
        self.heard = []

    def on_partitions_revoked(self, partitions):
        self.heard.append(tuple(partitions))


def test_what_is_lost_is_revoked_unless_the_listener_tells_them_apart():
    """CB-11."""
    listener = Forgetting()

    listener.on_partitions_lost([T0])

    assert listener.heard == [(T0,)]


# Held by the application


def test_a_rebalance_waits_for_the_batch_under_way():
    rig = a_stable_member()
    rig.member.hold()
    rig.recall()

    assert isinstance(rig.idle(), Wait)
    assert (rig.calls, rig.member.owned, rig.member.ready) == ([], {T0, T1}, False)
    rig.member.release()

    assert rig.expect(Join).reason == "group is already rebalancing"


def test_a_batch_that_outlasts_the_rebalance_timeout_is_waited_for_no_longer():
    """CB-1: the coordinator would not wait either."""
    rig = a_stable_member()
    rig.member.hold()
    rig.recall()
    for _ in range(BEAT_MS, REBALANCE_MS, BEAT_MS):
        rig.member.called(rig.now_ms)
        rig.recall()
    assert rig.calls == []

    rig.recall()

    assert isinstance(rig.expect(Join), Join)
    assert not rig.member.held


# Commits before a revocation


def an_owner_with_commits(**changed):
    rig = a_stable_member(auto_commit=True, **changed).recall()
    return rig, rig.expect(Commit)


def test_what_is_consumed_is_committed_before_it_is_given_up():
    """CB-1: once, with nothing more handed out meanwhile."""
    rig, commit = an_owner_with_commits()

    assert commit == Commit(place(), frozenset({T0, T1}))
    assert (rig.member.fetchable, rig.calls) == (frozenset(), [])
    assert isinstance(rig.next(), Wait)
    rig.serve(commit)

    assert isinstance(rig.next(), Call)
    rig.serve(rig.log[-1])
    assert isinstance(rig.next(), Join)


@pytest.mark.parametrize("code", [Code.COORDINATOR_LOAD_IN_PROGRESS, Code.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_commit_that_may_pass_is_tried_again_before_the_join(code):
    """CB-1: after retry.backoff.ms."""
    rig, commit = an_owner_with_commits()

    rig.member.committed(commit, code, rig.now_ms)

    assert rig.idle() == Wait(rig.now_ms + BACKOFF_MS)
    again = rig.at(rig.now_ms + BACKOFF_MS).next()
    assert again == commit
    assert again is not commit


def test_a_deleted_topic_that_cannot_be_committed_holds_up_no_join():
    """What else was consumed is committed; a partition that is there keeps the join waiting (CB-1)."""
    rig = a_stable_member(T0, U0, auto_commit=True, topics=("t", "u")).recall()
    commit = rig.expect(Commit)
    assert commit.partitions == {T0, U0}
    rig.cluster = rig.cluster.__class__(partition_counts={"t": 3})

    rig.member.committed(commit, Code.UNKNOWN_TOPIC_OR_PARTITION, rig.now_ms)
    rig.idle()

    rest = rig.at(rig.now_ms + BACKOFF_MS).expect(Commit)
    assert rest.partitions == {T0}
    rig.cluster = rig.cluster.__class__(partition_counts={})
    rig.member.committed(rest, Code.UNKNOWN_TOPIC_OR_PARTITION, rig.now_ms)
    rig.idle()
    assert isinstance(rig.at(rig.now_ms + BACKOFF_MS).expect(Join), Join)
    assert rig.calls[-1] == ("revoked", (T0, U0))


def test_a_commit_that_fails_for_good_holds_up_no_join():
    """CB-1."""
    rig, commit = an_owner_with_commits()

    rig.member.committed(commit, Code.OFFSET_METADATA_TOO_LARGE, rig.now_ms)

    assert isinstance(rig.expect(Join), Join)
    assert rig.calls == [("revoked", (T0, T1))]


def test_a_commit_is_given_up_after_the_rebalance_timeout():
    """CB-1: the join-prepare timer."""
    rig, commit = an_owner_with_commits(session_timeout_ms=10 * REBALANCE_MS)
    started_ms = rig.now_ms

    for _ in range(2 * REBALANCE_MS // BACKOFF_MS):
        rig.member.called(rig.now_ms)
        rig.member.committed(commit, Code.COORDINATOR_LOAD_IN_PROGRESS, rig.now_ms)
        rig.at(rig.now_ms + BACKOFF_MS)
        request = rig.next()
        while isinstance(request, Heartbeat):
            rig.serve(request)
            request = rig.next()
        if not isinstance(request, Commit):
            break
        commit = request

    assert rig.calls == [("revoked", (T0, T1))]
    assert rig.now_ms - started_ms == pytest.approx(REBALANCE_MS, abs=2 * BACKOFF_MS)


def test_a_place_that_is_lost_while_the_commit_is_under_way_makes_the_partitions_lost():
    """CB-1, CB-2."""
    rig, commit = an_owner_with_commits()

    rig.member.committed(commit, Code.UNKNOWN_MEMBER_ID, rig.now_ms)

    assert rig.expect(Join).member_id == ""
    assert rig.calls == [("lost", (T0, T1))]


# Cooperative


def a_cooperative_member(*partitions, **changed):
    return a_stable_member(*partitions, cooperative=True, **changed)


def test_cooperative_members_keep_what_they_own_while_they_join():
    """CB-4, CA-7: nobody is called; the join says what is owned, and since which generation."""
    rig = a_cooperative_member(T0, T1).recall()

    join = rig.expect(Join)

    assert (rig.calls, rig.member.fetchable) == ([], {T0, T1})
    said = subscription(join)
    assert (said.owned, said.generation, said.user_data) == ((T0, T1), 1, b"1")


def test_cooperative_members_give_up_what_moves_and_rejoin():
    """CB-9: revoked first, then the assignor is told, then only what is new is assigned."""
    rig = a_cooperative_member(T0, T1).recall()
    rig.let_in(rig.expect(Join))
    rig.give(rig.expect(Sync), T1, T2)

    revoked = rig.expect(Call)
    assert (revoked.kind, revoked.partitions) == ("revoked", (T0,))
    assert (rig.member.owned, rig.member.fetchable) == ({T0, T1}, {T1})
    assert len(rig.assignor.told) == 1
    rig.serve(revoked)
    assigned = rig.expect(Call)
    assert (assigned.kind, assigned.partitions) == ("assigned", (T2,))
    assert rig.member.owned == rig.member.fetchable == {T1, T2}
    assert rig.assignor.told[-1] == ((T1, T2), 2, ME)
    rig.serve(assigned)

    again = rig.expect(Join)
    assert again.reason == "need to revoke partitions and re-join"
    assert (subscription(again).owned, subscription(again).generation) == ((T1, T2), 2)


def test_what_moves_rests_from_the_sync_on_even_while_the_application_works():
    """CB-9: another may have it next: no more is handed out, though it is given up at a batch's end."""
    rig = a_cooperative_member(T0, T1).recall()
    join = rig.expect(Join)
    rig.member.hold()
    rig.let_in(join)
    rig.give(rig.expect(Sync), T1, T2)

    assert isinstance(rig.next(), Wait)

    assert (rig.member.owned, rig.member.fetchable, rig.calls) == ({T0, T1}, {T1}, [])
    rig.member.release()
    rig.expect(Join)
    assert rig.calls == [("revoked", (T0,)), ("assigned", (T2,))]


@pytest.mark.parametrize("code", [Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID])
def test_what_moves_is_lost_when_its_commit_says_that_the_place_is_gone(code: Code):
    """CB-2, CB-9, CJ-6: nothing is revoked any more, and nothing of that generation is assigned."""
    rig = a_cooperative_member(T0, T1, auto_commit=True).recall()
    rig.let_in(rig.expect(Join))
    rig.give(rig.expect(Sync), T1, T2)
    commit = rig.expect(Commit)
    while commit.partitions != {T0}:  # those before
        rig.serve(commit)
        commit = rig.expect(Commit)

    rig.member.committed(commit, code, rig.now_ms)
    rig.idle() if code is Code.FENCED_INSTANCE_ID else rig.expect(Join)

    told = [] if code is Code.FENCED_INSTANCE_ID else [("lost", (T0, T1))]
    assert rig.calls == told
    assert rig.member.fetchable == frozenset()


def test_what_is_new_is_announced_until_the_listener_has_returned():
    """CB-8: whoever hands out records waits for that, since the listener may seek."""
    rig = a_member()
    rig.let_in(rig.expect(Join))
    rig.give(rig.expect(Sync), T0, T1)
    assert rig.member.announced == frozenset()

    call = rig.expect(Call)

    assert call == Call("assigned", (T0, T1))
    assert rig.member.announced == rig.member.fetchable == {T0, T1}
    rig.serve(call)
    assert rig.member.announced == frozenset()


def test_cooperative_members_are_called_for_nothing_new():
    """CB-9: onPartitionsAssigned always, onPartitionsRevoked only for something."""
    rig = a_cooperative_member(T0).recall().join(T0)

    assert rig.calls == [("assigned", ())]
    assert rig.member.ready


def test_cooperative_members_give_up_topics_they_no_longer_want_before_they_join():
    """CB-4."""
    rig = a_cooperative_member(T0, U0, topics=("t", "u"))
    rig.member.subscribe(["t"], 0)

    join = rig.expect(Join)

    assert rig.calls == [("revoked", (U0,))]
    assert rig.member.owned == {T0}
    assert subscription(join).owned == (T0,)


def test_cooperative_members_lose_everything_with_their_place():
    """CB-2, both protocols."""
    rig = a_cooperative_member(T0, T1).at(BEAT_MS)
    rig.member.heartbeat_answered(rig.expect(Heartbeat), Code.UNKNOWN_MEMBER_ID, rig.now_ms)

    join = rig.expect(Join)

    assert rig.calls == [("lost", (T0, T1))]
    assert subscription(join).owned == ()


def test_a_place_lost_during_a_callback_is_noticed_before_the_join():
    """CB-2: between the revocation of a topic and the join, a heartbeat says that the member is unknown."""
    rig = a_cooperative_member(T0, U0, topics=("t", "u"))
    rig.member.subscribe(["t"], 0)
    call = rig.expect(Call)
    beat = rig.at(BEAT_MS).expect(Heartbeat)
    rig.member.heartbeat_answered(beat, Code.UNKNOWN_MEMBER_ID, rig.now_ms)

    rig.serve(call)

    assert rig.expect(Join).member_id == ""
    assert rig.calls == [("revoked", (U0,)), ("lost", (T0,))]


def test_what_moves_is_committed_before_it_is_revoked():
    """Kafka commits before the join alone, and what is consumed during the rebalance is read twice."""
    rig = a_cooperative_member(T0, T1, auto_commit=True).recall()
    commit = rig.expect(Commit)
    assert commit.partitions == {T0, T1}
    assert rig.member.fetchable == {T0, T1}
    rig.serve(commit)
    rig.let_in(rig.expect(Join))
    rig.give(rig.expect(Sync), T1)

    again = rig.expect(Commit)

    assert again == Commit(place(2, "little-sticky"), frozenset({T0}))
    assert rig.calls == []
    rig.serve(again)
    assert rig.expect(Call).kind == "revoked"


def test_all_hooks_run_and_the_first_exception_is_kept():
    """CB-10: revoked, the assignor's, assigned."""
    rig = a_cooperative_member(T0, T1).recall()

    def spoil(*_, **__):
        raise KeyError("the assignor's")

    rig.assignor.on_assignment = spoil
    rig.let_in(rig.expect(Join))
    rig.give(rig.expect(Sync), T1, T2)
    rig.expect(Call)
    rig.member.called_back(ValueError("first"), rig.now_ms)
    rig.expect(Call)
    rig.member.called_back(TypeError("third"), rig.now_ms)

    assert str(rig.member.pending_error()) == "first"
    assert rig.member.owned == {T1, T2}
    assert isinstance(rig.expect(Join), Join)


# Leaving


@pytest.mark.parametrize("how", ["close", "unsubscribe"])
def test_leaving_revokes_what_is_owned(how):
    """CB-15."""
    rig = a_stable_member()

    leave(rig, how)

    assert rig.calls == [("revoked", (T0, T1))]
    assert rig.member.owned == frozenset()


@pytest.mark.parametrize("how", ["close", "unsubscribe"])
def test_leaving_in_a_rebalance_or_without_a_place_loses_what_is_owned(how):
    """CB-15."""
    joining = a_cooperative_member(T0).recall()
    joining.expect(Join)
    placeless = a_cooperative_member(T0).at(BEAT_MS)
    placeless.member.heartbeat_answered(placeless.expect(Heartbeat), Code.UNKNOWN_MEMBER_ID, placeless.now_ms)

    for rig in (joining, placeless):
        leave(rig, how)
        assert rig.calls == [("lost", (T0,))]


def test_leaving_with_nothing_calls_nobody():
    """CB-15: owned non-empty."""
    rig = a_member()

    leave(rig, "close")

    assert rig.calls == []


def test_leaving_during_a_callback_waits_for_it():
    rig = a_stable_member().recall()
    call = rig.expect(Call)
    rig.member.close(leave=None, timeout_ms=1000, now_ms=rig.now_ms)

    rig.serve(call)
    rig.idle()

    assert rig.calls == [("revoked", (T0, T1))]
    assert rig.member.phase is Phase.STOPPED


def leave(rig, how):
    if how == "close":
        rig.member.close(leave=None, timeout_ms=1000, now_ms=rig.now_ms)
    else:
        rig.member.unsubscribe()
    rig.idle()


def test_a_leader_hands_out_to_itself_like_to_anybody():
    rig = a_leader()

    assert rig.member.owned == set(EVERYTHING)
    rig.recall().join(leads=True)
    assert rig.calls == [("revoked", EVERYTHING), ("assigned", EVERYTHING)]
