"""JoinGroup: the checks in Kafka's order and the matrix of 1.3, the size limit."""

from __future__ import annotations

import pytest
from group_rig import (
    RANGE,
    REBALANCE_MS,
    Rig,
    a_completing_group,
    a_preparing_group,
    a_stable_group,
    a_subscription,
    protocols,
    session_of,
)

from coterie.base.codes import Code
from coterie.group.facts import GroupCreated, GroupDied, GroupStored
from coterie.group.model import State
from coterie.wire.internal import read_group_value


def dead(rig: Rig) -> None:
    rig.shard.apply(GroupDied("g", rig.now_ms))


# -- before the group


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused_and_the_id_echoed(session_timeout_ms: int):
    """JG-4, and the group is not created by it."""
    rig = Rig()

    asked = rig.join(member_id="who", session_timeout_ms=session_timeout_ms)

    assert asked.why == "session-timeout-out-of-bounds"
    answer = rig.answer(asked)
    assert (answer.code, answer.member_id) == (Code.INVALID_SESSION_TIMEOUT, "who")
    assert rig.shard.groups == {}


def test_a_session_timeout_is_looked_at_before_the_group_is():
    """JG-4, P-5"""
    rig = Rig(max_size=1)
    a_stable_group(rig, "a")

    assert rig.join(session_timeout_ms=1, protocols=()).why == "session-timeout-out-of-bounds"


def test_an_invented_id_is_unknown_in_a_group_that_is_not_there():
    """JG-10: the id is echoed, the group not created."""
    rig = Rig()

    asked = rig.join(member_id="invented")

    assert asked.why == "no-such-group"
    assert rig.answer(asked).code is Code.UNKNOWN_MEMBER_ID
    assert rig.answer(asked).member_id == "invented"
    assert rig.shard.groups == {}


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"version": 9}, "member-id-required"),
        ({"version": 3}, "member-joined"),
        ({"protocols": ()}, "inconsistent-protocol"),
    ],
)
def test_the_first_join_creates_the_group_and_stores_it_empty(terms: dict[str, object], why: str):
    """JG-11: the record shows an empty group, whatever becomes of the join."""
    rig = Rig()
    rig.now_ms = 1_000

    asked = rig.join(**terms)

    assert asked.why == why
    assert asked.decision.facts[:2] == (GroupCreated("g", 1_000), GroupStored("g"))
    value = read_group_value(rig.log[0][1] or b"")
    assert (value.protocol_type, value.generation, value.protocol, value.leader) == ("", 0, None, None)
    assert value.members == ()
    assert value.current_state_timestamp == 1_000
    assert len(rig.log) == 1


# -- the matrix: newcomers


@pytest.mark.parametrize("terms", [{"protocol_type": ""}, {"protocols": ()}])
def test_a_join_without_a_protocol_is_inconsistent_even_in_an_empty_group(terms: dict[str, object]):
    """1.3.1 row 1, Empty."""
    asked = (rig := Rig()).join(**terms)

    assert asked.why == "inconsistent-protocol"
    answer = rig.answer(asked)
    assert (answer.code, answer.member_id) == (Code.INCONSISTENT_GROUP_PROTOCOL, "")
    assert (answer.generation, answer.leader, answer.members) == (-1, "", ())
    assert (answer.protocol_type, answer.protocol_name) == (None, None)


@pytest.mark.parametrize("build", [a_preparing_group, a_completing_group, a_stable_group])
@pytest.mark.parametrize(
    "terms", [{"protocol_type": "connect"}, {"protocols": protocols("unheard-of")}, {"protocols": ()}]
)
def test_a_join_that_has_no_protocol_in_common_with_the_members_is_inconsistent(build, terms):
    """1.3.1 row 1, the other states."""
    rig = Rig()
    build(rig)

    asked = rig.join("late", **terms)

    assert asked.why == "inconsistent-protocol"
    assert rig.answer(asked).code is Code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("build", [None, a_preparing_group, a_completing_group, a_stable_group])
