"""A partition of `__consumer_offsets` as a day of commits leaves it: for measuring how long loading takes.

The segment is Kafka's own, and so are its records; a directory of it serves our broker and Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from coterie.base.hashes import coordinator_partition
from coterie.wire.payloads.consumer_offsets import (
    OffsetCommitKey,
    OffsetCommitValue,
    offset_commit_record,
)
from coterie.wire.records.batches import Record, build_batch

__all__ = ["BIG", "LIVE", "Shape", "groups_of", "write_segment"]

BEGAN_MS = 1_760_000_000_000


class Shape(NamedTuple):
    """How the commits lie: `batch` records to a batch, `keys` different partitions of groups in all."""

    records: int = 1_200_000
    batch: int = 500
    keys: int = 20_000
    group_size: int = 100


BIG = Shape()  # batches as a busy broker gathers them
LIVE = Shape(batch=4)  # batches as a few members make them


def groups_of(count: int, *, partition: int = 0, partitions: int = 50) -> Iterator[str]:
    """Yield that many group ids that one partition coordinates."""
    number = 0
    while count:
        name = f"group-{number:08d}"
        number += 1
        if coordinator_partition(name, partition_count=partitions) == partition:
            count -= 1
            yield name


def write_segment(path: Path, shape: Shape, *, partition: int = 0, partitions: int = 50) -> int:
    """Write the segment's file; return its size. The commits go round the keys, so each is hot."""
    groups = list(groups_of(-(-shape.keys // shape.group_size), partition=partition, partitions=partitions))
    keys = [
        OffsetCommitKey(groups[key // shape.group_size], "flights", key % shape.group_size)
        for key in range(shape.keys)
    ]
    with path.open("wb") as file:
        for first in range(0, shape.records, shape.batch):
            count = min(shape.batch, shape.records - first)
            file.write(build_batch(_records(keys, first, count), base_offset=first))
        return file.tell()


def _records(keys: list[OffsetCommitKey], first: int, count: int) -> list[Record]:
    records = []
    for offset in range(first, first + count):
        stamp = BEGAN_MS + offset // 10
        value = OffsetCommitValue(offset, 0, "", stamp)
        key, encoded = offset_commit_record(keys[offset % len(keys)], value)
        records.append(Record(offset, stamp, key, encoded))
    return records
