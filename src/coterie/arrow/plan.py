"""Which batches of a Fetch's bytes are to be decoded, from their headers alone.

Here the rules live that need no look into a record: batches cut by the fetch, control batches, aborted
transactions, ranges, checksums, and decompression, bounded in memory.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from coterie.base.errors import Corrupt
from coterie.wire.records.batches import (
    APPEND_TIME_BIT,
    ATTRIBUTES_AT,
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_STARTS,
    BatchHeader,
    ends_of,
)
from coterie.wire.records.checksum import crc32c
from coterie.wire.records.compression import (
    codec_of,
    decompress,
)
from coterie.wire.records.visible import AbortedTransaction, without_aborted

Headers: TypeAlias = "np.ndarray[Any, np.dtype[np.void]]"
Places: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

# The headers of a Fetch's batches as a table: a fetch has hundreds of batches, and most are small.
KINDS = (">i8", ">i4", ">i4", "i1", ">u4", ">i2", ">i4", ">i8", ">i8", ">i8", ">i2", ">i4", ">i4")
HEADER = np.dtype(list(zip(BatchHeader._fields, KINDS, strict=True)))
assert HEADER.itemsize == HEADER_SIZE
SPAN = np.arange(HEADER_SIZE)

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


AT, END, ROWS, APPEND_TIME = map(Segment._fields.index, ("at", "end", "rows", "append_time"))
FROM_HEADER = {ROWS: "count"} | {
    column: name for column, name in enumerate(Segment._fields) if name in BatchHeader._fields
}


Piece: TypeAlias = tuple[bytes, list[int]]
"""What was in a compressed batch, and its segment."""


class Chunk(NamedTuple):
    """Bytes among which the records of some batches are, uncompressed, and where: a row for each segment."""

    data: bytes
    table: Places

    @property
    def segments(self) -> list[Segment]:
        """The segments one by one."""
        return [Segment._make(row) for row in self.table.tolist()]

    @property
    def rows(self) -> int:
        """As many rows as there may be; fewer if the range cuts some."""
        return int(self.table[:, ROWS].sum())

    @property
    def size(self) -> int:
        """How many bytes the records take."""
        return int((self.table[:, END] - self.table[:, AT]).sum())


@dataclass(frozen=True, slots=True)
class Plan:
    """Whole batches to decode, and the offset that the next fetch starts from. A view does for `records`."""

    records: bytes
    starts: Places
    headers: Headers
    first: int
    until: int
    next_offset: int


def headers_in(records: bytes) -> tuple[Places, Headers]:
    """Return the places of whole batches, and their headers. A batch that is cut at the end is left out."""
    ends = ends_of(records)
    starts = np.array([0, *ends[:-1]] if ends else [], np.int64)
    gathered = np.frombuffer(records, np.uint8)[starts[:, np.newaxis] + SPAN]
    return starts, gathered.view(HEADER)[:, 0]


def header_rows(headers: Headers) -> list[BatchHeader]:
    """Return the headers one by one."""
    return [BatchHeader._make(row) for row in headers.tolist()]


def plan(
    records: bytes, *, first: int, until: int, aborted: Collection[AbortedTransaction] | None = None
) -> Plan:
    """Return the batches of these bytes that hold records in [first, until), and the offset to go on from.

    `aborted` is None for a reader that sees everything, else what Fetch told a read_committed reader.
    A tail cut by the fetch is left for the next one. A batch that fails its checksum is `Corrupt`.
    """
    starts, headers = headers_in(records)
    bases = headers["base_offset"].astype(np.int64)
    lasts = bases + headers["last_offset_delta"]
    wanted = (headers["attributes"] & CONTROL_BIT == 0) & (lasts >= first) & (bases < until)
    if aborted:
        wanted &= visible(headers, aborted)
    next_offset = max(first, int(lasts[-1]) + 1) if len(lasts) else first
    starts, headers = starts[wanted], headers[wanted]
    check_sums(records, starts, headers)
    return Plan(records, starts, headers, first, until, next_offset)


def visible(headers: Headers, aborted: Iterable[AbortedTransaction]) -> np.ndarray:
    """Return a mask of the batches that belong to no aborted transaction."""
    seen = np.zeros(len(headers), np.bool_)
    seen[[number for number, _ in without_aborted(list(enumerate(header_rows(headers))), aborted)]] = True
    return seen


def check_sums(records: bytes, starts: Places, headers: Headers) -> None:
    """Raise Corrupt for the first batch whose checksum is not that of its bytes."""
    ends = starts + (headers["length"] + LENGTH_STARTS)
    with memoryview(records) as view:
        for at, end, crc in zip(starts.tolist(), ends.tolist(), headers["crc"].tolist(), strict=True):
            if crc32c(view[at + ATTRIBUTES_AT : end]) != crc:
                raise Corrupt("record batch", at=at, expected=f"checksum {crc:#010x}")


def segments_of(starts: Places, headers: Headers) -> Places:
    """Return the segments of batches as they lie, a row for each."""
    table = np.empty((len(starts), len(Segment._fields)), np.int64)
    table[:, AT] = starts + HEADER_SIZE
    table[:, END] = starts + LENGTH_STARTS + headers["length"]
    for column, name in FROM_HEADER.items():
        table[:, column] = headers[name]
    table[:, APPEND_TIME] = headers["attributes"] & APPEND_TIME_BIT != 0
    return table


def chunks_of(planned: Plan, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yield the planned batches, decompressed, about `chunk_bytes` at a time."""
    table = segments_of(planned.starts, planned.headers)
    codecs = planned.headers["attributes"] & CODEC_BITS
    turns = np.flatnonzero(np.diff(codecs != 0)) + 1
    for first, until in pairwise([0, *turns.tolist(), len(table)] if len(table) else []):
        some = table[first:until]
        if codecs[first]:
            pieces = unpacked(planned.records, some, codecs[first:until].tolist())
            yield from (joined(held) for held in filled(pieces, chunk_bytes))
        else:
            yield from in_place(planned.records, some, chunk_bytes)


