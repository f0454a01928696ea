"""Keeping the newest record of each key: which segments, what stays of a batch, and the swap of files.

`run_compaction` reads closed segments and writes `.cleaned` files, so it may run in another thread or
process; the log itself plans before and swaps after. Rules as Apache Kafka's: tombstones stay for
delete.retention.ms from the first compaction that meets them; a batch with its producer's last sequence
stays, if need be empty; so does the last batch of a round. Records of aborted transactions go at once, and
replace no others. A marker stays as long as there are batches of its transaction, and then for
delete.retention.ms more. Other than in Apache Kafka, a producer's last sequence is the last in the part that
is compacted: what it has written since may not be flushed, and must not have replaced what is.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from coterie.base.errors import Corrupt
from coterie.storage.config import LogConfig
from coterie.storage.disk import Disk
from coterie.storage.log.aborted import AbortedIndex, AbortedSpan
from coterie.storage.log.contract import StorageFailed
from coterie.storage.log.producers import marker_of
from coterie.storage.log.recovery import Sound, sound_batches
from coterie.storage.log.segment import (
    ABORTED,
    CLEANED,
    FILES,
    LOG,
    OFFSETS_OF_A_SEGMENT,
    SWAP,
    Segment,
    name_of,
)
from coterie.storage.rewrite import sealed
from coterie.wire.records.batches import (
    CODEC_BITS,
    HEADER_SIZE,
    MOST_INT64,
    BatchHeader,
    Record,
    pieces_of,
    records_in,
    shifted,
)
from coterie.wire.records.compression import (
    CODECS,
    codec_of,
    compress,
    decompress,
)

HORIZON_BIT = 0x40
LONGEST_KEY = 32
NO_TIMESTAMP = -1


# -- what is to be done


class LogToClean(NamedTuple):
    """The segments that may be compacted: those compacted before, and the dirty ones after them."""

    segments: Sequence[Segment]
    first_dirty: int
    upto: int
    clean_bytes: int
    dirty_bytes: int
    oldest_dirty_ms: int


class CompactionPlan(NamedTuple):
    """A compaction as plain values, which another process can be given."""

    directory: str
    groups: tuple[tuple[int, ...], ...]
    first_dirty: int
    upto: int
    now_ms: int
    wall_ms: int
    delete_retention_ms: int
    interval: int
    producers: frozenset[int]
    """Those that the log remembers."""
    aborted: Sequence[AbortedSpan]
    """The aborted transactions of the range."""


class SegmentGroup(NamedTuple):
    """Segments that became one, of `size` bytes."""

    bases: tuple[int, ...]
    size: int
    aborted: tuple[AbortedSpan, ...]


class CompactionResult(NamedTuple):
    """What was written for a plan; or, where the log is damaged, which file and where, and nothing else; or
    why it has `failed` this time: the disk refused, or a segment of the plan went while it was carried out.
    """

    plan: CompactionPlan
    groups: tuple[SegmentGroup, ...]
    damage: str = ""
    failed: str = ""


def log_to_clean(
    segments: Sequence[Segment], config: LogConfig, *, first_dirty: int, settled: int, now_ms: int
) -> LogToClean:
    """Return the segments that may be compacted now: not the one that grows, nothing too young, and nothing
    that is not `settled`: undecided, or not flushed, or its marker is not. What replaces a record must not be
    lost after it.
    """
    count = 0
    young = now_ms - config.min_compaction_lag_ms
    for segment, following in itertools.pairwise(segments):
        dirty = following.base_offset > first_dirty
        if following.base_offset > settled:
            break
        if dirty and config.min_compaction_lag_ms > 0 and segment.newest_ms > young:
            break
        count += 1
    chosen = segments[:count]
    upto = segments[count].base_offset
    dirty_ones = [
        one
        for one, following in zip(chosen, segments[1:], strict=False)
        if following.base_offset > first_dirty
    ]
    dirty_bytes = sum(one.size for one in dirty_ones)
    oldest = min((one.first_ms for one in dirty_ones if one.first_ms > 0), default=now_ms)
    clean_bytes = sum(one.size for one in chosen) - dirty_bytes
    return LogToClean(chosen, first_dirty, upto, clean_bytes, dirty_bytes, oldest)


class Need(NamedTuple):
    """How much a log needs to be compacted; the greater need goes first, in Kafka's order."""

    overdue_ms: int
    dirty_share: float


