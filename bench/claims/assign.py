"""Claim: the assignors take at most 1.5 times Java's time, and its time where members want different topics.

The same lines go to both: a first assignment, and one after a member left. Java's time is that of the classes
of `kafka-clients` in a JVM that has warmed up, ours that of a process that has assigned before.
"""

from __future__ import annotations

import gc
import random
import time
from typing import Any, NamedTuple

from bench import tools
from bench.figures import Figure, Goal, Plan
from coterie.assign.model import Assigned, Cluster, Member
from coterie.assign.registry import KINDS
from coterie.wire.payloads.consumer_protocol import Subscription

__all__ = ["measure"]

WARM_UP, COUNTED = 4, 3
STEPS = ("first", "one left")


class Shape(NamedTuple):
    """How large a group is, and whether its members want the same."""

    members: int
    topics: int
    partitions: int  # of each topic
    uneven: bool = False

    @property
    def name(self) -> str:
        """Return what the table calls it."""
        size = f"{self.members:,} members x {self.topics * self.partitions:,} partitions"
        return f"{size}, uneven" if self.uneven else size


SHAPES = (Shape(1_000, 10, 1_000), Shape(10_000, 10, 10_000), Shape(1_000, 200, 50, uneven=True))


def measure(plan: Plan) -> list[Figure]:
    """Return the milliseconds of each assignor for each shape and step."""
    return [figure for shape in SHAPES for name in KINDS for figure in _measured(plan, shape, name)]


def _measured(plan: Plan, shape: Shape, name: str) -> list[Figure]:
    goal = Goal(1.0 if shape.uneven else 1.5, "ratio", at_most=True)
    figures = [Figure("assign", f"{name}, {shape.name}, {step}", "ms", goal) for step in STEPS]
    line = scenario(shape, name)
    for repetition in range(plan.repeats):
        for who in plan.brokers if repetition % 2 == 0 else plan.brokers[::-1]:
            plan.say(f"{name}, {shape.name}: {who}, {repetition + 1} of {plan.repeats}")
            runs = ours(line) if who == "coterie" else tools.java_assign(line, repeats=WARM_UP + COUNTED)
            for run in runs[WARM_UP:]:
                for figure, milliseconds in zip(figures, run, strict=True):
                    figure.add(who, milliseconds)
    return figures


def scenario(shape: Shape, name: str) -> dict[str, Any]:
    """Return the line for an assignor: everybody, then everybody but one from the middle."""
    chance = random.Random(f"{shape}")
    topics = [f"topic-{number:03}" for number in range(shape.topics)]
    members = [f"consumer-{number}-{chance.getrandbits(128):032x}" for number in range(shape.members)]
    # Uneven: every other member wants only the first half of the topics.
    few = topics[: len(topics) // 2] if shape.uneven else topics
    return {
        "assignor": name,
        "partitions": dict.fromkeys(topics, shape.partitions),
        "subscriptions": {member: few if at % 2 else topics for at, member in enumerate(members)},
        "steps": [
            {"members": members, "generation": 0},
            {
                "members": [member for member in members if member != members[shape.members // 2]],
                "generation": 1,
            },
        ],
    }


def ours(line: dict[str, Any]) -> list[list[float]]:
    """Return the milliseconds of each step, for each time that the line was played."""
    cluster = Cluster(partition_counts=line["partitions"])
    return [_played(line, cluster) for _ in range(WARM_UP + COUNTED)]


def _played(line: dict[str, Any], cluster: Cluster) -> list[float]:
    make = KINDS[line["assignor"]]
    minds = {member: make() for member in line["subscriptions"]}
    given: Assigned = {}
    milliseconds = []
    for step in line["steps"]:
        members = []
        for member in step["members"]:
            topics = tuple(line["subscriptions"][member])
            owned = given.get(member, ()) if len(minds[member].protocols) > 1 else ()
            data = minds[member].user_data(topics=topics, owned=owned, generation=step["generation"])
            subscription = Subscription(topics, data, owned, step["generation"])
            members.append(Member(member_id=member, subscription=subscription))
        leader = make()
        gc.collect()
        before = time.perf_counter()
        given = dict(leader.assign(cluster, members))
        milliseconds.append((time.perf_counter() - before) * 1_000)
        for member, partitions in given.items():
            minds[member].on_assignment(partitions, generation=step["generation"] + 1, member_id=member)
    return milliseconds
