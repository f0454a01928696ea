"""Every kind of record of `__consumer_offsets`: classic groups, groups of KIP-848, and what is passed over.

`wire.payloads.consumer_offsets` reads what a coordinator of classic groups needs; here the rest is read
(section 3 of the catalogue), because a history is told of every group. Bad bytes raise Corrupt and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_value,
    read_key,
    read_offset_value,
    read_sized_text,
)
from coterie.wire.varints import read_uvarint

T = TypeVar("T")

OFFSET_KINDS, CLASSIC = frozenset((0, 1)), 2
GROUP_EPOCH, TOPIC_METADATA, MEMBER, TARGET_EPOCH, TARGET_MEMBER, CURRENT_ASSIGNMENT = 3, 4, 5, 6, 7, 8
REGULAR_EXPRESSION = 16
NEXT_GENERATION = frozenset(
    (
        GROUP_EPOCH,
        TOPIC_METADATA,
        MEMBER,
        TARGET_EPOCH,
        TARGET_MEMBER,
        CURRENT_ASSIGNMENT,
        REGULAR_EXPRESSION,
    )
)
OF_A_MEMBER = frozenset((MEMBER, TARGET_MEMBER, CURRENT_ASSIGNMENT, REGULAR_EXPRESSION))

KINDS: Mapping[int, str] = {
    0: "offset-commit",
    1: "offset-commit",
    2: "group-metadata",
    3: "consumer-group-metadata",
    4: "consumer-group-partition-metadata",
    5: "consumer-group-member-metadata",
    6: "consumer-group-target-assignment-metadata",
    7: "consumer-group-target-assignment-member",
    8: "consumer-group-current-member-assignment",
    10: "share-group-member-metadata",
    11: "share-group-metadata",
    12: "share-group-target-assignment-metadata",
    13: "share-group-target-assignment-member",
    14: "share-group-current-member-assignment",
    15: "share-group-state-partition-metadata",
    16: "consumer-group-regular-expression",
    17: "streams-group-metadata",
    19: "streams-group-member-metadata",
    20: "streams-group-target-assignment-metadata",
    21: "streams-group-target-assignment-member",
    22: "streams-group-current-member-assignment",
    23: "streams-group-topology",
}

INT8, INT16, INT32, INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
Owned: TypeAlias = tuple[tuple[UUID, tuple[int, ...]], ...]
"""Partitions by the id of their topic: these records have no names."""


class GroupEpoch(NamedTuple):
    """A group of KIP-848 goes into a new epoch (3)."""

    epoch: int
    metadata_hash: int = 0
    """Of the subscribed topics, their partitions and racks (RC-5); 0 for none, and before Kafka 4.1."""


class TopicMetadata(NamedTuple):
    """The topics that a group is subscribed to, as brokers before 4.1 kept them (4)."""

    topics: tuple[tuple[UUID, str, int], ...]


class ClassicMember(NamedTuple):
    """What a member of the old protocol has beside: its session time-out."""

    session_timeout_ms: int


class Member(NamedTuple):
    """A member of a group of KIP-848 (5)."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMember | None = None


class TargetEpoch(NamedTuple):
    """For which epoch the target was computed, and when (6)."""

    epoch: int
    at_ms: int = -1


