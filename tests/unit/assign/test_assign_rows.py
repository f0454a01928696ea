"""Steps of Kafka's assignors that the vectors prove as a whole, each in a case small enough to read."""

from __future__ import annotations

import pytest
from test_sticky_cases import a_cluster, a_member, partitions, shown

from coterie.assign import range_
from coterie.assign.board import Board
from coterie.assign.model import Cluster, Member
from coterie.assign.sticky import CooperativeSticky, Sticky
from coterie.assign.uneven import Leveller, Table
from coterie.base.hashes import java_hash_order
from coterie.base.ids import TopicPartition
from coterie.wire.payloads.consumer_protocol import Subscription


def racked(**racks: str) -> Cluster:
    """Return topics; each partition has its replicas in the racks that its word has as letters."""
    words = {topic: text.split() for topic, text in racks.items()}
    return Cluster(
        partition_counts={topic: len(listed) for topic, listed in words.items()},
        racks={
            TopicPartition(topic, number): frozenset(word)
            for topic, listed in words.items()
            for number, word in enumerate(listed)
        },
    )


def static(name: str, instance: str, topics: str) -> Member:
    return Member(member_id=name, instance_id=instance, subscription=Subscription(tuple(topics.split())))


# -- range


def test_the_first_members_get_one_more_and_each_has_neighbours():
    """RA-1, RA-3: seven over three are 2 and 1 over; members in their order."""
    members = [a_member(name, "t") for name in "CAB"]

    assert shown(range_.assign(a_cluster(t=7), members)) == {
        "A": "t-0 t-1 t-2",
        "B": "t-3 t-4",
        "C": "t-5 t-6",
    }


def test_who_gets_more_than_the_others_uses_up_what_is_over():
    """RA-2, RA-6: two of four are near C, the last in the order; nobody else may have two then."""
    members = [a_member(name, "t", rack=rack) for name, rack in zip("ABC", "abc", strict=True)]

    given = range_.assign(racked(t="c c a b"), members)

    assert shown(given) == {"A": "t-2", "B": "t-3", "C": "t-0 t-1"}


def test_topics_of_the_same_size_and_members_go_together_and_others_by_themselves():
    """RA-4, RA-5: t and u have three partitions each; v has two, and another audience."""
    members = [
        a_member("A", "t u v", rack="c"),
        a_member("B", "t u v", rack="a"),
        a_member("C", "t u", rack="b"),
    ]

    given = range_.assign(racked(t="a b c", u="a b c", v="a c"), members)

    assert shown(given) == {"A": "t-2 u-2 v-1", "B": "t-0 u-0 v-0", "C": "t-1 u-1"}


def test_what_is_near_nobody_is_given_out_in_ranges_and_shares_come_sorted():
    """RA-7: only t-3 is near A, only t-0 near B."""
    members = [a_member("A", "t", rack="a"), a_member("B", "t", rack="b")]

    given = range_.assign(racked(t="b x x a"), members)

    assert {name: list(share) for name, share in given.items()} == {
        "A": list(partitions("t-1 t-3")),
        "B": list(partitions("t-0 t-2")),
    }


def test_static_members_keep_their_ranges_under_new_member_ids():
    """RA-9: by instance id, whatever the member ids."""
    before = [static("m-1", "i1", "t"), static("m-2", "i2", "t")]
    after = [static("m-9", "i1", "t"), static("m-3", "i2", "t")]

    shares = [range_.assign(a_cluster(t=5), members) for members in (before, after)]

    assert shares[0]["m-1"] == shares[1]["m-9"]
    assert shares[0]["m-2"] == shares[1]["m-3"]


# -- sticky and cooperative-sticky, equal subscriptions


def test_a_sticky_member_is_believed_by_its_user_data_alone():
    """SK-2: an eager member owns nothing when it joins, whatever its subscription says."""
    owning = Member(member_id="A", subscription=Subscription(("t",), None, partitions("t-1"), 3))
    members = [owning, a_member("B", "t")]

    assert shown(Sticky().assign(a_cluster(t=2), members)) == {"A": "t-0", "B": "t-1"}
    assert shown(CooperativeSticky().assign(a_cluster(t=2), members)) == {"A": "t-1", "B": "t-0"}


@pytest.mark.parametrize("assignor", [Sticky(), CooperativeSticky()], ids=["sticky", "cooperative"])
def test_who_has_too_much_keeps_the_lowest_numbers_whatever_the_topic(assignor):
    """CS-1: by partition, then topic."""
    members = [a_member("A", "t u", "t-0 t-1 u-0 u-1", generation=3), a_member("B", "t u")]

    given = shown(assignor.assign(a_cluster(t=2, u=2), members))

    assert given["A"] == "t-0 u-0"


