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
from coterie.coordinator.group.facts import GroupCreated, GroupDied, GroupStored
from coterie.coordinator.group.model import State
from coterie.wire.payloads.consumer_offsets import read_group_value


def dead(rig: Rig) -> None:
    rig.shard.apply(GroupDied("g", rig.now_ms))


# -- before the group


@pytest.mark.row("JG-4", "0.5-2")
@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused_and_the_id_echoed(session_timeout_ms: int):
    """The group is not created by it."""
    rig = Rig()

    asked = rig.join(member_id="who", session_timeout_ms=session_timeout_ms)

    assert asked.why == "session-timeout-out-of-bounds"
    answer = rig.answer(asked)
    assert (answer.code, answer.member_id) == (Code.INVALID_SESSION_TIMEOUT, "who")
    assert rig.shard.groups == {}


@pytest.mark.row("JG-4", "P-5")
def test_a_session_timeout_is_looked_at_before_the_group_is():
    rig = Rig(max_size=1)
    a_stable_group(rig, "a")

    assert rig.join(session_timeout_ms=1, protocols=()).why == "session-timeout-out-of-bounds"


@pytest.mark.row("JG-10")
def test_an_invented_id_is_unknown_in_a_group_that_is_not_there():
    """The id is echoed, the group not created."""
    rig = Rig()

    asked = rig.join(member_id="invented")

    assert asked.why == "no-such-group"
    assert rig.answer(asked).code is Code.UNKNOWN_MEMBER_ID
    assert rig.answer(asked).member_id == "invented"
    assert rig.shard.groups == {}


@pytest.mark.row("JG-11")
@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"version": 9}, "member-id-required"),
        ({"version": 3}, "member-joined"),
        ({"protocols": ()}, "inconsistent-protocol"),
    ],
)
def test_the_first_join_creates_the_group_and_stores_it_empty(terms: dict[str, object], why: str):
    """The record shows an empty group, whatever becomes of the join."""
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


@pytest.mark.row("1.3.1-1")
@pytest.mark.parametrize("terms", [{"protocol_type": ""}, {"protocols": ()}])
def test_a_join_without_a_protocol_is_inconsistent_even_in_an_empty_group(terms: dict[str, object]):
    asked = (rig := Rig()).join(**terms)

    assert asked.why == "inconsistent-protocol"
    answer = rig.answer(asked)
    assert (answer.code, answer.member_id) == (Code.INCONSISTENT_GROUP_PROTOCOL, "")
    assert (answer.generation, answer.leader, answer.members) == (-1, "", ())
    assert (answer.protocol_type, answer.protocol_name) == (None, None)


@pytest.mark.row("1.3.1-1")
@pytest.mark.parametrize("build", [a_preparing_group, a_completing_group, a_stable_group])
@pytest.mark.parametrize(
    "terms", [{"protocol_type": "connect"}, {"protocols": protocols("unheard-of")}, {"protocols": ()}]
)
def test_a_join_that_has_no_protocol_in_common_with_the_members_is_inconsistent(build, terms):
    rig = Rig()
    build(rig)

    asked = rig.join("late", **terms)

    assert asked.why == "inconsistent-protocol"
    assert rig.answer(asked).code is Code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.row("JG-24", "1.3.1-2")
@pytest.mark.parametrize("build", [None, a_preparing_group, a_completing_group, a_stable_group])
def test_a_dynamic_member_is_given_an_id_to_come_again_with(build):
    """The id is the client's name and a uuid; 2.7: it is kept a session timeout."""
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


@pytest.mark.row("ID-1", "1.3.1-3")
def test_versions_before_4_are_added_at_once():
    rig = Rig()

    asked = rig.join("me", version=3)

    assert asked.why == "member-joined"
    assert asked.decision.waits
    assert rig.group.state is State.PREPARING
    assert list(rig.group.members) == [rig.group.leader]


@pytest.mark.row("JG-23", "2.7-2")
def test_a_new_member_gets_five_minutes_whatever_its_session_timeout():
    rig = Rig()

    rig.join(version=3, session_timeout_ms=6_000)

    assert session_of(rig, "c-uuid1") == 300_000
    assert rig.group.members["c-uuid1"].is_new


@pytest.mark.row("RB-3", "1.3.1-3")
def test_a_new_member_makes_a_stable_group_rebalance():
    rig = Rig()
    a_stable_group(rig)

    asked = rig.join("late", version=3)

    assert asked.why == "member-joined"
    assert asked.decision.waits
    assert rig.group.state is State.PREPARING
    assert rig.deadlines.at(("join", "g")) == rig.now_ms + REBALANCE_MS


