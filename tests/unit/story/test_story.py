"""The story of a group: what one rebalance says of itself, and how much is remembered."""

from __future__ import annotations

import pytest

from coterie.base.ids import TopicPartition
from coterie.story.model import MemberView, Move, OpenRebalance, Person, Rebalance, StoryMemory


def orders(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("orders", number) for number in numbers)


def a_person(member_id: str = "m1", **values: str) -> Person:
    return Person(member_id, values.get("client_id", "app"), "/127.0.0.1", values.get("instance_id"))


def a_view(*owned: int, member_id: str = "m1") -> MemberView:
    return MemberView(a_person(member_id), orders(*owned), ("orders",))


def a_rebalance(**changes: object) -> Rebalance:
    values: dict[str, object] = {
        "group": "g",
        "at_ms": 10_000,
        "formed_at_ms": 10_200,
        "over_at_ms": 10_250,
        "generation": 2,
        "why": ("member-joined",),
        "state_before": "Stable",
        "state": "Stable",
        "settled": True,
        "leader": "m1",
        "protocol": "range",
        "members": {"m1": a_view(0), "m2": a_view(1, member_id="m2")},
        "had": {"m1": orders(0, 1)},
    }
    return Rebalance(**(values | changes))  # type: ignore[arg-type]


def a_move(group: str = "g", *, at_ms: int = 0) -> Move:
    return Move(at_ms, group, "member-left", "member-left", (), (a_person(),), "", "Stable", "Empty", 1, 0)


# -- a rebalance


def test_a_rebalance_says_who_joined_what_moved_and_how_long_nobody_worked():
    rebalance = a_rebalance()

    assert rebalance.joined == ("m2",)
    assert rebalance.left == ()
    assert rebalance.moved == 1
    assert (rebalance.barrier_ms, rebalance.stopped_ms) == (200, 250)


def test_a_member_says_what_it_has_and_what_it_gained_and_lost():
    members = a_rebalance().document()["members"]

    assert members["m2"]["partitions"] == members["m2"]["gained"] == {"orders": [1]}
    assert members["m1"]["lost"] == {"orders": [1]}
    assert members["m1"]["gained"] == {}


def test_what_a_member_leaves_behind_has_moved():
    rebalance = a_rebalance(members={}, had={"m1": orders(0, 1)})

    assert rebalance.left == ("m1",)
    assert rebalance.moved == 2


def test_an_assignment_that_cannot_be_read_counts_as_nothing_and_is_told_as_unknown():
    view = MemberView(a_person(), None, None)

    document = a_rebalance(members={"m1": view}).document()

    assert document["moved"] == 2
    assert document["members"]["m1"]["partitions"] == {}
    assert document["members"]["m1"]["partitions_known"] is False
    assert document["members"]["m1"]["topics"] is None


# -- a rebalance under way


def test_causes_that_come_together_are_all_told_and_none_twice():
    opened = OpenRebalance(0, state_before="Stable", had={})

    for cause in ("member-left", "member-joined", "member-left"):
        opened.add_cause(cause)

    assert opened.causes == ["member-left", "member-joined"]


def test_a_cause_that_nobody_knows_is_our_mistake():
    with pytest.raises(AssertionError):
        OpenRebalance(0, state_before="Stable", had={}).add_cause("bad-weather")


def test_a_static_member_that_came_back_still_has_what_it_had():
    opened = OpenRebalance(0, state_before="Stable", had={"i-1": b"assignment"})

    opened.replaced("i-1", "i-2")
    opened.replaced("stranger", "other")

    assert opened.had == {"i-2": b"assignment"}


# -- the memory


def test_a_group_is_remembered_by_its_last_thousand_decisions():
    memory = StoryMemory()

    for at_ms in range(2_500):
        memory.add(a_move(at_ms=at_ms))

    assert [move.at_ms for move in memory.of("g")] == list(range(1_500, 2_500))
    assert memory.of("another") == ()


def test_a_thousand_groups_share_what_there_is_room_for():
    memory = StoryMemory(in_all=5_000)

    for at_ms in range(20):
        for number in range(1_000):
            memory.add(a_move(str(number), at_ms=at_ms))
            assert len(memory) <= 5_000

    kept = [memory.of(str(number)) for number in range(1_000)]
    assert sum(map(len, kept)) == len(memory)
    assert all(moves and moves[-1].at_ms == 19 for moves in kept)


def test_restless_groups_do_not_make_a_quiet_one_forget():
    memory = StoryMemory(of_a_group=100, in_all=1_000)
    memory.add(a_move("quiet"))

    for at_ms in range(10_000):
        memory.add(a_move(f"restless-{at_ms % 50}", at_ms=at_ms))

    assert len(memory.of("quiet")) == 1
    assert memory.of("restless-49")[-1].at_ms == 9_999


def test_what_is_remembered_weighs_so_much_at_most_whatever_strangers_say():
    """TH-24."""
    memory = StoryMemory(bytes_in_all=100_000)
    memory.add(a_move("quiet"))

    for at_ms in range(200):
        memory.add(a_move("loud", at_ms=at_ms)._replace(reason="x" * 10_000))
        assert memory.weight <= 100_000

    assert memory.of("loud")[-1].at_ms == 199
    assert len(memory.of("quiet")) == 1
    assert memory.weight == sum(move.weight for group in ("loud", "quiet") for move in memory.of(group))


def test_one_decision_that_is_heavier_than_all_may_be_is_not_remembered():
    memory = StoryMemory(bytes_in_all=10_000)

    memory.add(a_move()._replace(reason="x" * 20_000))

    assert (len(memory), memory.weight) == (0, 0)


def test_more_groups_than_decisions_are_not_all_remembered():
    memory = StoryMemory(in_all=100)

    for number in range(1_000):
        memory.add(a_move(str(number)))

    assert len(memory) <= 100
    assert memory.of("999")
