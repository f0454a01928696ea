"""Lives that were lived under several settings at once on a real Kafka (tests/data/lives)."""

from __future__ import annotations

import json
import lzma
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from coterie.history.group import history_of
from coterie.history.log.segments import entries_of, groups_of
from coterie.history.tables import History

LIVES = Path(__file__).parents[1] / "data" / "lives"


@cache
def files(life: str) -> Mapping[str, bytes]:
    """Everything that is kept of a life, by its path."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=BytesIO(lzma.decompress((LIVES / f"{life}.tar.xz").read_bytes()))) as tar:
        for entry in tar:
            inside = tar.extractfile(entry)
            if inside is not None:
                found[entry.name.removeprefix("./")] = inside.read()
    return found


@cache
def histories(life: str) -> Mapping[str, History]:
    """The history of every group of a life."""
    segments = [data for name, data in sorted(files(life).items()) if name.endswith(".log")]
    logs = [log for data in segments for log in groups_of(entries_of([data]))]
    return {log.group_id: history_of(*log) for log in logs if f"journal-{log.group_id}.jsonl" in files(life)}


def lines(life: str, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in files(life).get(name, b"").splitlines()]


def truly_stood_still_ms(life: str, group: str) -> float:
    """For how long partitions had nobody at work on them, by what each member saw and what was done to it.

    Up to when the last one was closed or killed; a member that stalls is not at work.
    """
    journal, saw = lines(life, f"journal-{group}.jsonl"), lines(life, f"saw-{group}.jsonl")
    over, running = 0.0, set[int]()
    for one in journal:
        running = running | {one["member"]} if one["did"] == "start" else running
        if one["did"] in ("crash", "close"):
            running = running - {one["member"]}
            over = one["at"]
    assert not running
    stalls = [(one["member"], one["at"], one["at"] + one["s"]) for one in journal if one["did"] == "stall"]
    at_work: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for partition, member, since, until in tenures(journal, saw):
        at_work[partition] += without(since, until, [one[1:] for one in stalls if one[0] == member])
    idle = 0.0
    for spans in at_work.values():
        reached = min(spans)[1]
        for since, until in sorted(spans):
            idle += max(0.0, since - reached)
            reached = max(reached, until)
        idle += max(0.0, over - reached)
    return 1000 * idle


def tenures(
    journal: list[dict[str, Any]], saw: list[dict[str, Any]]
) -> Iterator[tuple[int, int, float, float]]:
    """Yield who had which partition from when to when."""
    has: dict[tuple[int, int], float] = {}
    for one in sorted([*journal, *saw], key=lambda one: one["at"]):
        member, what = one["member"], one.get("saw") or one["did"]
        if what == "assigned":
            has |= {(partition, member): one["at"] for partition in one["partitions"]}
        lost = one["partitions"] if what in ("revoked", "lost") else ()
        if what in ("crash", "closed"):
            lost = [partition for partition, owner in has if owner == member]
        for partition in lost:
            since = has.pop((partition, member), None)
            if since is not None:
                yield partition, member, since, one["at"]


def without(since: float, until: float, holes: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield what is left of a span."""
    for begins, ends in sorted(holes):
        if since < ends and begins < until:
            if since < begins:
                yield since, begins
            since = ends
    if since < until:
        yield since, until