def test_a_dynamic_member_is_given_an_id_to_come_again_with(build):
    """1.3.1 row 2; JG-24: the id is the client's name and a uuid; 2.7: it is kept a session timeout."""
    rig = Rig()
    if build is not None:
        build(rig)
    state = rig.group.state if build else State.EMPTY

    asked = rig.join("me", version=4, session_timeout_ms=7_000)

    assert asked.why == "member-id-required"
    answer = rig.answer(asked)
    assert answer.code is Code.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("me-uuid")
    assert rig.group.pending == {answer.member_id: 7_000}
    assert rig.group.state is state
    assert session_of(rig, answer.member_id) == rig.now_ms + 7_000


def test_versions_before_4_are_added_at_once():
    """1.3.1 row 3, Empty; ID-1."""
    rig = Rig()

    asked = rig.join("me", version=3)

    assert asked.why == "member-joined"
    assert asked.decision.waits
    assert rig.group.state is State.PREPARING
    assert list(rig.group.members) == [rig.group.leader]


def test_a_new_member_gets_five_minutes_whatever_its_session_timeout():
    """JG-23"""
    rig = Rig()

    rig.join(version=3, session_timeout_ms=6_000)

    assert session_of(rig, "c-uuid1") == 300_000
    assert rig.group.members["c-uuid1"].is_new


def test_a_new_member_makes_a_stable_group_rebalance():
    """1.3.1 row 3, Stable; RB-3."""
    rig = Rig()
    a_stable_group(rig)

    asked = rig.join("late", version=3)

    assert asked.why == "member-joined"
    assert asked.decision.waits
    assert rig.group.state is State.PREPARING
    assert rig.deadlines.at(("join", "g")) == rig.now_ms + REBALANCE_MS


def test_a_new_member_sends_parked_syncs_back_to_join():
    """1.3.1 row 3, CompletingRebalance; RB-1."""
    rig = Rig()
    ids = a_completing_group(rig)
    parked = rig.sync(ids["b"])

    rig.join("late", version=3)

    assert rig.answer(parked).code is Code.REBALANCE_IN_PROGRESS
    assert rig.answer(parked).assignment == b""


def test_a_static_member_is_never_asked_to_come_again():
    """1.3.1 row 4, ST-13; JG-24: its id begins with its instance id."""
    rig = Rig()

    asked = rig.join("me", instance_id="i-1", version=9)

    assert asked.why == "member-joined"
    assert rig.group.static == {"i-1": "i-1-uuid1"}


def test_a_promised_id_is_redeemed():
    """1.3.1 row 6."""
    rig = Rig()
    promised = rig.answer(rig.join("me")).member_id

    asked = rig.join("me", member_id=promised)

    assert asked.why == "member-joined"
    assert asked.decision.waits
    assert rig.group.pending == {}
    assert list(rig.group.members) == [promised]
    assert session_of(rig, promised) == 300_000


def test_a_promised_id_does_not_go_with_an_instance_id():
    """1.3.1 row 7."""
    rig = Rig()
    promised = rig.answer(rig.join("me")).member_id

    asked = rig.join("me", member_id=promised, instance_id="i-1")

    assert asked.why == "promised-id-with-instance"
    assert rig.answer(asked).code is Code.UNKNOWN_SERVER_ERROR


# -- the matrix: who claims to be known


@pytest.mark.parametrize("build", [a_preparing_group, a_completing_group, a_stable_group])
@pytest.mark.parametrize(
    ("member_id", "instance_id", "code", "why"),
    [
        ("c-1", "i-unmapped", Code.UNKNOWN_MEMBER_ID, "unknown-member"),
        ("c-1", "i-s", Code.FENCED_INSTANCE_ID, "fenced-instance"),
        ("c-1", None, Code.UNKNOWN_MEMBER_ID, "unknown-member"),
    ],
)
def test_who_is_not_known_is_told_so(build, member_id, instance_id, code, why):
    """1.3.1 rows 8 to 10: the instance id is looked at first; the member id is echoed."""
    rig = Rig()
    build(rig, "a")
    rig.join("s", instance_id="i-s", version=9)

    asked = rig.join("x", member_id=member_id, instance_id=instance_id)

    assert asked.why == why
    assert rig.answer(asked).code is code
    assert rig.answer(asked).member_id == member_id


