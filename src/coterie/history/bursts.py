"""Deploys and storms: rebalances that belong together.

A deploy: members go in good order one after the other, and come back, or others in their place. A storm:
rebalance after rebalance in which members are thrown out, or the same client comes and goes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coterie.base.ids import ShortNames
from coterie.history.departures import POLL_EXCEEDED, SESSION_EXPIRED
from coterie.history.short_names import short_names
from coterie.history.tables import Assignment, Generation, Replacement, Wave

DEPLOY_PAUSE_MS = 600_000
"""Between two members of a deploy; a slow one waits for each to be healthy."""
STORM_PAUSE_MS = 120_000
STORM_REBALANCES, STORM_THROWN_OUT = 5, 3
DEPLOYED_LEAST, DEPLOYED_SHARE = 2, 0.5


class Step(NamedTuple):
    """A rebalance or a replacement: when, who went how, who came."""

    at_ms: int
    rebalance: bool
    thrown_out: tuple[str, ...]
    gone: tuple[str, ...]
    came: tuple[str, ...]
    size: int


def waves_of(
    group_id: str,
    generations: Sequence[Generation],
    replacements: Sequence[Replacement],
    assignments: Sequence[Assignment],
) -> tuple[Wave, ...]:
    """Return the group's waves. Members go by their short names: many applications give all of theirs one
    client id.
    """
    names = short_names(assignments)
    steps = [step_of(one, names) for one in generations]
    steps += [Step(one.at, False, (), (one.instance_id,), (one.instance_id,), 0) for one in replacements]
    steps.sort(key=lambda step: step.at_ms)
    storms = list(storms_of(group_id, steps))
    calm = [step for step in steps if not any(one.from_ms <= step.at_ms <= one.to_ms for one in storms)]
    return tuple(sorted([*storms, *deploys_of(group_id, calm)], key=lambda wave: wave.from_ms))


def step_of(one: Generation, names: ShortNames) -> Step:
    gone, came = (tuple(map(names.of, who)) for who in (one.left, one.joined))
    thrown = gone if {SESSION_EXPIRED, POLL_EXCEEDED} & set(one.causes) else ()
    return Step(one.formed_at, True, thrown, gone, came, len(one.members))


def chained(steps: Sequence[Step], pause_ms: int) -> Iterator[list[Step]]:
    """Yield the steps in chains, whose links are not further apart than `pause_ms`."""
    chain: list[Step] = []
    for step in steps:
        if chain and step.at_ms - chain[-1].at_ms > pause_ms:
            yield chain
            chain = []
        chain.append(step)
    if chain:
        yield chain


def storms_of(group_id: str, steps: Sequence[Step]) -> Iterator[Wave]:
    """Yield the storms: many rebalances in a row, and in several of them somebody was thrown out."""
    for chain in chained([step for step in steps if step.rebalance], STORM_PAUSE_MS):
        throwing = [place for place, step in enumerate(chain) if step.thrown_out]
        if len(throwing) < STORM_THROWN_OUT:
            continue
        storm = chain[throwing[0] :]
        if len(storm) < STORM_REBALANCES:
            continue
        thrown = Counter(name for step in storm for name in step.thrown_out)
        worst, times = thrown.most_common(1)[0]
        who = {name for step in storm for name in (*step.gone, *step.came)}
        cases = sum(thrown.values())
        why = f"{len(storm)} rebalances, {cases} times a member was removed, {worst} most often ({times})"
        yield Wave(group_id, "storm", storm[0].at_ms, storm[-1].at_ms, len(storm), len(who), why)


def deploys_of(group_id: str, steps: Sequence[Step]) -> Iterator[Wave]:
    """Yield the deploys: of several members, half of the group at least, each went in order and one came."""
    for part in rounds(sorted(restarts_of(steps))):
        names = {restart.name for restart in part}
        if len(names) < max(DEPLOYED_LEAST, DEPLOYED_SHARE * max(restart.size for restart in part)):
            continue
        from_ms, to_ms = part[0].gone.at_ms, max(restart.came_ms for restart in part)
        rebalances = sum(step.rebalance for step in steps if from_ms <= step.at_ms <= to_ms)
        how = (
            "under their own names"
            if all(restart.itself for restart in part)
            else "and others came in their place"
        )
        how = f"and came back {how}" if all(restart.itself for restart in part) else how
        yield Wave(
            group_id, "deploy", from_ms, to_ms, rebalances, len(names), f"{len(names)} members went {how}"
        )


def rounds(restarts: Sequence[Restart]) -> Iterator[list[Restart]]:
    """Yield the turns in rounds: in a deploy each has its turn once, and they follow each other."""
    part: list[Restart] = []
    for restart in restarts:
        late = part and restart.gone.at_ms - part[-1].gone.at_ms > DEPLOY_PAUSE_MS
        if late or any(one.name == restart.name for one in part):
            yield part
            part = []
        part.append(restart)
    if part:
        yield part


class Restart(NamedTuple):
    """A member went in good order, and came back, or another came for it."""

    gone: Step
    came_ms: int
    name: str
    itself: bool
    size: int


def restarts_of(steps: Sequence[Step]) -> Iterator[Restart]:
    """Yield the restarts: members that went, and for whom somebody came at once or within the time that a
    deploy takes.
    """
    coming = [(step.at_ms, name) for step in steps for name in step.came]  # in the order of their times
    going = [(step, name) for step in steps for name in step.gone if name not in step.thrown_out]
    known = {name for _, name in going}
    size = 1
    for step, name in going:
        size = max(size, step.size, len(step.gone))
        near = coming[
            bisect_left(coming, (step.at_ms,)) : bisect_left(coming, (step.at_ms + DEPLOY_PAUSE_MS + 1,))
        ]
        back = [one for one in near if one[1] == name]
        other = [one for one in near if one[1] not in known]
        for found in (back or other)[:1]:
            coming.remove(found)
            yield Restart(step, found[0], name, bool(back), size)
