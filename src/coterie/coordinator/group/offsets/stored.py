"""The committed offsets of a shard, and the pending ones, which count once their transaction commits.

What was loaded lies as the log had it until somebody asks for its group. A million offsets are a million
records; most are of groups that nobody asks for soon, and taking all of them apart would take longer than
reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from types import MappingProxyType
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


# -- pending
#
# A partition's writers are kept in the order in which the log has their latest commits, so that it need not
# be known where in the log each one lies: who comes first is older. A writer whose offset something newer has
# overtaken keeps its place with None: its transaction is open all the same (OF-9), but leaves nothing.

Key: TypeAlias = tuple[str, str, int]  # group, topic, partition
Writers: TypeAlias = Mapping[int, StoredOffset | None]

NO_WRITERS: Writers = MappingProxyType({})


class Pending:
    """The pending offsets of a shard, by partition of a group and by producer (OM-2, OM-3)."""

    __slots__ = ("_by_group", "_by_producer")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[tuple[str, int], Writers]] = {}
        self._by_producer: dict[int, dict[Key, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pending) and self.view() == other.view()

    __hash__ = None  # type: ignore[assignment]

    def view(self) -> dict[Key, tuple[tuple[int, StoredOffset | None], ...]]:
        """Return everything as values that later changes do not reach."""
        return {
            (group_id, topic, partition): tuple(writers.items())
            for group_id, partitions in self._by_group.items()
            for (topic, partition), writers in partitions.items()
        }

    def of(self, key: Key) -> Writers:
        """Return the producers with a transaction open for a partition, oldest first, with their offsets."""
        partitions = self._by_group.get(key[0])
        return NO_WRITERS if partitions is None else partitions.get(key[1:], NO_WRITERS)

    def partitions_of(self, group_id: str) -> Mapping[tuple[str, int], Writers]:
        """Return the partitions of a group for which a transaction is open."""
        return self._by_group.get(group_id, {})

    def keys_of(self, producer_id: int) -> tuple[Key, ...]:
        """Return the partitions that a producer's open transaction has committed for."""
        return tuple(self._by_producer.get(producer_id, ()))

    def has_overtaken(self, producer_id: int) -> bool:
        """Return whether something newer stands where a producer has committed."""
        return any(self.of(key)[producer_id] is None for key in self.keys_of(producer_id))

    def groups(self) -> tuple[str, ...]:
        """Return the groups that have offsets here."""
        return tuple(self._by_group)

    def put(self, key: Key, writers: Writers) -> Writers:
        """Replace a partition's writers, none with an empty mapping; return those that it had."""
        group_id, place = key[0], key[1:]
        before = self.of(key)
        for producer_id in before:
            if producer_id not in writers:
                self._forget(producer_id, key)
        for producer_id in writers:
            self._by_producer.setdefault(producer_id, {})[key] = None
        if writers:
            self._by_group.setdefault(group_id, {})[place] = writers
        elif before:
            del self._by_group[group_id][place]
            if not self._by_group[group_id]:
                del self._by_group[group_id]
        return before

    def end(self, producer_id: int, *, commit: bool) -> list[tuple[Key, Writers]]:
        """Forget a producer's transaction; return what it has committed for, with the writers as they were.

        What it commits overtakes those that came before it. One pass: a transaction may have committed for
        a hundred thousand partitions, and nobody is heard meanwhile.
        """
        before = []
        for key in self._by_producer.pop(producer_id, ()):
            partitions, place = self._by_group[key[0]], key[1:]
            writers = partitions[place]
            before.append((key, writers))
            if len(writers) > 1:
                partitions[place] = _left(writers, producer_id, commit=commit)
            else:
                del partitions[place]
                if not partitions:
                    del self._by_group[key[0]]
        return before

    def _forget(self, producer_id: int, key: Key) -> None:
        keys = self._by_producer[producer_id]
        del keys[key]
        if not keys:
            del self._by_producer[producer_id]


def _left(writers: Writers, ended: int, *, commit: bool) -> Writers:
    """Return the other writers; a commit that counts has overtaken those before it."""
    order = list(writers)
    older = order[: order.index(ended)] if commit and writers[ended] is not None else []
    return {one: held for one, held in writers.items() if one != ended} | dict.fromkeys(older)
