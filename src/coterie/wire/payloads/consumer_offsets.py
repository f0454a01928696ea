"""The records of `__consumer_offsets` (section 3 of the catalogue): what Kafka's own brokers write and read.

A key is its type and a struct, a value its version and a struct. What the readers return is the same
for every version; the writers take it too.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.wire.api.codec import decode
from coterie.wire.api.declared import (
    NEVER_FLEXIBLE,
    VERSION,
    Declared,
    Field,
    built,
    each_built,
    read_version,
    shared,
)
from coterie.wire.api.writers import Writer, writer_of

NO_TIME = -1

LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, GROUP_METADATA = 0, 1, 2
KNOWN_KINDS = frozenset({LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, GROUP_METADATA})

# Kafka writes the offsets that carry an expiry of their own, a habit of old clients, in the only
# version that has a place for it.
OFFSET_VERSION, OFFSET_VERSION_WITH_EXPIRY = 4, 1
# Not 4, although 4 must be read (VT-2).
GROUP_VERSION = 3


class OffsetCommitKey(NamedTuple):
    """Whose offset it is. Types 0 and 1 differ in nothing else."""

    group: str
    topic: str
    partition: int


class GroupMetadataKey(NamedTuple):
    """Which group it is."""

    group: str


class UnknownKey(NamedTuple):
    """A key of a kind that is not read here. Every kind there is starts with the id of its group."""

    type: int
    group: str | None = None


class OffsetCommitValue(NamedTuple):
    """A committed offset. Times are milliseconds, -1 for none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = NO_TIME
    expire_timestamp: int = NO_TIME
    topic_id: UUID | None = None


class MemberMetadata(NamedTuple):
    """A member as the group's record keeps it: its subscription is the one of the chosen protocol (RC-3)."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout: int
    subscription: bytes
    assignment: bytes
    group_instance_id: str | None = None
    rebalance_timeout: int = -1


class GroupMetadataValue(NamedTuple):
    """A classic group, whole, as it was when its assignment was stored or it became empty (RC-1)."""

    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: int = NO_TIME
    members: tuple[MemberMetadata, ...] = ()


OFFSET_KEY = Declared(
    "OffsetCommitKey",
    most=1,
    flexible_from=NEVER_FLEXIBLE,
    fields=(Field("group", "string"), Field("topic", "string"), Field("partition", "int32")),
)
GROUP_KEY = Declared(
    "GroupMetadataKey", most=2, flexible_from=NEVER_FLEXIBLE, fields=(Field("group", "string"),)
)
OFFSET_VALUE = Declared(
    "OffsetCommitValue",
    most=4,
    flexible_from=4,
    fields=(
        Field("offset", "int64"),
        Field("leader_epoch", "int32", -1, since=3),
        Field("metadata", "string"),
        Field("commit_timestamp", "int64"),
        Field("expire_timestamp", "int64", NO_TIME, since=1, until=1),
        Field("topic_id", "uuid", None, since=4, tag=0),
    ),
)
MEMBER = Declared(
    "MemberMetadata",
    most=4,
    flexible_from=4,
    fields=(
        Field("member_id", "string"),
        Field("group_instance_id", "string", None, since=3, nullable=True),
        Field("client_id", "string"),
        Field("client_host", "string"),
        Field("rebalance_timeout", "int32", -1, since=1),
        Field("session_timeout", "int32"),
        Field("subscription", "bytes"),
        Field("assignment", "bytes"),
    ),
)
GROUP_VALUE = Declared(
    "GroupMetadataValue",
    most=4,
    flexible_from=4,
    fields=(
        Field("protocol_type", "string"),
        Field("generation", "int32"),
        Field("protocol", "string", None, nullable=True),
        Field("leader", "string", None, nullable=True),
        Field("current_state_timestamp", "int64", NO_TIME, since=2),
        Field("members", MEMBER),
    ),
)


def read_key(data: bytes) -> OffsetCommitKey | GroupMetadataKey | UnknownKey:
    """Return the key of a record, by its type, or raise Corrupt."""
    kind = read_version(data)
    if kind in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
        found = decode(OFFSET_KEY.at(kind), data, VERSION.size)
        return OffsetCommitKey(found.group, found.topic, found.partition)
    if kind == GROUP_METADATA:
        return GroupMetadataKey(decode(GROUP_KEY.at(kind), data, VERSION.size).group)
    try:
        return UnknownKey(kind, read_sized_text(data, VERSION.size)[0])
    except Corrupt:
        return UnknownKey(kind)  # a kind of a time to come may start with anything


def read_sized_text(data: bytes, at: int) -> tuple[str, int]:
    """Return the text at `at`, after its length in 16 bits, and where it ends; raise Corrupt."""
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    if not at + 2 <= end <= len(data):
        raise Corrupt("text of a key", at=at, expected="as many bytes as its length says")
    return _text(data[at + 2 : end]), end


@lru_cache(4096)
def _text(data: bytes) -> str:
    """Return text; a topic's name is one string however many keys hold it."""
    try:
        return data.decode()
    except UnicodeDecodeError as failure:
        raise Corrupt("text of a key", at=failure.start, expected="UTF-8") from None