def test_each_keeps_what_it_may_by_how_much_it_had():
    """CS-2, CS-3, CS-4: 8 over 3 are 2 at least, and two members get 3. D had 1 and keeps it, A had 4 and
    keeps 3, B had 2 and keeps them; it is at 2 before D, and gets the second 3.
    """
    members = [
        a_member("A", "t", "t-0 t-1 t-2 t-3", generation=3),
        a_member("B", "t", "t-4 t-5", generation=3),
        a_member("D", "t", "t-6", generation=3),
    ]

    given = Sticky().assign(a_cluster(t=8), members)

    assert shown(given) == {"A": "t-0 t-1 t-2", "B": "t-4 t-5 t-7", "D": "t-3 t-6"}


def test_what_is_free_goes_round_those_below_their_share_and_then_to_those_at_it():
    """CS-5, CS-7: t-0 to t-4 are free, in their order; B and C lack two each, by member id, then A gets the
    one that is over.
    """
    members = [
        a_member("A", "t", "t-5 t-6", generation=3),
        a_member("C", "t"),
        a_member("B", "t"),
    ]

    given = Sticky().assign(a_cluster(t=7), members)

    assert shown(given) == {"A": "t-4 t-5 t-6", "B": "t-0 t-2", "C": "t-1 t-3"}


def test_a_partition_on_its_way_to_another_member_is_nobody_s_for_now():
    """CS-8: A has to give one up for B; it is B's only when A has given it up."""
    cluster = a_cluster(t=2)
    members = [a_member("A", "t", "t-0 t-1", generation=3), a_member("B", "t")]

    assert shown(CooperativeSticky().assign(cluster, members)) == {"A": "t-0", "B": ""}


def test_who_may_keep_more_is_told_apart_as_in_a_java_hash_map():
    """AS-4: R and a have two each, and only one of the three may keep two."""
    members = [
        a_member("R", "t", "t-0 t-1", generation=3),
        a_member("a", "t", "t-2 t-3", generation=3),
        a_member("z", "t"),
    ]

    given = Sticky().assign(a_cluster(t=4), members)

    assert sorted(["R", "a"]) == ["R", "a"]
    assert [name for name in java_hash_order(["R", "a", "z"]) if name != "z"] == ["a", "R"]
    assert {name: len(share) for name, share in given.items()} == {"R": 1, "a": 2, "z": 1}


# -- unequal subscriptions


def a_table(cluster: Cluster, members: list[Member], owned: str) -> Table:
    """Return a table in which members own what the words say: A=t-0."""
    board = Board(cluster, members)
    places = {member.member_id: place for place, member in enumerate(board.members)}
    owners = [-1] * board.size
    for word in owned.split():
        name, _, text = word.partition("=")
        for number in board.numbers_in(partitions(text)):
            owners[number] = places[name]
    return Table(board, owners)


def test_topics_that_few_want_come_first():
    """GS-1: v is wanted by one, t and u by two: among those by name."""
    members = [a_member("A", "t u v"), a_member("B", "t u")]
    table = a_table(a_cluster(t=1, u=1, v=1), members, "")

    assert [table.board.topics[topic] for topic in table.order] == ["v", "t", "u"]


def test_what_is_free_goes_to_whom_has_the_least_and_among_equals_by_member_id():
    """GS-4, GS-5: B and C have nothing, A has one."""
    members = [a_member("A", "t"), a_member("C", "t u"), a_member("B", "t")]
    table = a_table(a_cluster(t=4, u=1), members, "A=t-0")

    table.place()

    names = [member.member_id for member in table.board.members]
    placed = {
        str(one): names[owner] for one, owner in zip(table.board.partitions(), table.owners, strict=True)
    }
    assert placed == {"t-0": "A", "t-1": "B", "t-2": "A", "t-3": "B", "u-0": "C"}


def test_what_is_new_moves_before_what_somebody_had():
    """GS-7: nobody had to give anything up, so A keeps all it had, though B could have had any of it."""
    members = [a_member("A", "t", "t-0 t-1", generation=3), a_member("B", "t u")]

    given = Sticky().assign(a_cluster(t=4, u=1), members)

    assert set(partitions("t-0 t-1")) <= set(given["A"])
    assert sorted(map(len, given.values())) == [2, 3]


def test_a_move_that_would_go_against_another_takes_that_back_instead():
    """GS-9: t-0 went from A to B; to give t-2 of B's to A is to give t-0 back."""
    members = [a_member("A", "t"), a_member("B", "t u")]
    table = a_table(a_cluster(t=3, u=1), members, "A=t-0 A=t-1 B=t-2 B=u-0")
    leveller = Leveller(table, {})

    leveller._move(0, 0, 1)
    leveller._move(0, 2, 0)

    assert table.owners[:3] == [0, 0, 1]
