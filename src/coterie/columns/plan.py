"""Which batches of a Fetch's bytes are to be decoded, from their headers alone.

Here the rules live that need no look into a record: batches cut by the fetch, control batches, aborted
transactions, ranges, checksums, and decompression, bounded in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coterie.base.errors import Corrupt
from coterie.wire import batches
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
    """Bytes that hold the records of some batches, uncompressed, and where in them."""

    data: bytes
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> int:
        """As many rows as there may be; fewer if the range cuts some."""
        return sum(segment.rows for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Plan:
    """Whole batches to decode, and the offset that the next fetch starts from."""

    records: bytes
    wanted: tuple[tuple[int, batches.BatchHeader], ...]
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
    whole = batches.scan(records)
    visible = whole if aborted is None else without_aborted(whole, aborted)
    wanted = []
    for at, header in visible:
        if header.control or header.last_offset < first or header.base_offset >= until:
            continue
        if not batches.check_crc(records, at, header):
            raise Corrupt("record batch", at=at, expected=f"checksum {header.crc:#010x}")
        wanted.append((at, header))
    next_offset = max(first, whole[-1][1].last_offset + 1) if whole else first
    return Plan(records, tuple(wanted), first, until, next_offset)


def chunks_of(planned: Plan, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yield the planned batches, decompressed, about `chunk_bytes` at a time."""
    pieces: list[tuple[bytes, batches.BatchHeader]] = []
    size = 0
    for at, header in planned.wanted:
        payload = payload_of(planned.records, at, header)
        if pieces and size + len(payload) > chunk_bytes:
            yield chunk_from(pieces)
            pieces, size = [], 0
        pieces.append((payload, header))
        size += len(payload)
    if pieces:
        yield chunk_from(pieces)


def payload_of(records: bytes, at: int, header: batches.BatchHeader) -> bytes:
    """Return the batch's records, decompressed; refuse a count that they cannot hold."""
    body = memoryview(records)[at + batches.HEADER_SIZE : at + header.size]
    payload = batches.decompress(batches.codec_of(header.codec), bytes(body)) if header.codec else body
    if not 0 <= header.count <= len(payload) // LEAST_RECORD:
        raise Corrupt("record batch", at=at, expected=f"{header.count} records in {len(payload)} bytes")
    return payload  # type: ignore[return-value]  # a view joins like bytes


def chunk_from(pieces: Sequence[tuple[bytes, batches.BatchHeader]]) -> Chunk:
    """Return one chunk of the pieces laid end to end."""
    segments = []
    at = 0
    for payload, header in pieces:
        end = at + len(payload)
        segments.append(segment_of(header, at=at, end=end))
        at = end
    return Chunk(b"".join(payload for payload, _ in pieces), tuple(segments))


def segment_of(header: batches.BatchHeader, *, at: int, end: int) -> Segment:
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
