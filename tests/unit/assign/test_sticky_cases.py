"""The sticky assignors on cases small enough to read: section 9.3, Kafka's own examples, who is believed."""

from __future__ import annotations

import pytest

from coterie.assign.model import Cluster, Member, RebalanceProtocol
from coterie.assign.registry import ASSIGNORS, new_assignor
from coterie.assign.sticky import CooperativeSticky, Sticky
from coterie.base.ids import TopicPartition
from coterie.wire.payloads.consumer_protocol import PreviousAssignment, Subscription

BOTH = pytest.mark.parametrize("assignor", [Sticky(), CooperativeSticky()], ids=["sticky", "cooperative"])


def partitions(text: str) -> tuple[TopicPartition, ...]:
    """Return partitions written as t0-1."""
    pairs = (word.rsplit("-", 1) for word in text.split())
    return tuple(TopicPartition(topic, int(number)) for topic, number in pairs)


def a_member(
    name: str, topics: str, owned: str = "", generation: int = -1, rack: str | None = None
) -> Member:
    """Return a member that tells both assignors what it had, to each in its way."""
    had = partitions(owned)
    data = PreviousAssignment(had, generation).encode() if had else None
    return Member(
        member_id=name, subscription=Subscription(tuple(topics.split()), data, had, generation, rack)
    )


def shown(given) -> dict[str, str]:
    return {member: " ".join(map(str, sorted(share))) for member, share in given.items()}


def a_cluster(**counts: int) -> Cluster:
    return Cluster(partition_counts=counts)


@BOTH
def test_a_first_assignment_is_dealt_out_as_roundrobin_does(assignor):
    members = [a_member("A", "t0 t1"), a_member("B", "t0 t1")]

    assert shown(assignor.assign(a_cluster(t0=3, t1=3), members)) == {
        "A": "t0-0 t0-2 t1-1",
        "B": "t0-1 t1-0 t1-2",
    }


@BOTH
def test_members_that_want_different_topics_are_levelled(assignor):
    members = [a_member("A", "t0"), a_member("B", "t0 t1"), a_member("C", "t0 t1 t2")]

    assert shown(assignor.assign(a_cluster(t0=1, t1=2, t2=3), members)) == {
        "A": "t0-0",
        "B": "t1-0 t1-1",
        "C": "t2-0 t2-1 t2-2",
    }


@BOTH
def test_instance_ids_do_not_matter(assignor):
    """9.3: by member id alone."""
    members = [
        Member(member_id=name, instance_id=instance, subscription=Subscription(("t0",)))
        for name, instance in (("A", None), ("B", "i2"), ("C", "i1"))
    ]

    assert shown(assignor.assign(a_cluster(t0=3), members)) == {"A": "t0-0", "B": "t0-1", "C": "t0-2"}


def test_what_another_owns_is_withheld_first_and_given_in_the_next_rebalance():
    """CO-1, CO-2."""
    everything = "t0-0 t0-1 t0-2 t1-0 t1-1 t1-2"
    first = [a_member("A", "t0 t1", everything, generation=4), a_member("B", "t0 t1")]
    second = [
        a_member("A", "t0 t1", "t0-0 t1-0 t0-1", generation=5),
        a_member("B", "t0 t1", generation=5),
    ]
    cluster = a_cluster(t0=3, t1=3)

    assert shown(CooperativeSticky().assign(cluster, first)) == {"A": "t0-0 t0-1 t1-0", "B": ""}
    assert shown(CooperativeSticky().assign(cluster, second))["B"] == "t0-2 t1-1 t1-2"
    assert shown(Sticky().assign(cluster, first)) == {"A": "t0-0 t0-1 t1-0", "B": "t0-2 t1-1 t1-2"}


@BOTH
def test_who_left_leaves_its_partitions_to_the_others(assignor):
    members = [a_member("B", "t", "t-1 t-4", generation=3), a_member("C", "t", "t-2 t-5", generation=3)]

    assert shown(assignor.assign(a_cluster(t=7), members)) == {"B": "t-0 t-1 t-4 t-6", "C": "t-2 t-3 t-5"}


def test_of_two_that_claim_a_partition_the_newer_generation_keeps_it():
    """SK-6; the same generation is believed of neither, and the partition is withheld once (CO-3)."""
    for generation, expected in ((3, {"A": "t-1", "B": "t-2"}), (2, {"A": "t-0", "B": "t-2"})):
        members = [
            a_member("A", "t", "t-0 t-1", generation=3),
            a_member("B", "t", "t-0 t-2", generation=generation),
            a_member("C", "t", generation=3),
        ]

        assert shown(CooperativeSticky().assign(a_cluster(t=3), members)) == {**expected, "C": ""}


