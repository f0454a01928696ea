"""Where a broker's log directory has what tells of groups: folders of partitions, and their segments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from coterie.base.errors import CoterieError

OFFSETS, STORY = "__consumer_offsets", "__group_story"
FOLDER = re.compile(r"(.+)-(\d+)")
SEGMENT = re.compile(r"\d{20}\.log")


class PartitionLog(NamedTuple):
    """A partition and its segments, in their order."""

    topic: str
    partition: int
    paths: tuple[Path, ...]


def partitions(directory: Path) -> list[PartitionLog]:
    """Return the partitions that tell of groups; an error if there are none."""
    found = [one for one in all_partitions(directory) if one.topic in (OFFSETS, STORY)]
    if not any(one.topic == OFFSETS for one in found):
        beneath = sorted({one.parent for one in directory.glob(f"*/{OFFSETS}-*")})
        if beneath:
            raise CoterieError(
                f"{directory} has the directories of several brokers, each with its own groups: give one of"
                f" them, {', '.join(map(str, beneath))}"
            )
        raise CoterieError(
            f"{directory} holds no segments of {OFFSETS}: give the directory that a broker's log.dirs names,"
            f" with {OFFSETS}-0 and so on in it, once the broker has had a group"
        )
    return found


def all_partitions(directory: Path) -> Iterator[PartitionLog]:
    """Yield every partition that has segments there; the directory may itself be one."""
    inside = [directory, *directory.iterdir()] if directory.is_dir() else []
    for folder in sorted(inside):
        named = FOLDER.fullmatch(folder.name)
        if named and folder.is_dir():
            segments = sorted(path for path in folder.iterdir() if SEGMENT.fullmatch(path.name))
            if segments:
                yield PartitionLog(named[1], int(named[2]), tuple(segments))
