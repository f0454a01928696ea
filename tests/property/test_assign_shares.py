"""What every assignor owes its members, whatever they want and wherever they are."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assign.model import Cluster, Member
from coterie.assign.registry import ASSIGNORS
from coterie.base.ids import TopicPartition
from coterie.wire.payloads.consumer_protocol import Subscription

TOPICS = ("t0", "t1", "t2", "missing")
RACKS = st.sampled_from(["a", "b", "c"])
EVERY_ASSIGNOR = pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)


@st.composite
def clusters(draw) -> Cluster:
    counts = {topic: draw(st.integers(0, 9)) for topic in TOPICS[:3]}
    racks = {
        TopicPartition(topic, number): draw(st.frozensets(RACKS, max_size=3))
        for topic, count in counts.items()
        for number in range(count)
    }
    return Cluster(partition_counts=counts, racks=racks if draw(st.booleans()) else {})


@st.composite
def groups(draw) -> list[Member]:
    names = draw(st.lists(st.text("xyz", min_size=1, max_size=3), unique=True, max_size=6))
    return [
        Member(
            member_id=name,
            instance_id=draw(st.none() | st.just(f"i-{name}")),
            subscription=Subscription(
                tuple(draw(st.lists(st.sampled_from(TOPICS), max_size=4))), rack=draw(st.none() | RACKS)
            ),
        )
        for name in names
    ]


@EVERY_ASSIGNOR
@settings(deadline=None)
@given(cluster=clusters(), members=groups())
def test_every_partition_that_somebody_wants_goes_to_one_who_wants_it(assignor, cluster, members):
    """AS-1."""
    wanted = {topic for member in members for topic in member.subscription.topics}
    topics = {member.member_id: set(member.subscription.topics) for member in members}

    given_out = assignor.assign(cluster, members)

    assert given_out.keys() == topics.keys()
    for member_id, partitions in given_out.items():
        assert {partition.topic for partition in partitions} <= topics[member_id]
        assert list(partitions) == sorted(partitions)
    everything = Counter(partition for partitions in given_out.values() for partition in partitions)
    assert everything == Counter(each for topic in wanted for each in cluster.partitions_of(topic))


@settings(deadline=None)
@given(cluster=clusters(), members=groups())
def test_range_shares_each_topic_evenly_among_those_who_want_it(cluster, members):
    """RA-8."""
    given_out = ASSIGNORS["range"].assign(cluster, members)

    for topic in TOPICS:
        shares = [
            sum(partition.topic == topic for partition in given_out[member.member_id])
            for member in members
            if topic in member.subscription.topics
        ]
        assert not shares or max(shares) - min(shares) <= 1


@settings(deadline=None)
@given(cluster=clusters(), members=groups())
def test_roundrobin_is_even_among_members_that_want_the_same(cluster, members):
    alike = [
        Member(member_id=member.member_id, subscription=Subscription(("t0", "t1"))) for member in members
    ]

    shares = [len(partitions) for partitions in ASSIGNORS["roundrobin"].assign(cluster, alike).values()]

    assert not shares or max(shares) - min(shares) <= 1


@EVERY_ASSIGNOR
@settings(deadline=None)
@given(cluster=clusters(), members=groups(), order=st.randoms())
def test_it_does_not_matter_who_is_listed_first(assignor, cluster, members, order):
    shuffled = list(members)
    order.shuffle(shuffled)

    assert assignor.assign(cluster, shuffled) == assignor.assign(cluster, members)
