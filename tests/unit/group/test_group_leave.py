"""LeaveGroup (1.6)."""

from __future__ import annotations

import pytest
from group_rig import Rig, a_completing_group, a_preparing_group, a_stable_group, session_of

from coterie.base.codes import Code
from coterie.coordinator.group.commands import Leaver
from coterie.coordinator.group.facts import GroupDied, GroupStored
from coterie.coordinator.group.model import State

GONE, UNKNOWN, FENCED = Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID


def codes(rig: Rig, asked) -> list[Code]:
    return [code for _, _, code in rig.answer(asked).members]


@pytest.mark.row("LG-2")
def test_leaving_a_group_that_is_not_there_is_unknown_for_each():
    """The top level is NONE."""
    rig = Rig()

    asked = rig.leave("x", Leaver("", "i", None))

    assert asked.why == "no-such-group"
    assert rig.answer(asked).code is Code.NONE
    assert rig.answer(asked).members == (("x", None, UNKNOWN), ("", "i", UNKNOWN))


@pytest.mark.row("LG-3")
def test_leaving_a_dead_group_is_sent_elsewhere():
    """Top level, no members."""
    rig = Rig()
    ids = a_stable_group(rig)
    rig.shard.apply(GroupDied("g", 0))

    asked = rig.leave(ids["a"])

    assert asked.why == "group-dead"
    assert rig.answer(asked).code is Code.COORDINATOR_NOT_AVAILABLE
    assert rig.answer(asked).members == ()


@pytest.mark.row("LG-4", "CG-8")
def test_an_administrator_removes_a_static_member_by_its_instance_id():
    """The answer echoes the empty id."""
    rig = Rig()
    ids = a_stable_group(rig, "a", "s", static=("s",))

    asked = rig.leave(Leaver("", "i-s", "evicted"))

    assert asked.why == "member-left"
    assert rig.answer(asked).members == (("", "i-s", GONE),)
    assert list(rig.group.members) == [ids["a"]]
    assert rig.group.static == {}
    assert session_of(rig, ids["s"]) is None


@pytest.mark.row("LG-5")
@pytest.mark.parametrize("instance_id", [None, "i-unmapped"])
def test_nobody_in_particular_is_unknown(instance_id: str | None):
    rig = Rig()
    a_stable_group(rig)

    asked = rig.leave(Leaver("", instance_id, None))

    assert asked.why == "nobody-left"
    assert codes(rig, asked) == [UNKNOWN]
    assert rig.group.state is State.STABLE


@pytest.mark.row("LG-6", "LG-10", "CG-8")
@pytest.mark.parametrize("build", [a_completing_group, a_stable_group])
def test_a_promised_id_that_leaves_makes_the_group_rebalance(build):
    rig = Rig()
    build(rig)
    promised = rig.answer(rig.join("p")).member_id

    asked = rig.leave(promised)

    assert asked.why == "member-left"
    assert codes(rig, asked) == [GONE]
    assert rig.group.pending == {}
    assert session_of(rig, promised) is None
    assert rig.group.state is State.PREPARING


@pytest.mark.row("LG-6", "LG-10")
def test_a_promised_id_that_leaves_lets_the_others_go_on():
    """PreparingRebalance completes."""
    rig = Rig()
    ids = a_stable_group(rig, "a")
    promised = rig.answer(rig.join("p")).member_id
    asked = rig.join("a", member_id=ids["a"])

    rig.leave(promised)

    assert rig.answer(asked).generation == 2


@pytest.mark.row("LG-6")
def test_a_promised_id_may_leave_an_empty_group():
    """Nothing else happens."""
    rig = Rig()
    promised = rig.answer(rig.join("p")).member_id

    asked = rig.leave(promised, "x")

    assert codes(rig, asked) == [GONE, UNKNOWN]
    assert rig.group.state is State.EMPTY
    assert rig.group.generation == 0