def test_a_follower_that_says_nothing_new_is_told_the_generation_again():
    """1.3.1 row 11, CompletingRebalance and Stable: no rebalance, no members."""
    for build in (a_completing_group, a_stable_group):
        rig = Rig()
        ids = build(rig)
        state = rig.group.state

        asked = rig.join("b", member_id=ids["b"])

        assert asked.why == "join-repeated"
        answer = rig.answer(asked)
        assert (answer.code, answer.generation, answer.leader) == (Code.NONE, 1, ids["a"])
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        assert answer.members == ()
        assert rig.group.state is state


def test_a_leader_that_missed_its_answer_gets_the_members_again():
    """1.3.1 row 13, CompletingRebalance."""
    rig = Rig()
    ids = a_completing_group(rig)

    asked = rig.join("a", member_id=ids["a"])

    assert asked.why == "join-repeated"
    assert [m[0] for m in rig.answer(asked).members] == [ids["a"], ids["b"]]
    assert not rig.answer(asked).skip_assignment
    assert rig.group.state is State.COMPLETING


def test_a_leader_that_rejoins_a_stable_group_always_rebalances_it():
    """1.3.1 row 13, Stable: it may know of changes that no metadata shows."""
    rig = Rig()
    ids = a_stable_group(rig)

    asked = rig.join("a", member_id=ids["a"])

    assert asked.why == "leader-rejoined"
    assert rig.group.state is State.PREPARING


@pytest.mark.parametrize("build", [a_completing_group, a_stable_group])
@pytest.mark.parametrize("name", ["a", "b"])
def test_changed_metadata_rebalances(build, name: str):
    """1.3.1 rows 12 and 14; JG-20: the list is compared byte for byte."""
    rig = Rig()
    ids = build(rig)

    asked = rig.join(name, member_id=ids[name], protocols=protocols("range", metadata=a_subscription("more")))

    assert asked.why in ("metadata-changed", "leader-rejoined")
    assert rig.group.state is State.PREPARING
    assert asked.decision.waits


def test_the_order_of_the_protocols_is_metadata_too():
    """JG-20"""
    rig = Rig()
    both = protocols("range", "roundrobin")
    ids = a_stable_group(rig, protocols=both)

    assert rig.join("b", member_id=ids["b"], protocols=both).why == "join-repeated"
    assert rig.join("b", member_id=ids["b"], protocols=both[::-1]).why == "metadata-changed"


def test_a_second_join_of_a_parked_member_takes_the_place_of_the_first():
    """JG-21: the first is never answered; the decision says so."""
    rig = Rig()
    first, _ = a_preparing_group(rig)
    member_id = rig.group.leader

    second = rig.join("a", member_id=member_id)

    assert second.why == "member-rejoined"
    assert second.decision.dropped == (first.call,)
    rig.run_ms(6_000)
    assert rig.answer(second).code is Code.NONE
    assert rig.answer(first) is None


def test_a_static_member_may_leave_its_instance_id_out():
    """JG-22: only the member id is checked then."""
    rig = Rig()
    ids = a_stable_group(rig, static=("b",))

    asked = rig.join("b", member_id=ids["b"], instance_id=None)

    assert asked.why == "join-repeated"
    assert rig.group.static == {"i-b": ids["b"]}


def test_a_dead_group_sends_everybody_elsewhere():
    """1.3.1 column Dead; DE-7."""
    rig = Rig()
    ids = a_stable_group(rig)
    dead(rig)

    for terms in ({}, {"member_id": ids["a"]}, {"protocols": ()}, {"instance_id": "i", "member_id": "x"}):
        asked = rig.join(**terms)
        assert asked.why == "group-dead"
        assert rig.answer(asked).code is Code.COORDINATOR_NOT_AVAILABLE
        assert rig.answer(asked).member_id == terms.get("member_id", "")
    assert rig.join(session_timeout_ms=1).why == "session-timeout-out-of-bounds"


def test_nobody_is_known_in_an_empty_group():
    """1.3.1 column Empty, known members: E25."""
    rig = Rig()
    ids = a_stable_group(rig, "a")
    rig.leave(ids["a"])

    asked = rig.join("a", member_id=ids["a"])

    assert rig.group.state is State.EMPTY
    assert asked.why == "unknown-member"


# -- the answer