@pytest.mark.parametrize("names", ["ABC", "ACB", "BAC", "BCA", "CAB", "CBA"])
def test_it_does_not_matter_in_which_order_three_claims_are_heard(names):
    """SK-6. In Java it does: there the newest claim is lost if two older ones were heard first."""
    generations = dict(zip(names, (4, 4, 5), strict=True))
    members = [a_member(name, "t", "t-0", generation=generations[name]) for name in "ABC"]

    given = Sticky().assign(a_cluster(t=3), members)

    assert TopicPartition("t", 0) in given[names[2]]


@BOTH
def test_a_claim_of_an_older_generation_counts_where_nobody_disputes_it(assignor):
    members = [a_member("A", "t", "t-0 t-2", generation=7), a_member("B", "t", "t-1 t-3", generation=2)]

    assert shown(assignor.assign(a_cluster(t=4), members)) == {"A": "t-0 t-2", "B": "t-1 t-3"}


def test_what_has_to_move_goes_back_to_who_had_it_in_an_older_generation():
    """GS-2, GS-8: of two that have nothing the first would get t-0, but it was the other's."""
    for owned, expected in (("t-0", {"C": "t-1", "D": "t-0"}), ("", {"C": "t-0", "D": "t-1"})):
        members = [
            a_member("A", "t", "t-0 t-1 t-2 t-3", generation=5),
            a_member("C", "t", generation=5),
            a_member("D", "t u", owned, generation=3),
        ]

        assert shown(Sticky().assign(a_cluster(t=4), members)) == {"A": "t-2 t-3", **expected}


@BOTH
def test_claims_on_what_is_not_there_or_not_wanted_any_more_are_ignored(assignor):
    """SK-5, GS-3."""
    members = [a_member("A", "t", "t-0 t-9 gone-0 u-0", generation=3), a_member("B", "t u", generation=3)]

    given = shown(assignor.assign(a_cluster(t=2, u=1), members))

    assert given["A"] == "t-0 t-1"
    # A must give u-0 up first where it still owns it.
    assert given["B"] == ("u-0" if isinstance(assignor, Sticky) else "")


def test_user_data_of_version_0_has_no_generation_and_garbage_says_nothing():
    """SK-1, and EN-6: none is older than any."""
    claimed = PreviousAssignment(partitions("t-0 t-1"), None).encode()
    garbage = b"\xff\xff\xff\xff"

    for data, expected in ((claimed, "t-0 t-1"), (garbage, "t-0 t-2"), (b"", "t-0 t-2")):
        members = [
            Member(member_id="A", subscription=Subscription(("t",), data)),
            Member(member_id="B", subscription=Subscription(("t",))),
        ]
        assert shown(Sticky().assign(a_cluster(t=4), members))["A"] == expected


def test_a_subscription_without_a_generation_has_it_in_its_user_data():
    """SK-3: owned partitions came with version 1, the generation with version 2."""
    newer = Subscription(("t",), b"\0\0\0\x05", partitions("t-0"), -1)
    older = Subscription(("t",), b"\0\0\0\x04", partitions("t-0 t-1"), -1)
    unknown = Subscription(("t",), None, partitions("t-0"), -1)

    for rival in (older, unknown):
        members = [
            Member(member_id="A", subscription=rival),
            Member(member_id="B", subscription=newer),
        ]
        assert TopicPartition("t", 0) in CooperativeSticky().assign(a_cluster(t=2), members)["B"]


@BOTH
def test_members_in_a_rack_get_what_is_near(assignor):
    """CS-6, and 9.3."""
    racks = {TopicPartition("t0", number): frozenset("abc"[number % 3]) for number in range(6)}
    members = [a_member("A", "t0", rack="c"), a_member("B", "t0", rack="a"), a_member("C", "t0", rack="b")]

    given = assignor.assign(Cluster(partition_counts={"t0": 6}, racks=racks), members)

    assert shown(given) == {"A": "t0-2 t0-5", "B": "t0-0 t0-3", "C": "t0-1 t0-4"}


@BOTH
def test_a_member_that_wants_nothing_gets_nothing_though_it_comes_first(assignor):
    """SK-7: Java takes such a group for equally subscribed and gives A what it never asked for."""
    members = [a_member("A", ""), a_member("B", "t"), a_member("C", "t")]

    assert shown(assignor.assign(a_cluster(t=4), members)) == {"A": "", "B": "t-0 t-2", "C": "t-1 t-3"}


