"""The member as a state machine: what it sends, and what it makes of the answers (behaviours, section 4)."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.member import (
    NOWHERE,
    Count,
    FindCoordinator,
    Generation,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Member,
    MemberSettings,
    Phase,
    Sync,
    Wait,
)
from coterie.wire.consumer import Assignment, Subscription

SETTINGS = MemberSettings(
    group_id="g", session_timeout_ms=6000, heartbeat_interval_ms=2000, max_poll_interval_ms=60_000
)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def a_member(*, now_ms=0, **changed):
    values = {name: getattr(SETTINGS, name) for name in SETTINGS.__slots__} | changed
    return Member(MemberSettings(**values), ["t"], now_ms=now_ms)


def a_stable_member(*, generation=1, owned=(T0,), **changed):
    """A follower that has joined at 0 ms."""
    member = a_member(**changed)
    member.found(Code.NONE, 0)
    join_as_follower(member, generation=generation, owned=owned)
    return member


def join_as_follower(member, *, generation, owned, now_ms=0):
    assert isinstance(member.next(now_ms), Join)
    member.joined(Joined(Code.NONE, generation, "m-1", "range", leader="m-0"), now_ms)
    assert isinstance(member.next(now_ms), Sync)
    member.synced(Code.NONE, Assignment(tuple(owned)).encode(), now_ms)
    assert member.phase is Phase.STABLE


def test_a_member_finds_its_coordinator_before_it_joins():
    member = a_member()

    assert member.next(0) == FindCoordinator()
    member.found(Code.NONE, 0)

    assert isinstance(member.next(0), Join)


def test_the_first_join_subscribes_with_every_assignor_and_no_member_id():
    member = a_member(assignors=("roundrobin", "range"))
    member.found(Code.NONE, 0)

    join = member.next(0)

    assert join.member_id == ""
    assert [name for name, _ in join.protocols] == ["roundrobin", "range"]
    assert {Subscription.decode(data) for _, data in join.protocols} == {Subscription(topics=("t",))}


def test_a_member_id_that_is_required_is_joined_with_at_once():
    """CJ-8, KIP-394."""
    member = a_member()
    member.found(Code.NONE, 0)
    member.next(0)

    member.joined(Joined(Code.MEMBER_ID_REQUIRED, member_id="m-9"), 5)

    assert member.next(5).member_id == "m-9"


def test_the_leader_counts_partitions_and_assigns_to_all():
    """CA-1, CA-2: the topics of all members, range."""
    member = a_member()
    member.found(Code.NONE, 0)
    member.next(0)
    other = Subscription(topics=("t", "u")).encode()
    mine = Subscription(topics=("t",)).encode()
    members = (("m-1", None, mine), ("m-2", None, other))

    member.joined(Joined(Code.NONE, 3, "m-1", "range", leader="m-1", members=members), 0)
    assert member.next(0) == Count(frozenset({"t", "u"}))
    member.counted({"t": 2, "u": 1})
    sync = member.next(0)

    assert {who: Assignment.decode(data).partitions for who, data in sync.assignments.items()} == {
        "m-1": (T0,),
        "m-2": (T1, TopicPartition("u", 0)),
    }


def test_a_member_with_malformed_metadata_gets_nothing_and_stalls_nobody():
    member = a_member()
    member.found(Code.NONE, 0)
    member.next(0)
    members = (("m-1", None, Subscription(topics=("t",)).encode()), ("m-2", None, b"\xff"))

    member.joined(Joined(Code.NONE, 3, "m-1", "range", leader="m-1", members=members), 0)
    member.counted({"t": 2})

    given = {who: Assignment.decode(data).partitions for who, data in member.next(0).assignments.items()}
    assert given == {"m-1": (T0, T1), "m-2": ()}


def test_a_leader_told_to_skip_the_assignment_syncs_with_none():
    """CA-3: a static leader came back."""
    member = a_member(instance_id="i")
    member.found(Code.NONE, 0)
    member.next(0)
    members = (("m-1", "i", Subscription(topics=("t",)).encode()),)
    answer = Joined(Code.NONE, 3, "m-1", "range", leader="m-1", members=members, skip_assignment=True)

    member.joined(answer, 0)
    member.counted({"t": 2})

    assert member.next(0).assignments == {}


def test_heartbeats_go_out_on_their_own_schedule():
    member = a_stable_member()

    assert member.next(1999) == Wait(2000)
    assert member.next(2000) == Heartbeat(Generation(1, "m-1", "range"))
    member.heard(member.generation, Code.NONE, 2003)
    assert member.next(2003) == Wait(4003)


def test_a_rebalance_waits_for_the_batch_under_way_while_heartbeats_go_on():
    member = a_stable_member()
    member.hold()
    member.next(2000)

    member.heard(member.generation, Code.REBALANCE_IN_PROGRESS, 2000)

    assert not member.ready
    assert member.next(2001) == Wait(4000)
    assert isinstance(member.next(4000), Heartbeat)
    assert member.owned == {T0}
    member.release()
    join = member.next(4001)
    assert (join.member_id, join.reason) == ("m-1", "group is already rebalancing")
    assert member.owned == frozenset()


def test_a_batch_that_outlasts_the_rebalance_timeout_is_lost():
    member = a_stable_member()
    member.hold()
    member.heard(member.generation, Code.REBALANCE_IN_PROGRESS, 2000)
    for now_ms in range(4000, 62_000, 2000):
        member.called(now_ms)
        assert isinstance(member.next(now_ms), Heartbeat)
        member.heard(member.generation, Code.REBALANCE_IN_PROGRESS, now_ms)

    assert isinstance(member.next(62_000), Join)
    assert not member.busy


def test_a_member_that_nobody_calls_leaves_and_comes_back_with_the_next_call():
    """HT-2: max.poll.interval.ms."""
    member = a_stable_member()
    member.hold()
    member.heard(member.generation, Code.NONE, 59_000)

    assert member.next(59_999) == Wait(60_000)
    assert member.next(60_000) == Leave("m-1", "consumer poll timeout has expired")
    assert member.next(60_001) == Wait(None)
    assert member.owned == frozenset()

    member.called(90_000)
    assert member.next(90_000) == Join("", member._protocols(), "consumer poll timeout has expired")


def test_a_static_member_that_nobody_calls_goes_without_a_word():
    """HT-5."""
    member = a_stable_member(instance_id="i")

    assert member.next(60_000) == Wait(None)
    assert member.generation == NOWHERE


@pytest.mark.parametrize(
    ("code", "member_id", "generation_id"),
    [(Code.ILLEGAL_GENERATION, "m-1", -1), (Code.UNKNOWN_MEMBER_ID, "", -1)],
)
@pytest.mark.parametrize("told_by", ["heard", "refused_commit"])
def test_a_generation_that_is_over_is_given_up_with_all_it_owned(told_by, code, member_id, generation_id):
    member = a_stable_member()
    member.hold()

    getattr(member, told_by)(member.generation, code, 2000)

    assert (member.owned, member.busy) == (frozenset(), False)
    join = member.next(2000)
    assert join.member_id == member_id
    assert Subscription.decode(join.protocols[0][1]).generation == generation_id


def test_an_answer_to_a_generation_that_has_passed_is_ignored():
    """Behaviours 4.5: "changed: ignored"."""
    member = a_stable_member(generation=5)

    member.heard(Generation(4, "m-1", "range"), Code.UNKNOWN_MEMBER_ID, 100)

    assert member.phase is Phase.STABLE
    assert member.owned == {T0}


def test_a_commit_during_a_rebalance_asks_for_the_rejoin():
    """Behaviours 4.8: 27."""
    member = a_stable_member()

    member.refused_commit(member.generation, Code.REBALANCE_IN_PROGRESS, 10)

    assert isinstance(member.next(10), Join)


@pytest.mark.parametrize(
    "code",
    [
        Code.FENCED_INSTANCE_ID,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.INCONSISTENT_GROUP_PROTOCOL,
        Code.INVALID_SESSION_TIMEOUT,
        Code.GROUP_MAX_SIZE_REACHED,
    ],
)
def test_a_fatal_refusal_of_the_join_ends_the_member_with_its_reason(code):
    member = a_member()
    member.found(Code.NONE, 0)
    member.next(0)

    member.joined(Joined(code), 0)

    assert member.next(0) == Wait(None)
    assert member.failure is not None
    assert member.failure.code is code


def test_a_fenced_static_member_learns_it_from_its_heartbeat():
    member = a_stable_member(instance_id="i")

    member.heard(member.generation, Code.FENCED_INSTANCE_ID, 2000)

    assert member.phase is Phase.FAILED
    assert "same group.instance.id" in str(member.failure)


@pytest.mark.parametrize("code", [Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_moved_is_looked_for_and_the_place_is_kept(code):
    member = a_stable_member()

    member.heard(member.generation, code, 2000)

    assert member.next(2100) == FindCoordinator()
    member.found(Code.NONE, 2100)
    assert member.next(4000) == Heartbeat(Generation(1, "m-1", "range"))
    assert member.owned == {T0}


def test_a_lost_connection_while_syncing_joins_again_under_the_same_id():
    member = a_member()
    member.found(Code.NONE, 0)
    member.next(0)
    member.joined(Joined(Code.NONE, 1, "m-1", "range", leader="m-0"), 0)

    member.lost_connection(50)

    assert member.next(50) == Wait(150)
    assert member.next(150) == FindCoordinator()
    member.found(Code.NONE, 150)
    assert member.next(150).member_id == "m-1"


@pytest.mark.parametrize(
    ("code", "looks_anew"),
    [
        (Code.NOT_COORDINATOR, True),
        (Code.COORDINATOR_NOT_AVAILABLE, True),
        (Code.COORDINATOR_LOAD_IN_PROGRESS, False),
    ],
)
def test_a_sync_that_the_coordinator_cannot_serve_is_followed_by_a_pause(code, looks_anew):
    """CJ-8. Without it a group spins while its coordinator's disk is full (simulator, seed 128)."""
    member = a_member(retry_backoff_ms=100)
    member.found(Code.NONE, 0)
    member.next(0)
    member.joined(Joined(Code.NONE, 1, "m-1", "range", leader="m-0"), 0)

    member.synced(code, b"", 5)

    assert member.next(5) == Wait(105)
    assert isinstance(member.next(105), FindCoordinator if looks_anew else Join)


