"""The heads of batches: what a row repeats of them, so that producers are known without reading its data.

The head of a batch is its header. Of a control batch it is all of it: how a transaction has ended, and by
which coordinator, its header does not say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coterie.storage.log.placing import Span
from coterie.storage.log.producers import Completed, ProducerState, marker_of
from coterie.wire.records.batches import HEADER_SIZE, PRODUCER_ID_AT, BatchHeader, read_header

NEGATIVE = 0xFF
"""The first byte of -1."""


def heads_of(data: bytes, spans: Sequence[Span]) -> bytes:
    """Return the heads of batches, as they are written."""
    if len(spans) == 1:
        return data[: _size_of(spans[0][0])]
    at, heads = 0, []
    for header, _, _ in spans:
        heads.append(data[at : at + _size_of(header)])
        at += header.size
    return b"".join(heads)


def scan_heads(heads: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the place of each head, and its header."""
    at = 0
    while at < len(heads):
        header = read_header(heads, at)
        yield at, header
        at += _size_of(header)


def has_producers(heads: bytes) -> bool:
    """Return whether a batch is a producer's. Control batches are, so that each head before one has the same
    size, and the first byte of its producer id, which is negative where there is none, is where it is looked
    for here.
    """
    return heads[PRODUCER_ID_AT::HEADER_SIZE].count(NEGATIVE) * HEADER_SIZE != len(heads)


def learn_heads(producers: ProducerState, heads: bytes) -> list[Completed] | None:
    """Let producers know of batches of which there are the heads; return the transactions that they end, None
    where none is a producer's.
    """
    if not has_producers(heads):
        return None
    ended: list[Completed] = []
    for at, header in scan_heads(heads):
        if header.producer_id < 0:
            continue
        timestamp, offset = header.max_timestamp, header.base_offset
        if not header.control:
            producers.record(header, base_offset=offset, timestamp=timestamp)
        elif (marker := marker_of(heads, at, header)) is not None:
            completed = producers.end_transaction(header, marker, offset=offset, timestamp=timestamp)
            if completed is not None:
                ended.append(completed)
    return ended


def _size_of(header: BatchHeader) -> int:
    return header.size if header.control else HEADER_SIZE
