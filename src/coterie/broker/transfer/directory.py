"""A data directory, Coterie's or Apache Kafka's, opened for what lies in it, as `coterie serve` opens it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.base.plain import first_of
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.main import Alone
from coterie.broker.processes import METADATA
from coterie.broker.shell.listening import CannotServe
from coterie.broker.shell.process import wall_clock_ms
from coterie.broker.topics.registry import Topics
from coterie.broker.topics.topic import Topic
from coterie.storage.checkpoints import META
from coterie.storage.directory import is_log, partition_of
from coterie.storage.disk import OsDisk
from coterie.storage.files import unusable
from coterie.storage.log.contract import DirectoryInUse, DirectoryUnusable
from coterie.storage.log.partition import PartitionLog


class DirectoryContents(NamedTuple):
    """What a directory holds: whose it is, its topics, the log of each of their partitions, and the first
    producer id that was not given out.
    """

    cluster_id: str
    node_id: int
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
    settings = BrokerSettings.of({"log.dirs": directory})
    try:
        Alone().check(directory)
        store = Alone().open_store(settings, wall_clock_ms())
    except (CannotServe, DirectoryInUse, DirectoryUnusable) as error:
        raise CoterieError(str(error)) from error
    try:
        topics = Topics.open(settings, store)
        missing = [
            TopicPartition(topic.name, number)
            for topic in topics.all()
            for number in range(topic.partitions)
            if TopicPartition(topic.name, number) not in store.logs
        ]
        if missing:
            raise CoterieError(_sentence(directory, missing))
        yield DirectoryContents(
            store.meta.cluster_id, store.meta.node_id, topics.all(), store.logs, topics.next_producer_id()
        )
    except OSError as error:
        raise CoterieError(unusable(store.path, error)) from error
    finally:
        store.close()


def _sentence(directory: str, missing: list[TopicPartition]) -> str:
    """Return why a directory is none that can be taken as it is."""
    return (
        f"{directory} has no log of {first_of(missing)}: a broker of several has its own partitions alone."
        f" Where that is all there is, coterie serve --data {directory} makes them, empty"
    )
