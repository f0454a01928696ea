"""Keeping the newest record of each key: when a log needs it, and what stays of each batch. No input or
output.

A log is walked over twice, its batches in their order: a `Survey` learns what is newest, a `Sweep` says what
stays. Rules as Apache Kafka's: tombstones stay for delete.retention.ms from the first compaction that meets
them; a batch with its producer's last sequence stays, if need be empty; so does the last batch of a round.
Records of aborted transactions go at once, and replace no others. A marker stays as long as there are batches
of its transaction, and then for delete.retention.ms more. Other than in Apache Kafka, a producer's last
sequence is the last in the part that is compacted: what it has written since may not be flushed, and must not
have replaced what is.
"""

import itertools
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from coterie.storage.config import LogConfig
from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.log.producers import marker_of
from coterie.storage.rewrite import sealed
from coterie.wire.records.batches import (
    CODEC_BITS,
    HEADER_SIZE,
    HORIZON_BIT,
    MOST_INT64,
    BatchHeader,
    Record,
    pieces_of,
    records_in,
    shifted,
)
from coterie.wire.records.compression import CODECS, codec_of, compress, decompress

LONGEST_KEY = 32
NO_TIMESTAMP = -1


# -- when


class Need(NamedTuple):
    """How much a log needs to be compacted; the greater need goes first, in Kafka's order."""

    overdue_ms: int
    dirty_share: float


def need_of(
    config: LogConfig, *, clean_bytes: int, dirty_bytes: int, oldest_dirty_ms: int, now_ms: int
) -> Need | None:
    """Return the need of a log of which enough is dirty, by its share of the whole or by its age."""
    if not config.compacted or not dirty_bytes:
        return None
    overdue_ms = max(0, now_ms - oldest_dirty_ms - config.max_compaction_lag_ms)
    share = dirty_bytes / (clean_bytes + dirty_bytes)
    return Need(overdue_ms, share) if overdue_ms or share > config.min_cleanable_dirty_ratio else None


# -- what stays


class CleaningTerms(NamedTuple):
    """What the batches of a log are gone by: how far it was compacted before, up to where it is now, the
    times, the `producers` that the log remembers, and its aborted transactions, those from its start on.
    """

    first_dirty: int
    upto: int
    now_ms: int
    wall_ms: int
    delete_retention_ms: int
    producers: frozenset[int]
    aborted: Sequence[AbortedSpan]
    listed: frozenset[int] = frozenset()
    """The markers of transactions that readers may go by as aborted. They stay: else these would pass over
    what its producer has written since. In files batches and list are put in place at once.
    """


class Newest(NamedTuple):
    """What is newest in the part that is compacted."""

    offsets: dict[bytes, int]
    """Of each key in the dirty part the last offset, aborted records aside."""
    written: dict[int, tuple[int, int]]
    """Of each producer that is remembered the offset of its last record, or -1, and its epoch."""


class Survey:
    """The first walk over a log: what is `newest` of what it has met."""

    def __init__(
        self, first_dirty: int, producers: frozenset[int], aborted: Sequence[AbortedSpan] = ()
    ) -> None:
        self.newest = Newest({}, {})
        self._first_dirty = first_dirty
        self._producers = producers
        self._transactions = _Transactions([one for one in aborted if one.last_offset >= first_dirty])

    def take(self, header: BatchHeader, data: bytes, at: int) -> None:
        """Take the next batch, which lies in `data`. Raises `Corrupt` where it cannot be decoded."""
        if header.producer_id in self._producers:
            _note_written(self.newest.written, header)
        if header.last_offset < self._first_dirty:
            return
        if self._transactions.done_with(header, data, at) or header.control:
            return
        for record in _records_of(header, data, at)[0]:
            if record.key is not None:
                self.newest.offsets[_short(record.key)] = record.offset


def _note_written(written: dict[int, tuple[int, int]], header: BatchHeader) -> None:
    """Take note of a producer's batch or marker, in the log's order; a new epoch begins without records."""
    if not header.control:
        written[header.producer_id] = (header.last_offset, header.producer_epoch)
    elif written.get(header.producer_id, (-1, -1))[1] != header.producer_epoch:
        written[header.producer_id] = (-1, header.producer_epoch)


class Sweep:
    """The second walk over a log: what stays of each batch."""

    def __init__(self, terms: CleaningTerms, newest: Newest) -> None:
        self._terms, self._newest = terms, newest
        self._transactions = _Transactions(terms.aborted)

    def take_aborted(self) -> tuple[AbortedSpan, ...]:
        """Return the aborted transactions whose markers have come since this was asked last, and of which
        there may be batches still.
        """
        kept, self._transactions.kept = tuple(self._transactions.kept), []
        return kept

    def stays(self, header: BatchHeader, data: bytes, at: int) -> tuple[BatchHeader, bytes] | None:
        """Return the header and bytes that stay of the next batch, which lies in `data`; None if nothing
        does. Raises `Corrupt` where it cannot be decoded.
        """
        terms = self._terms
        done = self._transactions.done_with(header, data, at)
        if done and (not header.control or _may_go(header, terms)):
            return self._if_needed(header)
        records, body = _records_of(header, data, at)
        stays = [header.control or _stays(record, header, self._newest.offsets, terms) for record in records]
        staying = list(itertools.compress(records, stays))
        if not staying:
            return self._if_needed(header)
        waits = done or (not header.control and any(record.value is None for record in staying))
        waits = waits and not header.attributes & HORIZON_BIT
        if waits or len(staying) < len(records):
            pieces = list(itertools.compress(pieces_of(body, len(records)), stays))
            horizon_ms = terms.wall_ms + terms.delete_retention_ms
            dated = _with_horizon(header, pieces, horizon_ms) if waits else None
            if dated is not None or len(staying) < len(records):
                return _rebuilt(staying, *(dated or (header, pieces)))
        return header, data[at : at + header.size]

    def _if_needed(self, header: BatchHeader) -> tuple[BatchHeader, bytes] | None:
        """Return the batch without records, if it is needed for its offsets or for its producer."""
        return _emptied(header) if _must_stay(header, self._terms, self._newest.written) else None


class _Transactions:
    """Which transactions are open where a walk has come to, and how they will end."""

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
        marker = marker_of(data, at, header)
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


def _records_of(header: BatchHeader, data: bytes, at: int) -> tuple[list[Record], bytes]:
    """Return the records of a batch, and their bytes, not compressed. Raises `Corrupt`."""
    body = decompress(codec_of(header.codec), data[at + HEADER_SIZE : at + header.size])
    return list(records_in(body, header)), body


def _must_stay(header: BatchHeader, terms: CleaningTerms, written: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether a batch is needed for its offsets or for what its producer is known by."""
    if header.last_offset + 1 == terms.upto:
        return True
    if header.producer_id not in written:
        return False
    last_offset, epoch = written[header.producer_id]
    if last_offset >= 0:
        return last_offset == header.last_offset
    return header.control and header.producer_epoch == epoch


def _may_go(marker: BatchHeader, terms: CleaningTerms) -> bool:
    return _horizon_passed(marker, terms) and marker.base_offset not in terms.listed


def _horizon_passed(header: BatchHeader, terms: CleaningTerms) -> bool:
    return bool(header.attributes & HORIZON_BIT) and header.base_timestamp <= terms.now_ms


def _stays(record: Record, header: BatchHeader, newest: dict[bytes, int], terms: CleaningTerms) -> bool:
    if record.key is None:
        return False
    if record.offset < newest.get(_short(record.key), -1):
        return False
    return record.value is not None or not _horizon_passed(header, terms)


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
