"""Kafka's striped placement of KRaft: equal to Kafka's own where chance falls alike, and its guarantees."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_rig import JavaRandom, Zero, clusters, led

from coterie.assign.chance import chance_of
from coterie.base.codes import Code
from coterie.broker.placement import striped
from coterie.broker.placement.manual import brokers_of
from coterie.broker.placement.model import Broker

VECTORS = Path(__file__).parents[2] / "data" / "placements.jsonl"
seeds = st.integers(0, 999).map(Random)


def vectors() -> list[Any]:
    return [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").splitlines()]


def test_every_layout_is_the_one_that_apache_kafkas_placer_makes():
    """SP-2 to SP-6, over 200 clusters of up to 9 brokers, fenced and without a rack among them."""
    for case in vectors():
        brokers = [Broker(*one) for one in case["brokers"]]

        layout = striped.place(
            brokers,
            partitions=len(case["layout"]),
            factor=case["factor"],
            chance=JavaRandom(case["seed"]),
        )

        assert [list(replicas) for replicas in layout] == case["layout"], case


def test_stripes_run_over_the_racks():
    """SP-5: the next partition begins in the next rack, and each rack's brokers take turns."""
    brokers = brokers_of("0:a,1:a,2:a,10:b,11:b,12:b,20:c,21:c,22:c")

    layout = striped.place(brokers, partitions=3, factor=3, chance=Zero())

    assert layout == [(0, 10, 20), (11, 21, 1), (22, 2, 12)]


@pytest.mark.parametrize(
    ("brokers", "factor", "why"),
    [
        ("0-2", 0, "Invalid replication factor 0: the replication factor must be positive."),
        (
            "0-2",
            4,
            "The target replication factor of 4 cannot be reached because only 3 broker(s) are registered "
            "or some brokers have all their log directories cordoned.",
        ),
        ("0:a:fenced,1:b:fenced", 1, "All brokers are currently fenced."),
    ],
)
def test_what_cannot_be_placed_is_refused_in_kafkas_words(brokers: str, factor: int, why: str):
    """SP-1."""
    problem = striped.problem_of(brokers_of(brokers), factor=factor)

    assert problem is not None
    assert problem.code is Code.INVALID_REPLICATION_FACTOR
    assert problem.text == f"Unable to replicate the partition {factor} time(s): {why}"


@given(clusters(fenced=True) | clusters(racks=False, fenced=True), st.integers(1, 30), st.data(), seeds)
def test_leaders_are_never_fenced_and_replicas_are_distinct(
    brokers: list[Broker], partitions: int, data: st.DataObject, chance: Random
):
    """SP-3."""
    factor = data.draw(st.integers(1, len(brokers)))
    fenced = {broker.broker_id for broker in brokers if broker.fenced}

    layout = striped.place(brokers, partitions=partitions, factor=factor, chance=chance)

    assert all(replicas[0] not in fenced for replicas in layout)
    assert all(len(set(replicas)) == factor for replicas in layout)


@given(clusters(fenced=True), st.integers(1, 30), st.data(), seeds)
def test_no_rack_has_two_replicas_before_every_rack_has_one(
    brokers: list[Broker], partitions: int, data: st.DataObject, chance: Random
):
    """SP-4."""
    factor = data.draw(st.integers(1, len(brokers)))
    rack = {broker.broker_id: broker.rack for broker in brokers}

    layout = striped.place(brokers, partitions=partitions, factor=factor, chance=chance)

    for replicas in layout:
        assert len({rack[one] for one in replicas}) == min(factor, len(set(rack.values())))


@given(clusters(fenced=True), st.data(), seeds)
def test_a_rack_gives_a_fenced_broker_only_when_it_has_no_other_left(
    brokers: list[Broker], data: st.DataObject, chance: Random
):
    """SP-4. Until the first shuffle: a ring then may take the new stripe for the one it was in."""
    factor = data.draw(st.integers(1, len(brokers)))
    partitions = sum(not broker.fenced for broker in brokers)
    known = {broker.broker_id: broker for broker in brokers}

    layout = striped.place(brokers, partitions=partitions, factor=factor, chance=chance)

    for replicas in layout:
        for rack in {known[one].rack for one in replicas if known[one].fenced}:
            unfenced = {one.broker_id for one in brokers if one.rack == rack and not one.fenced}
            assert unfenced <= set(replicas)


@given(st.integers(1, 4), st.integers(1, 3), st.data(), seeds)
def test_racks_of_one_size_lead_alike_until_they_are_shuffled(
    racks: int, size: int, data: st.DataObject, chance: Random
):
    """SP-5: in the first round, of as many partitions as brokers, each rack leads as often as every other."""
    brokers = [Broker(number, f"r{number % racks}") for number in range(racks * size)]
    factor = data.draw(st.integers(1, len(brokers)))

    layout = striped.place(brokers, partitions=len(brokers), factor=factor, chance=chance)

    leaders = Counter(replicas[0] % racks for replicas in layout)
    assert set(leaders.values()) == {size}


@given(clusters(racks=False), st.integers(1, 30), seeds)
def test_without_racks_each_broker_leads_as_many(brokers: list[Broker], partitions: int, chance: Random):
    layout = striped.place(brokers, partitions=partitions, factor=1, chance=chance)

    assert max(led(layout, brokers)) - min(led(layout, brokers)) <= 1


def test_the_only_broker_gets_every_partition_and_chance_is_not_asked():
    def draw() -> int:
        raise AssertionError("there is nothing to choose")

    layout = striped.place([Broker(7, "a")], partitions=3, factor=1, chance=chance_of(draw))

    assert layout == [(7,), (7,), (7,)]