def test_a_completed_join_tells_the_leader_everybody_and_the_others_nobody():
    """JG-25"""
    rig = Rig()
    a, b = a_preparing_group(rig)

    rig.run_ms(6_000)

    leader, follower = rig.answer(a), rig.answer(b)
    assert (leader.code, leader.generation, leader.protocol_name) == (Code.NONE, 1, "range")
    assert leader.protocol_type == "consumer"
    assert leader.leader == follower.leader == leader.member_id
    assert leader.members == (
        (leader.member_id, None, a_subscription()),
        (follower.member_id, None, a_subscription()),
    )
    assert follower.members == ()
    assert not leader.skip_assignment


def test_a_member_keeps_its_client_and_host():
    """JG-26"""
    rig = Rig()
    rig.join("me", client_host="/10.0.0.7", version=3)

    member = next(iter(rig.group.members.values()))

    assert (member.client_id, member.client_host) == ("me", "/10.0.0.7")


def test_the_reason_of_a_join_changes_nothing():
    """JG-27"""
    said, unsaid = Rig(), Rig()

    said.join(reason="because", version=3)
    unsaid.join(reason=None, version=3)

    assert said.shard.groups == unsaid.shard.groups


@pytest.mark.parametrize("instance_id", ["", ".", "x" * 300, "not/valid"])
def test_an_instance_id_is_taken_as_it_is(instance_id: str):
    """JG-28: clients check it, brokers do not."""
    rig = Rig()

    assert rig.join(instance_id=instance_id).why == "member-joined"
    assert list(rig.group.static) == [instance_id]


def test_a_member_that_names_a_protocol_twice_counts_once():
    """CG-6"""
    rig = Rig()

    a_completing_group(rig, "a", "b", protocols=(*RANGE, *RANGE))

    assert rig.group.supporters == {"range": 2}
    assert rig.group.protocol == "range"


# -- the size limit


def full(**settings: int) -> tuple[Rig, dict[str, str]]:
    rig = Rig(max_size=2, **settings)
    return rig, a_stable_group(rig)


def test_a_full_group_turns_strangers_away():
    """JG-12, 1.3.2 Stable: the answer carries no id. Nor does a returning static member have a seat there."""
    rig, _ = full()

    for terms in ({}, {"version": 3}, {"instance_id": "i-1"}):
        asked = rig.join("late", **terms)
        assert asked.why == "group-full"
        assert (rig.answer(asked).code, rig.answer(asked).member_id) == (Code.GROUP_MAX_SIZE_REACHED, "")
    assert len(rig.group.members) == 2


def test_a_full_group_still_knows_its_members():
    """1.3.2 Stable and CompletingRebalance."""
    rig, ids = full()

    assert rig.join("b", member_id=ids["b"]).why == "join-repeated"


def test_more_ids_may_be_promised_than_there_are_seats_and_the_late_are_turned_away():
    """1.3.2: promised ids are not counted, and the check runs again when one is redeemed."""
    rig = Rig(max_size=2)
    promised = [rig.answer(rig.join(name)).member_id for name in "abc"]

    asked = [rig.join(member_id=member_id) for member_id in promised]

    assert [one.why for one in asked] == ["member-joined", "member-joined", "group-full"]
    assert rig.answer(asked[2]).member_id == ""
    assert promised[2] not in rig.group.pending
    assert session_of(rig, promised[2]) is None


def test_an_empty_group_takes_anybody():
    """1.3.2 Empty."""
    rig = Rig(max_size=0)

    assert rig.join(version=3).why == "member-joined"


def test_the_last_to_rejoin_a_group_that_is_too_large_lose_their_place():
    """1.3.2 PreparingRebalance; JG-12: a member who is refused is thrown out. LO-4: loading starts it."""
    big = Rig()
    ids = a_stable_group(big, "a", "b", "c")
    rig = Rig(max_size=2)
    rig.shard.load(big.log, 0)
    rig._carry_out(rig.shard.loaded(0), _nothing())
    assert rig.group.state is State.PREPARING

    asked = [rig.join(name, member_id=member_id) for name, member_id in ids.items()]

    assert [one.why for one in asked] == ["member-rejoined", "member-rejoined", "group-full"]
    assert ids["c"] not in rig.group.members
    assert rig.join("a", member_id=ids["a"]).why == "member-rejoined"  # who waits has its seat


def _nothing():
    from group_rig import Pending

    return Pending()