def read_partition_key(data: bytes) -> tuple[str, int]:
    """Return topic and partition, the end of a committed offset's key, or raise Corrupt."""
    topic, at = read_sized_text(data, 0)
    if len(data) < at + 4:
        raise Corrupt("partition of a key", at=at, expected="4 bytes")
    return topic, int.from_bytes(data[at : at + 4], "big", signed=True)


# The layout of an OffsetCommitValue; before version 3 there is no epoch, and the metadata is in its place.
OFFSET_AT, EPOCH_AT, METADATA_AT = 2, 10, 14
EPOCH_SINCE, COMPACT_SINCE = 3, 4
# The values that nearly all records have: no metadata; version 4 with a topic's id or without.
V3, V4 = VERSION.pack(3), VERSION.pack(4)
BARE_SIZE, NAMED_SIZE, TAGS_AT = 24, 42, 23
NO_TAGS, TOPIC_ID_TAG = b"\0", b"\1\0\x10"  # one tagged field: tag 0, of 16 bytes
# What stands where in all of one size and version that have no metadata.
FIXED_BYTES_OF = {
    (BARE_SIZE, V3): ((0, b"\0"), (1, b"\3"), (METADATA_AT, b"\0"), (METADATA_AT + 1, b"\0")),
    (BARE_SIZE, V4): ((0, b"\0"), (1, b"\4"), (METADATA_AT, b"\1"), (TAGS_AT, NO_TAGS)),
    (NAMED_SIZE, V4): (
        *((0, b"\0"), (1, b"\4"), (METADATA_AT, b"\1")),
        *((TAGS_AT + place, TOPIC_ID_TAG[place : place + 1]) for place in range(len(TOPIC_ID_TAG))),
    ),
}
OFFSET_AND_EPOCH, INT64 = Struct(">2xqi"), Struct(">q")
BARE_VALUE, NAMED_VALUE = Struct(">hqiBqs"), Struct(">hqiBq3s16s")
KEY_START, LENGTH, INT32 = Struct(">hh"), Struct(">h"), Struct(">i")
assert (BARE_VALUE.size, NAMED_VALUE.size) == (BARE_SIZE, NAMED_SIZE)


def check_offset_value(data: bytes) -> None:
    """Raise Corrupt for what `read_offset_value` would, in a fifth of its time for most."""
    size = len(data)
    if size == BARE_SIZE:
        version, tags = data[1], data[TAGS_AT]
        if version == 4 and data[METADATA_AT] == 1 and not data[0] | tags:
            return
        if version == 3 and not data[0] | data[METADATA_AT] | data[METADATA_AT + 1]:
            return
    elif size == NAMED_SIZE and data[:2] == V4 and data[METADATA_AT] == 1 and data[23:26] == TOPIC_ID_TAG:
        return
    read_offset_value(data)


def are_plain_offset_values(values: Sequence[bytes]) -> bool:
    """Return whether all of these, which are of one size, are offsets that `check_offset_value` need not look
    at: of version 3, or of version 4 with a topic's id or without, and without metadata. It goes by columns,
    in a seventh of the time.
    """
    size, joined = len(values[0]), b"".join(values)
    fixed = FIXED_BYTES_OF.get((size, joined[:2]), ())
    return bool(fixed) and not any(joined[at::size].strip(byte) for at, byte in fixed)


def read_offset_value(data: bytes) -> OffsetCommitValue:
    """Return a committed offset of any version, or raise Corrupt."""
    if data[:2] == V4 and len(data) >= BARE_SIZE and 1 <= data[METADATA_AT] <= 127:
        try:
            return _read_short_v4(data)
        except (StructError, IndexError, UnicodeDecodeError, KeyError):
            pass  # the general reader finds the words, or knows a tag
    found = _read_value(OFFSET_VALUE, data)
    return OffsetCommitValue(**shared(OffsetCommitValue, found))


