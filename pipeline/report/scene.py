"""What the picture shows, worked out before anything is drawn: who owned which partition, and when nobody.

Pure values: the spans and rebalances come from the group's history, the happenings from the orchestrator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipeline.watch.progress import Progress
from pipeline.watch.story import Rebalance

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
    spans: Sequence[Span]
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
