"""Brokers over one database: groups, commits and data keep what is promised, whatever disturbs whom."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import pytest
from engine_faults import FAULTS, SEEDS, hunt
from hunting import caught
from swarm.__main__ import main
from swarm.clustered.cluster import DatabaseCluster
from swarm.clustered.scenario import ClusteredScenario, options_of, run
from swarm.options import Options
from swarm.scenario import listening
from swarm.world import World

from coterie.broker.cluster.lifecycle import Phase
from coterie.simulate.agenda import START_MS

MANY = range(0, 200, 20)
SEEN_LEAST = 2
MARKS = {"kill-broker", "leave-broker", "freeze", "sever", "spell", "outage", "fall-back"}
MARKS |= {
    "append in doubt",
    "metadata in doubt",
    "late",
    "grow",
    "told who leads",
    "brokers part",
    "compacted",
    "overlapped",
}


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What has come about in the seeds so far."""
    return Counter()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", MANY)
def test_scenarios_of_brokers_over_one_database_hold(first: int, seen: Counter[str]):
    outcomes = [run(seed) for seed in range(first, first + MANY.step)]

    failures = [outcome.line for outcome in outcomes if outcome.violation]
    assert not failures, "\n".join(failures)
    seen.update(mark for outcome in outcomes for mark in outcome.marks)


@pytest.mark.slow
def test_the_seeds_see_every_kind_of_trouble(seen: Counter[str]):
    assert {mark: seen[mark] for mark in MARKS if seen[mark] < SEEN_LEAST} == {}


def test_one_seed_is_one_trace():
    first, second = run(3), run(3)

    assert (first.trace_hash, first.steps) == (second.trace_hash, second.steps)
    assert run(4).trace_hash != first.trace_hash


def test_a_seed_is_told_by_a_flag(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["swarm", "--engine", "--seed", "3"])

    assert main() == 0

    told = capsys.readouterr().out
    assert "broker 1 starts" in told
    assert told.endswith("all held\n")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str):
    found = hunt(name)

    assert found is not None, f"{name} went unnoticed in {SEEDS} seeds"
    assert caught(found), f"{name} broke the code, and no check has found it: {found.violation}"
    assert f"python -m swarm --seed {found.seed} --engine" in found.line


# -- single disturbances


def quiet_options() -> Options:
    """Return the terms of three brokers and a group of three members, without trouble."""
    drawn = options_of(World(1))
    return replace(
        drawn,
        brokers=3, shards=3, groups=1, members=3, session_ms=10_000, rebalance_ms=10_000, heartbeat_ms=500,
        poll_ms=200, request_timeout_ms=5_000, initial_delay_ms=0, max_size=100, assignors=(("range",),),
        upgrade="", static_share=0.0, twins=False, malformed=False, hostile=0, spike_chance=0.0,
        reset_chance=0.0, twice_chance=0.0, delay_ms=1, hiccup_chance=0.0, troubles=(), chaos_ms=10_000,
        listener_raises=False, listener_ms=0, data=False, story=False,
    )  # fmt: skip


class Quiet:
    """Brokers that serve a group which is at work, and nothing happens but what a test has happen."""

    def __init__(self) -> None:
        with listening() as self.mistakes:
            self.scenario = ClusteredScenario(1, self.mistakes, options=quiet_options())
            self.cluster: DatabaseCluster = self.scenario.over
            self.cluster.calm = True  # no statement gets lost
            self.scenario.chaos = False
            self.cluster.start()
            self.scenario._supervise()
            self.pass_ms(20_000)
        assert self.scenario.pending() == ""
        self.group = self.scenario.groups[0]
        self.partition = self.cluster.partition_of(self.group)

    def pass_ms(self, for_ms: int) -> None:
        """Let time pass."""
        self.cluster.world.run(self.cluster.world.now_ms + for_ms)

    @property
    def coordinator(self) -> int:
        """The broker that coordinates the group, by the database."""
        self.cluster.note_leaders()
        return self.cluster.led[self.partition].leader

    @property
    def generation(self) -> int:
        """The group's generation, where it is served; -1 where it is not."""
        process = self.cluster.brokers[self.coordinator].process
        host = None if process is None else process.node.coordinator.hosts.get(self.partition)
        if host is None or host.unavailable():
            return -1
        group = host.shard.groups.get(self.group)
        return -1 if group is None else group.generation

    def until_served_elsewhere(self, than: int) -> int:
        """Return after how many ms another broker serves the group."""
        begun = self.cluster.world.now_ms
        while self.coordinator == than or self.generation < 0:
            assert self.cluster.world.now_ms - begun < 10_000
            self.pass_ms(5)
        return self.cluster.world.now_ms - begun


def test_a_group_is_served_by_another_broker_when_its_coordinator_is_killed():
    quiet = Quiet()
    victim, generation = quiet.coordinator, quiet.generation

    quiet.cluster.crash(victim, power=False)

    assert quiet.until_served_elsewhere(victim) <= 1_000
    quiet.pass_ms(15_000)
    assert quiet.generation == generation  # nobody has lost its place
    assert {one.phase for one in quiet.cluster.members} == {Phase.LIVE}


def test_a_group_is_served_on_within_moments_of_a_planned_stop():
    quiet = Quiet()
    leaver, generation = quiet.coordinator, quiet.generation

    quiet.cluster.stop(leaver)

    assert quiet.until_served_elsewhere(leaver) <= 100
    quiet.pass_ms(15_000)
    assert quiet.generation == generation
    assert quiet.cluster.brokers[leaver].process is None


def test_a_broker_that_is_back_coordinates_its_groups_again_and_nobody_loses_its_place():
    quiet = Quiet()
    leaver, generation = quiet.coordinator, quiet.generation
    quiet.cluster.stop(leaver)
    quiet.pass_ms(3_000)

    quiet.cluster.restart(leaver)
    quiet.pass_ms(20_000)

    assert quiet.coordinator == leaver
    assert quiet.generation == generation


@pytest.mark.parametrize("away_ms", [1_000, 30_000])
def test_nobody_loses_its_place_while_the_database_is_away(away_ms: int):
    quiet = Quiet()
    coordinator, generation = quiet.coordinator, quiet.generation
    quiet.cluster.go_away()
    quiet.pass_ms(away_ms)

    quiet.cluster.come_back()
    quiet.pass_ms(15_000)

    assert (quiet.coordinator, quiet.generation) == (coordinator, generation)
    assert quiet.cluster.world.now_ms > START_MS