class CurrentAssignment(NamedTuple):
    """Where a member is on its way to its target (8). State 0: stable, 1: to revoke, 2: waits for others."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Owned
    revoking: Owned


class RegularExpression(NamedTuple):
    """What a regular expression was resolved to (16)."""

    topics: tuple[str, ...]
    version: int
    at_ms: int


Value: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | GroupEpoch
    | TopicMetadata
    | Member
    | TargetEpoch
    | Owned
    | CurrentAssignment
    | RegularExpression
)


class Entry(NamedTuple):
    """One record of the log. No `value` is a tombstone, or a kind that is passed over (`known` is False)."""

    place: int
    at_ms: int
    kind: int
    group: str
    member: str = ""
    """The member id, or the regular expression, or empty."""
    topic: str = ""
    partition: int = -1
    value: Value | None = None
    known: bool = True


class Reader:
    """Reads the structs of these records, all of them flexible, front to back."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def number(self, shape: Struct) -> int:
        """Return the next number of fixed width."""
        found: int = shape.unpack_from(self.data, self.at)[0]
        self.at += shape.size
        return found

    def size(self) -> int:
        """Return an unsigned varint, of 32 bits at most."""
        found, self.at = read_uvarint(self.data, self.at)
        return found

    def raw(self, size: int) -> bytes:
        """Return so many bytes, all of which must be there."""
        end = self.at + size
        if end > len(self.data):
            raise Corrupt(f"field of {size} bytes", at=self.at, expected="at most what is left")
        found = self.data[self.at : end]
        self.at = end
        return found

    def nullable_text(self) -> str | None:
        """Return a string or None."""
        size = self.size()
        return self.raw(size - 1).decode() if size else None

    def text(self) -> str:
        """Return a string; null would be one of the bytes' mistakes."""
        found = self.nullable_text()
        if found is None:
            raise Corrupt("null", at=self.at, expected="a string")
        return found

    def uuid(self) -> UUID:
        """Return a topic's id."""
        return UUID(bytes=self.raw(16))

    def many(self, one: Callable[[], T]) -> tuple[T, ...]:
        """Return an array; each of its items has a byte at least. A null one is empty."""
        count = self.size() - 1
        if count > len(self.data) - self.at:
            raise Corrupt(f"array of {count} items", at=self.at, expected="as many as fit")
        return tuple(one() for _ in range(count))

    def int32(self) -> int:
        """Return the next four bytes."""
        return self.number(INT32)

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields that end a struct."""
        found: dict[int, bytes] = {}
        for _ in range(self.size()):
            tag = self.size()
            found[tag] = self.raw(self.size())
        return found

    def owned(self) -> Owned:
        """Return partitions by topic id."""
        return self.many(self._owned_of_topic)

    def _owned_of_topic(self) -> tuple[UUID, tuple[int, ...]]:
        topic, partitions = self.uuid(), self.many(self.int32)
        self.tags()  # since 4.3, the epochs in which the partitions were assigned
        return topic, partitions


def group_epoch(reader: Reader) -> GroupEpoch:
    epoch, tags = reader.int32(), reader.tags()
    return GroupEpoch(epoch, INT64.unpack(tags[0])[0] if 0 in tags else 0)


def topic_metadata(reader: Reader) -> TopicMetadata:
    def topic() -> tuple[UUID, str, int]:
        found = reader.uuid(), reader.text(), reader.int32()
        reader.many(partition)
        reader.tags()
        return found

    def partition() -> None:
        reader.int32()
        reader.many(reader.text)
        reader.tags()

    topics = reader.many(topic)
    reader.tags()
    return TopicMetadata(topics)


def member(reader: Reader) -> Member:
    texts = reader.nullable_text(), reader.nullable_text(), reader.text(), reader.text()
    topics, regex = reader.many(reader.text), reader.nullable_text()
    timeout, assignor = reader.int32(), reader.nullable_text()
    tags = reader.tags()
    return Member(*texts, topics, regex, timeout, assignor, classic_member(tags.get(0)))


def classic_member(data: bytes | None) -> ClassicMember | None:
    """Return the tagged struct of a member of the old protocol; a byte before it says whether it is there."""
    if not data or data[0] != 1:
        return None
    return ClassicMember(INT32.unpack_from(data, 1)[0])


def target_epoch(reader: Reader) -> TargetEpoch:
    epoch, tags = reader.int32(), reader.tags()
    return TargetEpoch(epoch, INT64.unpack(tags[0])[0] if 0 in tags else -1)


def target_member(reader: Reader) -> Owned:
    owned = reader.owned()
    reader.tags()
    return owned


def current_assignment(reader: Reader) -> CurrentAssignment:
    epochs = reader.int32(), reader.int32()
    found = CurrentAssignment(*epochs, reader.number(INT8), reader.owned(), reader.owned())
    reader.tags()
    return found


def regular_expression(reader: Reader) -> RegularExpression:
    found = RegularExpression(reader.many(reader.text), reader.number(INT64), reader.number(INT64))
    reader.tags()
    return found


READERS: Mapping[int, Callable[[Reader], Value]] = {
    GROUP_EPOCH: group_epoch,
    TOPIC_METADATA: topic_metadata,
    MEMBER: member,
    TARGET_EPOCH: target_epoch,
    TARGET_MEMBER: target_member,
    CURRENT_ASSIGNMENT: current_assignment,
    REGULAR_EXPRESSION: regular_expression,
}
assert READERS.keys() == NEXT_GENERATION


def read_next_value(kind: int, data: bytes) -> Value:
    """Return the value of a record of a KIP-848 group, or raise Corrupt."""
    try:
        (version,) = INT16.unpack_from(data)
        if version != 0:
            raise Corrupt(f"{KINDS[kind]} version {version}", at=0, expected="0")
        return READERS[kind](Reader(data, INT16.size))
    except (StructError, IndexError, UnicodeDecodeError) as failure:
        raise Corrupt(KINDS[kind], expected=f"a whole record ({failure})") from failure


def read_entry(key: bytes, value: bytes | None, *, place: int, at_ms: int) -> Entry:
    """Return one record of the log, whatever its kind, or raise Corrupt."""
    found = read_key(key)
    if isinstance(found, OffsetCommitKey):
        commit = None if value is None else read_offset_value(value)
        return Entry(place, at_ms, 1, found.group, "", found.topic, found.partition, commit)
    if isinstance(found, GroupMetadataKey):
        group = None if value is None else read_group_value(value)
        return Entry(place, at_ms, CLASSIC, found.group, value=group)
    if found.type not in NEXT_GENERATION:
        return Entry(place, at_ms, found.type, found.group or "", known=False)
    name, at = read_sized_text(key, INT16.size)
    who = read_sized_text(key, at)[0] if found.type in OF_A_MEMBER else ""
    read = None if value is None else read_next_value(found.type, value)
    return Entry(place, at_ms, found.type, name, who, value=read)
