"""Static members (2.9)."""

from __future__ import annotations

import pytest
from group_rig import (
    REBALANCE_MS,
    SESSION_MS,
    Rig,
    a_completing_group,
    a_stable_group,
    a_subscription,
    protocols,
    session_of,
)

from coterie.base.codes import Code
from coterie.coordinator.group.commands import Expire
from coterie.coordinator.group.facts import GroupStored, MemberRejoined, MemberReplaced
from coterie.coordinator.group.model import State
from coterie.wire.payloads.consumer_offsets import read_group_value

LONG = 1_800_000


def a_static_group(rig: Rig, build=a_stable_group, **terms) -> dict[str, str]:
    """A group whose leader l and follower s are static, and a dynamic d."""
    return build(rig, "l", "s", "d", static=("l", "s"), **terms)


@pytest.mark.row("ST-2", "PV-4")
def test_a_returning_member_goes_on_where_it_was():
    """No rebalance, even if the subscription's bytes changed; the record has the new id."""
    rig = Rig()
    ids = a_static_group(rig)
    rig.now_ms += 100

    asked = rig.join("s", instance_id="i-s", protocols=protocols("range", metadata=a_subscription("new")))

    assert asked.why == "static-member-returned"
    assert [type(f) for f in asked.decision.facts] == [MemberReplaced, MemberRejoined, GroupStored]
    answer = rig.answer(asked)
    new = answer.member_id
    assert (answer.code, answer.generation) == (Code.NONE, 1)
    assert new.startswith("i-s-")
    assert new != ids["s"]
    assert rig.group.state is State.STABLE
    value = read_group_value(rig.log[-1][1] or b"")
    stored = {m.member_id: (m.assignment, m.subscription) for m in value.members}
    assert stored[new] == (b"for s", a_subscription("new"))
    assert ids["s"] not in stored


@pytest.mark.row("ST-2")
def test_the_answer_to_a_return_waits_for_the_record():
    rig = Rig()
    a_static_group(rig)
    rig.hold()

    asked = rig.join("s", instance_id="i-s")

    assert rig.answer(asked) is None
    rig.append()
    assert rig.answer(asked).code is Code.NONE


@pytest.mark.row("ST-3")
def test_a_returning_leader_is_told_to_skip_the_assignment():
    rig = Rig()
    a_static_group(rig)

    answer = rig.answer(rig.join("l", instance_id="i-l", version=9))

    assert answer.skip_assignment
    assert answer.leader == answer.member_id == rig.group.leader
    assert len(answer.members) == 3


@pytest.mark.row("ST-2")
def test_a_returning_follower_is_told_nothing_special():
    rig = Rig()
    ids = a_static_group(rig)

    answer = rig.answer(rig.join("s", instance_id="i-s", version=9))

    assert not answer.skip_assignment
    assert answer.members == ()
    assert answer.leader == ids["l"]


@pytest.mark.row("ST-4")
@pytest.mark.parametrize("version", [5, 8])
def test_an_old_leader_that_returns_is_shown_another_as_leader(version: int):
    """Its old id, so that it takes itself for a follower."""
    rig = Rig()
    ids = a_static_group(rig)

    answer = rig.answer(rig.join("l", instance_id="i-l", version=version))

    assert answer.leader == ids["l"] != answer.member_id
    assert answer.members == ()
    assert not answer.skip_assignment
    assert rig.group.leader == answer.member_id


@pytest.mark.row("LD-5")
def test_leadership_goes_with_the_instance():
    rig = Rig()
    a_static_group(rig)

    answer = rig.answer(rig.join("l", instance_id="i-l"))

    assert rig.group.leader == answer.member_id


@pytest.mark.row("ST-5")
def test_who_returned_syncs_and_gets_what_is_stored():
    rig = Rig()
    a_static_group(rig)
    new = rig.answer(rig.join("s", instance_id="i-s")).member_id

    asked = rig.sync(new, instance_id="i-s")

    assert asked.why == "assignment-told"
    assert rig.answer(asked).assignment == b"for s"


