"""The records of a partition of `__consumer_offsets`, from the bytes of its segments, in plain Python.

For looking at one log without Spark; `coterie.spark.history` reads many, in columns, and must tell the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from coterie.base.errors import Corrupt
from coterie.history.records import OFFSET_KINDS, Entry, read_entry
from coterie.history.runs import Commit, Run, runs_of
from coterie.wire.batches import Record, check_crc, read_marker, records_of, scan
from coterie.wire.internal import OffsetCommitValue

__all__ = ["GroupLog", "entries_of", "groups_of"]


class GroupLog(NamedTuple):
    """What a log has of one group: its records but the commits, and the commits in runs."""

    group_id: str
    entries: tuple[Entry, ...]
    runs: tuple[Run, ...]


def entries_of(segments: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the records of a partition's segments, first to last.

    What a transaction committed comes when its marker does, as the coordinator takes it (OM-3); what it
    aborted, or has not ended, never. A segment may end in the middle of a batch that is being written.
    """
    open_transactions: dict[int, list[Entry]] = defaultdict(list)
    for segment in segments:
        for at, header in scan(segment):
            if not check_crc(segment, at, header):
                raise Corrupt("record batch", at=at, expected=f"checksum {header.crc:#010x}")
            if header.control:
                ended = open_transactions.pop(header.producer_id, [])
                yield from ended if read_marker(segment, at).commit else ()
                continue
            read = map(entry_of, records_of(segment, at))
            if header.transactional:
                open_transactions[header.producer_id] += read
            else:
                yield from read


def entry_of(record: Record) -> Entry:
    return read_entry(record.key or b"", record.value, place=record.offset, at_ms=record.timestamp)


def groups_of(entries: Iterable[Entry]) -> list[GroupLog]:
    """Return the log of each group of a partition."""
    others: dict[str, list[Entry]] = defaultdict(list)
    commits: dict[str, list[Commit]] = defaultdict(list)
    epochs: Counter[str] = Counter()
    for entry in entries:
        if entry.kind in OFFSET_KINDS and isinstance(entry.value, OffsetCommitValue):
            commits[entry.group].append(commit_of(entry, entry.value, epochs[entry.group]))
        else:
            others[entry.group].append(entry)
            epochs[entry.group] += entry.kind not in OFFSET_KINDS
    return [
        GroupLog(group, tuple(others[group]), tuple(runs_of(commits[group])))
        for group in sorted({*others, *commits})
    ]


def commit_of(entry: Entry, value: OffsetCommitValue, epoch: int) -> Commit:
    at_ms = value.commit_timestamp if value.commit_timestamp > 0 else entry.at_ms
    return Commit(entry.place, at_ms, entry.topic, entry.partition, value.offset, epoch, value.topic_id)