def need(found: LogToClean, config: LogConfig, now_ms: int) -> Need | None:
    """Return the need of a log of which enough is dirty, by its share of the whole or by its age."""
    if not config.compacted or not found.dirty_bytes:
        return None
    overdue_ms = max(0, now_ms - found.oldest_dirty_ms - config.max_compaction_lag_ms)
    share = found.dirty_bytes / (found.clean_bytes + found.dirty_bytes)
    return Need(overdue_ms, share) if overdue_ms or share > config.min_cleanable_dirty_ratio else None


def plan(
    found: LogToClean,
    config: LogConfig,
    directory: str,
    *,
    producers: Iterable[int],
    aborted: Sequence[AbortedSpan],
    now_ms: int,
    wall_ms: int,
) -> CompactionPlan | None:
    """Return the CompactionPlan of a range; None if there is nothing dirty in it."""
    if not found.dirty_bytes:
        return None
    return CompactionPlan(
        directory=directory,
        groups=tuple(_grouped(found.segments, config, upto=found.upto)),
        first_dirty=found.first_dirty,
        upto=found.upto,
        now_ms=now_ms,
        wall_ms=wall_ms,
        delete_retention_ms=config.delete_retention_ms,
        interval=config.index_interval_bytes,
        producers=frozenset(producers),
        aborted=aborted,
    )


def _grouped(segments: Sequence[Segment], config: LogConfig, *, upto: int) -> Iterator[tuple[int, ...]]:
    """Yield the bases of neighbours that fit into one segment together."""
    group: list[int] = []
    size = 0
    ends = [*(one.base_offset for one in segments[1:]), upto]
    for segment, end in zip(segments, ends, strict=True):
        fits = size + segment.size <= config.segment_bytes
        if group and not (fits and end - 1 - group[0] <= OFFSETS_OF_A_SEGMENT):
            yield tuple(group)
            group, size = [], 0
        group.append(segment.base_offset)
        size += segment.size
    if group:
        yield tuple(group)


# -- the work


def run_compaction(plan: CompactionPlan, disk: Disk) -> CompactionResult:
    """Write a `.cleaned` segment for each group of the plan. Changes nothing that exists.

    What fails takes its files away again, whatever it fails of: a full disk needs their room.
    """
    groups = []
    whole = False
    try:
        newest = _newest_of(plan, disk)
        transactions = _Transactions(plan.aborted)
        for bases in plan.groups:
            groups.append(_clean_group(plan, bases, newest, transactions, disk))
        whole = True
    except StorageFailed as error:
        return CompactionResult(plan, (), str(error))
    except OSError as error:  # a full disk, or a file that went: by retention, DeleteRecords, with the topic
        return CompactionResult(plan, (), failed=str(error))
    finally:
        if not whole:
            with suppress(OSError):
                discard(plan, disk)
    return CompactionResult(plan, tuple(groups))


class _Newest(NamedTuple):
    """What is newest in the part that is compacted."""

    offsets: dict[bytes, int]
    """Of each key in the dirty part the last offset, aborted records aside."""
    written: dict[int, tuple[int, int]]
    """Of each producer that is remembered the offset of its last record, or -1, and its epoch."""


def _newest_of(plan: CompactionPlan, disk: Disk) -> _Newest:
    newest: dict[bytes, int] = {}
    written: dict[int, tuple[int, int]] = {}
    transactions = _Transactions([one for one in plan.aborted if one.last_offset >= plan.first_dirty])
    for bases in plan.groups:
        for base in bases:
            for found in _batches(plan, base, disk):
                _, header, data, at = found
                if header.producer_id in plan.producers:
                    _note_written(written, header)
                if header.last_offset < plan.first_dirty:
                    continue
                if transactions.done_with(header, data, at) or header.control:
                    continue
                for record in _records_of(plan, base, found)[0]:
                    if record.key is not None:
                        newest[_short(record.key)] = record.offset
    return _Newest(newest, written)


def _note_written(written: dict[int, tuple[int, int]], header: BatchHeader) -> None:
    """Take note of a producer's batch or marker, in the log's order; a new epoch begins without records."""
    if not header.control:
        written[header.producer_id] = (header.last_offset, header.producer_epoch)
    elif written.get(header.producer_id, (-1, -1))[1] != header.producer_epoch:
        written[header.producer_id] = (-1, header.producer_epoch)


