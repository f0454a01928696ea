"""What a lane sends: appends that are placed, joined to chunks, which are the rows of the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coterie.storage.log.aborted import AbortedSpan

if TYPE_CHECKING:
    from coterie.storage.disk import Buffer
    from coterie.storage.log.contract import Landed

CHUNK_BYTES = 128 << 10
"""Up to this size appends are joined: larger rows cost a database more for each byte."""

RowKey: TypeAlias = tuple[int, int]
"""The key of a chunk: its partition's id and its base offset."""

RowIdentity: TypeAlias = tuple[int, int, int]
"""The key of a chunk and its leader epoch: another leader's row in the same place is another."""


class PendingAppend(NamedTuple):
    """One append to one partition that is placed and has not landed.

    `parts` are the bytes of its batches, `size` long in all, with offsets and leader epoch stamped; `heads`
    are those of the batches, joined (`heads`). An abort marker brings the transactions that it has `aborted`.
    `done` takes word of it, and raises nothing.
    """

    partition_id: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int
    batches: int
    size: int
    parts: Sequence[Buffer]
    heads: bytes
    done: Landed
    aborted: Sequence[AbortedSpan] = ()


class Chunk(NamedTuple):
    """A row: whole batches of one partition that follow each other, of one leader epoch."""

    partition_id: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int
    batches: int
    heads: bytes
    data: Buffer
    aborted: Sequence[AbortedSpan] = ()

    @property
    def key(self) -> RowKey:
        """The key of this row."""
        return self.partition_id, self.base_offset

    @property
    def identity(self) -> RowIdentity:
        """The key of this row, and who has written it."""
        return self.partition_id, self.base_offset, self.leader_epoch


def chunks_of(appends: Iterable[PendingAppend]) -> list[Chunk]:
    """Return the rows for appends, those of a partition in their order.

    An append is never split. One that would make a row longer than `CHUNK_BYTES`, that is of another leader
    epoch than the one before or does not follow it, begins the next row.
    """
    rows: list[list[PendingAppend]] = []
    growing: dict[int, tuple[list[PendingAppend], int]] = {}
    for append in appends:
        partition_id = append.partition_id
        row, size = growing.get(partition_id, _NO_ROW)
        size += append.size
        if row and size <= CHUNK_BYTES and _follows(row[-1], append):
            row.append(append)
        else:
            row, size = [append], append.size
            rows.append(row)
        growing[partition_id] = row, size
    return [_joined(row) for row in rows]


_NO_ROW: tuple[list[PendingAppend], int] = ([], 0)


def _follows(before: PendingAppend, append: PendingAppend) -> bool:
    return append.base_offset == before.last_offset + 1 and append.leader_epoch == before.leader_epoch


def _joined(row: list[PendingAppend]) -> Chunk:
    first = row[0]
    if len(row) == 1:
        parts = first.parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return Chunk(*first[:6], first.heads, data, first.aborted)
    return Chunk(
        first.partition_id,
        first.base_offset,
        row[-1].last_offset,
        first.leader_epoch,
        max([append.max_timestamp for append in row]),
        sum([append.batches for append in row]),
        b"".join([append.heads for append in row]),
        b"".join([part for append in row for part in append.parts]),
        tuple([span for append in row for span in append.aborted]),
    )
