"""The leader's work, and which assignors go together (behaviours 4.7)."""

from __future__ import annotations

import pytest
from member_rig import BACKOFF_MS, ME, T0, T1, T2, U0, Sticky, a_member, a_stable_member, subscription

from coterie.assign.model import Cluster, RebalanceProtocol
from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.client.member import BadAssignment, Heartbeat, Join, RefreshMetadata, Sync, Wait
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription


def given(sync):
    """Who gets what, by a leader's sync."""
    return {who: Assignment.decode(data).partitions for who, data in sync.assignments.items()}


def a_new_leader(*others, **changed):
    """A member that has just been elected, with other members' subscriptions; nothing is assigned yet."""
    rig = a_member(**changed)
    join = rig.expect(Join)
    members = [(ME, None, join.protocols[0][1])]
    members += [(f"m-{number}", None, data) for number, data in enumerate(others, 2)]
    rig.let_in(
        join,
        leads=True,
        members=tuple(members),
        **({"skip_assignment": True} if rig.settings.instance_id else {}),
    )
    return rig


def test_the_leader_looks_at_every_topic_that_any_member_names():
    """CA-2: freshly, and before it assigns."""
    rig = a_new_leader(Subscription(topics=("t", "u")).encode())

    look = rig.next()
    assert look == RefreshMetadata(frozenset({"t", "u"}))
    assert isinstance(rig.next(), Wait)
    rig.serve(look)

    assert given(rig.next()) == {ME: (T0, T1), "m-2": (T2, U0)}


def test_a_look_that_fails_is_repeated_and_the_member_stays_in_its_generation():
    """CA-2: metadata must be fresh; heartbeats go on."""
    rig = a_new_leader()

    rig.member.unanswered(rig.next(), 0)

    assert rig.next() == Wait(BACKOFF_MS)
    rig.serve(rig.at(BACKOFF_MS).expect(RefreshMetadata))
    assert isinstance(rig.expect(Sync), Sync)


def test_the_assignor_that_the_group_chose_assigns():
    """CA-1."""
    rig = a_member(assignors=("range", "roundrobin"))
    rig.cluster = Cluster(partition_counts={"t": 4})
    join = rig.expect(Join)
    members = tuple((who, None, join.protocols[0][1]) for who in (ME, "m-2"))
    rig.let_in(join, leads=True, members=members, protocol="roundrobin")

    assert given(rig.expect(Sync))[ME] == (T0, T2)


def test_a_protocol_that_nobody_configured_ends_the_membership():
    """CA-1."""
    rig = a_member()

    rig.let_in(rig.expect(Join), protocol="sticky")

    assert rig.member.failure.code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_with_malformed_metadata_gets_nothing_and_stalls_nobody():
    rig = a_new_leader(b"\xff")

    assert given(rig.expect(Sync)) == {ME: (T0, T1, T2), "m-2": ()}


def test_a_leader_told_to_skip_the_assignment_syncs_with_none_and_watches_all_the_same():
    """CA-3: a static leader came back."""
    rig = a_new_leader(Subscription(topics=("u",)).encode(), instance_id="i")

    sync = rig.expect(Sync)
    assert sync.assignments == {}
    rig.give(sync, T0)
    rig.idle()

    assert rig.member.watched == {"t", "u"}


# Custom assignors


class Greedy(Sticky):
    """Cooperative by name: moves what has not been given up."""

    name = "greedy"

    def assign(self, cluster, members):
        everything = tuple(one for topic in cluster.partition_counts for one in cluster.partitions_of(topic))
        return {member.member_id: everything if member.member_id == ME else () for member in members}


def owner_of(*partitions):
    return Subscription(topics=("t",), owned=partitions, generation=0).encode()


