"""What is done to a group and when: a variant's deploys and troubles, worked out beforehand from its seed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from coterie.simulate.scenario import Deploy, Kind, Trouble, Variant, kind

STOPS = {"crash": "kill", "slow_poll": "stall", "gc_pause": "pause"}


class Act(NamedTuple):
    """One thing that is done, so long after the start. `member` counts from 1; 0 is the broker."""

    at_ms: int
    what: str
    """start, stop, kill, stall or pause for a member; stop or start for the broker."""
    member: int
    takes_ms: int = 0
    kind: Kind | None = None
    """How the member is from now on, if that changes."""
    begins: str = ""
    """What this is the first act of: a deploy."""


def timetable(variant: Variant) -> list[Act]:
    """Return everything that is done within a variant's time, in order."""
    acts = [*starts(variant)]
    for number, one in enumerate(variant.deploys):
        acts += deploys(one, variant, chance(variant, "deploy", number))
    for number, trouble in enumerate(variant.troubles):
        acts += troubles(trouble, variant, chance(variant, trouble.what, number))
    acts += outages(variant)
    acts += scales(variant)
    return sorted((act for act in acts if act.at_ms < variant.lasts_ms), key=lambda act: act.at_ms)


def chance(variant: Variant, *names: object) -> Random:
    """Return the source of chance of one part: what one part draws changes no other."""
    return Random("/".join(map(str, (variant.seed, *names))))


def members(variant: Variant) -> list[Kind]:
    """Return the kind of each member of the beginning."""
    return [one for one in variant.kinds for _ in range(one.count)]


def starts(variant: Variant) -> Iterator[Act]:
    random = chance(variant, "start")
    for number, one in enumerate(members(variant), 1):
        yield Act(random.randint(0, one.starts_within_ms), "start", number)


def deploys(deploy: Deploy, variant: Variant, random: Random) -> Iterator[Act]:
    count, size = variant.members, deploy.batch(variant.members)
    changed = [kind(deploy.change, "set", one) if deploy.change else None for one in members(variant)]
    for at_ms in deploy.when.moments(variant.lasts_ms):
        begins = "deploy"
        for first in range(1, count + 1, size):
            back_ms = at_ms
            for number in range(first, min(first + size, count + 1)):
                restart_ms = random.randint(*deploy.restart_ms)
                yield Act(at_ms, "kill" if deploy.kill else "stop", number, restart_ms, begins=begins)
                yield Act(at_ms + restart_ms, "start", number, kind=changed[number - 1])
                back_ms, begins = max(back_ms, at_ms + restart_ms), ""
            at_ms = back_ms + deploy.pause_ms


def troubles(trouble: Trouble, variant: Variant, random: Random) -> Iterator[Act]:
    for at_ms in trouble.when.moments(variant.lasts_ms):
        member = trouble.member or random.randint(1, variant.members)
        takes_ms = random.randint(*trouble.takes_ms) if trouble.takes_ms is not None else 0
        yield Act(at_ms, STOPS[trouble.what], member, takes_ms)
        if trouble.what == "crash" and trouble.takes_ms is not None:
            yield Act(at_ms + takes_ms, "start", member)


def outages(variant: Variant) -> Iterator[Act]:
    for number, outage in enumerate(variant.outages):
        random = chance(variant, "broker", number)
        for at_ms in outage.when.moments(variant.lasts_ms):
            takes_ms = random.randint(*outage.takes_ms)
            yield Act(at_ms, "stop", 0, takes_ms)
            yield Act(at_ms + takes_ms, "start", 0)


def scales(variant: Variant) -> Iterator[Act]:
    moments = [(at_ms, one.to) for one in variant.scales for at_ms in one.when.moments(variant.lasts_ms)]
    count = variant.members
    for at_ms, to in sorted(moments):
        for number in range(count + 1, to + 1):
            yield Act(at_ms, "start", number)
        for number in range(to + 1, count + 1):
            yield Act(at_ms, "stop", number)
        count = to
