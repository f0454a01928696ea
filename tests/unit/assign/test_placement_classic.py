"""Replica placement before KRaft: the vectors of 9.4, and the guarantees."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_rig import Zero, clusters, held, led

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.broker.placement import classic
from coterie.broker.placement.classic import RackMode, alternated
from coterie.broker.placement.manual import brokers_of
from coterie.broker.placement.model import Broker, Layout, insist

SIX = brokers_of("0:r1,1:r3,2:r3,3:r2,4:r2,5:r1")
seeds = st.integers(0, 999).map(Random)


def racks_of(layout: Layout, brokers: list[Broker]) -> list[list[str | None]]:
    rack = {broker.broker_id: broker.rack for broker in brokers}
    return [[rack[broker_id] for broker_id in replicas] for replicas in layout]


def test_without_racks_followers_shift_when_the_leaders_have_been_through():
    """RP-4 to RP-6, by the vector of 9.4."""
    layout = classic.place(brokers_of("0-4"), partitions=10, factor=3, start=0, chance=Zero())

    assert layout == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


def test_racks_take_turns_and_followers_go_to_racks_without_a_replica():
    """RP-7, by the vector of 9.4."""
    layout = classic.place(SIX, partitions=7, factor=3, start=0, chance=Zero())

    assert [broker.broker_id for broker in alternated(SIX)] == [0, 3, 1, 5, 4, 2]
    assert layout == [(0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)]


def test_the_ring_of_racks_of_different_sizes_skips_those_that_ran_out():
    brokers = brokers_of("0:b,1:a,2:b,3:c,4:b")

    assert [broker.broker_id for broker in alternated(brokers)] == [1, 0, 3, 2, 4]


def test_start_and_shift_are_drawn_apart():
    """RP-3."""
    drawn = [classic.place(brokers_of("0-4"), partitions=1, factor=2, chance=Random(n)) for n in range(200)]

    assert {layout[0][0] for layout in drawn} == {0, 1, 2, 3, 4}
    assert len({layout[0] for layout in drawn}) == 20  # 5 leaders times 4 followers


@pytest.mark.parametrize(
    ("brokers", "partitions", "factor", "code"),
    [
        ("0-2", 0, 1, Code.INVALID_PARTITIONS),
        ("0-2", 1, 0, Code.INVALID_REPLICATION_FACTOR),
        ("0-2", 1, 4, Code.INVALID_REPLICATION_FACTOR),
        ("0:a,1:b,2", 1, 2, Code.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_placed_is_refused(brokers: str, partitions: int, factor: int, code: Code):
    """RP-1, RP-2."""
    problem = classic.problem_of(brokers_of(brokers), partitions=partitions, factor=factor)

    with pytest.raises(RefusedBy) as refused:
        insist(problem)
    assert refused.value.code is code


@pytest.mark.parametrize("mode", [RackMode.SAFE, RackMode.DISABLED])
def test_racks_that_only_some_have_do_not_count_where_that_is_allowed(mode: RackMode):
    some, none = brokers_of("0:a,1:b,2,3:a"), brokers_of("0-3")

    layout = classic.place(some, partitions=9, factor=3, start=1, chance=Zero(), racks=mode)

    assert layout == classic.place(none, partitions=9, factor=3, start=1, chance=Zero())


@given(clusters(), st.data(), seeds)
def test_racks_that_are_disabled_change_nothing(brokers: list[Broker], data: st.DataObject, chance: Random):
    factor = data.draw(st.integers(1, len(brokers)))
    bare = [broker._replace(rack=None) for broker in brokers]
    seed = chance.randrange(999)

    with_racks = classic.place(
        brokers, partitions=20, factor=factor, chance=Random(seed), racks=RackMode.DISABLED
    )

    assert with_racks == classic.place(bare, partitions=20, factor=factor, chance=Random(seed))


@given(clusters(racks=False) | clusters(), st.integers(1, 40), st.data(), seeds)
def test_each_broker_leads_as_many_and_none_has_a_partition_twice(
    brokers: list[Broker], partitions: int, data: st.DataObject, chance: Random
):
    factor = data.draw(st.integers(1, len(brokers)))

    layout = classic.place(brokers, partitions=partitions, factor=factor, chance=chance)

    assert max(led(layout, brokers)) - min(led(layout, brokers)) <= 1
    assert all(len(set(replicas)) == factor for replicas in layout)
    assert {one for replicas in layout for one in replicas} <= {broker.broker_id for broker in brokers}


@given(clusters(racks=False), st.integers(1, 5), st.data(), seeds)
def test_without_racks_whole_rounds_give_each_broker_as_many_replicas(
    brokers: list[Broker], rounds: int, data: st.DataObject, chance: Random
):
    factor = data.draw(st.integers(1, len(brokers)))

    layout = classic.place(brokers, partitions=rounds * len(brokers), factor=factor, chance=chance)

    assert set(held(layout, brokers)) == {rounds * factor}


@given(clusters(), st.integers(1, 40), st.data(), seeds)
def test_no_rack_has_two_replicas_before_every_rack_has_one(
    brokers: list[Broker], partitions: int, data: st.DataObject, chance: Random
):
    """RP-8."""
    factor = data.draw(st.integers(1, len(brokers)))
    racks = {broker.rack for broker in brokers}

    layout = classic.place(brokers, partitions=partitions, factor=factor, chance=chance)

    assert all(len(set(used)) == min(factor, len(racks)) for used in racks_of(layout, brokers))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), seeds)
def test_racks_of_one_size_with_a_replica_each_are_loaded_alike(
    racks: int, size: int, rounds: int, chance: Random
):
    brokers = [Broker(number, f"r{number % racks}") for number in range(racks * size)]

    layout = classic.place(brokers, partitions=rounds * len(brokers), factor=racks, chance=chance)

    assert set(held(layout, brokers)) == {rounds * racks}
    assert all(len(set(used)) == racks for used in racks_of(layout, brokers))


@given(clusters(racks=False) | clusters(), st.integers(1, 20), st.data())
def test_a_topic_that_grew_lies_as_if_it_had_been_made_so(
    brokers: list[Broker], more: int, data: st.DataObject
):
    """RP-9: from the first broker on, and until the leaders have been through: shifts begin anew."""
    before, factor = data.draw(st.integers(1, len(brokers))), data.draw(st.integers(1, len(brokers)))
    mode = RackMode.DISABLED
    whole = classic.place(
        brokers, partitions=before + more, factor=factor, start=0, chance=Zero(), racks=mode
    )

    grown = classic.grow(brokers, existing=whole[:before], total=before + more, chance=Zero(), racks=mode)

    assert whole[:before] + grown == whole


def test_growth_begins_at_the_broker_of_partition_0_or_the_next_that_is_there():
    """RP-9."""
    brokers = brokers_of("1,3,5,7")

    assert classic.grow(brokers, existing=[(5, 7)], total=2, chance=Zero()) == [(7, 5)]
    assert classic.grow(brokers, existing=[(4, 3)], total=2, chance=Zero()) == [(7, 5)]
    assert classic.grow(brokers, existing=[(9, 3)], total=2, chance=Zero()) == [(3, 5)]
