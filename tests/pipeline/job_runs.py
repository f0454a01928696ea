"""Builders: pieces of a run as the orchestrator and the story have them. Times are seconds of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.report.history import rebalances_of, spans_of
from pipeline.report.scene import Death, Happening, Scene
from pipeline.watch.progress import Progress
from pipeline.watch.story import Rebalance

from coterie.history.from_story import history_of_story
from coterie.history.tables import History, Stall

ROOT = Path(__file__).resolve().parents[2]
EVENTS = 20_000
START_MS = 1_790_000_000_000
A, B, C = "spark-a", "spark-b", "foreign"


def command(run: Path) -> list[str]:
    """Return the words that run the main job there, on a part of the flights."""
    return [sys.executable, "-m", "pipeline.run", "--events", str(EVENTS), "--run", str(run)]


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


def told(
    generation: int,
    begins_s: float,
    stopped_s: float,
    members: Mapping[str, Sequence[int]],
    *,
    why: Sequence[str] = ("member-joined",),
    joined: Sequence[str] = (),
    left: Sequence[str] = (),
) -> dict[str, Any]:
    """What the story has of a rebalance; each client is one member."""
    return a_story_record(
        at=at(begins_s),
        formed_at=at(begins_s + stopped_s),
        generation=generation,
        why=list(why),
        members={
            f"{client}-1": {
                "client_id": client,
                "instance_id": None,
                "host": "/127.0.0.1",
                "partitions": {"flights": list(partitions)} if partitions else {},
            }
            for client, partitions in members.items()
        },
        joined=[f"{client}-1" for client in joined],
        left=[f"{client}-1" for client in left],
    )


def a_history() -> History:
    """A joins, B joins and is killed at 20 s, A takes over, B comes back."""
    history = history_of_story(
        "delays",
        [
            told(1, 5, 3, {A: (0, 1, 2, 3)}, joined=[A]),
            told(2, 12, 0.5, {A: (0, 1), B: (2, 3)}, joined=[B]),
            told(3, 26, 0.4, {A: (0, 1, 2, 3)}, why=["session-expired"], left=[B]),
            told(4, 32, 0.6, {A: (0, 1), B: (2, 3)}, joined=[B]),
        ],
    )
    silent = (
        Stall("delays", "flights", number, "no-progress", at(20), at(26), 2, f"{B}-1") for number in (2, 3)
    )
    times = {"session_timeout_ms": 6_000, "rebalance_timeout_ms": 60_000}  # which the log has, not the story
    assignments = tuple(one._replace(**times) for one in history.assignments)
    return history._replace(assignments=assignments, stalls=(*history.stalls, *silent))


def a_scene(history: History | None = None, **changes: Any) -> Scene:
    """The picture of that, over at 40 s."""
    history = history or a_history()
    looks = [Progress(at(second), (100, 100), (second, second * 2)) for second in range(41)]
    given: dict[str, Any] = {
        "started_ms": START_MS,
        "ended_ms": at(40),
        "partitions": 4,
        "members": (A, B, C),
        "rebalances": rebalances_of(history, "flights"),
        "happenings": [Happening(at_ms=at(20), what="spark-b killed", member=B)],
        "deaths": [Death(at_ms=at(20), member=B)],
        "progress": looks,
        "batches": {A: [at(9), at(10)], B: [at(13)]},
    }
    given |= changes
    return Scene(spans=spans_of(history, "flights", until_ms=given["ended_ms"]), **given)


def a_story_record(**changes: object) -> dict[str, Any]:
    """A record of `__group_story` as the broker writes it."""
    record: dict[str, Any] = {
        "kind": "rebalance",
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
