"""What a claim yields: samples of both brokers, the median of each, and whether the goal is reached."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.brokers import BROKERS, Broker, data_directory

__all__ = ["Figure", "Goal", "Plan", "Samples", "growth"]

Samples = dict[str, list[float]]
GROWTH_MOST = 1.15
"""By how much more than the work the time may grow, where it should grow with it."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What must be reached: a limit for our own figure, for its ratio to Kafka's, or for both figures."""

    limit: float
    of: str  # "own": our median; "ratio": our median divided by Kafka's; "both": either broker's median
    at_most: bool

    def reached(self, own: float, kafka: float | None) -> bool | None:
        """Whether the goal is reached; None where Kafka was not measured."""
        if self.of == "own":
            measured = [own]
        elif not kafka:
            return None
        else:
            measured = [own / kafka] if self.of == "ratio" else [own, kafka]
        return max(measured) <= self.limit if self.at_most else min(measured) >= self.limit

    def text(self, unit: str) -> str:
        """Return the goal as the table shows it."""
        how = "at most" if self.at_most else "at least"
        return f"{how} {self.limit:.1f} x Kafka" if self.of == "ratio" else f"{how} {self.limit:g} {unit}"


@dataclass(slots=True)
class Figure:
    """One row of the table."""

    claim: str
    what: str
    unit: str
    goal: Goal
    samples: Samples = field(default_factory=dict)

    def add(self, broker: str, sample: float) -> None:
        """Take one measured value."""
        self.samples.setdefault(broker, []).append(sample)

    def median(self, broker: str) -> float | None:
        """Return the median of a broker's samples, or None if it was not measured."""
        samples = self.samples.get(broker)
        return statistics.median(samples) if samples else None

    @property
    def ratio(self) -> float | None:
        """Our median divided by Kafka's."""
        own, theirs = self.median("coterie"), self.median("kafka")
        return own / theirs if own is not None and theirs else None

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None where that was not measured."""
        own = self.median("coterie")
        return None if own is None else self.goal.reached(own, self.median("kafka"))

    def as_json(self) -> dict[str, Any]:
        """Return the figure as `latest.json` keeps it."""
        return {
            "claim": self.claim,
            "what": self.what,
            "unit": self.unit,
            "goal": self.goal.text(self.unit),
            "coterie": self.median("coterie"),
            "kafka": self.median("kafka"),
            "ratio": self.ratio,
            "reached": self.reached,
            "samples": self.samples,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """How a claim is to be measured."""

    repeats: int
    quick: bool
    brokers: tuple[str, ...]
    say: Callable[[str], None]

    def scaled(self, count: int) -> int:
        """Return the number of records or requests to use: a fifth where a quick look is wanted."""
        return count // 5 if self.quick else count

    def rounds(self, claim: str, *, repeats: int | None = None) -> Iterator[tuple[str, Broker]]:
        """Yield each broker, not yet started, once a repetition, of which there are the plan's or `repeats`.

        One runs at a time; the order turns with each repetition, so that neither always comes first.
        """
        repeats = repeats or self.repeats
        for repetition in range(repeats):
            order = self.brokers if repetition % 2 == 0 else self.brokers[::-1]
            for name in order:
                self.say(f"{claim}: {name}, {repetition + 1} of {repeats}")
                yield name, BROKERS[name](data_directory() / name)


def growth(claim: str, what: str, work: tuple[float, float], spent: Iterable[tuple[float, float]]) -> Figure:
    """Return how the time grew beside the work, from little to much, measured once or more.

    Below one, as both share the start. `what` says of which work.
    """
    figure = Figure(claim, f"time {what}, beside their number", "x", Goal(GROWTH_MOST, "own", at_most=True))
    little, much = work
    for before, after in spent:
        figure.add("coterie", (after / before) / (much / little))
    return figure