@pytest.mark.row("RB-1", "1.3.1-3")
def test_a_new_member_sends_parked_syncs_back_to_join():
    rig = Rig()
    ids = a_completing_group(rig)
    parked = rig.sync(ids["b"])

    rig.join("late", version=3)

    assert rig.answer(parked).code is Code.REBALANCE_IN_PROGRESS
    assert rig.answer(parked).assignment == b""


@pytest.mark.row("ST-13", "JG-24", "1.3.1-4")
def test_a_static_member_is_never_asked_to_come_again():
    """Its id begins with its instance id."""
    rig = Rig()

    asked = rig.join("me", instance_id="i-1", version=9)

    assert asked.why == "static-member-joined"
    assert rig.group.static == {"i-1": "i-1-uuid1"}


@pytest.mark.row("1.3.1-6")
def test_a_promised_id_is_redeemed():
    rig = Rig()
    promised = rig.answer(rig.join("me")).member_id

    asked = rig.join("me", member_id=promised)

    assert asked.why == "promise-redeemed"
    assert asked.decision.waits
    assert rig.group.pending == {}
    assert list(rig.group.members) == [promised]
    assert session_of(rig, promised) == 300_000


@pytest.mark.row("1.3.1-7")
def test_a_promised_id_does_not_go_with_an_instance_id():
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
        pytest.param(
            "c-1",
            "i-unmapped",
            Code.UNKNOWN_MEMBER_ID,
            "unknown-instance",
            marks=pytest.mark.row("1.3.1-8", "CG-9"),
        ),
        pytest.param(
            "c-1",
            "i-s",
            Code.FENCED_INSTANCE_ID,
            "fenced-instance",
            marks=pytest.mark.row("1.3.1-9", "CG-9"),
        ),
        pytest.param(
            "c-1", None, Code.UNKNOWN_MEMBER_ID, "unknown-member", marks=pytest.mark.row("1.3.1-10")
        ),
    ],
)
def test_who_is_not_known_is_told_so(build, member_id, instance_id, code, why):
    """The instance id is looked at first; the member id is echoed."""
    rig = Rig()
    build(rig, "a")
    rig.join("s", instance_id="i-s", version=9)

    asked = rig.join("x", member_id=member_id, instance_id=instance_id)

    assert asked.why == why
    assert rig.answer(asked).code is code
    assert rig.answer(asked).member_id == member_id


@pytest.mark.row("1.3.1-11", "JG-20")
def test_a_follower_that_says_nothing_new_is_told_the_generation_again():
    """In CompletingRebalance and Stable: no rebalance, no members."""
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


@pytest.mark.row("1.3.1-13")
def test_a_leader_that_missed_its_answer_gets_the_members_again():
    rig = Rig()
    ids = a_completing_group(rig)

    asked = rig.join("a", member_id=ids["a"])

    assert asked.why == "leader-join-repeated"
    assert [m[0] for m in rig.answer(asked).members] == [ids["a"], ids["b"]]
    assert not rig.answer(asked).skip_assignment
    assert rig.group.state is State.COMPLETING


@pytest.mark.row("1.3.1-13")
def test_a_leader_that_rejoins_a_stable_group_always_rebalances_it():
    """It may know of changes that no metadata shows."""
    rig = Rig()
    ids = a_stable_group(rig)

    asked = rig.join("a", member_id=ids["a"])

    assert asked.why == "leader-rejoined"
    assert rig.group.state is State.PREPARING


@pytest.mark.row("1.3.1-14")
@pytest.mark.parametrize("build", [a_completing_group, a_stable_group])
@pytest.mark.parametrize("name", ["a", "b"])
def test_changed_metadata_rebalances(build, name: str):
    """The list is compared byte for byte."""
    rig = Rig()
    ids = build(rig)

    asked = rig.join(name, member_id=ids[name], protocols=protocols("range", metadata=a_subscription("more")))

    assert asked.why in ("metadata-changed", "leader-rejoined")
    assert rig.group.state is State.PREPARING
    assert asked.decision.waits


@pytest.mark.row("JG-20")
def test_the_order_of_the_protocols_is_metadata_too():
    rig = Rig()
    both = protocols("range", "roundrobin")
    ids = a_stable_group(rig, protocols=both)

    assert rig.join("b", member_id=ids["b"], protocols=both).why == "join-repeated"
    assert rig.join("b", member_id=ids["b"], protocols=both[::-1]).why == "metadata-changed"


@pytest.mark.row("JG-21")
def test_a_second_join_of_a_parked_member_takes_the_place_of_the_first():
    """The first is never answered; the decision says so."""
    rig = Rig()
    first, _ = a_preparing_group(rig)
    member_id = rig.group.leader

    second = rig.join("a", member_id=member_id)

    assert second.why == "member-rejoined"
    assert second.decision.dropped == (first.call,)
    rig.run_ms(6_000)
    assert rig.answer(second).code is Code.NONE
    assert rig.answer(first) is None


