"""Which segments a directory holds, and which of them one task reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from coterie.base.errors import CoterieError

__all__ = ["OFFSETS", "STORY", "TASK_BYTES", "Unit", "ends_of", "units"]

OFFSETS, STORY = "__consumer_offsets", "__group_story"
PARTITION = re.compile(r"(.+)-(\d+)")
SEGMENT = re.compile(r"\d{20}\.log")
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
    """Return what there is to read, the largest first; an error if it is nothing."""
    found = [unit for one in partitions(directory) for unit in cut(one, task_bytes)]
    if not found:
        raise CoterieError(
            f"{directory} holds no segments of {OFFSETS}: give the directory that a broker's log.dirs names,"
            f" with {OFFSETS}-0 and so on in it"
        )
    return sorted(found, key=lambda unit: -unit.size)


def partitions(directory: Path) -> Iterator[tuple[str, int, list[Path]]]:
    """Yield the partitions of the topics that tell of groups, with their segments."""
    inside = [directory, *directory.iterdir()] if directory.is_dir() else []
    for folder in sorted(inside):
        named = PARTITION.fullmatch(folder.name)
        if named and named[1] in (OFFSETS, STORY) and folder.is_dir():
            segments = sorted(path for path in folder.iterdir() if SEGMENT.fullmatch(path.name))
            if segments:
                yield named[1], int(named[2]), segments


def cut(one: tuple[str, int, list[Path]], task_bytes: int) -> Iterator[Unit]:
    """Yield a partition's segments, some at a time."""
    topic, partition, paths = one
    first = size = 0
    for place, path in enumerate(paths):
        size += path.stat().st_size
        if size >= task_bytes or place == len(paths) - 1:
            if size:
                own, later = paths[first : place + 1], paths[place + 1 :]
                yield Unit(topic, partition, tuple(map(str, own)), tuple(map(str, later)), size)
            first, size = place + 1, 0


def ends_of(directory: Path, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return where the logs of these topics end, as far as they lie in the same directory."""
    from coterie.wire.batches import scan

    wanted = set(topics)
    ends: dict[tuple[str, int], int] = {}
    for folder in directory.iterdir():
        named = PARTITION.fullmatch(folder.name)
        if named is None or named[1] not in wanted or not folder.is_dir():
            continue
        segments = sorted(path for path in folder.iterdir() if SEGMENT.fullmatch(path.name))
        if segments:
            batches = scan(segments[-1].read_bytes())
            end = batches[-1][1].last_offset + 1 if batches else int(segments[-1].stem)
            ends[named[1], int(named[2])] = end
    return ends
