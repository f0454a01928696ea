"""Heartbeats that the fast path may answer get what the table answers, whoever asks, in every state."""

from __future__ import annotations

import pytest
from group_rig import Rig, a_completing_group, a_heartbeat, a_preparing_group, a_simple_group, a_stable_group
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.coordinator.group.classic.sync import renewal
from coterie.coordinator.group.facts import GroupDied


def a_rebalancing_group(rig: Rig) -> None:
    a_stable_group(rig, "a", "s", static=("s",))
    rig.join("late", version=3)


def a_dead_group(rig: Rig) -> None:
    a_stable_group(rig, "a", "s", static=("s",))
    rig.shard.apply(GroupDied("g", 0))


def a_rig_with(build) -> Rig:
    rig = Rig()
    build(rig)
    promised = rig.join("p")
    rig.run_ms(7)
    assert promised.decision.replies
    return rig


RIGS = [
    Rig(),
    a_rig_with(a_simple_group),
    a_rig_with(a_preparing_group),
    a_rig_with(a_rebalancing_group),
    a_rig_with(lambda rig: a_completing_group(rig, "a", "s", static=("s",))),
    a_rig_with(lambda rig: a_stable_group(rig, "a", "s", static=("s",))),
    a_rig_with(a_dead_group),
]


@given(
    rig=st.sampled_from(RIGS),
    data=st.data(),
    instance_id=st.sampled_from((None, None, "i-s", "i-none", "")),
    generation=st.integers(-1, 3),
)
def test_a_renewal_is_what_the_table_answers(rig: Rig, data: st.DataObject, instance_id, generation: int):
    """1.5: the same code, the same deadline moved to the same time; None only for a refusal."""
    group = rig.shard.groups.get("g")
    known = [] if group is None else [*group.members, *group.pending]
    member_id = data.draw(st.sampled_from((*known, "", "nobody")))

    heartbeat = a_heartbeat(rig, member_id, generation, instance_id=instance_id)
    renewed = renewal(group, heartbeat)
    decision = rig.shard.perform(heartbeat, rig.now_ms)

    code = decision.replies[0].answer.code
    assert decision.facts == ()
    assert (renewed is None) == (code not in (Code.NONE, Code.REBALANCE_IN_PROGRESS))
    if renewed is None:
        assert decision.timers == ()
    else:
        assert renewed[0] is code
        member = renewed[1]
        assert decision.timers == ((member.session_key, rig.now_ms + member.session_timeout_ms),)


@pytest.mark.parametrize("rig", RIGS[3:6])
def test_members_of_the_generation_have_their_sessions_renewed(rig: Rig):
    """Else the test above would hold for a rule that renews nobody's."""
    group = rig.shard.groups["g"]

    for member_id in list(group.members)[:2]:
        assert renewal(group, a_heartbeat(rig, member_id, group.generation)) is not None
