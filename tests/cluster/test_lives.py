"""Whole lives of a cluster in virtual time: what is promised holds, and every planted fault is found."""

from __future__ import annotations

import pytest

from cluster.life import LONE_MS, run
from cluster.planted import FAULTS, SEEDS, hunt
from cluster.world import Process, World
from coterie.broker.cluster.lifecycle import Phase

MANY = range(0, 60, 20)


@pytest.mark.slow
@pytest.mark.parametrize("first", MANY)
def test_a_cluster_keeps_its_promises_whatever_disturbs_it(first: int):
    outcomes = [run(seed) for seed in range(first, first + 20)]

    assert [(one.seed, one.violation) for one in outcomes if one.violation] == []


@pytest.mark.slow
@pytest.mark.parametrize("first", MANY[:2])
def test_whoever_has_a_wrong_clock_cannot_append_where_it_does_not_lead(first: int):
    outcomes = [run(seed, wild_clocks=True) for seed in range(first, first + 20)]

    assert [(one.seed, one.violation) for one in outcomes if one.violation] == []
    assert any(one.stale_acts for one in outcomes)  # but it answers


@pytest.mark.slow
@pytest.mark.parametrize("first", MANY[:2])
def test_an_engine_that_goes_back_to_an_older_state_is_followed_there(first: int):
    outcomes = [run(seed, falls_back=True) for seed in range(first, first + 20)]

    assert [(one.seed, one.violation) for one in outcomes if one.violation] == []


def test_a_seed_is_the_same_life_each_time():
    assert run(7) == run(7)


def test_many_kinds_of_disturbances_are_drawn():
    kinds = {kind.split()[0] for seed in range(12) for kind in run(seed).kinds}

    assert {"kill", "stop", "cut", "silence", "engine", "terminate", "second", "start", "statements"} <= kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str):
    assert hunt(name) is not None, f"{name} went unnoticed in {SEEDS} lives"


# -- single disturbances


class Quiet:
    """Three brokers that have served for a while; every statement takes 5 ms, and no clock is wrong."""

    def __init__(self, *, presence: bool = True, notifies: bool = True) -> None:
        self.world = World(1, presence=presence, notifies=notifies)
        self.world.lossless = True
        self.processes = [self.world.start(one, rate=1.0) for one in (1, 2, 3)]
        self.world.make_topics()
        self.world.run_until(14_000)  # and preferred leaders lead
        assert [one.lifecycle.phase for one in self.processes] == [Phase.LIVE] * 3

    def until_served(self) -> int:
        """Return after how long each partition is served by a leader."""
        begun = self.world.now
        while not self.served():
            self.world.run_until(self.world.now + 5)
        return self.world.now - begun

    def served(self) -> bool:
        alive = [one for one in self.processes if one.alive]
        rows = self.world.engine.image.all_partitions()
        return all(any(row.leader == one.broker_id and one.acts_in(row) for one in alive) for row in rows)

    def kill(self, process: Process) -> int:
        process.kill()
        return self.until_served()


@pytest.mark.parametrize(("presence", "most_ms"), [(True, 600), (False, 1_800)])
@pytest.mark.parametrize("phase_ms", range(0, 300, 50))
def test_what_a_dead_broker_led_is_served_again_in_time(presence: bool, most_ms: int, phase_ms: int):
    for victim in range(3):
        quiet = Quiet(presence=presence)
        quiet.world.run_until(quiet.world.now + phase_ms)

        assert 0 < quiet.kill(quiet.processes[victim]) <= most_ms


def test_a_planned_stop_takes_as_long_as_what_is_under_way_and_a_statement():
    quiet = Quiet()
    leaver = quiet.processes[0]
    leaver.run(leaver.member.terminate)
    while leaver.lifecycle.serves(leaver.clock()):
        quiet.world.run_until(quiet.world.now + 1)  # until all has landed

    assert quiet.until_served() <= 20
    quiet.world.run_until(quiet.world.now + 600)
    assert leaver.exit_sentence == ""


@pytest.mark.parametrize("away_ms", [1_000, 10_000, 600_000])
def test_an_outage_of_the_engine_fences_nobody(away_ms: int):
    quiet = Quiet()
    epochs = [one.lifecycle.broker_epoch for one in quiet.processes]
    quiet.world.engine.go_away()
    quiet.world.run_until(quiet.world.now + away_ms)
    assert not any(one.lifecycle.serves(one.clock()) for one in quiet.processes)

    quiet.world.engine.come_back()

    assert quiet.until_served() <= 400
    quiet.world.run_until(quiet.world.now + LONE_MS)
    assert [one.lifecycle.broker_epoch for one in quiet.processes] == epochs


def test_the_preferred_leaders_lead_again_some_time_after_they_are_back():
    quiet = Quiet()
    quiet.kill(quiet.processes[0])
    quiet.world.run_until(quiet.world.now + 1_000)
    quiet.processes.append(quiet.world.start(1, rate=1.0))
    quiet.world.run_until(quiet.world.now + 9_000)
    rows = list(quiet.world.engine.image.all_partitions())
    assert any(row.leader != row.replicas[0] for row in rows)

    quiet.world.run_until(quiet.world.now + 3_000)

    assert all(row.leader == row.replicas[0] for row in quiet.world.engine.image.all_partitions())