def test_an_assignor_that_moves_what_is_not_given_up_yet_is_told_off():
    """CA-4: the generation is not synced; the member rejoins."""
    rig = a_new_leader(owner_of(T0), assignors=(Greedy(),))
    rig.serve(rig.next())

    pending_error = rig.member.pending_error()
    assert isinstance(pending_error, BadAssignment)
    assert "t-0" in str(pending_error)
    assert rig.next() == Wait(BACKOFF_MS)
    assert isinstance(rig.at(BACKOFF_MS).next(), Join)


def test_an_eager_group_may_move_everything():
    """CA-4 is about cooperative ones."""

    class Eager(Greedy):
        protocols = (RebalanceProtocol.EAGER,)

    rig = a_new_leader(owner_of(T0), assignors=(Eager(),))

    assert given(rig.expect(Sync)) == {ME: (T0, T1, T2), "m-2": ()}


def test_topics_that_an_assignor_adds_are_watched():
    """CA-5: they are looked at before the sync, so that nothing seems to have changed after it."""

    class Generous(Sticky):
        name = "generous"

        def assign(self, cluster, members):
            return {member.member_id: (T0, U0) for member in members if member.member_id == ME}

    rig = a_new_leader(assignors=(Generous(),))
    rig.serve(rig.next())

    look = rig.next()
    assert look.topics == {"t", "u"}
    rig.serve(look)
    assert given(rig.expect(Sync)) == {ME: (T0, U0)}
    assert rig.member.watched == {"t", "u"}


def test_what_an_assignor_raises_is_told_and_the_member_rejoins_after_a_pause():
    class Broken(Sticky):
        def assign(self, cluster, members):
            raise ZeroDivisionError("mine")

    rig = a_new_leader(assignors=(Broken(),))
    rig.serve(rig.next())

    assert isinstance(rig.member.pending_error(), ZeroDivisionError)
    join = rig.at(BACKOFF_MS).expect(Join)
    assert join.reason == "rebalance failed due to ZeroDivisionError"


# Which go together


class Named:
    """An assignor that supports what it says."""

    def __init__(self, name, *protocols):
        self.name, self.protocols = name, protocols

    def user_data(self, *, topics, owned, generation):
        return None


EAGER, COOPERATIVE = RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE


@pytest.mark.parametrize(
    ("assignors", "protocol"),
    [
        (("range",), EAGER),
        (("range", "roundrobin"), EAGER),
        ((Sticky(),), COOPERATIVE),
        ((Sticky(), "range"), EAGER),
        ((Named("a", COOPERATIVE), Sticky()), COOPERATIVE),
    ],
)
def test_the_highest_protocol_that_all_assignors_support_is_used(assignors, protocol):
    """CA-6."""
    assert a_member(assignors=assignors).member.protocol is protocol


@pytest.mark.parametrize("assignors", [(), (Named("a", COOPERATIVE), "range")])
def test_assignors_without_a_protocol_in_common_are_refused(assignors):
    """CA-6."""
    with pytest.raises(CoterieError, match=r"in common|names no assignor"):
        a_member(assignors=assignors)


def test_a_member_of_both_kinds_says_what_each_assignor_wants_to_hear():
    """CA-6, CA-7, CO-4: the first step from eager to cooperative gives up everything still."""
    rig = a_stable_member(assignors=(Sticky(), "range"), topics=("t",)).recall()

    join = rig.expect(Join)

    assert [name for name, _ in join.protocols] == ["little-sticky", "range"]
    assert [subscription(join, which).user_data for which in (0, 1)] == [b"1", None]
    assert rig.calls == [("revoked", (T0, T1))]


def test_a_generation_that_is_over_is_not_claimed():
    """CA-7: generation -1 after a reset."""
    rig = a_stable_member(cooperative=True).at(2000)
    rig.member.heartbeat_answered(rig.expect(Heartbeat), Code.ILLEGAL_GENERATION, rig.now_ms)

    said = subscription(rig.expect(Join))

    assert (said.generation, said.owned, said.user_data) == (-1, (), b"-1")
