"""A database written out as one data directory, as it is at one moment: `coterie serve --data` opens it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition, uuid_text
from coterie.broker.topics.metadata_file import MetadataFile
from coterie.broker.topics.registry import FILE_NAME, Topics, new_id
from coterie.broker.topics.topic import Topic
from coterie.broker.transfer.directory import opened_directory
from coterie.broker.transfer.segments import WrittenLog, snapshot_of, write_segments, written
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
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.copying import partition_ids, read_place
from coterie.storage.postgres.serial import Connection
from coterie.storage.remote.reading import epochs_of

UNFINISHED = ".unfinished"
CLUSTER = "SELECT cluster_id, next_producer_id FROM coterie.cluster"


class Dumped(NamedTuple):
    """What was written out: of which cluster, and how much it is."""

    cluster_id: str
    topics: int
    partitions: int
    bytes: int


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yield a folder that becomes the directory, which must not be there or be empty, after the block: it is
    opened as a broker would, which makes the indexes and looks at every batch.

    Where that fails nothing is left but the folder, `directory.unfinished`, which the next one removes, and
    that only if something was written.
    Raises `CoterieError`.
    """
    try:
        place = directory.resolve()
        if place.exists() and not place.is_dir():
            raise CoterieError(f"{directory} is a file; name a folder that is new or empty")
        if place.exists() and any(place.iterdir()):
            raise CoterieError(f"{directory} is not empty; name a folder that is new or empty")
        unfinished = unfinished_of(place)
        if unfinished.exists():
            with _alone_in(unfinished):
                shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
        with _alone_in(unfinished):
            try:
                yield unfinished
                with opened_directory(str(unfinished)):
                    pass
                unfinished.rename(place)
            except BaseException:
                with suppress(OSError):  # it holds something
                    unfinished.rmdir()
                raise
    except OSError as error:
        raise CoterieError(unusable(str(directory), error)) from error


def unfinished_of(directory: Path) -> Path:
    """Return the folder that becomes the directory once it is whole."""
    place = directory.resolve()  # also of ".", which has no name, and of a link, which no folder replaces
    return place.with_name(place.name + UNFINISHED)


@contextmanager
def _alone_in(unfinished: Path) -> Iterator[None]:
    """Have a folder to oneself. Raises `CoterieError` where another process has it."""
    descriptor = os.open(unfinished, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise CoterieError(f"{unfinished} is being written by another command") from None
    finally:
        os.close(descriptor)


async def dump(address: DatabaseAddress, into: Path, node_id: int) -> Dumped:
    """Write the files of a directory but for the indexes, for the broker of this id.

    Brokers may serve meanwhile. Raises `CoterieError`, OSError.
    """
    writing = _Writing(into, node_id)
    async with snapshot_of(address) as (connection, image):
        for topic in image.topics():
            await writing.topic(connection, topic.name, topic.topic_id, topic.configs)
        cluster_id, next_producer_id = await connection.fetchrow(CLUSTER)
    writing.finish(cluster_id, next_producer_id)
    size = sum(log.size for log in writing.logs.values())
    return Dumped(cluster_id, len(writing.topics), len(writing.logs), size)


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
            place = await read_place(connection, partition_id)
            self.logs[partition] = await write_segments(folder, place, connection)
            epochs = epochs_of(place.epochs, place.start_offset)
            with written(folder):
                (folder / PARTITION_METADATA).write_bytes(write_partition_metadata(topic_id))
                if epochs:
                    (folder / EPOCHS).write_bytes(write_epochs(epochs))
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
