"""Which segments one task reads, and where logs end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

from coterie.history.log.layout import OFFSETS, PartitionLog, all_partitions, partitions
from coterie.wire.records.batches import scan

TASK_BYTES = 256 * 1024 * 1024
"""Segments that one task reads, about: small enough for all cores to end together."""


class Unit(NamedTuple):
    """Consecutive segments of a partition. `later` are those after them: a transaction may end there."""

    topic: str
    partition: int
    paths: tuple[str, ...]
    later: tuple[str, ...]
    size: int


def units(directory: Path, *, task_bytes: int = TASK_BYTES) -> list[Unit]:
    """Return the units to read, the largest first; an error if there are none."""
    found = [unit for one in partitions(directory) for unit in cut(one, task_bytes)]
    return sorted(found, key=lambda unit: -unit.size)


def all_whole(found: Sequence[Unit]) -> bool:
    """Return whether each unit is a partition of its own, and nothing else tells of its groups."""
    return len({one.partition for one in found}) == len(found) and all(one.topic == OFFSETS for one in found)


def shared_out(found: Sequence[Unit], most: int) -> list[list[Unit]]:
    """Return the units in so many shares at most, of about the same size. The largest units come first."""
    shares: list[list[Unit]] = [[] for _ in range(max(1, min(most, len(found))))]
    sizes = [(0, place) for place in range(len(shares))]
    for unit in found:
        size, place = heappop(sizes)
        shares[place].append(unit)
        heappush(sizes, (size + unit.size, place))
    return shares


def cut(one: PartitionLog, task_bytes: int) -> Iterator[Unit]:
    """Yield a partition's segments, some at a time."""
    first = size = 0
    for place, path in enumerate(one.paths):
        size += path.stat().st_size
        if size >= task_bytes or place == len(one.paths) - 1:
            if size:
                own, later = one.paths[first : place + 1], one.paths[place + 1 :]
                yield Unit(one.topic, one.partition, tuple(map(str, own)), tuple(map(str, later)), size)
            first, size = place + 1, 0


def ends_of(directory: Path, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return the end offsets of these topics, as far as their logs lie in the same directory."""
    wanted = set(topics)
    return {
        (one.topic, one.partition): end_of(one) for one in all_partitions(directory) if one.topic in wanted
    }


def end_of(one: PartitionLog) -> int:
    """Return the offset after the last record of a log."""
    batches = scan(one.paths[-1].read_bytes())
    return batches[-1][1].last_offset + 1 if batches else int(one.paths[-1].stem)
