"""What `coterie cluster balance` and `drain` say of the partitions that they have moved."""

from __future__ import annotations

from coterie.base.ids import TopicPartition
from coterie.broker.placement.moving import ReplicaMove
from coterie.cli.cluster import lines_of, lines_without_leader, without_leader
from coterie.client.admin.messages import ClusterInfo, DescribedBroker, DescribedPartition, DescribedTopic
from coterie.client.net.addresses import Address


def moved(partition: int, before: tuple[int, ...], after: tuple[int, ...]) -> ReplicaMove:
    """Return the move of a partition of one topic."""
    return ReplicaMove(TopicPartition("fleet", partition), before, after)


def test_the_partitions_that_come_to_a_broker_are_named():
    moves = [moved(0, (1, 2), (4, 2)), moved(1, (2, 3), (2, 4)), moved(2, (3,), (1,))]

    assert [*lines_of(moves)] == ["to broker 1: fleet 2", "to broker 4: fleet 0-1"]


def test_those_that_a_broker_leads_which_was_a_replica_before_are_named_too():
    moves = [moved(0, (1, 2), (2, 1)), moved(1, (1, 3), (3, 1)), moved(2, (1, 2, 3), (2, 1, 3))]

    assert [*lines_of(moves)] == [
        "led by broker 2, which had a replica: fleet 0,2",
        "led by broker 3, which had a replica: fleet 1",
    ]


def test_those_that_have_fewer_replicas_are_named_apart():
    assert [*lines_of([moved(0, (1, 2), (1,))])] == ["with fewer replicas than before: fleet 0"]


def test_of_no_moves_nothing_is_said():
    assert [*lines_of([])] == []


def test_partitions_without_a_leader_are_told_of_though_all_brokers_look_well():
    brokers = [DescribedBroker(one, Address("h", 9092), None, fenced=one == 3) for one in (1, 2, 3)]
    led = [(1, (1, 2)), (-1, (2, 1)), (-1, (3, 2)), (-1, (3,))]
    partitions = [
        DescribedPartition(number, leader, replicas, replicas, ())
        for number, (leader, replicas) in enumerate(led)
    ]
    topic = DescribedTopic("fleet", None, internal=False, partitions=tuple(partitions))

    without = without_leader(ClusterInfo("c", 1, tuple(brokers)), [topic])

    first, second, *because = [line for line in lines_without_leader(without) if line]
    assert first == "without a leader, though a replica is live: 2 partitions"
    assert second == "without a leader, and no replica is live: 1 partition"
    assert "does not reach its database" in because[0]


def test_where_all_partitions_are_led_nothing_is_said_of_it():
    assert [*lines_without_leader(without_leader(ClusterInfo("c", 1, ()), []))] == []
