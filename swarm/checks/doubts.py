"""Commits that may come late: those whose sender has given up, and those of rude clients.

A commit goes back behind an earlier one in no other way: what was given up may still be on its way, on a
connection that nobody listens to any more, and is valid as long as its generation is.
"""

from __future__ import annotations

from collections.abc import Mapping

from coterie.base.ids import TopicPartition
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, OffsetCommitValue
from swarm.world import Violation


class Doubts:
    """The offsets that commits may bring late, by what they are for."""

    def __init__(self) -> None:
        self._late: dict[OffsetCommitKey, set[int]] = {}
        self._strange: dict[OffsetCommitKey, set[int]] = {}

    def may_come_late(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Note a commit of which its sender does not know what became of it."""
        for (topic, partition), offset in offsets.items():
            self._late.setdefault(OffsetCommitKey(group_id, topic, partition), set()).add(offset)

    def are_strange(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Note a commit that is none of the readers' doing: they go on where they were."""
        self.may_come_late(group_id, offsets)
        for (topic, partition), offset in offsets.items():
            self._strange.setdefault(OffsetCommitKey(group_id, topic, partition), set()).add(offset)

    def check(self, key: OffsetCommitKey, before: OffsetCommitValue | None, after: OffsetCommitValue) -> None:
        """Raise `Violation` if a commit goes back behind the one before."""
        if before is None or after.offset >= before.offset or before.offset in self._strange.get(key, ()):
            return
        if after.offset not in self._late.get(key, ()):
            raise Violation("commits last", f"{key} goes back from {before.offset} to {after.offset}")
