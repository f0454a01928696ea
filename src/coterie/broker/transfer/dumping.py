"""A database written out as one data directory, as it is at one moment: `coterie serve --data` opens it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple
from uuid import UUID, uuid4

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition, uuid_text
from coterie.broker.cluster.image import Image
from coterie.broker.cluster.postgres.engine import ONE_SNAPSHOT, VERSION
from coterie.broker.cluster.postgres.rows import read_rows
from coterie.broker.topics.metadata_file import MetadataFile
from coterie.broker.topics.registry import FILE_NAME, Topics, new_id
from coterie.broker.topics.topic import Topic
from coterie.broker.transfer.directory import opened_directory
from coterie.storage.checkpoints import (
    CLEAN_OFFSETS,
    EPOCHS,
    META,
    PARTITION_METADATA,
    START_OFFSETS,
    Meta,
    write_epochs,
    write_meta,
    write_offsets,
    write_partition_metadata,
)
from coterie.storage.disk import OsDisk
from coterie.storage.files import unusable
from coterie.storage.log.segment import LOG, OFFSETS_OF_A_SEGMENT, name_of
from coterie.storage.postgres.connecting import LOST, DatabaseAddress, connect
from coterie.storage.postgres.copying import LogPlace, partition_ids, read_chunks, read_place
from coterie.storage.postgres.schema import insist_on_schema, read_cluster
from coterie.storage.postgres.serial import Connection, transaction
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.reading import epochs_of
from coterie.wire.records.batches import scan

SEGMENT_BYTES = 1 << 30
"""Kafka's `log.segment.bytes`."""
IDLE_MS = 600_000
"""What was read is written to a disk meanwhile, which may be slow."""
UNFINISHED = ".unfinished"
NEXT_PRODUCER_ID = "SELECT next_producer_id FROM coterie.cluster"


class Dumped(NamedTuple):
    """What was written out: of which cluster, and how much it is."""

    cluster_id: str
    topics: int
    partitions: int
    bytes: int


class WrittenLog(NamedTuple):
    """A log that was written: its start, its size, and whether offsets are missing in it."""

    start_offset: int
    size: int
    gaps: bool


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yield a folder that becomes the directory, which must not be there or be empty, after the block: it is
    opened as a broker would, which makes the indexes and looks at every batch.

    Where that fails nothing is left but the folder, `directory.unfinished`, which the next one removes.
    Raises `CoterieError`.
    """
    unfinished = directory.with_name(directory.name + UNFINISHED)
    try:
        if directory.exists() and any(directory.iterdir()):
            raise CoterieError(f"{directory} is not empty")
        with suppress(FileNotFoundError):
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
        yield unfinished
        with opened_directory(str(unfinished)):
            pass
        unfinished.rename(directory)
    except OSError as error:
        raise CoterieError(unusable(str(directory), error)) from error


async def dump(address: DatabaseAddress, into: Path, node_id: int) -> Dumped:
    """Write the files of a directory but for the indexes, for the broker of this id.

    Brokers may serve meanwhile. Raises `CoterieError`, OSError.
    """
    try:
        connection = await connect(address)
    except LOST as error:
        raise CoterieError(f"{address}: {error or type(error).__name__}") from error
    writing = _Writing(into, node_id)
    try:
        cluster = insist_on_schema(await read_cluster(connection), address)
        async with transaction(connection, ONE_SNAPSHOT, idle_in_transaction_session_timeout=IDLE_MS):
            version, level = await connection.fetchrow(VERSION)
            image = Image().after(await read_rows(connection, 0, version=version, level=level))
            for topic in image.topics():
                await writing.topic(connection, topic.name, topic.topic_id, topic.configs)
            next_producer_id = await connection.fetchval(NEXT_PRODUCER_ID)
    except LOST as error:
        raise CoterieError(f"{address}: {error or type(error).__name__}") from error
    finally:
        connection.terminate()
    writing.finish(cluster.cluster_id, next_producer_id)
    size = sum(log.size for log in writing.logs.values())
    return Dumped(cluster.cluster_id, len(writing.topics), len(writing.logs), size)


class _Writing:
    """A directory that is being written."""

    def __init__(self, root: Path, node_id: int) -> None:
        self.topics: list[Topic] = []
        self.logs: dict[TopicPartition, WrittenLog] = {}
        self._root = root
        self._node_id = node_id

    async def topic(
        self, connection: Connection, name: str, topic_id: UUID, configs: Mapping[str, str]
    ) -> None:
        """Write the logs of a topic."""
        ids = await partition_ids(connection, name)
        for number, partition_id in enumerate(ids):
            partition = TopicPartition(name, number)
            folder = self._root / str(partition)
            folder.mkdir()
            place = await read_place(connection, partition_id)
            (folder / PARTITION_METADATA).write_bytes(write_partition_metadata(topic_id))
            epochs = epochs_of(place.epochs, place.start_offset)
            if epochs:
                (folder / EPOCHS).write_bytes(write_epochs(epochs))
            self.logs[partition] = await write_segments(folder, place, read_chunks(connection, place))
        replicas = ((self._node_id,),) * len(ids)
        self.topics.append(Topic(name=name, topic_id=topic_id, replicas=replicas, configs=configs))

    def finish(self, cluster_id: str, next_producer_id: int) -> None:
        """Write the files that all share."""
        meta = Meta(cluster_id, self._node_id, uuid_text(new_id(uuid4)))
        starts = {name: log.start_offset for name, log in self.logs.items() if log.start_offset}
        gaps = {name: 0 for name, log in self.logs.items() if log.gaps}
        (self._root / META).write_bytes(write_meta(meta))
        (self._root / START_OFFSETS).write_bytes(write_offsets(starts))
        (self._root / CLEAN_OFFSETS).write_bytes(write_offsets(gaps))
        file = MetadataFile(OsDisk(), str(self._root), FILE_NAME)
        topics = Topics(file, node_id=self._node_id, cluster_id=cluster_id)
        topics.producer_id_seen(next_producer_id - 1)
        topics.announce(self.topics)


async def write_segments(folder: Path, log: LogPlace, chunks: AsyncIterator[Chunk]) -> WrittenLog:
    """Write the segments of a log without their indexes, a row at a time. Raises OSError."""
    writer = _Segments(folder, log.start_offset)
    try:
        async for chunk in chunks:
            writer.write(chunk)
        return writer.end(log.end_offset)
    finally:
        writer.close()


class _Segments:
    """The segments of a log that is being written, the last of them open."""

    def __init__(self, folder: Path, start_offset: int) -> None:
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
