"""The database is away for ten seconds, and for ten minutes: what docs/cluster.md promises holds.

That no commit is lost which was acknowledged is looked at with every step, as in all scenarios.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from test_engine_seeds import Quiet

from coterie.broker.cluster.lifecycle import Phase
from coterie.broker.cluster.terms import AWAY_WITHIN_MS

SECONDS, MINUTES = 10_000, 600_000


class Standing(NamedTuple):
    """Who coordinates a group, its generation and its members; the brokers' processes and their epochs."""

    coordinator: int
    generation: int
    members: list[str]
    processes: list[object]
    broker_epochs: list[int]


def standing(quiet: Quiet) -> Standing:
    process = quiet.cluster.brokers[quiet.coordinator].process
    assert process is not None
    group = process.node.coordinator.hosts[quiet.partition].shard.groups.get(quiet.group)
    assert group is not None
    members = quiet.cluster.members
    return Standing(
        quiet.coordinator,
        group.generation,
        sorted(group.members),
        [*members],
        [one.clustered.member.lifecycle.broker_epoch for one in members],
    )


def held(quiet: Quiet) -> int:
    """Return how many bytes wait in lanes for an outcome."""
    return sum(lane.held_bytes for one in quiet.cluster.members for lane in one.clustered.store.lanes)


def until_something_is_in_flight(quiet: Quiet) -> None:
    begun = quiet.cluster.world.now_ms
    while not held(quiet):
        assert quiet.cluster.world.now_ms - begun < 30_000
        quiet.pass_ms(1)


def pass_minutes(quiet: Quiet, for_ms: int) -> None:
    """Let time pass. The world takes what needs too many steps for a loop: here so many are for a minute."""
    for begun_ms in range(0, for_ms, 60_000):
        quiet.cluster.world.steps = 0
        quiet.pass_ms(min(60_000, for_ms - begun_ms))


@pytest.mark.parametrize("away_ms", [SECONDS, pytest.param(MINUTES, marks=pytest.mark.slow)])
def test_what_is_in_flight_is_held_nobody_loses_its_place_and_no_broker_begins_anew(away_ms: int):
    quiet = Quiet()
    before = standing(quiet)
    until_something_is_in_flight(quiet)

    quiet.cluster.go_away()
    quiet.pass_ms(2_000)
    suspended = {one.phase for one in quiet.cluster.members}
    pass_minutes(quiet, away_ms - 2_000)
    held_meanwhile = held(quiet)
    quiet.cluster.come_back()
    quiet.pass_ms(20_000)

    assert suspended == {Phase.SUSPENDED}
    assert held_meanwhile > 0
    assert quiet.cluster.unserved() == ""
    assert standing(quiet) == before
    assert {one.phase for one in quiet.cluster.members} == {Phase.LIVE}
    assert all(not one.exits for one in quiet.cluster.members)
    quiet.pass_ms(2_000)
    assert quiet.scenario.pending() == ""


def test_a_broker_that_is_asked_to_stop_meanwhile_ends_within_seconds_and_nothing_acknowledged_is_lost():
    quiet = Quiet()
    leaver, generation = quiet.coordinator, quiet.generation
    until_something_is_in_flight(quiet)

    quiet.cluster.go_away()
    quiet.pass_ms(5_000)
    quiet.cluster.stop(leaver)
    quiet.pass_ms(AWAY_WITHIN_MS + 10)
    is_left = not quiet.cluster.brokers[leaver].alive
    quiet.cluster.come_back()
    quiet.until_served_elsewhere(leaver)
    quiet.pass_ms(20_000)

    assert is_left
    assert quiet.generation == generation
    assert quiet.cluster.unserved() == ""
    assert quiet.scenario.pending() == ""


def test_a_broker_that_is_started_meanwhile_serves_once_the_database_is_back():
    quiet = Quiet()
    started = next(one for one in quiet.cluster.brokers if one != quiet.coordinator)

    quiet.cluster.go_away()
    quiet.cluster.crash(started, power=False)
    quiet.pass_ms(1_000)
    quiet.cluster.restart(started)
    quiet.pass_ms(SECONDS)
    waits = {one.phase for one in quiet.cluster.members if one.broker.node_id == started}
    quiet.cluster.come_back()
    quiet.pass_ms(20_000)

    assert waits == {Phase.STARTING}
    assert {one.phase for one in quiet.cluster.members} == {Phase.LIVE}
    assert quiet.cluster.unserved() == ""
