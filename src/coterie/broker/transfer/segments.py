"""A partition's log in a database as segments of Apache Kafka's format, but for their indexes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from coterie.base.errors import CoterieError
from coterie.broker.cluster.image import Image
from coterie.broker.cluster.postgres.rows import read_image
from coterie.storage.files import unusable
from coterie.storage.log.segment import LOG, OFFSETS_OF_A_SEGMENT, name_of
from coterie.storage.postgres.advice import connected
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.copying import LogPlace, read_chunks
from coterie.storage.postgres.schema import insist_on_schema, read_cluster
from coterie.storage.postgres.serial import Connection, transaction_of_command
from coterie.storage.remote.chunk import Chunk
from coterie.wire.records.batches import scan

SEGMENT_BYTES = 1 << 30
"""Kafka's `log.segment.bytes`."""
ONE_SNAPSHOT = "ISOLATION LEVEL REPEATABLE READ READ ONLY"


@asynccontextmanager
async def snapshot_of(address: DatabaseAddress) -> AsyncIterator[tuple[Connection, Image]]:
    """Yield a connection that sees the database as it is at one moment, and the metadata. Raises
    `CoterieError`, also for what fails within the block. What a disk refuses there is `written`'s.
    """
    async with connected(address) as connection:
        insist_on_schema(await read_cluster(connection), address)
        async with transaction_of_command(connection, ONE_SNAPSHOT):
            yield connection, await read_image(connection)


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Have what a disk refuses within be of a folder, and not be taken for the database's error. Raises
    `CoterieError`.
    """
    try:
        yield
    except OSError as error:
        raise CoterieError(unusable(str(folder), error)) from error


class WrittenLog(NamedTuple):
    """A log that was written: its start, its size, and whether offsets are missing in it."""

    start_offset: int
    size: int
    gaps: bool


async def write_segments(folder: Path, log: LogPlace, connection: Connection) -> WrittenLog:
    """Write the segments of a log to a new folder, a row at a time. Raises `CoterieError`, one of `LOST`."""
    with written(folder):
        writer = _Segments(folder, log.start_offset)
    try:
        async for chunk in read_chunks(connection, log):
            with written(folder):
                writer.write(chunk)
        with written(folder):
            return writer.end(log.end_offset)
    finally:
        with written(folder):
            writer.close()


def write_end(folder: Path, end_offset: int) -> None:
    """Write an empty segment, which says of a log where it goes on. Raises OSError."""
    (folder / f"{name_of(end_offset)}{LOG}").touch()


class _Segments:
    """The segments of a log that is being written, the last of them open."""

    def __init__(self, folder: Path, start_offset: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._start_offset = start_offset
        self._file: BinaryIO | None = None
        self._base = self._size = self._written = 0
        self._expected = start_offset
        self._gaps = False

    def write(self, chunk: Chunk) -> None:
        """Write a row, to a new segment if the last is full."""
        data = bytes(chunk.data)
        if self._file is None:
            self._expected = min(chunk.base_offset, self._start_offset)
            self._begin(self._expected)
        elif self._size + len(data) > SEGMENT_BYTES or chunk.last_offset - self._base > OFFSETS_OF_A_SEGMENT:
            self._begin(chunk.base_offset)
        for _, header in scan(data):
            self._gaps |= header.base_offset > self._expected
            self._expected = header.last_offset + 1
        assert self._file is not None
        self._file.write(data)
        self._size += len(data)
        self._written += len(data)

    def end(self, end_offset: int) -> WrittenLog:
        """Return the log, which goes on at an offset: where nothing lies before that, or is all deleted, in a
        segment that is empty.
        """
        if self._file is None or self._expected < end_offset:
            self._gaps |= self._file is not None
            self._begin(end_offset)
        return WrittenLog(self._start_offset, self._written, self._gaps)

    def _begin(self, base_offset: int) -> None:
        self.close()
        self._base, self._size = base_offset, 0
        self._file = (self._folder / f"{name_of(base_offset)}{LOG}").open("wb")

    def close(self) -> None:
        """Close the last segment."""
        if self._file is not None:
            self._file.close()
