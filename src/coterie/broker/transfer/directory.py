"""A data directory, Coterie's or Apache Kafka's, opened for what lies in it, as `coterie serve` opens it: one
broker's, or that of several on one machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.base.plain import first_of
from coterie.broker.cluster.image import Image
from coterie.broker.cluster.statements import ProducerIds, ReserveProducerIds
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.main import Alone, Role
from coterie.broker.processes import METADATA, directory_of_all
from coterie.broker.processes.changes import broker_ids_of
from coterie.broker.processes.layout import arranged, image_of, lost_by
from coterie.broker.processes.role import OneOfSeveral
from coterie.broker.processes.sqlite import MetadataFailed, SqliteMetadata
from coterie.broker.shell.listening import CannotServe
from coterie.broker.shell.process import raise_file_limit, wall_clock_ms
from coterie.broker.topics.cluster_topics import ClusterTopics
from coterie.broker.topics.registry import Topics
from coterie.broker.topics.topic import Topic
from coterie.storage.checkpoints import META
from coterie.storage.directory import is_log, partition_of
from coterie.storage.disk import OsDisk
from coterie.storage.files import FileStore, unusable
from coterie.storage.log.contract import DirectoryInUse, DirectoryUnusable
from coterie.storage.log.partition import PartitionLog


class DirectoryContents(NamedTuple):
    """What a directory holds: whose it is, one broker's or several's, its topics, the log of each of their
    partitions, and the first producer id that was not given out.
    """

    cluster_id: str
    node_ids: tuple[int, ...]
    topics: list[Topic]
    logs: dict[TopicPartition, PartitionLog]
    next_producer_id: int


def check_used(directory: Path) -> None:
    """Raise `CoterieError` where no broker has been: a start would make a directory a broker's, and folders
    with a number at the end of their names are other people's, too.
    """
    disk, where = OsDisk(), str(directory)
    try:
        used = {META, METADATA}.intersection(disk.files(where))
        logs = [f"{where}/{name}" for name in disk.directories(where) if partition_of(name)]
        if used or any(is_log(disk.files(log)) for log in logs):
            return
    except OSError as error:
        raise CoterieError(unusable(where, error)) from error
    raise CoterieError(
        f"{directory} holds nothing of a broker's, neither a {META} nor a segment of a log; name the"
        " directory that a broker has kept its topics in"
    )


@contextmanager
def opened_directory(directory: str) -> Iterator[DirectoryContents]:
    """Yield the contents of a directory, which nobody else uses meanwhile. As at a broker's start, logs that
    were not closed are mended. Raises `CoterieError`, also where a partition is missing.
    """
    raise_file_limit()  # each log is an open file, as at a broker
    above = directory_of_all(directory)
    if above is not None:
        raise CoterieError(
            f"{directory} is of one of several brokers, and holds its partitions alone; name {above}, where"
            " those of all of them are"
        )
    several = os.path.exists(f"{directory}/{METADATA}")
    with _opened_of_several(directory) if several else _opened_of_one(directory) as contents:
        yield contents


@contextmanager
def _opened_of_one(directory: str) -> Iterator[DirectoryContents]:
    settings = BrokerSettings.of({"log.dirs": directory})
    store = _store_of(Alone(), settings)
    try:
        topics = Topics.open(settings, store)
        missing = missing_of(topics.all(), store.logs)
        if missing:
            raise CoterieError(
                f"{directory} has no log of {first_of(missing)}: a broker that is killed while it makes a"
                " topic has not made all yet, and one of several has its own partitions alone. Where no more"
                f" is to be had, coterie serve --data {quote(directory)} makes them, empty"
            )
        meta = store.meta
        yield DirectoryContents(
            meta.cluster_id, (meta.node_id,), topics.all(), store.logs, topics.next_producer_id()
        )
    except OSError as error:
        raise CoterieError(unusable(store.path, error)) from error
    finally:
        store.close()


@contextmanager
def _opened_of_several(root: str) -> Iterator[DirectoryContents]:
    with ExitStack() as held:
        metadata = held.enter_context(arranged(root, None))
        try:
            image = image_of(metadata)
            logs: dict[TopicPartition, PartitionLog] = {}
            for broker_id in sorted({row.leader for row in image.all_partitions() if row.leader is not None}):
                if not lost_by(OsDisk(), root, image, broker_id):
                    logs |= _logs_of(root, broker_id, held)
            topics = ClusterTopics(metadata.cluster_id)
            topics.take(image)
            missing = missing_of(topics.all(), logs)
            if missing:
                raise CoterieError(_without(root, missing, image))
            _lead(logs, image)
            producer_id = _producer_id(metadata)
            yield DirectoryContents(
                metadata.cluster_id, broker_ids_of(image), [*topics.all()], logs, producer_id
            )
        except MetadataFailed as error:
            raise CoterieError(str(error)) from error
        except OSError as error:
            raise CoterieError(unusable(root, error)) from error


def _logs_of(root: str, broker_id: int, held: ExitStack) -> dict[TopicPartition, PartitionLog]:
    """Return the logs of what a broker leads, until `held` is let go. One whose directory was never made has
    none: opened, it would be.
    """
    where = f"{root}/{broker_id}"
    if not os.path.isdir(where):
        return {}
    settings = BrokerSettings.of({"node.id": str(broker_id), "log.dirs": where})
    store = _store_of(OneOfSeveral(settings), settings)
    held.callback(store.close)
    return store.logs


def _store_of(role: Role, settings: BrokerSettings) -> FileStore:
    """Return the store that a broker of a role opens. Raises `CoterieError`."""
    try:
        role.check(settings.data_directory)
        return role.open_store(settings, wall_clock_ms())
    except (CannotServe, DirectoryInUse, DirectoryUnusable) as error:
        raise CoterieError(str(error)) from error


def missing_of(topics: Iterable[Topic], logs: Mapping[TopicPartition, PartitionLog]) -> list[TopicPartition]:
    """Return the partitions that have no log."""
    names = (TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions))
    return [name for name in names if name not in logs]


def _lead(logs: Mapping[TopicPartition, PartitionLog], image: Image) -> None:
    """Have logs be in the leader epochs that clients may know, which a broker's next start would write down.
    Raises OSError.
    """
    for topic in image.topics():
        for row in image.partitions(topic.topic_id):
            logs[TopicPartition(topic.name, row.number)].lead(row.leader_epoch)


def _producer_id(metadata: SqliteMetadata) -> int:
    """Return a producer id from which on none was given out. Raises `MetadataFailed`."""
    reserved = metadata.execute(ReserveProducerIds())
    assert isinstance(reserved, ProducerIds)
    return reserved.first


def _without(root: str, missing: list[TopicPartition], image: Image) -> str:
    """Return why the directory of several brokers is none that can be taken as it is."""
    first = missing[0]
    topic = image.topic(first.topic)
    row = topic and image.partition(topic.topic_id, first.partition)
    assert row is not None
    ids = broker_ids_of(image)
    serve = f"coterie serve --data {quote(root)} --processes {len(ids)}"
    where = f"{root}/{row.leader}"
    said = f"{root} has no log of {first_of(missing)}: put back"
    if row.leader is not None and lost_by(OsDisk(), root, image, row.leader):
        return f"{said} {where}, the directory of broker {row.leader}, which is gone or empty"
    return (
        f"{said} what is missing in {where}, the directory of broker {row.leader}. Where nothing was ever"
        f" written to them, as where brokers are killed while they make a topic, {serve} makes them, empty"
    )
