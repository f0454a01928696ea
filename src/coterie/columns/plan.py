"""Which batches of a Fetch's bytes are to be decoded, from their headers alone.

Here the rules live that need no look into a record: batches cut by the fetch, control batches, aborted
transactions, ranges, checksums, and decompression, bounded in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeAlias

from coterie.base.errors import Corrupt
from coterie.wire.batches import HEADER_SIZE, BatchHeader, check_crc, codec_of, decompress, scan
from coterie.wire.visible import AbortedTransaction, without_aborted

__all__ = ["AbortedTransaction", "Chunk", "Plan", "Segment", "chunks_of", "plan", "segment_of"]

# A record of no key, no value and no headers: length, attributes, two deltas, two lengths, a count.
LEAST_RECORD = 7
# Uncompressed payload that one Arrow batch is made of, at most (a single larger batch stands alone).
CHUNK_BYTES = 4 * 1024 * 1024


class Segment(NamedTuple):
    """The records of one batch: they lie in the chunk's data between `at` and `end`."""

    at: int
    end: int
    rows: int
    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    append_time: int


class Chunk(NamedTuple):
    """Bytes among which the records of some batches are, uncompressed, and where."""

    data: bytes
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> int:
        """As many rows as there may be; fewer if the range cuts some."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size(self) -> int:
        """How many bytes the records take."""
        return sum(segment.end - segment.at for segment in self.segments)


Located: TypeAlias = tuple[int, BatchHeader]
Piece: TypeAlias = tuple[bytes, Segment]


@dataclass(frozen=True, slots=True)
class Plan:
    """Whole batches to decode, and the offset that the next fetch starts from."""

    records: bytes
    wanted: tuple[Located, ...]
    first: int
    until: int
    next_offset: int


def plan(
    records: bytes, *, first: int, until: int, aborted: Iterable[AbortedTransaction] | None = None
) -> Plan:
    """Return what of these bytes holds records in [first, until), and where to go on.

    `aborted` is None for a reader that sees everything, else what Fetch told a read_committed reader.
    A tail cut by the fetch is left for the next one. A batch that fails its checksum is `Corrupt`.
    """
    whole = scan(records)
    visible = whole if aborted is None else without_aborted(whole, aborted)
    wanted = []
    for at, header in visible:
        if header.control or header.last_offset < first or header.base_offset >= until:
            continue
        if not check_crc(records, at, header):
            raise Corrupt("record batch", at=at, expected=f"checksum {header.crc:#010x}")
        wanted.append((at, header))
    next_offset = max(first, whole[-1][1].last_offset + 1) if whole else first
    return Plan(records, tuple(wanted), first, until, next_offset)


def chunks_of(planned: Plan, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yield the planned batches, decompressed, about `chunk_bytes` at a time."""
    for packed, batches in groupby(planned.wanted, lambda batch: bool(batch[1].codec)):
        pieces = (unpacked if packed else in_place)(planned.records, batches)
        for some in filled(pieces, chunk_bytes):
            yield joined(some) if packed else Chunk(planned.records, tuple(segment for _, segment in some))


def in_place(records: bytes, batches: Iterable[Located]) -> Iterator[Piece]:
    """Yield where the records of batches lie that are not compressed: they stay there."""
    for at, header in batches:
        yield records, checked(segment_of(header, at=at + HEADER_SIZE, end=at + header.size), at)


def unpacked(records: bytes, batches: Iterable[Located]) -> Iterator[Piece]:
    """Yield the records of compressed batches, each batch's from 0 on."""
    for at, header in batches:
        payload = decompress(codec_of(header.codec), records[at + HEADER_SIZE : at + header.size])
        yield payload, checked(segment_of(header, at=0, end=len(payload)), at)


def checked(segment: Segment, at: int) -> Segment:
    """Return the segment of the batch at `at`; refuse a count that it cannot hold."""
    size = segment.end - segment.at
    if not 0 <= segment.rows <= size // LEAST_RECORD:
        raise Corrupt("record batch", at=at, expected=f"{segment.rows} records in {size} bytes")
    return segment


def filled(pieces: Iterable[Piece], chunk_bytes: int) -> Iterator[list[Piece]]:
    """Yield as many pieces as make a chunk; a larger one stands alone."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        _, segment = piece
        more = segment.end - segment.at
        if held and size + more > chunk_bytes:
            yield held
            held, size = [], 0
        held.append(piece)
        size += more
    if held:
        yield held


def joined(pieces: Sequence[Piece]) -> Chunk:
    """Return one chunk of the pieces laid end to end."""
    segments = []
    at = 0
    for payload, segment in pieces:
        segments.append(segment._replace(at=at, end=at + len(payload)))
        at += len(payload)
    return Chunk(b"".join(payload for payload, _ in pieces), tuple(segments))


def segment_of(header: BatchHeader, *, at: int, end: int) -> Segment:
    """Return where the records of a batch lie, with what its header says of them."""
    return Segment(
        at=at,
        end=end,
        rows=header.count,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        append_time=int(header.append_time),
    )
