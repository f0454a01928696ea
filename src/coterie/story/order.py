"""The order of a group's story, which each of its coordinators tells in a partition that it leads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from coterie.story.clock import in_order

D = TypeVar("D", bound=Mapping[str, Any])
CLOCKS_APART_MS = 60_000
"""Brokers' clocks may be apart by less: of records that are that near to each other, those of the earlier
coordinator come first, whatever its clock said."""


def over_at(document: Mapping[str, Any]) -> int:
    """Return the time (ms) at which that was over which a record is about: it was written then.

    A rebalance that begins before a member joins, and is over after it, stands behind that member's joining.
    """
    over_ms: int = document["at"] + document.get("stopped_ms", 0)
    formed_ms: int = document.get("formed_at", over_ms)
    return max(over_ms, formed_ms)


def dated(story: Iterable[D], times_ms: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return a group's rebalances with times in their order, as those of the records of its log are put: a
    clock may have been set back, and another coordinator's be behind. What a rebalance took stays.

    `times_ms` are those by which they were formed, if others than the story's are known.
    """
    story = list(story)
    if times_ms is None:
        times_ms = [one["formed_at"] for one in story]
    return [
        {**one, "formed_at": at_ms, "at": at_ms - max(0, one["formed_at"] - one["at"])}
        for one, at_ms in zip(story, in_order(times_ms), strict=True)
    ]


def epoch_of(document: Mapping[str, Any]) -> int:
    """Return the epoch in which a record's coordinator led the group, -1 where an older broker wrote it."""
    epoch: int = document.get("coordinator_epoch", -1)
    return epoch


def in_story_order(parts: Iterable[Sequence[D]]) -> list[D]:
    """Return a group's records from all partitions: those of one in the order of its log, of several in that
    of their times, and of their coordinators' epochs where clocks may mislead.
    """
    queues = [deque(zip(in_order([*map(over_at, part)]), part, strict=True)) for part in parts if part]
    found: list[D] = []
    while queues:
        last_ms = min(queue[0][0] for queue in queues) + CLOCKS_APART_MS
        first = min(
            (queue for queue in queues if queue[0][0] <= last_ms),
            key=lambda queue: (epoch_of(queue[0][1]), queue[0][0]),
        )
        found.append(first.popleft()[1])
        if not first:
            queues.remove(first)
    return found