@pytest.mark.row("ST-2", "ST-5")
def test_who_returned_before_its_old_self_synced_has_to_sync_in_its_place():
    """EX-4 with ST-2: Kafka keeps waiting for the old id and rebalances for nothing."""
    rig = Rig()
    ids = a_static_group(rig, a_completing_group, session_timeout_ms=LONG)
    rig.sync(ids["l"])
    rig.sync(ids["d"])
    assert rig.group.pending_sync == {ids["s"]}

    new = rig.answer(rig.join("s", instance_id="i-s", session_timeout_ms=LONG)).member_id
    assert rig.group.pending_sync == {new}
    rig.sync(new)
    rig.run_ms(REBALANCE_MS)

    assert rig.group.state is State.STABLE


@pytest.mark.row("ST-1", "EX-5")
def test_the_old_selfs_session_ends_with_it():
    """The new one has the old one's timeout until its next sign of life."""
    rig = Rig()
    ids = a_static_group(rig)
    rig.now_ms += 1_000

    new = rig.answer(rig.join("s", instance_id="i-s", session_timeout_ms=7_000)).member_id

    assert session_of(rig, ids["s"]) is None
    assert session_of(rig, new) == rig.now_ms + SESSION_MS
    assert rig.ask(Expire(key=("session", "g", ids["s"]))).why == "deadline-passed-over"
    assert rig.group.members[new].session_timeout_ms == 7_000


@pytest.mark.row("ST-7", "PV-4")
def test_a_vote_that_would_fall_otherwise_rebalances():
    rig = Rig()
    both = protocols("range", "roundrobin")
    a_static_group(rig, protocols=both)
    assert rig.group.protocol == "range"

    asked = rig.join("s", instance_id="i-s", protocols=protocols("roundrobin"))

    assert asked.why == "static-member-changed-vote"
    assert asked.decision.waits
    assert rig.group.state is State.PREPARING
    assert rig.group.awaiting_join == 1


@pytest.mark.row("ST-8", "ST-1")
def test_a_return_in_completing_rebalance_rebalances_always():
    """What the old self had parked is fenced, the others' syncs are sent back."""
    rig = Rig()
    ids = a_static_group(rig, a_completing_group)
    old, other = rig.sync(ids["s"]), rig.sync(ids["d"])

    asked = rig.join("s", instance_id="i-s")

    assert asked.why == "static-member-replaced"
    assert rig.answer(old).code is Code.FENCED_INSTANCE_ID
    assert rig.answer(other).code is Code.REBALANCE_IN_PROGRESS
    assert rig.group.state is State.PREPARING


@pytest.mark.row("ST-8", "ST-1")
def test_a_return_in_a_rebalance_takes_the_parked_place():
    """The old join is fenced, with its old id; the last one completes."""
    rig = Rig()
    ids = a_static_group(rig)
    old = rig.join("s", member_id=ids["s"], instance_id="i-s", protocols=protocols("range", metadata=b""))
    rig.join("d", member_id=ids["d"])

    back = rig.join("s", instance_id="i-s")
    assert (rig.answer(old).code, rig.answer(old).member_id) == (Code.FENCED_INSTANCE_ID, ids["s"])
    assert rig.answer(back) is None
    rig.join("l", member_id=ids["l"], instance_id="i-l")

    assert rig.answer(back).generation == 2


@pytest.mark.row("ST-8", "ID-5")
def test_a_return_in_the_initial_delay_waits_on():
    """It is no newcomer."""
    rig = Rig()
    rig.join("s", instance_id="i-s")

    back = rig.join("s", instance_id="i-s")
    assert not rig.group.new_member_added
    rig.run_ms(3_000)

    assert rig.answer(back).generation == 1


