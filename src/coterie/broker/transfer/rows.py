"""A partition's log in files as the rows that a database has of it. Pure, but for the files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coterie.base.errors import Corrupt
from coterie.storage.remote.chunk import CHUNK_BYTES, Chunk
from coterie.storage.remote.heads import heads_of
from coterie.wire.records.batches import BatchHeader, check_crc, scan

if TYPE_CHECKING:
    from coterie.storage.log.partition import PartitionLog

READ_BYTES = 1 << 20


class _Growing:
    """A row that takes batches as long as they are of its leader epoch, and it is not too large."""

    def __init__(self) -> None:
        self._batches: list[tuple[BatchHeader, bytes]] = []
        self._size = 0

    def takes(self, header: BatchHeader) -> bool:
        """Return whether a batch has a place in it. Offsets that are missing between are no matter."""
        if not self._batches:
            return True
        first, _ = self._batches[0]
        return first.leader_epoch == header.leader_epoch and self._size + header.size <= CHUNK_BYTES

    def add(self, header: BatchHeader, batch: bytes) -> None:
        self._batches.append((header, batch))
        self._size += header.size

    def done(self, partition_id: int) -> Chunk:
        headers = [header for header, _ in self._batches]
        data = b"".join([batch for _, batch in self._batches])
        spans = [(header, header.base_offset, header.max_timestamp) for header in headers]
        return Chunk(
            partition_id,
            headers[0].base_offset,
            headers[-1].last_offset,
            headers[0].leader_epoch,
            max(header.max_timestamp for header in headers),
            len(headers),
            heads_of(data, spans),
            data,
        )


def chunks_of_log(log: PartitionLog, partition_id: int) -> Iterator[Chunk]:
    """Yield the rows of a log from its start on, its batches as they are; some megabytes are held at a time.

    Raises `Corrupt` for a batch that is damaged, and `StorageFailed`.
    """
    growing = _Growing()
    empty = True
    for header, batch in batches_of(log):
        if not growing.takes(header):
            yield growing.done(partition_id)
            growing = _Growing()
        growing.add(header, batch)
        empty = False
    if not empty:
        yield growing.done(partition_id)


def batches_of(log: PartitionLog) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the batches of a log from the one that holds its start on. Raises as `chunks_of_log`."""
    offset = log.start_offset
    while data := log.read(offset, max_bytes=READ_BYTES):
        for at, header in scan(data):
            if not check_crc(data, at, header):
                raise Corrupt(
                    f"a batch of {log.name} at offset {header.base_offset}", expected="its checksum"
                )
            yield header, data[at : at + header.size]
            offset = header.last_offset + 1
