"""What `coterie cluster balance` and `drain` say of the partitions that they have moved."""

from __future__ import annotations

from coterie.base.ids import TopicPartition
from coterie.broker.placement.moving import ReplicaMove
from coterie.cli.cluster import lines_of


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
