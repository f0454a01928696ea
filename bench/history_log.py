"""`__consumer_offsets` as many groups leave it over many days: Kafka's own format, seeded, written in pieces.

    python -m bench.history_log DIR --groups 2000 --days 30 --commits 100000000 --seed 1

Every piece is a segment of one partition, made by itself from the seed: so 100 million commits need no more
memory than one, and any piece can be made anew. The commits of a group come steadily between generations that
are formed as in life: deploys, crashes that the session finds out, newcomers.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from coterie.assign.model import Cluster, Member
from coterie.assign.range_ import NAME, assign
from coterie.base.hashes import coordinator_partition
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    group_metadata_record,
    offset_commit_record,
)
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription
from coterie.wire.records.batches import Record, build_batch

__all__ = ["Shape", "write"]

BEGAN_MS = 1_760_000_000_000
DAY_MS = 86_400_000
LOG_PARTITIONS = 50
SESSION_MS, POLL_MS = 45_000, 300_000
MEMBERS, PARTITIONS = (2, 5), (6, 12)
BATCH = 64
"""Records to a batch: what a busy coordinator gathers in its linger of some milliseconds."""
SEGMENT_BYTES = 100 * 1024 * 1024  # offsets.topic.segment.bytes
Stamped: TypeAlias = tuple[int, bytes, bytes | None]
EVENTS = ("deploy", "deploy", "crash", "grow", "shrink")


class Shape(NamedTuple):
    """How much is written. A million generations to 100 million commits is one to a hundred."""

    groups: int = 2_000
    days: float = 30.0
    commits: int = 100_000_000
    seed: int = 1
    commits_a_generation: int = 100

    @property
    def rounds(self) -> int:
        """How many generations a group has."""
        return max(1, self.commits // self.groups // self.commits_a_generation)


class Life:
    """One group: yields its records in the order of their times."""

    def __init__(self, number: int, shape: Shape) -> None:
        self.group = f"group-{number:05d}"
        self.chance = random.Random(shape.seed * 1_000_003 + number)
        self.shape = shape
        self.partitions = self.chance.randint(*PARTITIONS)
        self.topic = f"topic-{number % 97:02d}"
        self.members = [self._member(place) for place in range(self.chance.randint(*MEMBERS))]
        self.generation = 0
        self.offsets = [0] * self.partitions

    def _member(self, place: int) -> tuple[str, str]:
        client = f"{self.group}-{place}"
        return client, f"{client}-{self.chance.getrandbits(64):016x}"

    def records(self) -> Iterator[Stamped]:
        """Yield time, key and value of all the group's records."""
        span = int(self.shape.days * DAY_MS / self.shape.rounds)
        for number in range(self.shape.rounds):
            at_ms = BEGAN_MS + number * span + self.chance.randrange(max(span // 20, 1))
            if number:
                self._event()
            yield self._formed(at_ms)
            yield from self._commits(at_ms, BEGAN_MS + (number + 1) * span)

    def _event(self) -> None:
        """Let something happen to the members."""
        what = self.chance.choice(EVENTS)
        place = self.chance.randrange(len(self.members))
        if what == "grow" and len(self.members) < self.partitions:
            self.members.append(self._member(len(self.members)))
        elif what == "shrink" and len(self.members) > 1:
            self.members.pop(place)
        else:
            client = self.members[place][0]
            self.members[place] = client, f"{client}-{self.chance.getrandbits(64):016x}"

    def _formed(self, at_ms: int) -> Stamped:
        self.generation += 1
        wants = Subscription((self.topic,))
        cluster = Cluster(partition_counts={self.topic: self.partitions})
        members = [Member(member_id=member_id, subscription=wants) for _, member_id in self.members]
        shares = assign(cluster, members)
        seats = tuple(
            MemberMetadata(
                member_id,
                client,
                "/10.0.0.1",
                SESSION_MS,
                wants.encode(),
                Assignment(shares[member_id]).encode(),
                None,
                POLL_MS,
            )
            for client, member_id in self.members
        )
        value = GroupMetadataValue("consumer", self.generation, NAME, seats[0].member_id, at_ms, seats)
        return at_ms, *group_metadata_record(GroupMetadataKey(self.group), value)

    def _commits(self, from_ms: int, until_ms: int) -> Iterator[Stamped]:
        """Yield commits, steadily, each of all partitions."""
        times = max(1, self.shape.commits_a_generation // self.partitions)
        step = max((until_ms - from_ms - 5_000) // (times + 1), 1)
        for number in range(1, times + 1):
            at_ms = from_ms + number * step
            for partition in range(self.partitions):
                self.offsets[partition] += self.chance.randrange(1, 2_000)
                value = OffsetCommitValue(self.offsets[partition], 0, "", at_ms)
                key = OffsetCommitKey(self.group, self.topic, partition)
                yield at_ms, *offset_commit_record(key, value)


def write(directory: Path, shape: Shape) -> int:
    """Write all partitions; return how many records there are."""
    homes: dict[int, list[int]] = {}
    for number in range(shape.groups):
        home = coordinator_partition(f"group-{number:05d}", partition_count=LOG_PARTITIONS)
        homes.setdefault(home, []).append(number)
    return sum(write_partition(directory, home, numbers, shape) for home, numbers in homes.items())


def write_partition(directory: Path, home: int, numbers: list[int], shape: Shape) -> int:
    """Write one partition, its groups one among the other; return how many records it has."""
    folder = directory / f"__consumer_offsets-{home}"
    folder.mkdir(parents=True, exist_ok=True)
    offset = 0
    lives = [Life(number, shape).records() for number in numbers]
    records = merge(*lives, key=lambda record: record[0])
    while first := list(islice(records, BATCH)):
        offset = write_segment(folder, offset, first, records)
    return offset


def write_segment(folder: Path, offset: int, batch: list[Stamped], records: Iterator[Stamped]) -> int:
    """Write records until the segment is full; return the offset after them."""
    with (folder / f"{offset:020d}.log").open("wb") as file:
        while batch:
            rows = [Record(offset + place, *record) for place, record in enumerate(batch)]
            file.write(build_batch(rows, base_offset=offset))
            offset += len(batch)
            batch = list(islice(records, BATCH)) if file.tell() < SEGMENT_BYTES else []
    return offset


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.history_log", description=__doc__)
    parser.add_argument("directory", type=Path)
    for name, kind in (("groups", int), ("days", float), ("commits", int), ("seed", int)):
        parser.add_argument(f"--{name}", type=kind, default=Shape._field_defaults[name])
    asked = parser.parse_args()
    shape = Shape(asked.groups, asked.days, asked.commits, asked.seed)
    print(f"{write(asked.directory, shape):,} records")


if __name__ == "__main__":
    main()
