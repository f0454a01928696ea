"""What a broker owes: worked out from nothing but what it has acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from coterie.wire.records.batches import Record

__all__ = ["IDEMPOTENT_FROM", "UNKNOWN_FROM", "Batch", "Partition", "TopicOwed", "Transactions"]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it was sent, at the offset where it was acknowledged."""

    base: int
    records: tuple[Record, ...]
    producer: int = -1
    epoch: int = -1
    sequence: int = -1
    ends: str = ""  # "commit" or "abort" for a marker

    @property
    def end(self) -> int:
        """The offset after its last."""
        return self.base + (1 if self.ends else len(self.records))

    @property
    def transactional(self) -> bool:
        """Whether it waits for a marker."""
        return 0 <= self.producer < IDEMPOTENT_FROM and not self.ends

    @property
    def by_coordinator(self) -> bool:
        """Whether it is a marker that the broker has written on its own account."""
        return bool(self.ends) and self.producer < UNKNOWN_FROM

    def repeats(self, batches: list[Batch], base: int) -> bool:
        """Return whether the one of these at that offset is of the same producer, epoch and sequence."""
        who = (base, self.producer, self.epoch, self.sequence)
        return any((one.base, one.producer, one.epoch, one.sequence) == who for one in batches)

    def at(self, base: int) -> Batch:
        """Return the batch as it lies at another offset."""
        moved = tuple(record._replace(offset=base + place) for place, record in enumerate(self.records))
        return Batch(base, moved, self.producer, self.epoch, self.sequence, self.ends)


UNKNOWN_FROM, IDEMPOTENT_FROM = 1_000_000, 2_000_000
"""Producers below write in transactions that the broker's coordinator ends; from the first on it knows
nothing of them, and whoever drives them writes their markers; from the second on they are idempotent only."""


@dataclass(slots=True)
class Transactions:
    """What follows from some batches, one after the other."""

    opened: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each its epoch and the last sequence."""

    @classmethod
    def of(cls, batches: list[Batch]) -> Transactions:
        found = cls()
        for batch in batches:
            if batch.producer < 0:
                continue
            if batch.ends:
                first = found.opened.pop(batch.producer, None)
                if first is not None and batch.ends == "abort":
                    found.aborted.append((batch.producer, first, batch.base))
                epoch, last = found.producers.get(batch.producer, (-1, -1))
                found.producers[batch.producer] = (batch.epoch, last if epoch == batch.epoch else -1)
                continue
            if batch.transactional:
                found.opened.setdefault(batch.producer, batch.base)
            found.producers[batch.producer] = (batch.epoch, batch.sequence + len(batch.records) - 1)
        return found

    def committed(self, batches: list[Batch]) -> Iterator[Record]:
        """Yield what a read_committed consumer may see."""
        stable = min(self.opened.values(), default=1 << 62)
        for batch in batches:
            if batch.base < stable and not self._void(batch):
                yield from batch.records

    def _void(self, batch: Batch) -> bool:
        return any(
            batch.producer == producer and first <= batch.base < last
            for producer, first, last in self.aborted
        )


@dataclass(slots=True)
class Partition:
    """What is owed of one partition."""

    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    """The start of the log as anybody could see it last."""
    deleted: int = 0
    """Up to where DeleteRecords was acknowledged."""
    maybe_deleted: int = 0
    """Up to where somebody asked for, and may not have heard that it is done."""
    reached: int = 0
    """Where the log ended when it was last opened."""
    certain: int = 0
    """Up to where a loss of power may take nothing."""
    maybe: list[Batch] = field(default_factory=list)
    """Batches that were sent and not acknowledged: one of them may be there, right behind the others."""

    @property
    def end(self) -> int:
        """The end of what was acknowledged, and of a log that has lost what was not certain."""
        return max(self.batches[-1].end if self.batches else 0, self.reached)

    @property
    def known(self) -> Transactions:
        """What the batches say of transactions and producers."""
        return Transactions.of(self.batches)


@dataclass(slots=True)
class TopicOwed:
    """A topic that was made and not deleted."""

    topic_id: UUID
    configs: dict[str, str]
    partitions: list[Partition]

    broker_flushes: bool = False
    was_compacted: bool = False

    @property
    def compacted(self) -> bool:
        """Whether records that others have replaced may be missing."""
        return self.was_compacted or "compact" in self.configs.get("cleanup.policy", "")

    @property
    def retained(self) -> bool:
        """Whether its logs lose their oldest segments by themselves, at every start already."""
        return "retention.bytes" in self.configs or self.configs.get("retention.ms") == "20000"

    @property
    def flushed(self) -> bool:
        """Whether what is acknowledged survives a loss of power."""
        return self.broker_flushes or self.configs.get("flush.messages") == "1"
