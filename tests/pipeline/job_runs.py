"""Builders: pieces of a run as the orchestrator would have seen them. Times are seconds after the start."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.lag import Progress
from pipeline.scene import Death, Happening, Scene
from pipeline.story import Rebalance

START_MS = 1_790_000_000_000
A, B, C = "spark-a", "spark-b", "foreign"


def at(seconds: float) -> int:
    return START_MS + round(seconds * 1000)


def a_rebalance(
    generation: int,
    begins_s: float,
    stopped_s: float,
    members: dict[str, tuple[int, ...]],
    *,
    why: Sequence[str] = ("member-joined",),
    joined: Sequence[str] = (),
    left: Sequence[str] = (),
    moved: int = 3,
) -> Rebalance:
    return Rebalance(
        at_ms=at(begins_s),
        formed_at_ms=at(begins_s + stopped_s * 0.9),
        generation=generation,
        why=tuple(why),
        members=members,
        joined=tuple(joined),
        left=tuple(left),
        stopped_ms=round(stopped_s * 1000),
        moved=moved,
    )


def a_scene() -> Scene:
    """A joins, B joins and is killed at 20 s, A takes over, B comes back; over at 40 s."""
    rebalances = [
        a_rebalance(1, 5, 3, {A: (0, 1, 2, 3)}, joined=[A], moved=4),
        a_rebalance(2, 12, 0.5, {A: (0, 1), B: (2, 3)}, joined=[B]),
        a_rebalance(3, 26, 0.4, {A: (0, 1, 2, 3)}, why=["session-expired"], left=[B]),
        a_rebalance(4, 32, 0.6, {A: (0, 1), B: (2, 3)}, joined=[B]),
    ]
    looks = [Progress(at(second), (100, 100), (second, second * 2)) for second in range(41)]
    return Scene(
        started_ms=START_MS,
        ended_ms=at(40),
        partitions=4,
        members=(A, B, C),
        rebalances=rebalances,
        happenings=[Happening(at_ms=at(20), what="spark-b killed", member=B)],
        deaths=[Death(at_ms=at(20), member=B)],
        progress=looks,
        batches={A: [at(9), at(10)], B: [at(13)]},
    )


def a_story_record(**changes: object) -> dict[str, object]:
    """A record of `__group_story` as the broker writes it."""
    record: dict[str, object] = {
        "at": at(12),
        "formed_at": at(12.4),
        "group": "delays",
        "generation": 2,
        "why": ["member-joined"],
        "leader": "spark-a-1",
        "protocol": "range",
        "members": {
            "spark-a-1": {
                "client_id": A,
                "instance_id": None,
                "host": "/127.0.0.1",
                "partitions": {"flights": [0, 1]},
            },
            "spark-b-1": {
                "client_id": B,
                "instance_id": None,
                "host": "/127.0.0.1",
                "partitions": {"flights": [3, 2]},
            },
        },
        "joined": ["spark-b-1"],
        "left": [],
        "stopped_ms": 500,
        "moved": 2,
    }
    return record | changes
