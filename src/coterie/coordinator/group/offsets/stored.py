"""The committed offsets of a shard. What was loaded lies as the log had it until somebody asks for its group.

A million offsets are a million records; most are of groups that nobody asks for soon, and taking all of them
apart would take longer than reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TypeAlias

from coterie.coordinator.group.facts import StoredOffset
from coterie.coordinator.group.model import OffsetTable
from coterie.wire.payloads.consumer_offsets import read_offset_value, read_partition_key

# The end of each record's key, topic and partition, with its value; None where the log has a tombstone.
Packed: TypeAlias = dict[bytes, bytes | None]


class OffsetTables(MutableMapping[str, OffsetTable]):
    """By group, topic and partition. A mapping like any other, but for what `pack` puts in."""

    __slots__ = ("_packed", "_tables")

    def __init__(self) -> None:
        self._tables: dict[str, OffsetTable] = {}
        self._packed: dict[str, Packed] = {}

    def __repr__(self) -> str:
        return f"OffsetTables({dict(self)!r})"

    def __getitem__(self, group_id: str) -> OffsetTable:
        if group_id in self._packed:
            self._tables[group_id] = unpacked(self._packed.pop(group_id))
        return self._tables[group_id]

    def __setitem__(self, group_id: str, table: OffsetTable) -> None:
        self._packed.pop(group_id, None)
        self._tables[group_id] = table

    def __delitem__(self, group_id: str) -> None:
        if self._packed.pop(group_id, None) is None:
            del self._tables[group_id]

    def __iter__(self) -> Iterator[str]:
        yield from tuple(self._tables)
        yield from tuple(self._packed)

    def __len__(self) -> int:
        return len(self._tables) + len(self._packed)

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._tables or group_id in self._packed

    def is_packed(self, group_id: str) -> bool:
        """Return whether a group's offsets lie as the log had them, or there are none."""
        return group_id not in self._tables

    def pack(self, group_id: str, packed: Packed) -> None:
        """Take in what a group has committed, as it lies in the log, over what lies there of it."""
        assert self.is_packed(group_id), group_id
        held = self._packed.pop(group_id, None)
        if held is not None:
            held.update(packed)
            packed = held
        if None in packed.values():
            packed = {key: value for key, value in packed.items() if value is not None}
        if packed:
            self._packed[group_id] = packed

    def packed_of(self, group_id: str) -> Packed:
        """Return a copy of what lies there of a group as the log had it."""
        return dict(self._packed.get(group_id, {}))

    def put_back(self, group_id: str, packed: Packed) -> None:
        """Have a group's offsets lie there as they did."""
        self.pop(group_id, None)
        self.pack(group_id, packed)

    def count_of(self, group_id: str) -> int:
        """Return for how many partitions a group has committed."""
        packed = self._packed.get(group_id)
        return sum(map(len, self._tables.get(group_id, {}).values())) if packed is None else len(packed)

    def topics_of(self, group_id: str) -> frozenset[str]:
        """Return the topics that a group has committed for; nothing is taken apart for it."""
        packed = self._packed.get(group_id)
        if packed is None:
            return frozenset(self._tables.get(group_id, ()))
        firsts = {key[:-4]: key for key in packed}
        return frozenset(read_partition_key(key)[0] for key in firsts.values())


def unpacked(packed: Packed) -> OffsetTable:
    """Return the offsets by topic and partition, tombstones left out."""
    table: OffsetTable = {}
    for key, value in packed.items():
        if value is not None:
            topic, partition = read_partition_key(key)
            table.setdefault(topic, {})[partition] = stored_offset(value)
    return table


def stored_offset(value: bytes) -> StoredOffset:
    """Return the StoredOffset of a record's value."""
    return StoredOffset._make(read_offset_value(value))
