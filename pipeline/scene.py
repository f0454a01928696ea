"""What the picture shows, worked out before anything is drawn: who owned which partition, and when nobody.

Pure: from the story and the times the orchestrator noted to spans that cover every partition without overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from pipeline.lag import Progress
from pipeline.story import Rebalance

Kind = Literal["works", "dead", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that was done to the job from outside, or that it reached."""

    at_ms: int
    what: str
    member: str = ""  # empty when it concerns no member


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The moment in which a member was killed."""

    at_ms: int
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time of one partition: with its owner at work, with its owner dead, or with none."""

    partition: int
    kind: Kind
    owner: str
    generation: int
    from_ms: int
    to_ms: int

    @property
    def seconds(self) -> float:
        return (self.to_ms - self.from_ms) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that the picture is drawn from."""

    started_ms: int  # what seconds are counted from
    ended_ms: int
    partitions: int
    members: Sequence[str]
    rebalances: Sequence[Rebalance]
    happenings: Sequence[Happening] = ()
    deaths: Sequence[Death] = ()
    progress: Sequence[Progress] = ()
    batches: Mapping[str, Sequence[int]] = field(default_factory=dict)  # when each member committed one

    @property
    def begins_ms(self) -> int:
        """Where the picture begins: a little before the first member comes, when the processes are up."""
        first_ms = min((one.at_ms for one in self.rebalances), default=self.started_ms)
        return max(self.started_ms, first_ms - (self.ended_ms - first_ms) // 40)

    def seconds(self, at_ms: int) -> float:
        return (at_ms - self.started_ms) / 1000


def spans(scene: Scene) -> list[Span]:
    """Return the spans of all partitions, from the first rebalance to the end, without overlap."""
    return [span for partition in range(scene.partitions) for span in spans_of(scene, partition)]


def spans_of(scene: Scene, partition: int) -> Iterator[Span]:
    """Yield the spans of one partition in the order of time."""
    for rebalance, until_ms in periods(scene):
        owner = owner_of(rebalance, partition)
        works_ms = min(max(rebalance.working_at_ms, rebalance.at_ms), until_ms)
        dies_ms = death_of(scene, owner, works_ms, until_ms)
        stretches: list[tuple[Kind, str, int, int]] = [
            ("stopped", "", rebalance.at_ms, works_ms),
            ("works" if owner else "stopped", owner, works_ms, dies_ms),
            ("dead", owner, dies_ms, until_ms),
        ]
        for kind, name, from_ms, to_ms in stretches:
            if from_ms < to_ms:
                yield Span(
                    partition=partition,
                    kind=kind,
                    owner=name,
                    generation=rebalance.generation,
                    from_ms=from_ms,
                    to_ms=to_ms,
                )


def periods(scene: Scene) -> Iterator[tuple[Rebalance, int]]:
    """Yield each rebalance with the moment at which the next begins, or the end."""
    yield from ((one, after.at_ms) for one, after in pairwise(scene.rebalances))
    if scene.rebalances:
        yield scene.rebalances[-1], scene.ended_ms


def owner_of(rebalance: Rebalance, partition: int) -> str:
    return next((name for name, mine in rebalance.members.items() if partition in mine), "")


def death_of(scene: Scene, owner: str, from_ms: int, to_ms: int) -> int:
    """Return when an owner died between two moments; the later of them if it did not."""
    return next(
        (death.at_ms for death in scene.deaths if death.member == owner and from_ms <= death.at_ms < to_ms),
        to_ms,
    )


def idle_s(scene: Scene) -> float:
    """Return the partition-seconds in which a partition had no living owner, between first and last."""
    return sum(span.seconds for span in spans(scene) if span.kind != "works")
