"""The answer to Fetch, versions 7 to 12, its records left where they are: kio copies them, MiB at a time."""

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, NamedTuple

from coterie.base.errors import Corrupt
from coterie.wire.api.guards import walk_tags
from coterie.wire.records.visible import AbortedTransaction
from coterie.wire.varints import read_uvarint

READ_REPLICA_FROM = 11
FLEXIBLE_FROM = 12

INT16, INT32, INT64_PAIR = Struct(">h"), Struct(">i"), Struct(">qq")
CORRELATION, ANSWER = Struct(">i"), Struct(">ihi")  # throttle time, error, session
PARTITION = Struct(">ihqqq")  # number, error, high watermark, last stable offset, log start


class FetchedPartition(NamedTuple):
    """What came of one partition. The records are a slice of the frame: no copy where that is a view."""

    topic: str
    partition: int
    error_code: int
    aborted: list[AbortedTransaction]
    records: bytes
    preferred_replica: int = -1
    """The broker to fetch from instead, which is in the rack that was named (KIP-392); -1: none."""


class Fetched(NamedTuple):
    """What is read of the answer."""

    error_code: int
    partitions: list[FetchedPartition]


def read_fetched(frame: bytes, *, version: int) -> tuple[int, Fetched]:
    """Return the correlation id and the answer of a frame without its size, or raise Corrupt."""
    walk = Walk(frame, flexible=version >= FLEXIBLE_FROM)
    try:
        (correlation_id,) = walk.numbers(CORRELATION)
        walk.tags()
        _, error_code, _ = walk.numbers(ANSWER)
        partitions = [one for _ in range(walk.count()) for one in topic_of(walk, version)]
        walk.tags()
    except (StructError, IndexError, UnicodeDecodeError) as failure:
        raise Corrupt(f"answer to Fetch: {failure}", at=walk.at) from failure
    return correlation_id, Fetched(error_code, partitions)


def topic_of(walk: "Walk", version: int) -> list[FetchedPartition]:
    """Return the partitions of the next topic."""
    topic = str(walk.blob(INT16), "utf-8")
    partitions = [partition_of(walk, topic, version) for _ in range(walk.count())]
    walk.tags()
    return partitions


def partition_of(walk: "Walk", topic: str, version: int) -> FetchedPartition:
    """Return the next partition."""
    number, error_code, *_ = walk.numbers(PARTITION)
    aborted = [aborted_of(walk) for _ in range(walk.count())]
    preferred = walk.numbers(INT32)[0] if version >= READ_REPLICA_FROM else -1
    records = walk.blob(INT32)
    walk.tags()
    return FetchedPartition(topic, number, error_code, aborted, records, preferred)


def aborted_of(walk: "Walk") -> AbortedTransaction:
    """Return the next aborted transaction."""
    aborted = AbortedTransaction(*walk.numbers(INT64_PAIR))
    walk.tags()
    return aborted


class Walk:
    """A place in a frame that moves on with what is read. A length below 0 stands for null: nothing."""

    def __init__(self, data: bytes, *, flexible: bool) -> None:
        self.at = 0
        self._data, self._flexible = data, flexible

    def numbers(self, kind: Struct) -> tuple[Any, ...]:
        """Return numbers of fixed sizes."""
        found = kind.unpack_from(self._data, self.at)
        self.at += kind.size
        return found

    def count(self, kind: Struct = INT32) -> int:
        """Return the number of items or bytes that come."""
        if not self._flexible:
            return int(self.numbers(kind)[0])
        number, self.at = read_uvarint(self._data, self.at)
        return number - 1

    def blob(self, kind: Struct) -> bytes:
        """Return bytes after their count, which has this kind unless it is a varint."""
        size = max(self.count(kind), 0)
        start, self.at = self.at, self.at + size
        if self.at > len(self._data):
            raise Corrupt(f"{size} bytes", at=start, expected="at most what is left")
        return self._data[start : self.at]

    def tags(self) -> None:
        """Pass over tagged fields."""
        if self._flexible:
            self.at = walk_tags(self._data, self.at, len(self._data), [], {})