def test_silence_for_the_session_timeout_looks_for_the_coordinator_anew():
    """HT-2."""
    member = a_stable_member()
    member.called(6000)

    assert member.next(6000) == FindCoordinator()


def test_a_topic_that_grew_makes_the_leader_rebalance_and_no_follower():
    """CP-8, CP-10."""
    leader, follower = a_member(), a_stable_member()
    leader.found(Code.NONE, 0)
    leader.next(0)
    members = (("m-1", None, Subscription(topics=("t", "new")).encode()),)
    leader.joined(Joined(Code.NONE, 1, "m-1", "range", leader="m-1", members=members), 0)
    leader.counted({"t": 1})
    leader.synced(Code.NONE, Assignment((T0,)).encode(), 0)

    leader.cluster_changed({"t": 1}, 5)
    assert leader.ready
    leader.cluster_changed({"t": 1, "new": 1}, 5)
    follower.cluster_changed({"t": 2}, 5)

    assert leader.next(5).reason == "cached metadata has changed"
    assert follower.ready


def test_a_subscription_that_changes_while_the_join_is_under_way_is_joined_with_again():
    member = a_member()
    member.found(Code.NONE, 0)
    member.next(0)
    member.subscribe(["t", "u"], 1)
    member.joined(Joined(Code.NONE, 1, "m-1", "range", leader="m-0"), 2)

    member.synced(Code.NONE, Assignment((T0,)).encode(), 3)

    join = member.next(3)
    assert Subscription.decode(join.protocols[0][1]).topics == ("t", "u")