@pytest.mark.row("ST-9")
def test_the_current_id_makes_an_ordinary_member():
    """The leader's rejoin in Stable rebalances."""
    rig = Rig()
    ids = a_static_group(rig)

    assert rig.join("s", member_id=ids["s"], instance_id="i-s").why == "join-repeated"
    assert rig.join("l", member_id=ids["l"], instance_id="i-l").why == "leader-rejoined"


@pytest.mark.row("ST-10")
def test_the_old_self_is_fenced_wherever_it_speaks():
    rig = Rig()
    ids = a_static_group(rig)
    rig.join("s", instance_id="i-s")
    old = ids["s"]

    assert rig.answer(rig.join("s", member_id=old, instance_id="i-s")).code is Code.FENCED_INSTANCE_ID
    assert rig.answer(rig.sync(old, instance_id="i-s")).code is Code.FENCED_INSTANCE_ID
    assert rig.beat(old, instance_id="i-s") is Code.FENCED_INSTANCE_ID
    assert rig.answer(rig.commit(old, 1, instance_id="i-s")).codes == (Code.FENCED_INSTANCE_ID,)


@pytest.mark.row("ST-10")
def test_the_old_self_without_its_instance_id_is_just_unknown():
    rig = Rig()
    ids = a_static_group(rig)
    rig.join("s", instance_id="i-s")
    old = ids["s"]

    assert rig.answer(rig.join("s", member_id=old)).code is Code.UNKNOWN_MEMBER_ID
    assert rig.answer(rig.sync(old)).code is Code.UNKNOWN_MEMBER_ID
    assert rig.beat(old) is Code.UNKNOWN_MEMBER_ID
    assert rig.answer(rig.commit(old, 1)).codes == (Code.UNKNOWN_MEMBER_ID,)


@pytest.mark.row("ST-11")
def test_a_silent_static_member_goes_by_its_session():
    rig = Rig()
    ids = a_stable_group(rig, "a", "s", static=("s",))
    for _ in range(15):
        rig.run_ms(3_000)
        rig.beat(ids["a"])

    assert "session-expired" in rig.whys
    assert ids["s"] not in rig.group.members
    assert rig.group.static == {}


@pytest.mark.row("ST-11", "EX-3")
def test_a_static_member_that_never_syncs_goes_by_the_sync_deadline():
    """ST-11, EX-3, testGroupStuckInRebalanceTimeoutDueToNonjoinedStaticMember"""
    rig = Rig()
    ids = a_completing_group(rig, "a", "s", static=("s",), session_timeout_ms=LONG)
    rig.sync(ids["a"])

    rig.run_ms(REBALANCE_MS)

    assert rig.whys[-1] == "sync-timeout"
    assert list(rig.group.members) == [ids["a"]]


@pytest.mark.row("ST-12")
def test_the_topics_that_hold_offsets_back_are_those_of_the_generation():
    """A return with another subscription does not change them."""
    rig = Rig()
    a_stable_group(rig, "s", static=("s",))

    rig.join("s", instance_id="i-s", protocols=protocols("range", metadata=a_subscription("other")))

    assert rig.group.topics() == {"flights"}
    assert rig.restarted().group.topics() == {"other"}


@pytest.mark.row("ST-1")
def test_each_return_makes_a_fresh_id():
    """ST-1, testGetDifferentStaticMemberIdAfterEachRejoin"""
    rig = Rig()
    a_stable_group(rig, "s", static=("s",))

    ids = {rig.answer(rig.join("s", instance_id="i-s")).member_id for _ in range(5)}

    assert len(ids) == 5
    assert len(rig.group.members) == 1


@pytest.mark.row("ST-1")
def test_a_replacement_keeps_its_clients_name():
    """The copy is of the old self, the request sets timeouts and protocols."""
    rig = Rig()
    a_stable_group(rig, "s", static=("s",))

    rig.join("renamed", instance_id="i-s", client_host="/elsewhere", rebalance_timeout_ms=1_234)

    member = next(iter(rig.group.members.values()))
    assert (member.client_id, member.client_host) == ("s", "/127.0.0.1")
    assert member.rebalance_timeout_ms == 1_234
