"""A Spark application to give jobs to, and what is compared: three ways of reading the same topic."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.brokers import BROKERS, data_directory
from bench.figures import Figure, Goal, Plan
from bench.kafka import REPOSITORY, SetupError
from bench.spark.local import connector_jars
from bench.spark.topics import Records, fill

__all__ = ["DEFAULTS", "OURS", "TOPIC", "TUNED", "Application", "Contest", "at_least", "at_most", "held"]

OURS, DEFAULTS, TUNED = "coterie", "defaults", "tuned"
BEST = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.receive.buffer.bytes": "-1",
}
"""What makes Spark's own connector fastest on one machine."""
FORMATS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    OURS: ("coterie", {}),
    DEFAULTS: ("kafka", {}),
    TUNED: ("kafka", BEST),
}

WARM_UP, AGAIN, ROUNDS = 6, 1, 5
"""Medians are of so many rounds. Those before them, in which a JVM still compiles, are not counted: more of
them for the first contest of an application than for the next."""
TOPIC = "measured"


class Application:
    """`bench.spark.app` in a process of its own. A context manager: on the way out it has ended."""

    def __init__(self, folder: Path, address: str) -> None:
        self.address = address
        self.log = folder / "spark.log"
        folder.mkdir(parents=True, exist_ok=True)
        jars = connector_jars()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.spark.app", jars],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
            )

    def does(self, job: str, by: str, topic: str, **more: Any) -> dict[str, Any]:
        """Have a job done by one of the three; return what came of it. Options go by their names."""
        form, options = FORMATS[by]
        options = {
            "kafka.bootstrap.servers": self.address,
            "subscribe": topic,
            "startingOffsets": "earliest",
            **options,
            **more.pop("options", {}),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": job, "format": form, "options": options, **more}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SetupError(f"the Spark application ended:\n{self.log.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@dataclass(frozen=True, slots=True)
class Contest:
    """One job, done by our source and by others on the same topic."""

    claim: str
    what: str
    job: str
    goals: Mapping[str, Goal]
    """By the other: what our figure beside it must reach."""
    options: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)
    """More that the job is told."""
    topic: str = TOPIC

    def figures(self) -> dict[str, Figure]:
        """Return the figures, yet empty, by the other."""
        return {
            other: Figure(self.claim, f"Spark {self.what}, beside its connector ({other})", "x", goal)
            for other, goal in self.goals.items()
        }

    def round(self, application: Application, turn: int) -> dict[str, float]:
        """Return the cost of each reader's turn: seconds, or a micro-batch's median milliseconds."""
        readers = [OURS, *self.goals]
        first = turn % len(readers)
        return {
            reader: application.does(self.job, reader, self.topic, options=self.options, **self.words)["cost"]
            for reader in readers[first:] + readers[:first]
        }


def at_least(limit: float) -> Goal:
    """Return the goal of costing so many times less than the other, with either broker."""
    return Goal(limit, "both", at_most=False)


def at_most(limit: float) -> Goal:
    """Return the goal of costing so many times more at most."""
    return Goal(limit, "both", at_most=True)


def held(
    plan: Plan, topics: Mapping[str, Records], contests: Sequence[Contest], *, rounds: int = ROUNDS
) -> list[Figure]:
    """Hold the contests on topics of such records, at each broker; return their figures."""
    figures = [contest.figures() for contest in contests]
    if plan.quick:
        rounds = 1
    for name in plan.brokers:
        with BROKERS[name](data_directory() / name) as broker:
            for topic, records in topics.items():
                fill(broker.address, topic, records.scaled(plan))
            with Application(data_directory() / "spark", broker.address) as application:
                warm_up = AGAIN if plan.quick else WARM_UP
                for contest, mine in zip(contests, figures, strict=True):
                    costs = [contest.round(application, turn) for turn in range(warm_up + rounds)][warm_up:]
                    plan.say(f"{name}, {contest.what}: {medians(costs)}")
                    add(mine, name, costs)
                    warm_up = AGAIN
    return [figure for each in figures for figure in each.values()]


def add(figures: Mapping[str, Figure], broker: str, costs: Sequence[Mapping[str, float]]) -> None:
    """Add what each round has shown to the figures, which go by the other."""
    for other, figure in figures.items():
        for cost in costs:
            figure.add(broker, beside(figure.goal, cost[OURS], cost[other]))


def medians(costs: Sequence[Mapping[str, float]]) -> str:
    """Return what each reader's turn cost in the middle, to be shown."""
    return ", ".join(f"{who} {statistics.median(one[who] for one in costs):.3g}" for who in costs[0])


def beside(goal: Goal, ours: float, theirs: float) -> float:
    """Return our cost beside theirs: how many times less, or how many times more where more is a limit."""
    return ours / theirs if goal.at_most else theirs / ours
