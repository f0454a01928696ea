"""The core's facts as records of `__consumer_offsets`, and those records as facts again (3.1 to 3.3)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING

from coterie.base.errors import Corrupt
from coterie.base.reasons import mark
from coterie.coordinator.group.facts import (
    Fact,
    ForeignEnded,
    ForeignSeen,
    GroupCreated,
    GroupLoaded,
    GroupRemoved,
    GroupStored,
    LoadedMember,
    OffsetsCommitted,
    OffsetsPending,
    OffsetsRemoved,
    StoredOffset,
)
from coterie.coordinator.group.offsets.stored import stored_offset
from coterie.coordinator.machine import RawRecord
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    group_metadata_record,
    group_value_of_parts,
    member_record_part,
    offset_commit_record,
    read_group_value,
    read_key,
)
from coterie.wire.records.batches import weight_of

if TYPE_CHECKING:
    from coterie.coordinator.group.model import Group, Member


# -- facts to records


def records_of(groups: dict[str, Group], fact: Fact) -> tuple[RawRecord, ...]:
    """Return the records of a fact, the group as it stands right after it; () for a volatile one."""
    if isinstance(fact, OffsetsCommitted | OffsetsPending):
        group_id = fact.group_id
        return tuple(
            offset_record(group_id, topic, partition, stored) for topic, partition, stored in fact.offsets
        )
    if isinstance(fact, GroupStored):
        mark("group-record-written")
        return (group_record(groups[fact.group_id]),)
    if isinstance(fact, OffsetsRemoved):
        mark("offset-tombstones-written")
        keys = (OffsetCommitKey(fact.group_id, topic, partition) for topic, partition in fact.partitions)
        return tuple(offset_commit_record(key, None) for key in keys)
    if isinstance(fact, GroupRemoved):
        mark("group-tombstone-written")
        return (group_metadata_record(GroupMetadataKey(fact.group_id), None),)
    if isinstance(fact, ForeignEnded):
        mark("foreign-tombstones-written")
        return tuple((key, None) for key in fact.keys)
    assert not fact.durable
    return ()


def offset_record(group_id: str, topic: str, partition: int, stored: StoredOffset) -> RawRecord:
    value = OffsetCommitValue._make(stored)
    return offset_commit_record(OffsetCommitKey(group_id, topic, partition), value)


def group_record(group: Group) -> RawRecord:
    """Return the record of a group.

    A static member that comes back has the whole group written, of which it alone is new: one of a thousand.
    """
    key, protocol, members = GroupMetadataKey(group.group_id), group.protocol, group.in_order()
    assert protocol is not None or not members, f"{group.group_id}: members without a protocol (RC-4)"
    if not group.static:
        return group_metadata_record(key, group_value(group, tuple(stored(one, protocol) for one in members)))
    raw_key, _ = group_metadata_record(key, None)
    parts = [part_of(member, protocol) for member in members]
    return raw_key, group_value_of_parts(group_value(group, ()), parts)


def part_of(member: Member, protocol: str | None) -> bytes:
    """Return a member's bytes in the group's record; a static one's are kept while it stays the same."""
    source = (
        protocol,
        member.protocols,
        member.assignment,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
    )
    written = member.written
    if written is not None and written[0] == source:
        return written[1]
    part = member_record_part(stored(member, protocol))
    if member.instance_id is not None:
        member.written = source, part
    return part


def stored(member: Member, protocol: str | None) -> MemberMetadata:
    """Return a member with what it said under the chosen protocol (RC-3)."""
    return MemberMetadata(
        member.member_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.metadata(protocol),
        member.assignment,
        member.instance_id,
        member.rebalance_timeout_ms,
    )


def group_value(group: Group, members: tuple[MemberMetadata, ...]) -> GroupMetadataValue:
    """Return the value of a group's record, with these of its members."""
    since_ms = -1 if group.since_ms is None else group.since_ms
    return GroupMetadataValue(
        group.protocol_type or "", group.generation, group.protocol, group.leader, since_ms, members
    )


class Allowance:
    """How many bytes the tombstones of a decision may still have, by `weight_of`; the first has any size.

    It is `exhausted` once one more was wanted than is allowed.
    """

    __slots__ = ("_begun", "_left", "exhausted")

    def __init__(self, most_bytes: int | None) -> None:
        self._left = inf if most_bytes is None else float(most_bytes)
        self._begun = False
        self.exhausted = False

    def up_to(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
        """Yield the partitions of a group, from the first on, whose tombstones are allowed."""
        weights: dict[str, int] = {}
        for topic, partition in partitions:
            if topic not in weights:
                key = OffsetCommitKey(group_id, topic, partition)
                weights[topic] = weight_of((offset_commit_record(key, None),))
            if not self._takes(weights[topic]):
                return
            yield topic, partition

    def takes_group(self, group_id: str) -> bool:
        """Return whether the tombstone of the group itself is allowed."""
        return self._takes(weight_of((group_metadata_record(GroupMetadataKey(group_id), None),)))

    def _takes(self, weight: int) -> bool:
        if self._begun and weight > self._left:
            self._left = 0
            self.exhausted = True
            return False
        self._begun = True
        self._left -= weight
        return True


# -- records to facts


def facts_of(groups: Container[str], record: RawRecord, *, producer_id: int, now_ms: int) -> Iterator[Fact]:
    """Yield the facts of a record. Raises Corrupt where it cannot be read (LO-7, OM-1 to OM-4, DE-5)."""
    raw_key, value = record
    key = read_key(raw_key)
    if isinstance(key, UnknownKey):
        mark("record-kind-passed-over")
        if key.group is not None:
            yield ForeignSeen(key.group, raw_key, value is not None)
    elif isinstance(key, GroupMetadataKey):
        if value is not None:
            yield group_loaded(key.group, value)
        elif key.group in groups:
            mark("group-tombstone-loaded")
            yield GroupRemoved(key.group)
    elif value is None:
        yield OffsetsRemoved(key.group, ((key.topic, key.partition),))
    else:
        if key.group not in groups:
            yield GroupCreated(key.group, now_ms)
        mark("offsets-loaded")
        offsets = ((key.topic, key.partition, stored_offset(value)),)
        if producer_id < 0:
            yield OffsetsCommitted(key.group, offsets)
        else:
            yield OffsetsPending(key.group, producer_id, offsets)


def group_loaded(group_id: str, raw: bytes) -> GroupLoaded:
    """Return a group's record as a fact; what old versions leave out gets its meaning (LO-2)."""
    mark("group-loaded")
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