def test_no_bytes_for_an_assignment_mean_that_nothing_is_owned():
    """SG-11: a leader may leave members out."""
    member = a_member()
    member.found(Code.NONE, 0)
    member.next(0)
    member.joined(Joined(Code.NONE, 1, "m-1", "range", leader="m-0"), 0)

    member.synced(Code.NONE, b"", 0)

    assert (member.phase, member.owned) == (Phase.STABLE, frozenset())


def test_stopping_leaves_unless_the_member_is_static():
    """CV-1, CV-2."""
    assert a_stable_member().stop() == Leave("m-1", "the consumer is being closed")
    assert a_stable_member(instance_id="i").stop() == Wait(None)
    assert a_member().stop() == Wait(None)


CODES = st.sampled_from(
    [
        Code.NONE,
        Code.REBALANCE_IN_PROGRESS,
        Code.ILLEGAL_GENERATION,
        Code.UNKNOWN_MEMBER_ID,
        Code.NOT_COORDINATOR,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.UNKNOWN_SERVER_ERROR,
        Code.FENCED_INSTANCE_ID,
    ]
)


class AnyAnswers(RuleBasedStateMachine):
    """Whatever the broker answers and the reader does, the member keeps its promises."""

    @initialize()
    def begin(self):
        self.now_ms = 0
        self.member = a_member()
        self.held_in = None
        self.generation = 0

    @rule(ms=st.integers(0, 5000))
    def time_passes(self, ms):
        self.now_ms += ms

    @rule()
    def spark_calls(self):
        self.member.called(self.now_ms)

    @precondition(lambda self: self.member.ready)
    @rule()
    def plan(self):
        self.member.hold()

    @rule()
    def finish(self):
        self.member.release()

    @rule(code=CODES)
    def commit_refused(self, code):
        if code:
            self.member.refused_commit(self.member.generation, code, self.now_ms)

    @rule(code=CODES, leads=st.booleans(), breaks=st.booleans())
    def exchange(self, code, leads, breaks):
        """Carry out what the member wants, with some answer."""
        member, now_ms = self.member, self.now_ms
        request = member.next(now_ms)
        if breaks and not isinstance(request, Wait):
            member.lost_connection(now_ms)
            return
        match request:
            case FindCoordinator():
                member.found(code, now_ms)
            case Join(member_id=member_id):
                assert not member.busy
                assert member.owned == frozenset()
                self.generation += 1
                name = member_id or f"m-{self.generation}"
                everyone = ((name, None, Subscription(topics=("t",)).encode()),) if leads else ()
                leader = name if leads else "other"
                answer = Joined(code, self.generation, name, "range", leader, everyone)
                member.joined(answer, now_ms)
            case Count():
                member.counted({"t": 2})
            case Sync(generation=generation):
                assert generation == member.generation
                member.synced(code, Assignment((T0,)).encode(), now_ms)
            case Heartbeat(generation=generation):
                assert generation.id == self.generation
                member.heard(generation, code, now_ms)
            case Leave(member_id=member_id):
                assert member_id
            case Wait(until_ms=until_ms):
                assert until_ms is None or until_ms > now_ms

    @invariant()
    def owns_only_in_a_generation(self):
        member = getattr(self, "member", None)
        if member is None:
            return
        assert not member.owned or member.phase is Phase.STABLE
        assert not member.busy or member.phase is Phase.STABLE
        assert (member.failure is not None) == (member.phase is Phase.FAILED)


TestAnyAnswers = AnyAnswers.TestCase
TestAnyAnswers.settings = settings(deadline=None, max_examples=60)