@pytest.mark.row("LG-7")
@pytest.mark.parametrize("state", ["preparing", "completing", "stable"])
def test_who_is_no_member_cannot_leave(state: str):
    rig = Rig()
    build = a_completing_group if state == "completing" else a_stable_group
    ids = build(rig, "a", "s", static=("s",))
    if state == "preparing":
        rig.join("late", version=3)
    before = rig.group.state

    asked = rig.leave(
        "x", Leaver("x", "i-none", None), Leaver("x", "i-s", None), Leaver(ids["a"], "i-s", None)
    )

    assert codes(rig, asked) == [UNKNOWN, UNKNOWN, FENCED, FENCED]
    assert rig.group.state is before
    assert len(rig.group.members) == (3 if state == "preparing" else 2)


@pytest.mark.row("LG-8")
def test_a_parked_joiner_that_leaves_is_told_that_it_is_nobody():
    """With no member id."""
    rig = Rig()
    a, _ = a_preparing_group(rig)

    rig.leave(rig.group.leader or "")

    assert (rig.answer(a).code, rig.answer(a).member_id) == (UNKNOWN, "")


@pytest.mark.row("LG-9")
def test_a_parked_syncer_that_is_removed_is_told_that_it_is_nobody():
    """Kafka never answers it; here every call is answered."""
    rig = Rig()
    ids = a_completing_group(rig)
    parked = rig.sync(ids["b"])

    rig.leave(ids["b"])

    assert rig.answer(parked).code is UNKNOWN


@pytest.mark.row("LG-10")
def test_the_others_rebalance_when_one_leaves():
    """Parked syncs now, the rest at their next heartbeat."""
    rig = Rig()
    ids = a_completing_group(rig, "a", "b", "c")
    parked = rig.sync(ids["b"])

    rig.leave(ids["c"])

    assert rig.answer(parked).code is Code.REBALANCE_IN_PROGRESS
    assert rig.beat(ids["a"]) is Code.REBALANCE_IN_PROGRESS


@pytest.mark.row("LG-10")
def test_a_rebalance_goes_on_when_only_who_leaves_was_missing():
    rig = Rig()
    ids = a_stable_group(rig)
    asked = rig.join("a", member_id=ids["a"])

    rig.leave(ids["b"])

    assert rig.answer(asked).generation == 2
    assert [m[0] for m in rig.answer(asked).members] == [ids["a"]]


@pytest.mark.row("LG-11", "LG-13")
def test_the_last_to_leave_leaves_an_empty_group_behind():
    """In one step, and the answer waits for the record."""
    rig = Rig()
    ids = a_stable_group(rig)
    rig.hold()

    asked = rig.leave(*ids.values())

    assert rig.group.state is State.EMPTY
    assert rig.group.generation == 2
    assert GroupStored("g") in asked.decision.facts
    assert rig.answer(asked) is None
    rig.append()
    assert codes(rig, asked) == [GONE, GONE]


@pytest.mark.row("LG-7")
def test_a_batch_is_judged_one_by_one():
    """LG-7, 8.3 testStaticMembersValidBatchLeaveGroup and its sisters."""
    rig = Rig()
    ids = a_stable_group(rig, "a", "s", "t", static=("s", "t"))
    promised = rig.answer(rig.join("p")).member_id

    asked = rig.leave(
        Leaver(ids["s"], "i-s", None),
        Leaver("", "i-t", None),
        Leaver(promised, None, None),
        Leaver("x", None, None),
        Leaver(ids["s"], "i-s", None),
    )

    assert codes(rig, asked) == [GONE, GONE, GONE, UNKNOWN, UNKNOWN]
    assert list(rig.group.members) == [ids["a"]]
    assert rig.group.state is State.PREPARING


@pytest.mark.row("LG-7")
def test_a_static_member_may_leave_without_its_instance_id():
    rig = Rig()
    ids = a_stable_group(rig, "a", "s", static=("s",))

    assert codes(rig, rig.leave(ids["s"])) == [GONE]
    assert rig.group.static == {}


@pytest.mark.row("LG-11")
def test_leaving_with_a_promise_outstanding_waits_for_it_no_longer_than_anybodys_patience():
    """LG-11 with a promised id: the timer is the longest patience of nobody."""
    rig = Rig()
    ids = a_stable_group(rig, "a")
    promised = rig.answer(rig.join("p")).member_id

    rig.leave(ids["a"])
    assert rig.group.state is State.PREPARING
    rig.run_ms(0)

    assert rig.group.state is State.EMPTY
    assert promised in rig.group.pending
