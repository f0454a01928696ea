"""The core's facts as records of `__consumer_offsets`, and those records as facts again (3.1 to 3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from coterie.base.errors import Corrupt
from coterie.group.facts import (
    Fact,
    GroupCreated,
    GroupLoaded,
    GroupRemoved,
    GroupStored,
    LoadedMember,
    OffsetsCommitted,
    OffsetsLoaded,
    OffsetsRemoved,
    StoredOffset,
)
from coterie.wire.internal import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    group_metadata_record,
    offset_commit_record,
    read_group_value,
    read_key,
    read_offset_value,
)

if TYPE_CHECKING:
    from coterie.group.model import Group
    from coterie.group.shard import Shard

__all__ = ["RawRecord", "Replay", "records_of"]

RawRecord: TypeAlias = tuple[bytes, bytes | None]


# -- facts to records


def records_of(groups: dict[str, Group], fact: Fact) -> tuple[RawRecord, ...]:
    """Return what a fact is written as, the group as it stands right after it; () for a volatile one."""
    if isinstance(fact, OffsetsCommitted):
        group_id = fact.group_id
        return tuple(
            offset_record(group_id, topic, partition, stored) for topic, partition, stored in fact.offsets
        )
    if isinstance(fact, GroupStored):
        return (group_metadata_record(GroupMetadataKey(fact.group_id), group_value(groups[fact.group_id])),)
    if isinstance(fact, OffsetsRemoved):
        keys = (OffsetCommitKey(fact.group_id, topic, partition) for topic, partition in fact.partitions)
        return tuple(offset_commit_record(key, None) for key in keys)
    if isinstance(fact, GroupRemoved):
        return (group_metadata_record(GroupMetadataKey(fact.group_id), None),)
    assert not fact.durable
    return ()


def offset_record(group_id: str, topic: str, partition: int, stored: StoredOffset) -> RawRecord:
    value = OffsetCommitValue(
        stored.offset,
        stored.leader_epoch,
        stored.metadata,
        stored.commit_ms,
        stored.expire_ms,
        stored.topic_id,
    )
    return offset_commit_record(OffsetCommitKey(group_id, topic, partition), value)


def group_value(group: Group) -> GroupMetadataValue:
    """Return the group whole, each member with what it said under the chosen protocol (RC-3)."""
    protocol = group.protocol
    assert protocol is not None or not group.members, f"{group.group_id}: members without a protocol (RC-4)"
    members = tuple(
        MemberMetadata(
            m.member_id,
            m.client_id,
            m.client_host,
            m.session_timeout_ms,
            m.metadata(protocol),
            m.assignment,
            m.instance_id,
            m.rebalance_timeout_ms,
        )
        for m in group.in_order()
    )
    since_ms = -1 if group.since_ms is None else group.since_ms
    return GroupMetadataValue(
        group.protocol_type or "", group.generation, protocol, group.leader, since_ms, members
    )


# -- records to facts


class Replay:
    """A piece of the log, gathered so that each group and each offset is applied once: the last write wins.

    Only the last record of a group in the piece is parsed; one that is superseded is not looked into.
    """

    SIMPLE = b"simple"  # stands for a group that only its offsets tell of (OM-1)

    def __init__(self, shard: Shard, now_ms: int) -> None:
        self._shard = shard
        self._now_ms = now_ms
        self._groups: dict[str, bytes | None] = {}
        self._offsets: dict[str, dict[str, dict[int, StoredOffset | None]]] = {}

    def read(self, records: Iterable[RawRecord]) -> None:
        """Take records in, oldest first; raise Corrupt where a key or an offset cannot be read (LO-7)."""
        for raw_key, value in records:
            key = read_key(raw_key)
            if isinstance(key, OffsetCommitKey):
                self._read_offset(key, value)
            elif isinstance(key, UnknownKey):
                skipped = self._shard.skipped
                skipped[key.type] = skipped.get(key.type, 0) + 1
            else:
                self._groups[key.group] = value

    def _read_offset(self, key: OffsetCommitKey, value: bytes | None) -> None:
        group_id, topic, partition = key
        piece = self._offsets.get(group_id)
        if piece is None:
            piece = self._offsets[group_id] = {}
        by_partition = piece.get(topic)
        if by_partition is None:
            by_partition = piece[topic] = {}
        if value is None:
            by_partition[partition] = None
            return
        by_partition[partition] = stored_offset(read_offset_value(value))
        if not self._exists(group_id):
            self._groups[group_id] = self.SIMPLE

    def _exists(self, group_id: str) -> bool:
        if group_id in self._groups:
            return self._groups[group_id] is not None
        return group_id in self._shard.groups

    def facts(self) -> Iterable[Fact]:
        """Return what the piece amounts to; raise Corrupt where a group is not what it claims."""
        for group_id, value in self._groups.items():
            if value is not None and value is not self.SIMPLE:
                yield group_loaded(group_id, value)
                continue
            if group_id in self._shard.groups:
                yield GroupRemoved(group_id)
            if value is self.SIMPLE:
                yield GroupCreated(group_id, self._now_ms)
        if self._offsets:
            yield OffsetsLoaded(self._offsets)


def stored_offset(value: OffsetCommitValue) -> StoredOffset:
    return StoredOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )


def group_loaded(group_id: str, raw: bytes) -> GroupLoaded:
    """Return a group's record as a fact; what old versions leave out gets its meaning (LO-2)."""
    value = read_group_value(raw)
    for ids in ([m.member_id for m in value.members], [m.group_instance_id for m in value.members]):
        named = [one for one in ids if one is not None]
        if len(set(named)) < len(named):
            raise Corrupt(f"group {group_id}", expected="each member and instance once")
    return GroupLoaded(
        group_id,
        value.protocol_type or None,
        value.generation,
        value.protocol,
        value.leader,
        None if value.current_state_timestamp == -1 else value.current_state_timestamp,
        tuple(loaded_member(member) for member in value.members),
    )


def loaded_member(member: MemberMetadata) -> LoadedMember:
    patience_ms = member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout
    return LoadedMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        patience_ms,
        member.session_timeout,
        member.subscription,
        member.assignment,
    )
