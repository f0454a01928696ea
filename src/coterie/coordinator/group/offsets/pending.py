"""What open transactions have committed: offsets that count once their transaction commits (OM-2, OM-3).

A partition's writers are kept in the order in which the log has their latest commits, so that it need not be
known where in the log each one lies: who comes first is older. A writer whose offset something newer has
overtaken keeps its place with None: its transaction is open all the same (OF-9), but leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from coterie.coordinator.group.facts import StoredOffset

Key: TypeAlias = tuple[str, str, int]  # group, topic, partition
Writers: TypeAlias = Mapping[int, StoredOffset | None]

NO_WRITERS: Writers = MappingProxyType({})


class Pending:
    """The pending offsets of a shard, by partition of a group and by the producer of the transaction."""

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
