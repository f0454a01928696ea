"""What readers are made of: processes whose clocks stand still, commits that come late, rolling upgrades."""

from __future__ import annotations

from dataclasses import replace

import pytest
from swarm.checks.doubts import Doubts
from swarm.checks.invariants import Checks, Mistakes
from swarm.clients.client import Client
from swarm.clients.upgrade import stage
from swarm.cluster import Cluster
from swarm.network import Network
from swarm.options import Options, draw
from swarm.scenario import Scenario, listening
from swarm.world import (
    Violation,
    World,
)

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.member import Generation
from coterie.client.net import messages
from coterie.simulate.agenda import (
    START_MS,
)
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, OffsetCommitValue

T0 = TopicPartition("t", 0)
KEY = OffsetCommitKey("g", "t", 0)


def a_client(world: World) -> Client:
    options = draw(world)
    return Client(Cluster(world, options, Network(world)), "c")


def committed(offset: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=offset, leader_epoch=-1, metadata="", commit_timestamp=0, expire_timestamp=-1
    )


# -- clocks


def test_a_paused_process_does_late_what_was_due_and_its_clock_goes_on():
    world, done = World(1), []
    client = a_client(world)
    client.later(100, done.append, "due")

    client.pause(1_000)
    world.run(START_MS + 999)
    assert done == []
    world.run(START_MS + 1_000)

    assert done == ["due"]
    assert client.now_ms == world.now_ms


def test_a_suspended_machine_misses_time_and_waits_for_the_rest():
    world, done = World(1), []
    client = a_client(world)
    client.later(100, done.append, "due")
    world.run(START_MS + 40)

    client.suspend(1_000)
    world.run(START_MS + 1_040)
    assert (done, client.now_ms) == ([], START_MS + 40)
    world.run(START_MS + 1_099)
    assert done == []
    world.run(START_MS + 1_100)

    assert done == ["due"]
    assert client.now_ms == START_MS + 100


def a_lonely_scenario(**terms: object) -> Options:
    """Return the terms of a scenario in which nothing happens."""
    calm = {
        "brokers": 1,
        "shards": 1,
        "groups": 1,
        "members": 1,
        "producers": 0,
        "hostile": 0,
        "troubles": (),
    }
    return replace(draw(World(1)), **{**calm, **terms})  # type: ignore[arg-type]


def test_a_broker_reads_the_clock_when_it_starts_and_not_again():
    with listening() as mistakes:
        scenario = Scenario(1, mistakes, options=a_lonely_scenario())
        cluster = scenario.cluster
        cluster.start()
        broker = cluster.brokers[1]
        assert broker.process is not None
        broker.ahead_ms = -3_600_000
        assert broker.process.clock() == START_MS

        cluster.stop(1)
        cluster.restart(1)

        assert broker.process.clock() == START_MS - 3_600_000


# -- connections


def test_who_looks_for_a_coordinator_behind_its_own_fetch_finds_it_before_that_is_over():
    quiet = {
        "delay_ms": 1,
        "spike_chance": 0.0,
        "reset_chance": 0.0,
        "hiccup_chance": 0.0,
        "old_versions": False,
    }
    with listening() as mistakes:
        scenario = Scenario(1, mistakes, options=a_lonely_scenario(topics={"t": 1}, **quiet))
        cluster, world = scenario.cluster, scenario.world
        cluster.start()
        client, broker, answers = Client(cluster, "c"), cluster.brokers[1], []
        terms = {"max_wait_ms": 5_000, "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20, "isolation": 0}
        requests = messages.fetch(11, {T0: 0}, **terms), messages.find_coordinator(3, "g")

        for request in requests:
            client.call(broker, request, timeout_ms=60_000, done=answers.append)
        world.run(START_MS + 100)

        fetched, found = answers
        assert fetched.responses[0].partitions[0].error_code == Code.NONE
        assert found.node_id == 1


# -- commits


def test_a_commit_that_goes_back_is_found():
    with pytest.raises(Violation, match="goes back from 7 to 5"):
        Doubts().check(KEY, committed(7), committed(5))


def test_what_its_sender_gave_up_may_come_late():
    doubts = Doubts()
    doubts.may_come_late("g", {T0: 5})

    doubts.check(KEY, committed(7), committed(5))

    with pytest.raises(Violation):
        doubts.check(KEY, committed(7), committed(6))


def test_readers_go_on_where_they_were_when_somebody_else_commits():
    doubts = Doubts()
    doubts.are_strange("g", {T0: 1_000})

    doubts.check(KEY, committed(1_000), committed(8))


# -- the check of owners


def test_what_a_generation_gives_nobody_else_in_it_still_has():
    """Who missed a generation may come with what was given away before; what this one gives is new."""
    world = World(1)
    checks = Checks(Cluster(world, a_lonely_scenario(), Network(world)), Mistakes())
    old, other, third = (Generation(5, name, "range") for name in ("m-1", "m-2", "m-3"))
    for place in (old, other, third):
        checks.let_in(place.member_id, place.id, "g")

    checks.works("m-1", "g", old, [T0], {T0: 3})
    checks.works("m-2", "g", other, [T0], {T0: 4})

    with pytest.raises(Violation, match="one owner: t-0 is worked on by"):
        checks.works("m-3", "g", third, [T0], {T0: 5})


# -- upgrades


def test_an_upgrade_takes_two_bounces_and_every_stage_knows_the_one_before():
    stages = [stage("range", bounces) for bounces in range(3)]

    assert stages == [("range",), ("cooperative-sticky", "range"), ("cooperative-sticky",)]


def test_a_whole_group_is_upgraded_and_rebalances_cooperatively_in_the_end():
    options = a_lonely_scenario(
        members=3, topics={"t0": 3}, upgrade="range", static_share=0.0, malformed=False
    )
    with listening() as mistakes:
        scenario = Scenario(1, mistakes, options=options)
        scenario.run()

    assert [seat.bounces for seat in scenario.seats] == [2, 2, 2]
    assert "upgraded" in scenario.world.marks
    assert {seat.reader.member.generation.protocol for seat in scenario.seats if seat.reader} == {
        "cooperative-sticky"
    }
