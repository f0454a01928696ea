"""The records of a partition of `__consumer_offsets`, from the bytes of its segments, in plain Python.

For looking at one log without Spark; `coterie.spark.history` reads many, in columns, and must tell the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from coterie.base.errors import Corrupt
from coterie.history.log.records import OFFSET_KINDS, Entry, read_entry
from coterie.history.log.runs import Commit, Run, runs_of
from coterie.wire.payloads.consumer_offsets import OffsetCommitValue
from coterie.wire.records.batches import BatchHeader, Record, check_crc, read_marker, records_of, scan
from coterie.wire.records.visible import AbortedTransaction, without_aborted


class GroupLog(NamedTuple):
    """What a log has of one group: its records but the commits, and the commits in runs."""

    group_id: str
    entries: tuple[Entry, ...]
    runs: tuple[Run, ...]


def entries_of(segments: Sequence[bytes]) -> Iterator[Entry]:
    """Yield the records of a partition's segments, first to last, but for what was aborted or is not over."""
    for number, segment in enumerate(segments):
        for at, _ in visible(segment, segments[number + 1 :]):
            yield from map(entry_of, records_of(segment, at))


def visible(segment: bytes, later: Iterable[bytes]) -> list[tuple[int, BatchHeader]]:
    """Return the batches of a segment that count: no markers, nothing aborted or not over, all of them whole.

    A transaction may end in one of the segments that come later. The last batch may be cut, being written.
    """
    batches = scan(segment)
    for at, header in batches:
        if not check_crc(segment, at, header):
            raise Corrupt("record batch", at=at, expected=f"checksum {header.crc:#010x}")
    if any(header.transactional for _, header in batches):
        batches = without_aborted(batches, unfinished(segment, batches, later))
    return [(at, header) for at, header in batches if not header.control and header.count > 0]


def unfinished(
    segment: bytes, batches: Iterable[tuple[int, BatchHeader]], later: Iterable[bytes]
) -> list[AbortedTransaction]:
    """Return the transactions that begin here and were aborted, or have no end: they never counted."""
    began: dict[int, int] = {}
    found: list[AbortedTransaction] = []

    def ended(data: bytes, at: int, producer_id: int) -> None:
        first = began.pop(producer_id, None)
        if first is not None and not read_marker(data, at).commit:
            found.append(AbortedTransaction(producer_id, first))

    for at, header in batches:
        if header.control:
            ended(segment, at, header.producer_id)
        elif header.transactional:
            began.setdefault(header.producer_id, header.base_offset)
    for data in later if began else ():
        for at, header in scan(data):
            if header.control:
                ended(data, at, header.producer_id)
        if not began:
            break
    return found + [AbortedTransaction(producer_id, first) for producer_id, first in began.items()]


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