@BOTH
def test_nobody_and_nothing_are_no_trouble(assignor):
    assert assignor.assign(a_cluster(t=2), []) == {}
    assert assignor.assign(a_cluster(), [a_member("A", "t"), a_member("B", "u")]) == {"A": (), "B": ()}


def test_a_sticky_member_tells_what_it_was_given_last():
    """SK-1: nothing before the first assignment."""
    sticky = new_assignor("sticky")
    before = sticky.user_data(topics=["t"], owned=(), generation=-1)
    sticky.on_assignment(partitions("t-1 t-0 u-3"), generation=9, member_id="A")

    assert before is None
    assert sticky.user_data(topics=["t"], owned=(), generation=9) == bytes.fromhex(
        "00000002000174000000020000000100000000000175000000010000000300000009"
    )


def test_a_cooperative_member_tells_its_generation():
    """SK-4: -1 before the first assignment."""
    assignor = new_assignor("cooperative-sticky")
    before = assignor.user_data(topics=["t"], owned=(), generation=-1)
    assignor.on_assignment(partitions("t-1"), generation=9, member_id="A")

    assert before == b"\xff\xff\xff\xff"
    assert assignor.user_data(topics=["t"], owned=(), generation=9) == b"\0\0\0\x09"


def test_what_one_member_remembers_another_does_not():
    one, other = new_assignor("sticky"), new_assignor("sticky")
    one.on_assignment(partitions("t-1"), generation=9, member_id="A")

    assert other.user_data(topics=["t"], owned=(), generation=-1) is None


def test_only_the_cooperative_one_lets_members_keep_what_they_own():
    assert ASSIGNORS["sticky"].protocols == (RebalanceProtocol.EAGER,)
    assert ASSIGNORS["cooperative-sticky"].protocols == (
        RebalanceProtocol.COOPERATIVE,
        RebalanceProtocol.EAGER,
    )


# -- the two examples of Kafka's own documentation: three members, then the first leaves

EIGHT = {"t0": 2, "t1": 2, "t2": 2, "t3": 2}
ALL = "t0 t1 t2 t3"
UNEQUAL = {"C0": "t0", "C1": "t0 t1", "C2": "t0 t1 t2"}


DEALT = ["t0-0 t1-1 t3-0", "t0-1 t2-0 t3-1", "t1-0 t2-1"]
HALVES = ["t0-0 t1-0 t2-0 t3-0", "t0-1 t1-1 t2-1 t3-1"]
KEPT = ["t0-0 t0-1 t2-0 t3-1", "t1-0 t1-1 t2-1 t3-0"]


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [
        ("range", [*HALVES, ""], HALVES),
        ("roundrobin", DEALT, HALVES),
        ("sticky", DEALT, KEPT),
        ("cooperative-sticky", DEALT, KEPT),
    ],
)
def test_three_members_that_want_the_same_and_the_first_leaves(name, first, then):
    cluster = Cluster(partition_counts=EIGHT)
    given = ASSIGNORS[name].assign(cluster, [a_member(member, ALL) for member in ("C0", "C1", "C2")])
    assert list(shown(given).values()) == first

    left = [a_member(one, ALL, " ".join(map(str, given[one])), generation=1) for one in ("C1", "C2")]

    assert list(shown(ASSIGNORS[name].assign(cluster, left)).values()) == then


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [
        ("range", ["t0-0", "t0-1 t1-0", "t1-1 t2-0 t2-1"], ["t0-0 t1-0", "t0-1 t1-1 t2-0 t2-1"]),
        ("roundrobin", ["t0-0", "t0-1 t1-1", "t1-0 t2-0 t2-1"], ["t0-0 t1-0", "t0-1 t1-1 t2-0 t2-1"]),
        ("sticky", ["t0-0 t0-1", "t1-0 t1-1", "t2-0 t2-1"], ["t0-0 t1-0 t1-1", "t0-1 t2-0 t2-1"]),
        ("cooperative-sticky", ["t0-0 t0-1", "t1-0 t1-1", "t2-0 t2-1"], ["t0-0 t1-0 t1-1", "t0-1 t2-0 t2-1"]),
    ],
)  # fmt: skip
def test_three_members_that_want_different_topics_and_the_first_leaves(name, first, then):
    cluster = Cluster(partition_counts=EIGHT)
    given = ASSIGNORS[name].assign(cluster, [a_member(*each) for each in UNEQUAL.items()])
    assert list(shown(given).values()) == first

    left = [a_member(one, UNEQUAL[one], " ".join(map(str, given[one])), generation=1) for one in ("C1", "C2")]

    assert list(shown(ASSIGNORS[name].assign(cluster, left)).values()) == then
