"""The small cases of section 9.3, and the edges that no vector has."""

import pytest

from coterie.assign import range_, roundrobin
from coterie.assign.model import Cluster, Member, RebalanceProtocol, Stateless, in_order
from coterie.assign.registry import ASSIGNORS, new_assignor
from coterie.assign.vote import NoCommonProtocol, candidates, common_protocol, vote
from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.producer.partitioner import partition_for_key
from coterie.wire.payloads.consumer_protocol import Subscription

EVERY_ASSIGNOR = pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)


def a_member(name: str, *topics: str, instance: str | None = None, rack: str | None = None) -> Member:
    return Member(member_id=name, instance_id=instance, subscription=Subscription(topics, rack=rack))


def a_cluster(**counts: int) -> Cluster:
    return Cluster(partition_counts=counts)


def shown(given) -> dict[str, str]:
    return {member: " ".join(map(str, partitions)) for member, partitions in given.items()}


def test_range_gives_neighbours():
    members = [a_member("A", "t0", "t1"), a_member("B", "t0", "t1")]

    assert shown(range_.assign(a_cluster(t0=3, t1=3), members)) == {
        "A": "t0-0 t0-1 t1-0 t1-1",
        "B": "t0-2 t1-2",
    }


def test_roundrobin_carries_the_turn_over_from_topic_to_topic():
    members = [a_member("A", "t0", "t1"), a_member("B", "t0", "t1")]

    assert shown(roundrobin.assign(a_cluster(t0=3, t1=3), members)) == {
        "A": "t0-0 t0-2 t1-1",
        "B": "t0-1 t1-0 t1-2",
    }


@pytest.mark.parametrize("assignor", [range_, roundrobin], ids=["range", "roundrobin"])
def test_members_that_want_different_topics(assignor):
    members = [a_member("A", "t0"), a_member("B", "t0", "t1"), a_member("C", "t0", "t1", "t2")]

    assert shown(assignor.assign(a_cluster(t0=1, t1=2, t2=3), members)) == {
        "A": "t0-0",
        "B": "t1-0",
        "C": "t1-1 t2-0 t2-1 t2-2",
    }


@pytest.mark.parametrize("assignor", [range_, roundrobin], ids=["range", "roundrobin"])
def test_static_members_come_first_by_their_instance_id(assignor):
    """AS-2."""
    members = [a_member("A", "t0"), a_member("B", "t0", instance="i2"), a_member("C", "t0", instance="i1")]

    assert shown(assignor.assign(a_cluster(t0=3), members)) == {"A": "t0-2", "B": "t0-1", "C": "t0-0"}


def test_members_sort_as_java_sorts_utf_16():
    """AS-2. U+1F600 is written with surrogates, which come before U+FF5E; by characters it comes after."""
    names = [
        member.member_id for member in in_order([a_member("\uff5e"), a_member("\U0001f600"), a_member("z")])
    ]

    assert names == ["z", "\U0001f600", "\uff5e"]


@EVERY_ASSIGNOR
def test_topics_without_partitions_and_members_without_topics_are_no_trouble(assignor):
    """AS-1: every member has an entry."""
    members = [a_member("A", "gone", "empty", "t0", "t0"), a_member("B")]

    assert shown(assignor.assign(a_cluster(t0=2, empty=0, other=4), members)) == {"A": "t0-0 t0-1", "B": ""}
    assert assignor.assign(a_cluster(t0=2), [a_member("A", "gone")]) == {"A": ()}
    assert assignor.assign(a_cluster(t0=2), []) == {}


def racked(count: int, replicas: int, *topics: str) -> Cluster:
    """Return topics whose partition p lies in rack p % 3 and the next ones."""
    racks = {
        TopicPartition(topic, number): frozenset("abc"[(number + more) % 3] for more in range(replicas))
        for topic in topics
        for number in range(count)
    }
    return Cluster(partition_counts=dict.fromkeys(topics, count), racks=racks)


@pytest.mark.parametrize(
    ("replicas", "topics", "expected"),
    [
        (1, ("t0",), {"A": "2 5", "B": "0 3", "C": "1 4"}),
        (3, ("t0",), {"A": "0 1", "B": "2 3", "C": "4 5"}),
        (2, ("t0", "t1"), {"A": "1 2", "B": "0 3", "C": "4 5"}),
    ],
)
def test_range_prefers_partitions_that_are_near(replicas, topics, expected):
    """AS-3: where every partition is in every rack, racks do not matter."""
    members = [
        a_member("A", *topics, rack="c"),
        a_member("B", *topics, rack="a"),
        a_member("C", *topics, rack="b"),
    ]

    given = range_.assign(racked(6, replicas, *topics), members)

    assert shown(given) == {
        member: " ".join(f"{topic}-{number}" for topic in topics for number in numbers.split())
        for member, numbers in expected.items()
    }


def test_a_rack_where_nothing_is_does_not_matter():
    """AS-3."""
    members = [a_member("A", "t0", rack="elsewhere"), a_member("B", "t0", rack="")]

    assert shown(range_.assign(racked(2, 1, "t0"), members)) == {"A": "t0-0", "B": "t0-1"}


def test_the_vote_goes_to_what_most_members_prefer():
    """PV-1, PV-2."""
    ballots = [["range", "roundrobin"], ["roundrobin", "range", "sticky"], ["sticky", "roundrobin", "range"]]

    assert candidates(ballots) == {"range", "roundrobin"}
    assert vote(ballots) == "roundrobin"


def test_nobody_agrees_and_nothing_is_chosen():
    assert vote([["range"], ["sticky"]]) is None
    assert vote([]) is None
    assert vote([[]]) is None


def test_a_tie_falls_as_in_a_java_hash_map():
    """PV-3: of the 16 buckets, sticky is in the 8th, range in the 9th, roundrobin in the 10th."""
    for order in (["sticky", "range", "roundrobin"], ["roundrobin", "range", "sticky"]):
        ballots = [order[number:] + order[:number] for number in range(3)]

        assert vote(ballots) == "sticky"
        assert vote([["range", "roundrobin"], ["roundrobin", "range"]]) == "range"


def an_assignor(name: str, *protocols: RebalanceProtocol) -> Stateless:
    return Stateless(name, range_.assign, protocols)


def test_members_keep_what_they_own_only_if_all_their_assignors_allow_it():
    """CA-6."""
    eager, cooperative = RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE

    assert common_protocol([ASSIGNORS["cooperative-sticky"]]) is cooperative
    for name in ("range", "roundrobin", "sticky"):
        assert common_protocol([ASSIGNORS[name], ASSIGNORS["cooperative-sticky"]]) is eager
        assert common_protocol([ASSIGNORS[name]]) is eager
    with pytest.raises(NoCommonProtocol, match="a: eager; b: cooperative"):
        common_protocol([an_assignor("a", eager), an_assignor("b", cooperative)])
    with pytest.raises(CoterieError, match=r"partition\.assignment\.strategy names no assignor"):
        common_protocol([])


def test_range_and_roundrobin_have_nothing_to_say_for_a_member():
    for name in ("range", "roundrobin"):
        assignor = new_assignor(name)
        assignor.on_assignment([TopicPartition("t", 0)], generation=3, member_id="A")

        assert assignor.user_data(topics=["t"], owned=[], generation=3) is None


def test_an_empty_key_is_hashed():
    """PT-4."""
    assert partition_for_key(b"", 6) == 3
