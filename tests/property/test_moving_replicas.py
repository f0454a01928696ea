"""Replicas move off a broker, or to one that came later: nothing moves that need not, and nothing is lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.placement.model import Broker, Problem
from coterie.broker.placement.moving import (
    PlacedPartition,
    ReplicaMove,
    joined,
    moved,
    moves_away,
    moves_to_more,
    moves_to_share,
)

IDS = range(1, 7)
BROKERS = st.lists(
    st.builds(Broker, st.sampled_from(IDS), st.sampled_from([None, "a", "b"]), st.booleans()),
    min_size=1,
    max_size=6,
    unique_by=lambda one: one.broker_id,
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Broker], list[PlacedPartition]]:
    brokers = draw(BROKERS)
    ids = st.sampled_from([one.broker_id for one in brokers])
    partitions = [
        PlacedPartition(
            TopicPartition(draw(st.sampled_from("ab")), number),
            tuple(draw(st.lists(ids, min_size=1, max_size=3, unique=True))),
            draw(st.none() | ids),
        )
        for number in range(draw(st.integers(0, 12)))
    ]
    return brokers, partitions


def after(
    partitions: list[PlacedPartition], moves: list[ReplicaMove]
) -> dict[TopicPartition, tuple[int, ...]]:
    moved = {move.name: move for move in moves}
    assert len(moved) == len(moves)
    for one in partitions:
        if one.name in moved:
            assert moved[one.name].before == one.replicas != moved[one.name].after
    return {one.name: moved[one.name].after if one.name in moved else one.replicas for one in partitions}


@given(clusters(), st.sets(st.sampled_from(IDS), min_size=1, max_size=3))
def test_brokers_that_are_drained_are_no_replicas_and_what_they_led_can_be_led_by_others(cluster, leaving):
    brokers, partitions = cluster
    live = {one.broker_id for one in brokers if not one.fenced} - leaving

    moves = moves_away(leaving, partitions, brokers)

    if isinstance(moves, Problem):
        assert not live
        assert moves.code is Code.INVALID_REPLICA_ASSIGNMENT
        return
    placed = after(partitions, moves)
    for one in partitions:
        replicas = placed[one.name]
        assert leaving.isdisjoint(replicas)
        assert len({*replicas}) == len(replicas)
        assert {*replicas} - {*one.replicas} <= live
        if leaving & {*one.replicas} or one.leader in leaving:
            assert live & {*replicas}
        else:
            assert replicas == one.replicas
        if len(replicas) < len(one.replicas):
            assert live <= {*replicas}
        kept = [broker for broker in replicas if broker in one.replicas]
        assert kept == [broker for broker in one.replicas if broker in kept]


@given(clusters(), st.integers(1, 4))
def test_partitions_get_as_many_replicas_as_asked_and_keep_those_that_they_have(cluster, least):
    brokers, partitions = cluster
    live = {one.broker_id for one in brokers if not one.fenced}

    moves = moves_to_more(least, partitions, brokers)

    if isinstance(moves, Problem):
        assert len(live) < least
        assert f"{least} replicas of a partition need as many brokers that live" in moves.text
        return
    placed = after(partitions, moves)
    for one in partitions:
        replicas = placed[one.name]
        assert replicas[: len(one.replicas)] == one.replicas
        assert len({*replicas}) == len(replicas) == max(least, len(one.replicas))
        assert {*replicas} - {*one.replicas} <= live


@given(clusters(), st.integers(1, 4))
def test_moves_behind_others_are_one_move_of_each_partition(cluster, least):
    brokers, partitions = cluster
    more = moves_to_more(least, partitions, brokers)
    if isinstance(more, Problem):
        return
    then = moved(partitions, more)

    both = joined(more, moves_to_share(then, brokers))

    assert after(partitions, both) == after(then, moves_to_share(then, brokers))


def test_of_moves_that_undo_each_other_nothing_is_left():
    name = TopicPartition("a", 0)

    assert joined([ReplicaMove(name, (1,), (1, 2))], [ReplicaMove(name, (1, 2), (1,))]) == []


def test_a_replica_is_replaced_in_its_place_on_a_rack_that_the_others_are_not_on():
    brokers = [Broker(1, "a"), Broker(2, "b"), Broker(3, "b"), Broker(4, "a"), Broker(5, "c")]
    name = TopicPartition("a", 0)

    assert moves_away({4}, [PlacedPartition(name, (4, 2), 4)], brokers) == [ReplicaMove(name, (4, 2), (1, 2))]
    assert moves_away({2}, [PlacedPartition(name, (1, 2, 5), 1)], brokers) == [
        ReplicaMove(name, (1, 2, 5), (1, 3, 5))
    ]


def test_what_is_drained_goes_to_those_who_have_least():
    brokers = [Broker(one) for one in (1, 2, 3)]
    names = [TopicPartition("a", number) for number in range(7)]
    partitions = [PlacedPartition(name, (1 if at < 3 else 3,), None) for at, name in enumerate(names)]

    moves = moves_away({3}, partitions, brokers)

    assert isinstance(moves, list)
    assert Counter(move.after[0] for move in moves) == {1: 1, 2: 3}


@given(clusters())
def test_each_broker_that_lives_gets_its_share_and_no_partition_other_numbers_of_replicas(cluster):
    brokers, partitions = cluster

    placed = after(partitions, moves_to_share(partitions, brokers))

    first = Counter(replicas[0] for replicas in placed.values())
    live = [one.broker_id for one in brokers if not one.fenced]
    if live:
        counts = [first[one] for one in live]
        assert max(counts) - min(counts) <= 1
    for one in partitions:
        replicas = placed[one.name]
        assert len({*replicas}) == len(replicas) == len(one.replicas)
        if one.replicas[0] not in live:
            assert replicas == one.replicas


@given(clusters())
def test_no_partition_is_on_fewer_racks_when_each_broker_has_its_share(cluster):
    brokers, partitions = cluster
    racks = {one.broker_id: one.rack for one in brokers}

    placed = after(partitions, moves_to_share(partitions, brokers))

    for one in partitions:
        before = {racks[broker] for broker in one.replicas}
        assert len({racks[broker] for broker in placed[one.name]}) >= len(before)


def test_where_the_new_leader_is_on_the_rack_of_a_replica_the_old_one_takes_that_ones_place():
    brokers = [Broker(1, "a"), Broker(2, "b"), Broker(3, "b")]
    partitions = [PlacedPartition(TopicPartition("t", number), (1, 2), 1) for number in range(2)]
    partitions.append(PlacedPartition(TopicPartition("t", 2), (2, 1), 2))

    moves = moves_to_share(partitions, brokers)

    assert moves == [ReplicaMove(TopicPartition("t", 1), (1, 2), (3, 1))]


def test_what_a_broker_that_comes_later_gets_is_of_topics_that_it_has_least_of():
    brokers = [Broker(one) for one in (1, 2, 3, 4)]
    old = [PlacedPartition(TopicPartition("old", number), (number % 3 + 1,), None) for number in range(8)]
    new = [PlacedPartition(TopicPartition("new", number), (number % 4 + 1,), None) for number in range(8)]

    moves = moves_to_share(old + new, brokers)

    assert [move.name.topic for move in moves] == ["old", "old"]
    assert {move.after for move in moves} == {(4,)}


@given(clusters())
def test_nothing_moves_where_each_has_its_share(cluster):
    brokers, partitions = cluster
    placed = after(partitions, moves_to_share(partitions, brokers))
    shared = [one._replace(replicas=placed[one.name]) for one in partitions]
    assert moves_to_share(shared, brokers) == []
    first = Counter(one.replicas[0] for one in partitions)
    live = [one.broker_id for one in brokers if not one.fenced]
    if live:
        most = -(-sum(first[one] for one in live) // len(live))
        assert sum(a.replicas != b.replicas for a, b in zip(partitions, shared, strict=True)) == max(
            sum(max(first[one] - most, 0) for one in live),
            sum(max(sum(first[one] for one in live) // len(live) - first[one], 0) for one in live),
        )