class _Transactions:
    """Which transactions are open where a compaction has come to, and how they will end."""

    def __init__(self, aborted: Sequence[AbortedSpan]) -> None:
        # Those that begin further on, the nearest last.
        self._ahead = sorted(aborted, key=_first_offset, reverse=True)
        self._aborting: dict[int, AbortedSpan] = {}
        self._with_batches: set[int] = set()
        self.kept: list[AbortedSpan] = []

    def done_with(self, header: BatchHeader, data: bytes, at: int) -> bool:
        """Return whether a batch is of no more use; to be told of every batch, in order.

        A data batch, because its transaction was aborted; a marker, because no batch of its transaction is
        left.
        """
        while self._ahead and self._ahead[-1].first_offset <= header.last_offset:
            span = self._ahead.pop()
            self._aborting.setdefault(span.producer_id, span)
        if header.control:
            return self._ended(header, data, at)
        if not header.transactional:
            return False
        self._with_batches.add(header.producer_id)
        return header.producer_id in self._aborting

    def _ended(self, header: BatchHeader, data: bytes, at: int) -> bool:
        if header.count == 0:
            return True
        marker = marker_of(data, at)
        if marker is None:
            return False
        met_batches = header.producer_id in self._with_batches
        self._with_batches.discard(header.producer_id)
        if not marker.commit:
            span = self._aborting.pop(header.producer_id, None)
            met_batches = met_batches and span is not None
            if span is not None and met_batches:
                self.kept.append(span)
        return not met_batches


def _first_offset(span: AbortedSpan) -> int:
    return span.first_offset


def _batches(plan: CompactionPlan, base: int, disk: Disk) -> Iterator[Sound]:
    """Yield the batches of a closed segment. StorageFailed says which file is damaged, and where."""
    path = f"{plan.directory}/{name_of(base)}{LOG}"
    file = disk.open(path)
    try:
        size, reached = file.size(), 0
        for found in sound_batches(file, size, base_offset=base):
            yield found
            reached = found.position + found.header.size
    finally:
        file.close()
    if reached != size:
        raise StorageFailed(f"{path} is damaged at byte {reached}")


def _records_of(plan: CompactionPlan, base: int, found: Sound) -> tuple[list[Record], bytes]:
    """Return the records of a batch, and their bytes, not compressed. StorageFailed, with the file, for those
    that cannot be decoded.
    """
    header, start = found.header, found.at + HEADER_SIZE
    try:
        data = decompress(codec_of(header.codec), found.data[start : found.at + header.size])
        return list(records_in(data, header)), data
    except Corrupt as error:
        path = f"{plan.directory}/{name_of(base)}{LOG}"
        raise StorageFailed(f"{path} cannot be decoded from byte {found.position} on: {error}") from error


def _clean_group(
    plan: CompactionPlan,
    bases: tuple[int, ...],
    newest: _Newest,
    transactions: _Transactions,
    disk: Disk,
) -> SegmentGroup:
    """Write what stays of some segments into one, flushed to the disk, with its indexes."""
    transactions.kept = []
    writing = Segment.create(
        disk, plan.directory, bases[0], now_ms=plan.now_ms, interval=plan.interval, suffix=CLEANED
    )
    try:
        for base in bases:
            for found in _batches(plan, base, disk):
                done = transactions.done_with(*found[1:])
                kept = _kept(plan, base, found, newest, done=done)
                if kept is not None:
                    head, batch = kept
                    span = (head, head.base_offset, head.max_timestamp)
                    writing.append([batch], len(batch), [span], sync=False)
        writing.settle()
        writing.aborted = AbortedIndex(transactions.kept)
        writing.settle_aborted()
        writing.sync_aborted()
        writing.sync_indexes()
        writing.file.sync()
    finally:
        writing.release()
    return SegmentGroup(bases, writing.size, tuple(transactions.kept))


def _kept(
    plan: CompactionPlan, base: int, found: Sound, newest: _Newest, *, done: bool
) -> tuple[BatchHeader, bytes] | None:
    """Return the header and bytes that stay of a batch; None if nothing does."""
    header = found.header
    if done and (not header.control or _horizon_passed(header, plan)):
        return _emptied(header) if _must_stay(header, plan, newest.written) else None
    records, data = _records_of(plan, base, found)
    stays = [header.control or _stays(record, header, newest.offsets, plan) for record in records]
    staying = list(itertools.compress(records, stays))
    if not staying:
        return _emptied(header) if _must_stay(header, plan, newest.written) else None
    waits = done or (not header.control and any(record.value is None for record in staying))
    waits = waits and not header.attributes & HORIZON_BIT
    if waits or len(staying) < len(records):
        pieces = list(itertools.compress(pieces_of(data, len(records)), stays))
        dated = _with_horizon(header, pieces, plan.wall_ms + plan.delete_retention_ms) if waits else None
        if dated is not None or len(staying) < len(records):
            return _rebuilt(staying, *(dated or (header, pieces)))
    return header, found.data[found.at : found.at + header.size]