def _read_short_v4(data: bytes) -> OffsetCommitValue:
    """Return a value of version 4 whose metadata has less than 127 bytes and whose only tag is known."""
    offset, epoch = OFFSET_AND_EPOCH.unpack_from(data)
    end = METADATA_AT + data[METADATA_AT]
    metadata = data[METADATA_AT + 1 : end].decode() if end > METADATA_AT + 1 else ""
    (stamp,) = INT64.unpack_from(data, end)
    tags = data[end + 8]
    if not tags:
        return OffsetCommitValue(offset, epoch, metadata, stamp)
    if data[end + 8 : end + 11] != TOPIC_ID_TAG or len(data) < end + 27:
        raise KeyError(tags)
    return OffsetCommitValue(offset, epoch, metadata, stamp, NO_TIME, _topic_id(data[end + 11 : end + 27]))


@lru_cache(4096)
def _topic_id(data: bytes) -> UUID | None:
    """Return a topic's id, one object however many offsets hold it."""
    return UUID(bytes=data) if any(data) else None


def read_group_value(data: bytes) -> GroupMetadataValue:
    """Return a group of any version, or raise Corrupt."""
    found = built(GroupMetadataValue, _read_value(GROUP_VALUE, data))
    return found._replace(members=each_built(MemberMetadata, found.members))


def _read_value(schema: Declared, data: bytes) -> Any:
    version = read_version(data)
    if not 0 <= version <= schema.most:
        raise Corrupt(f"{schema.name} version {version}", at=0, expected=f"0 to {schema.most}")
    return decode(schema.at(version), data, VERSION.size)


def offset_commit_record(key: OffsetCommitKey, value: OffsetCommitValue | None) -> tuple[bytes, bytes | None]:
    """Return key and value of a committed offset; no value is a tombstone."""
    raw_key = group_key(key.group) + partition_key(key.topic, key.partition)
    return raw_key, None if value is None else offset_value(value)


@lru_cache(65_536)
def group_key(group_id: str) -> bytes:
    """Return the first bytes of the keys of a group's committed offsets: their type, and the group's id."""
    encoded = group_id.encode()
    return KEY_START.pack(OFFSET_COMMIT, len(encoded)) + encoded


@lru_cache(65_536)
def partition_key(topic: str, partition: int) -> bytes:
    """Return the last bytes of the keys of a partition's committed offsets: topic and partition."""
    encoded = topic.encode()
    return b"".join((LENGTH.pack(len(encoded)), encoded, INT32.pack(partition)))


def offset_value(value: OffsetCommitValue) -> bytes:
    """Return the value of a committed offset, in the version that Kafka writes."""
    offset, epoch, metadata, stamp, expires, topic_id = value
    if expires != NO_TIME:
        return _write(OFFSET_VALUE, OFFSET_VERSION_WITH_EXPIRY, value)
    if metadata:
        return _write(OFFSET_VALUE, OFFSET_VERSION, value)
    if topic_id is None or not topic_id.int:
        return BARE_VALUE.pack(OFFSET_VERSION, offset, epoch, 1, stamp, NO_TAGS)
    return NAMED_VALUE.pack(OFFSET_VERSION, offset, epoch, 1, stamp, TOPIC_ID_TAG, topic_id.bytes)


def group_metadata_record(
    key: GroupMetadataKey, value: GroupMetadataValue | None
) -> tuple[bytes, bytes | None]:
    """Return key and value of a group; no value is a tombstone."""
    raw_key = _write(GROUP_KEY, GROUP_METADATA, key)
    return raw_key, None if value is None else _write(GROUP_VALUE, GROUP_VERSION, value)


def member_record_part(member: MemberMetadata) -> bytes:
    """Return the bytes of one member in a group's value."""
    out: list[bytes] = []
    _writer(MEMBER, GROUP_VERSION)(out, member)
    return b"".join(out)


def group_value_of_parts(value: GroupMetadataValue, parts: Sequence[bytes]) -> bytes:
    """Return the value of a group, given without its members, and the part of each."""
    head = _write(GROUP_VALUE, GROUP_VERSION, value)
    assert not value.members, "the head ends in the number of members, and that is none"
    return b"".join((head[: -INT32.size], INT32.pack(len(parts)), *parts))


def _write(schema: Declared, version: int, value: Any) -> bytes:
    """Return version and struct. The writers are kio's entities' in form, but ask only for attributes."""
    out = [VERSION.pack(version)]
    _writer(schema, version)(out, value)
    return b"".join(out)


@cache
def _writer(schema: Declared, version: int) -> Writer:
    return writer_of(schema.at(version))