@pytest.mark.row("JG-22")
def test_a_static_member_may_leave_its_instance_id_out():
    """Only the member id is checked then."""
    rig = Rig()
    ids = a_stable_group(rig, static=("b",))

    asked = rig.join("b", member_id=ids["b"], instance_id=None)

    assert asked.why == "join-repeated"
    assert rig.group.static == {"i-b": ids["b"]}


@pytest.mark.row("DE-7")
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


@pytest.mark.row("JG-25")
def test_a_completed_join_tells_the_leader_everybody_and_the_others_nobody():
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


@pytest.mark.row("JG-26")
def test_a_member_keeps_its_client_and_host():
    rig = Rig()
    rig.join("me", client_host="/10.0.0.7", version=3)

    member = next(iter(rig.group.members.values()))

    assert (member.client_id, member.client_host) == ("me", "/10.0.0.7")


@pytest.mark.row("JG-27")
def test_the_reason_of_a_join_changes_nothing():
    said, unsaid = Rig(), Rig()

    said.join(reason="because", version=3)
    unsaid.join(reason=None, version=3)

    assert said.shard.groups == unsaid.shard.groups


@pytest.mark.row("JG-28")
@pytest.mark.parametrize("instance_id", ["", ".", "x" * 300, "not/valid"])
def test_an_instance_id_is_taken_as_it_is(instance_id: str):
    """Clients check it, brokers do not."""
    rig = Rig()

    assert rig.join(instance_id=instance_id).why == "static-member-joined"
    assert list(rig.group.static) == [instance_id]


@pytest.mark.row("RB-7")
def test_a_member_that_names_a_protocol_twice_counts_once():
    rig = Rig()

    a_completing_group(rig, "a", "b", protocols=(*RANGE, *RANGE))

    assert rig.group.supporters == {"range": 2}
    assert rig.group.protocol == "range"


# -- the size limit


def full(**settings: int) -> tuple[Rig, dict[str, str]]:
    rig = Rig(max_size=2, **settings)
    return rig, a_stable_group(rig)


@pytest.mark.row("JG-12", "1.3.2-3", "0.5-3")
def test_a_full_group_turns_strangers_away():
    """The answer carries no id. Nor does a returning static member have a seat there."""
    rig, _ = full()

    for terms in ({}, {"version": 3}, {"instance_id": "i-1"}):
        asked = rig.join("late", **terms)
        assert asked.why == "group-full"
        assert (rig.answer(asked).code, rig.answer(asked).member_id) == (Code.GROUP_MAX_SIZE_REACHED, "")
    assert len(rig.group.members) == 2


@pytest.mark.row("1.3.2-3")
def test_a_full_group_still_knows_its_members():
    rig, ids = full()

    assert rig.join("b", member_id=ids["b"]).why == "join-repeated"


@pytest.mark.row("1.3.2-2", "JG-12")
def test_more_ids_may_be_promised_than_there_are_seats_and_the_late_are_turned_away():
    """Promised ids are not counted, and the check runs again when one is redeemed."""
    rig = Rig(max_size=2)
    promised = [rig.answer(rig.join(name)).member_id for name in "abc"]

    asked = [rig.join(member_id=member_id) for member_id in promised]

    assert [one.why for one in asked] == ["promise-redeemed", "promise-redeemed", "promise-too-late"]
    assert rig.answer(asked[2]).member_id == ""
    assert promised[2] not in rig.group.pending
    assert session_of(rig, promised[2]) is None


@pytest.mark.row("1.3.2-1")
def test_an_empty_group_takes_anybody():
    rig = Rig(max_size=0)

    assert rig.join(version=3).why == "member-joined"


@pytest.mark.row("JG-12", "LO-4", "1.3.2-2")
def test_the_last_to_rejoin_a_group_that_is_too_large_lose_their_place():
    """A member who is refused is thrown out. Loading starts it, where the limit was higher before."""
    big = Rig()
    ids = a_stable_group(big, "a", "b", "c")
    rig = Rig(max_size=2)
    rig.shard.load(big.log, 0)
    rig._carry_out(rig.shard.loaded(0), _nothing())
    assert rig.group.state is State.PREPARING

    asked = [rig.join(name, member_id=member_id) for name, member_id in ids.items()]

    assert [one.why for one in asked] == ["member-rejoined", "member-rejoined", "seat-lost"]
    assert ids["c"] not in rig.group.members
    assert rig.join("a", member_id=ids["a"]).why == "member-rejoined"  # who waits has its seat


def _nothing():
    from group_rig import Pending

    return Pending()
