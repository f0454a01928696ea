"""The rebalance story: what one rebalance says of itself."""

from __future__ import annotations

from coterie.base.ids import TopicPartition
from coterie.observe.story import GroupStory, MemberView


def a_member(*owned: int) -> MemberView:
    partitions = tuple(TopicPartition("orders", partition) for partition in owned)
    return MemberView(client_id="app", host="/127.0.0.1", instance_id=None, owned=partitions)


def a_settled_group() -> GroupStory:
    story = GroupStory("g")
    story.disturbed(1_000, "member-joined")
    story.formed(4_000)
    story.settled(4_010, generation=1, leader="m1", protocol="range", members={"m1": a_member(0, 1)})
    return story


def test_a_rebalance_says_who_joined_what_moved_and_how_long_nobody_worked():
    story = a_settled_group()

    story.disturbed(10_000, "member-joined")
    story.formed(10_200)
    rebalance = story.settled(
        10_250,
        generation=2,
        leader="m1",
        protocol="range",
        members={"m1": a_member(0), "m2": a_member(1)},
    )

    assert rebalance.why == ("member-joined",)
    assert rebalance.joined == ("m2",)
    assert rebalance.left == ()
    assert rebalance.moved == 1
    assert rebalance.stopped_ms == 250
    assert rebalance.document()["members"]["m2"]["partitions"] == {"orders": [1]}


def test_causes_that_come_together_are_all_told_and_none_twice():
    story = a_settled_group()

    for cause in ("member-left", "member-joined", "member-left"):
        story.disturbed(10_000, cause)
    rebalance = story.settled(10_001, generation=2, leader=None, protocol=None, members={})

    assert rebalance.why == ("member-left", "member-joined")
    assert rebalance.left == ("m1",)
    assert rebalance.moved == 2


def test_the_next_page_begins_blank():
    story = a_settled_group()

    story.formed(19_990)
    rebalance = story.settled(
        20_000,
        generation=2,
        leader="m1",
        protocol="range",
        members={"m1": a_member(0, 1)},
    )

    assert rebalance.why == ("unknown",)
    assert rebalance.stopped_ms == 10
    assert rebalance.moved == 0
