"""What groups of many clients go through: walks drawn from a seed, each kind as leader, static members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from interop.mixed.members import Member
from interop.mixed.world import World

__all__ = ["FIRST_SEED", "scenarios"]

FIRST_SEED = 1
STEPS = 8
CRASHES = 2
LEAST, MOST = 3, 8
FOREIGN = ("java-4.3.1", "java-3.9.2", "confluent-kafka", "kafka-python", "aiokafka")
NOT_COOPERATIVE = ("aiokafka",)
STRATEGIES = ("range", "roundrobin", "cooperative-sticky")

Scenario = Callable[[World], None]


def foreign(strategy: str) -> tuple[str, ...]:
    """Return the clients of others that know a strategy."""
    return tuple(kind for kind in FOREIGN if strategy != "cooperative-sticky" or kind not in NOT_COOPERATIVE)


def scenarios(seed: int) -> Iterator[tuple[str, Scenario]]:
    """Yield all, by name."""
    for strategy in STRATEGIES:
        yield f"{strategy}-seed-{seed}", partial(walk, strategy=strategy, seed=seed)
    for strategy in STRATEGIES:
        for kind in foreign(strategy):
            yield (
                f"{strategy}-{kind}-leads-and-follows",
                partial(lead_and_follow, strategy=strategy, kind=kind),
            )
    for strategy in ("range", "cooperative-sticky"):
        yield f"{strategy}-static-among-dynamic", partial(static_among_dynamic, strategy=strategy)


def walk(world: World, *, strategy: str, seed: int) -> None:
    """Members of all kinds come, go and die in an order drawn from the seed; ours are never all gone."""
    dice = Random(f"{strategy} {seed}")
    kinds = ["ours", *foreign(strategy)]
    dice.shuffle(kinds)
    for kind in kinds:
        world.start(kind, strategy)
    world.settle()
    crashes = set(dice.sample(range(STEPS), CRASHES))
    for step in range(STEPS):
        say(world, step_of(world, dice, kinds, strategy, crash=step in crashes))
        if dice.random() < 0.7:  # else the next comes in the midst of this one
            world.settle()


def step_of(world: World, dice: Random, kinds: list[str], strategy: str, *, crash: bool) -> str:
    """Do the next thing; returns what it was."""
    going = dice.choice(spare(world))
    if crash:
        going.kill()
        return f"{going.name} dies"
    count = len(world.alive)
    if count <= LEAST or (count < MOST and dice.random() < 0.5):
        return f"{world.start(dice.choice(kinds), strategy).name} comes"
    world.stop(going)
    return f"{going.name} goes"


def spare(world: World) -> list[Member]:
    """Return who may go: all but the last of ours."""
    ours = [member for member in world.alive if member.kind == "ours"]
    return [member for member in world.alive if ours != [member]]


def say(world: World, words: str) -> None:
    """Tell what happens; not a line that counts."""
    print(f"  {world.name}: {words}", flush=True)


def lead_and_follow(world: World, *, strategy: str, kind: str) -> None:
    """A foreign member leads two of ours; it goes, one of ours leads; it comes back and follows."""
    first = world.start(kind, strategy)
    assert world.settle().leader == first.name
    ours = [world.start("ours", strategy) for _ in range(2)]
    assert world.settle().leader == first.name, "who leads goes on to lead"
    world.stop(first)
    leader = world.settle().leader
    assert leader in [one.name for one in ours]
    world.start(kind, strategy)
    world.start(kind, strategy)
    assert world.settle().leader == leader


def static_among_dynamic(world: World, *, strategy: str) -> None:
    """A static member of ours restarts, also after a crash, and nobody notices; then its session ends."""
    dynamic = [world.start(kind, strategy) for kind in foreign(strategy)]
    fixed = world.start("ours", strategy, instance="fixed")
    before = world.settle()
    heard = {member.name: member.told("assigned", "revoked", "lost") for member in dynamic}

    for end in (world.stop, Member.kill):
        end(fixed)
        given = before.given[fixed.name]
        fixed = world.start("ours", strategy, instance="fixed")
        now = world.settle()
        assert (now.number, now.given[fixed.name]) == (before.number, given), (
            "its coming back moved the group"
        )
        before = now
    assert heard == {member.name: member.told("assigned", "revoked", "lost") for member in dynamic}

    world.stop(fixed)
    assert world.settle().number > before.number
