"""The heartbeat's short way answers as the long one does, whoever asks, in every state."""

from __future__ import annotations

import pytest
from group_rig import Rig, a_completing_group, a_heartbeat, a_preparing_group, a_simple_group, a_stable_group
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.codes import Code
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
def test_the_short_way_answers_as_the_long_one(rig: Rig, data: st.DataObject, instance_id, generation: int):
    """1.5: the same code, the same deadline moved to the same time; None only for a refusal."""
    group = rig.shard.groups.get("g")
    known = [] if group is None else [*group.members, *group.pending]
    member_id = data.draw(st.sampled_from((*known, "", "nobody")))

    heard = rig.shard.beat("g", member_id, instance_id, generation)
    decision = rig.shard.perform(a_heartbeat(rig, member_id, generation, instance_id=instance_id), rig.now_ms)

    code = decision.replies[0].answer.code
    assert decision.facts == ()
    assert (heard is None) == (code not in (Code.NONE, Code.REBALANCE_IN_PROGRESS))
    if heard is None:
        assert decision.wakes == ()
    else:
        assert heard[0] is code
        assert decision.wakes == ((heard[2], rig.now_ms + heard[1]),)


@pytest.mark.parametrize("rig", RIGS[3:6])
def test_the_short_way_is_taken_by_members_of_the_generation(rig: Rig):
    """Else the test above would hold for a way that nobody takes."""
    group = rig.shard.groups["g"]

    for member_id in list(group.members)[:2]:
        assert rig.shard.beat("g", member_id, None, group.generation) is not None
