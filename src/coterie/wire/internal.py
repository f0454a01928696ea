"""The records of `__consumer_offsets` (section 3 of the catalogue): what Kafka's own brokers write and read.

A key is its type and a struct, a value its version and a struct. What the readers return is the same
for every version; the writers take it too.
"""

from functools import cache
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.wire.codec import decode
from coterie.wire.compiled import Writer, writer_of
from coterie.wire.declared import Declared, Field

__all__ = [
    "GroupMetadataKey",
    "GroupMetadataValue",
    "MemberMetadata",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "UnknownKey",
    "group_metadata_record",
    "offset_commit_record",
    "read_group_value",
    "read_key",
    "read_offset_value",
]

VERSION = Struct(">h")
NO_TIME = -1
NEVER_FLEXIBLE = 2**15

LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, GROUP_METADATA = 0, 1, 2

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
    """A key of a kind that is not read here; a loading broker skips its record."""

    type: int


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
    """Return what a record is about, or raise Corrupt."""
    kind = _read_version(data)
    if kind in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
        found = decode(OFFSET_KEY.at(kind), data, VERSION.size)
        return OffsetCommitKey(found.group, found.topic, found.partition)
    if kind == GROUP_METADATA:
        return GroupMetadataKey(decode(GROUP_KEY.at(kind), data, VERSION.size).group)
    return UnknownKey(kind)


def read_offset_value(data: bytes) -> OffsetCommitValue:
    """Return a committed offset of any version, or raise Corrupt."""
    found = _read_value(OFFSET_VALUE, data)
    return OffsetCommitValue(**_shared(OffsetCommitValue, found))


def read_group_value(data: bytes) -> GroupMetadataValue:
    """Return a group of any version, or raise Corrupt."""
    found = _shared(GroupMetadataValue, _read_value(GROUP_VALUE, data))
    found["members"] = tuple(MemberMetadata(**_shared(MemberMetadata, member)) for member in found["members"])
    return GroupMetadataValue(**found)


def _read_version(data: bytes) -> int:
    if len(data) < VERSION.size:
        raise Corrupt("record", at=0, expected="a type or version")
    version: int = VERSION.unpack_from(data)[0]
    return version


def _read_value(schema: Declared, data: bytes) -> Any:
    version = _read_version(data)
    if not 0 <= version <= schema.most:
        raise Corrupt(f"{schema.name} version {version}", at=0, expected=f"0 to {schema.most}")
    return decode(schema.at(version), data, VERSION.size)


def _shared(kind: Any, found: Any) -> dict[str, Any]:
    """Return those values of an entity that its version has."""
    return {name: getattr(found, name) for name in kind._fields if hasattr(found, name)}


def offset_commit_record(key: OffsetCommitKey, value: OffsetCommitValue | None) -> tuple[bytes, bytes | None]:
    """Return key and value of a committed offset; no value is a tombstone."""
    raw_key = _write(OFFSET_KEY, OFFSET_COMMIT, key)
    if value is None:
        return raw_key, None
    expires = value.expire_timestamp != NO_TIME
    return raw_key, _write(OFFSET_VALUE, OFFSET_VERSION_WITH_EXPIRY if expires else OFFSET_VERSION, value)


def group_metadata_record(
    key: GroupMetadataKey, value: GroupMetadataValue | None
) -> tuple[bytes, bytes | None]:
    """Return key and value of a group; no value is a tombstone."""
    raw_key = _write(GROUP_KEY, GROUP_METADATA, key)
    return raw_key, None if value is None else _write(GROUP_VALUE, GROUP_VERSION, value)


def _write(schema: Declared, version: int, value: Any) -> bytes:
    """Return version and struct. The writers are kio's entities' in form, but ask only for attributes."""
    out = [VERSION.pack(version)]
    _writer(schema, version)(out, value)
    return b"".join(out)


@cache
def _writer(schema: Declared, version: int) -> Writer:
    return writer_of(schema.at(version))
