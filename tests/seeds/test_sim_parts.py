"""The pretended world: time, connections, disks, and what the checks remember."""

from __future__ import annotations

from typing import Any

import pytest
from swarm.checks.watch import GroupWatch, Patience
from swarm.disk import SimDisk
from swarm.network import Channel, Network, Weather
from swarm.options import draw
from swarm.world import (
    Violation,
    World,
)

from coterie.coordinator.group.model import Group, Member, State
from coterie.simulate.agenda import (
    START_MS,
)
from coterie.storage.memory import Faults

PATIENCE = Patience(late_ms=10, initial_delay_ms=0, troubled_ms=0)


class Ear:
    """A broker that only listens."""

    node_id = 1

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.lost_count = 0
        self.listens = True

    def accept(self, channel: Channel) -> Ear | None:
        return self if self.listens else None

    def receive(self, frame: Any) -> None:
        self.heard.append(frame)

    def lost(self) -> None:
        self.lost_count += 1


class Line:
    """A connection to an ear, and what its client hears."""

    def __init__(self, *, delay_ms: int = 50) -> None:
        self.world = World(1)
        self.network = Network(self.world, Weather(delay_ms=delay_ms))
        self.ear = Ear()
        self.answers: list[Any] = []
        self.broken = False
        self.channel = self.network.connect(
            "c", self.ear, received=self.answers.append, lost=lambda: setattr(self, "broken", True)
        )

    def pass_ms(self, span_ms: int) -> None:
        self.world.run(self.world.now_ms + span_ms)


# -- time


def test_what_is_due_later_is_done_later():
    world, done = World(1), []
    world.later(20, done.append, "second")
    world.later(10, done.append, "first")

    world.run(START_MS + 15)

    assert done == ["first"]
    assert world.now_ms == START_MS + 15


def test_whoever_asks_again_at_once_is_found_out():
    world = World(1)

    def again() -> None:
        world.later(0, again)

    again()
    with pytest.raises(Violation, match="nobody spins"):
        world.run(START_MS + 1)


def test_the_options_of_two_seeds_differ_and_of_one_do_not():
    assert draw(World(1)) == draw(World(1))
    assert draw(World(1)) != draw(World(2))


# -- connections


def test_requests_of_one_connection_arrive_in_their_order():
    line = Line()

    for number in range(20):
        line.channel.send(number)
    line.pass_ms(2_000)

    assert line.ear.heard == list(range(20))


def test_a_cut_link_is_silent_and_delivers_when_it_heals():
    line = Line()
    line.network.cut({("c", 1)}, requests=True, answers=False)
    line.channel.send("late")
    line.pass_ms(10_000)
    assert line.ear.heard == []
    assert not line.broken

    line.network.heal()
    line.pass_ms(100)

    assert line.ear.heard == ["late"]


def test_nobody_listens_and_the_client_learns_of_it():
    line = Line()
    line.ear.listens = False

    line.channel.send("hello")
    line.pass_ms(200)

    assert line.broken


def test_a_reset_breaks_the_connection_for_both_ends():
    line = Line()
    line.channel.send("one")
    line.pass_ms(100)
    line.network.weather.reset_chance = 1.0

    line.channel.send("two")
    line.channel.send("three")
    line.pass_ms(200)

    assert line.broken
    assert line.ear.lost_count == 1
    assert line.ear.heard in (["one"], ["one", "two"])  # carried out or not: nobody knows


def test_what_was_sent_before_hanging_up_still_arrives():
    line = Line()
    line.channel.send("last words")

    line.channel.close()
    line.pass_ms(200)

    assert line.ear.heard == ["last words"]
    assert line.ear.lost_count == 1


def test_answers_of_two_connections_may_overtake_each_other():
    line = Line()
    other = line.network.connect("c", line.ear, received=line.answers.append, lost=lambda: None)
    for channel in (line.channel, other):
        channel.send("hello")
    line.pass_ms(200)

    for number in range(40):
        (line.channel if number % 2 else other).answer(number)
        line.pass_ms(1)
    line.pass_ms(2_000)

    assert line.answers != sorted(line.answers) == [*range(40)]
    for rest in (0, 1):
        assert [one for one in line.answers if one % 2 == rest] == [*range(rest, 40, 2)]


def test_an_answer_is_lost_with_its_connection():
    line = Line()
    line.channel.send("hello")
    line.pass_ms(200)

    line.channel.answer("hello yourself")
    line.channel.break_off()
    line.pass_ms(200)

    assert (line.answers, line.broken, line.channel.owes) == ([], True, True)


# -- disks


def test_a_disk_that_takes_over_a_directory_has_it_safe_from_a_loss_of_power():
    source, target = SimDisk(seed=1), SimDisk(seed=2)
    source.make_directory("data/t-0")
    source.open("data/t-0/log", create=True).write([b"abc"], 0)
    target.faults = Faults(refuse={"save"})

    target.take_over("data/t-0", source)
    target.lose_power()

    assert target.load("data/t-0/log") == b"abc"
    assert target.is_ill


# -- the second opinion on time


def a_group(*, is_new: bool = False) -> Group:
    group = Group("g", State.STABLE, generation=1, leader="m")
    group.members["m"] = Member("m", None, "c", "/h", "consumer", (), 10_000, 30_000, 0, "g", is_new=is_new)
    return group


def test_a_member_that_goes_before_its_session_has_run_out_is_missed():
    group = a_group()
    watch = GroupWatch.of(group, 0, PATIENCE)
    watch.beat("m", 5_000, sure=True)
    group.members.clear()

    with pytest.raises(Violation, match="nobody goes without a reason"):
        watch.look(group, 14_999, PATIENCE)


def test_a_member_whose_session_has_run_out_may_go():
    group = a_group()
    watch = GroupWatch.of(group, 0, PATIENCE)
    watch.beat("m", 5_000, sure=True)
    group.members.clear()

    watch.look(group, 15_000, PATIENCE)


def test_a_member_that_is_silent_for_too_long_has_to_go():
    group = a_group()
    watch = GroupWatch.of(group, 0, PATIENCE)

    watch.look(group, 10_010, PATIENCE)
    with pytest.raises(Violation, match="the silent go"):
        watch.look(group, 10_011, PATIENCE)


def test_a_new_member_has_five_minutes():
    group = a_group(is_new=True)
    watch = GroupWatch.of(group, 0, PATIENCE)

    watch.look(group, 300_000, PATIENCE)
    group.members.clear()
    watch.look(group, 300_001, PATIENCE)


def test_a_phase_that_lasts_longer_than_it_may_is_found_out():
    group = a_group()
    group.state, group.awaiting_join = State.PREPARING, 1
    group.members["m"].join_call = 1
    watch = GroupWatch.of(group, 0, PATIENCE)

    watch.look(group, 30_000, PATIENCE)
    with pytest.raises(Violation, match="phases end"):
        watch.look(group, 30_011, PATIENCE)