def in_place(records: bytes, table: Places, chunk_bytes: int) -> Iterator[Chunk]:
    """Yield chunks of batches that are not compressed: their records stay where they are."""
    sizes = table[:, END] - table[:, AT]
    lying = (table[:, ROWS] < 0) | (table[:, ROWS] > sizes // LEAST_RECORD)
    if lying.any():
        raise refused(table[np.argmax(lying)])
    reached = np.cumsum(sizes)
    first = 0
    while first < len(table):
        before = int(reached[first - 1]) if first else 0
        until = max(first + 1, int(np.searchsorted(reached, before + chunk_bytes, "right")))
        yield Chunk(records, table[first:until])
        first = until


def unpacked(records: bytes, table: Places, codecs: Sequence[int]) -> Iterator[Piece]:
    """Yield the records of compressed batches, decompressed, and each one's segment in its own bytes."""
    for row, codec in zip(table.tolist(), codecs, strict=True):
        payload = decompress(codec_of(codec), bytes(records[row[AT] : row[END]]))
        row[AT], row[END] = 0, len(payload)
        if not 0 <= row[ROWS] <= len(payload) // LEAST_RECORD:
            raise refused(row)
        yield payload, row


def refused(row: Sequence[int]) -> Corrupt:
    """Return the error for a batch whose header counts more records than can be in it."""
    segment = Segment._make(map(int, row))
    return Corrupt(
        "record batch", at=segment.at, expected=f"{segment.rows} records in {segment.end - segment.at} bytes"
    )


def filled(pieces: Iterable[Piece], chunk_bytes: int) -> Iterator[list[Piece]]:
    """Yield as many pieces as make a chunk; a larger one stands alone."""
    held: list[Piece] = []
    size = 0
    for payload, row in pieces:
        if held and size + len(payload) > chunk_bytes:
            yield held
            held, size = [], 0
        held.append((payload, row))
        size += len(payload)
    if held:
        yield held


def joined(pieces: Sequence[Piece]) -> Chunk:
    """Return one chunk of the pieces laid end to end."""
    table = np.array([row for _, row in pieces], np.int64)
    table[:, END] = np.cumsum(table[:, END])
    table[1:, AT] = table[:-1, END]
    return Chunk(b"".join(payload for payload, _ in pieces), table)