def _must_stay(header: BatchHeader, plan: CompactionPlan, written: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether a batch is needed for its offsets or for what its producer is known by."""
    if header.last_offset + 1 == plan.upto:
        return True
    if header.producer_id not in written:
        return False
    last_offset, epoch = written[header.producer_id]
    if last_offset >= 0:
        return last_offset == header.last_offset
    return header.control and header.producer_epoch == epoch


def _horizon_passed(header: BatchHeader, plan: CompactionPlan) -> bool:
    return bool(header.attributes & HORIZON_BIT) and header.base_timestamp <= plan.now_ms


def _stays(record: Record, header: BatchHeader, newest: dict[bytes, int], plan: CompactionPlan) -> bool:
    if record.key is None:
        return False
    if record.offset < newest.get(_short(record.key), -1):
        return False
    return record.value is not None or not _horizon_passed(header, plan)


# -- batches with fewer records


def _rebuilt(
    records: Sequence[Record], header: BatchHeader, pieces: Sequence[bytes]
) -> tuple[BatchHeader, bytes]:
    """Return a batch of these records. Its offsets and sequences still span what they did."""
    body = compress(CODECS[header.codec], b"".join(pieces))
    newest = header.max_timestamp
    if not header.append_time:
        newest = max(NO_TIMESTAMP, *(record.timestamp for record in records))
    header = header._replace(max_timestamp=newest, count=len(records))
    return sealed(header, body)


def _with_horizon(
    header: BatchHeader, pieces: Sequence[bytes], horizon_ms: int
) -> tuple[BatchHeader, list[bytes]] | None:
    """Return a batch whose tombstones may go at `horizon_ms`, which takes the base timestamp's place.

    None where 64 bits have no room for it, or for how far from it a record is: then the tombstones stay for
    good, as in Kafka with a delete.retention.ms that ends beyond all times.
    """
    moved = [
        piece for one in pieces if (piece := shifted(one, header.base_timestamp - horizon_ms)) is not None
    ]
    if len(moved) < len(pieces) or horizon_ms > MOST_INT64:
        return None
    return header._replace(attributes=header.attributes | HORIZON_BIT, base_timestamp=horizon_ms), moved


def _emptied(header: BatchHeader) -> tuple[BatchHeader, bytes]:
    """Return the header of a batch alone, which keeps its offsets and its producer's sequence in the log."""
    flags = header.attributes & ~(HORIZON_BIT | CODEC_BITS)
    empty = header._replace(attributes=flags, count=0, base_timestamp=-1)
    return sealed(empty, b"")


def _short(key: bytes) -> bytes:
    """Return a key, or a digest of a long one, so that a million keys need little memory."""
    return key if len(key) <= LONGEST_KEY else b"#" + blake2b(key, digest_size=LONGEST_KEY).digest()


# -- the swap


def cleaned_to_swap(stem: str, disk: Disk) -> None:
    """From here on the compacted segment counts: opening after a crash puts it in place.

    Where the disk refuses nothing has changed: the log's file, which decides, is renamed last.
    """
    _rename(stem, CLEANED, SWAP, disk)


def swap_to_final(stem: str, disk: Disk) -> None:
    """Give a compacted segment its name, once those that it replaces have gone.

    What has it already, because the disk refused the rest before, keeps it.
    """
    for ending in FILES:
        with suppress(FileNotFoundError):
            disk.rename(stem + ending + SWAP, stem + ending)


def _rename(stem: str, old: str, new: str, disk: Disk) -> None:
    for ending in FILES:
        try:
            disk.rename(stem + ending + old, stem + ending + new)
        except FileNotFoundError:
            if ending != ABORTED:  # which most segments do not have
                raise


def discard(plan: CompactionPlan, disk: Disk) -> None:
    """Remove what was written for a plan that comes to nothing."""
    for bases in plan.groups:
        for ending in FILES:
            disk.remove(f"{plan.directory}/{name_of(bases[0])}{ending}{CLEANED}")
