"""Operators move replicas and leaders while brokers serve: groups, commits and data keep what is promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from swarm.clustered.scenario import ClusteredScenario, options_of
from swarm.scenario import Outcome, live
from swarm.world import World
from test_engine_seeds import Quiet

from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.cluster import changes
from coterie.broker.cluster.changes import (
    Changed,
    ElectLeaders,
    PartitionKey,
    Reassignment,
    ReassignPartitions,
    UnregisterBroker,
)
from coterie.broker.cluster.image import Image, PartitionRow
from coterie.broker.cluster.leaders import moved_to

SEEDS = range(16)
HUNTED = (172, *range(60))  # that one first which has found the planted fault
OPERATE = "operate"


class OperatedScenario(ClusteredScenario):
    """A scenario in which an operator moves partitions about, and removes brokers that run or not."""

    def _trouble_of(self, name: str) -> Callable[[], None]:
        return self._operate if name == OPERATE else super()._trouble_of(name)

    def _operate(self) -> None:
        engine, random = self.over.database.metadata, self.world.random
        if engine.away:
            return
        rows = sorted(engine.image.all_partitions())
        some = random.sample(rows, min(len(rows), 3))
        ids = [*self.over.brokers]
        replicas = [tuple(random.sample(ids, random.choice((1, 2)))) for _ in some]
        change = random.choice(
            (
                ReassignPartitions(
                    tuple(
                        Reassignment(row.topic_id, row.number, row.version, placed)
                        for row, placed in zip(some, replicas, strict=True)
                    )
                ),
                ElectLeaders(tuple(PartitionKey(row.topic_id, row.number, row.leader_epoch) for row in some)),
                UnregisterBroker(ids[0], engine.image.brokers[ids[0]].broker_epoch),
            )
        )
        done = isinstance(engine.execute(change), Changed)
        if done:
            self.world.marks.add(type(change).__name__)
        self.world.tell(f"operator: {type(change).__name__} {'done' if done else 'refused'}")


def operated(seed: int) -> Outcome:
    """Live through the scenario of a seed, with an operator."""
    drawn = options_of(World(seed))
    options = replace(drawn, troubles=(*drawn.troubles, OPERATE, OPERATE, OPERATE))
    return live(lambda mistakes: OperatedScenario(seed, mistakes, options=options))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_whatever_an_operator_moves_nothing_is_lost_and_nobody_serves_what_another_leads():
    outcomes = [operated(seed) for seed in SEEDS]

    failures = [outcome.line for outcome in outcomes if outcome.violation]
    assert not failures, "\n".join(failures)
    marks = Counter(mark for outcome in outcomes for mark in outcome.marks)
    assert marks["ReassignPartitions"]
    assert marks["ElectLeaders"]


def led_by_a_replica_at_once(
    image: Image, row: PartitionRow, replicas: tuple[int, ...], *, version: int
) -> PartitionRow:
    """Return a partition with other replicas and another leader, without its leader having a say."""
    return moved_to(row._replace(replicas=replicas), replicas[0], version=version)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_moves_that_do_not_wait_for_the_leader_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(changes, "reassigned", led_by_a_replica_at_once)

    assert any(operated(seed).violation for seed in HUNTED)


def move(quiet: Quiet, *replicas: int) -> None:
    """Give the partition of a group other replicas."""
    engine = quiet.cluster.database.metadata
    row = engine.image.partition(quiet.cluster.ids[OFFSETS_TOPIC], quiet.partition)
    assert row is not None
    wanted = Reassignment(row.topic_id, row.number, row.version, replicas)
    assert isinstance(engine.execute(ReassignPartitions((wanted,))), Changed)


def test_a_group_is_served_on_within_moments_when_its_partition_is_moved():
    quiet = Quiet()
    before, generation = quiet.coordinator, quiet.generation
    after = next(one for one in quiet.cluster.brokers if one != before)

    move(quiet, after)

    assert quiet.until_served_elsewhere(before) <= 100
    quiet.pass_ms(15_000)
    assert (quiet.coordinator, quiet.generation) == (after, generation)  # nobody has lost its place


def test_a_partition_whose_new_replica_is_away_is_led_on_and_moves_when_it_is_back():
    quiet = Quiet()
    before, generation = quiet.coordinator, quiet.generation
    away = next(one for one in quiet.cluster.brokers if one != before)
    quiet.cluster.crash(away, power=False)
    quiet.pass_ms(3_000)

    move(quiet, away)
    quiet.pass_ms(3_000)
    assert quiet.coordinator == before

    quiet.cluster.restart(away)
    quiet.pass_ms(20_000)
    assert (quiet.coordinator, quiet.generation) == (away, generation)
