"""What the log of one partition of `__consumer_offsets` says, read by the checks' own eyes.

Every record is kept with its place in the log, so that it can be said what was in force at any place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_value,
    read_key,
    read_offset_value,
)
from coterie.wire.records.batches import records_of, scan

READ_BYTES = 1 << 20

GroupHistory = list[tuple[int, GroupMetadataValue | None]]
OffsetHistory = list[tuple[int, OffsetCommitValue | None]]


class Readable(Protocol):
    """A log, as it is read here."""

    @property
    def start_offset(self) -> int:
        """The offset of its first record."""
        ...

    @property
    def high_watermark(self) -> int:
        """The end of what lasts."""
        ...

    def read(self, offset: int, *, max_bytes: int) -> bytes:
        """Return whole batches from the one that holds an offset."""
        ...


class Entry(NamedTuple):
    """One record as it was just read."""

    at: int
    key: GroupMetadataKey | OffsetCommitKey
    value: GroupMetadataValue | OffsetCommitValue | None
    written_ms: int


@dataclass(slots=True)
class Pending:
    """An offset that counts once its producer's transaction commits."""

    key: OffsetCommitKey
    value: OffsetCommitValue
    at: int


class Journal:
    """The history of every group and every offset of one partition."""

    def __init__(self) -> None:
        self.end = 0
        self.groups: dict[str, GroupHistory] = {}
        self.offsets: dict[OffsetCommitKey, OffsetHistory] = {}
        self.promised: dict[OffsetCommitKey, list[tuple[int, int]]] = {}
        """Where in the log transactions have committed what, whatever became of them."""
        self._pending: dict[int, list[Pending]] = {}

    def read(self, log: Readable) -> list[Entry]:
        """Return the records appended since the last call, and remember them."""
        found: list[Entry] = []
        self.end = max(self.end, log.start_offset)
        while self.end < log.high_watermark:
            piece = log.read(self.end, max_bytes=READ_BYTES)
            for at, header in scan(piece):
                if header.last_offset < self.end:
                    continue
                if header.control:
                    self._end_transaction(header.producer_id, piece, at)
                else:
                    found += self._read_batch(piece, at, header.producer_id if header.transactional else -1)
                self.end = header.last_offset + 1
        return found

    def _read_batch(self, piece: bytes, at: int, producer_id: int) -> Iterator[Entry]:
        for record in records_of(piece, at):
            key = read_key(record.key or b"")
            raw = record.value
            if isinstance(key, GroupMetadataKey):
                group = None if raw is None else read_group_value(raw)
                self.groups.setdefault(key.group, []).append((record.offset, group))
                yield Entry(record.offset, key, group, record.timestamp)
            elif isinstance(key, OffsetCommitKey):
                offset = None if raw is None else read_offset_value(raw)
                if producer_id >= 0 and offset is not None:
                    pending = self._pending.setdefault(producer_id, [])
                    pending[:] = [one for one in pending if one.key != key]
                    pending.append(Pending(key, offset, record.offset))
                    self.promised.setdefault(key, []).append((record.offset, offset.offset))
                    continue
                self._write(key, record.offset, offset)
                yield Entry(record.offset, key, offset, record.timestamp)

    def _write(self, key: OffsetCommitKey, at: int, value: OffsetCommitValue | None) -> None:
        self.offsets.setdefault(key, []).append((at, value))
        if value is None:  # OM-4
            for writes in self._pending.values():
                writes[:] = [one for one in writes if one.key != key]

    def _end_transaction(self, producer_id: int, piece: bytes, at: int) -> None:
        """Have a transaction's offsets count, or not, where nothing newer is in force (OM-3)."""
        (control,) = records_of(piece, at)
        commits = control.key is not None and int.from_bytes(control.key[2:4], "big") == 1
        for one in self._pending.pop(producer_id, []):
            history = self.offsets.setdefault(one.key, [])
            if commits and (not history or history[-1][0] < one.at):
                history.append((control.offset, one.value))

    def is_open(self, key: OffsetCommitKey, before: int) -> bool:
        """Return whether a transaction is open that committed an offset before a place in the log."""
        return any(one.key == key and one.at < before for writes in self._pending.values() for one in writes)

    def open_groups(self) -> set[str]:
        """Return the groups for which a transaction is open."""
        return {one.key.group for writes in self._pending.values() for one in writes}

    # -- what is in force

    def group(self, group_id: str) -> GroupMetadataValue | None:
        """Return a group's last record, None if it has none or is deleted."""
        history = self.groups.get(group_id)
        return history[-1][1] if history else None

    def group_at(self, group_id: str, at: int) -> GroupMetadataValue | None:
        """Return the record of a group that was in force before a place in the log."""
        found = None
        for place, value in self.groups.get(group_id, ()):
            if place >= at:
                break
            found = value
        return found

    def offset(self, key: OffsetCommitKey) -> OffsetCommitValue | None:
        """Return the offset that is in force."""
        history = self.offsets.get(key)
        return history[-1][1] if history else None

    def offsets_since(self, key: OffsetCommitKey, at: int) -> set[int]:
        """Return every offset that was in force at a place in the log or later; -1 for none."""
        found = {-1}
        for place, value in self.offsets.get(key, ()):
            number = -1 if value is None else value.offset
            if place < at:
                found = {number}
            else:
                found.add(number)
        return found

    def offsets_of(
        self, group_id: str, before: int | None = None
    ) -> dict[tuple[str, int], OffsetCommitValue]:
        """Return a group's offsets by topic and partition, now or before a place in the log."""
        found: dict[tuple[str, int], OffsetCommitValue] = {}
        for key, history in self.offsets.items():
            if key.group != group_id:
                continue
            in_force = [value for at, value in history if before is None or at < before]
            if in_force and in_force[-1] is not None:
                found[key.topic, key.partition] = in_force[-1]
        return found

    def group_ids(self) -> set[str]:
        """Return every group that ever had a record."""
        return {*self.groups, *(key.group for key in self.offsets)}
