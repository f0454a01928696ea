"""A data directory that is brought into a database: all of its topics, or none, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC
from coterie.broker.cluster.changes import CreateTopics, NewTopic, NotChanged
from coterie.broker.cluster.image import Delta, Image
from coterie.broker.cluster.postgres.engine import LOCK_VERSION
from coterie.broker.cluster.postgres.rows import read_image
from coterie.broker.cluster.postgres.writing import DELETED_IDS, write
from coterie.broker.topics.topic import Topic
from coterie.broker.transfer.directory import DirectoryContents
from coterie.broker.transfer.rows import chunks_of_log
from coterie.storage.log.contract import StorageFailed
from coterie.storage.postgres.advice import connected
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.copying import LogPlace, copy_in, reserve_partition_ids
from coterie.storage.postgres.schema import insist_on_schema, migrate, read_cluster
from coterie.storage.postgres.serial import LOCKED_IDLE_MS, Connection, transaction_of_command

ELSEWHERE = "bring it into an empty database (createdb makes one)"
DELETED_FIRST = "or delete what is there first, if nobody needs it (coterie topics delete)"
DELETED_FOR_GOOD = (
    "a topic of this id was deleted there, and its id is never used again. Nothing was brought in; "
    + ELSEWHERE
)
OF_GROUPS = "groups have been there, and cannot be joined with those of the directory"

# Where nobody has been, the cluster is the one that the directory is of.
TAKE_OVER = """
UPDATE coterie.cluster SET next_producer_id = greatest(next_producer_id, $1),
  cluster_id = CASE WHEN $3 THEN $2 ELSE cluster_id END
RETURNING cluster_id
"""


class LoadedTopics(NamedTuple):
    """What was brought in: the cluster that it belongs to now, and how much it is."""

    cluster_id: str
    topics: int
    partitions: int
    records_end: int
    """The sum of the offsets at which the logs go on."""


async def load(
    address: DatabaseAddress, contents: DirectoryContents, brokers: Sequence[int] = ()
) -> LoadedTopics:
    """Bring topics in, their partitions shared out over the brokers that are to lead: over those that there
    are, or whose the directory is, if none are named.

    Brokers may serve meanwhile; they lead them once all is there. Tables are made where there are none.
    Raises `CoterieError`, having brought nothing in: where a topic's name or id is taken, too.
    """
    await migrate(address, only_if_empty=True)
    async with connected(address) as connection:
        insist_on_schema(await read_cluster(connection), address)
        brokers = brokers or brokers_there(await read_image(connection)) or contents.node_ids
        try:
            return await _load(connection, contents, CreateTopics(_new_topics(contents.topics, brokers)))
        except StorageFailed as error:
            raise CoterieError(str(error)) from error


def brokers_there(image: Image) -> list[int]:
    """Return the ids of the brokers that there are, whether they run or not. Of one that was removed the row
    stays.
    """
    return sorted(one for one, row in image.brokers.items() if row.is_registered)


def _new_topics(topics: Sequence[Topic], brokers: Sequence[int]) -> tuple[NewTopic, ...]:
    """Return the topics, their partitions by turns on each of the brokers."""
    made, at = [], 0
    for topic in topics:
        placed = tuple((brokers[(at + number) % len(brokers)],) for number in range(topic.partitions))
        made.append(NewTopic(topic.topic_id, topic.name, placed, topic.configs))
        at += topic.partitions
    return tuple(made)


async def _load(connection: Connection, contents: DirectoryContents, change: CreateTopics) -> LoadedTopics:
    # Looked at before hours are spent, and again once nobody can change it any more.
    _delta_of(change, await read_image(connection), 1)
    if await connection.fetchval(DELETED_IDS, [new.topic_id for new in change.topics]):
        raise CoterieError(DELETED_FOR_GOOD)
    names = [TopicPartition(new.name, number) for new in change.topics for number in range(len(new.replicas))]
    first_id = await reserve_partition_ids(connection, len(names))
    async with transaction_of_command(connection):
        for partition_id, name in enumerate(names, first_id):
            log = contents.logs[name]
            place = LogPlace(partition_id, log.start_offset, log.end_offset, log.epochs)
            aborted = log.aborted_spans(log.start_offset, log.end_offset)
            await copy_in(connection, place, chunks_of_log(log, partition_id), aborted)
        await connection.execute(LOCK_VERSION)
        # Nobody changes metadata meanwhile: who is stopped here is not waited for as long as before.
        await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = {LOCKED_IDLE_MS}")
        image = await read_image(connection)
        delta = _delta_of(change, image, first_id, [contents.logs[name].latest_epoch for name in names])
        refused = await write(connection, change, delta, lanes=0)
        if refused is not None:
            raise CoterieError(DELETED_FOR_GOOD)
        is_new = not image.brokers and not image.topic_count
        cluster_id = await connection.fetchval(
            TAKE_OVER, contents.next_producer_id, contents.cluster_id, is_new
        )
    end = sum(contents.logs[name].end_offset for name in names)
    return LoadedTopics(cluster_id, len(change.topics), len(names), end)


def _remedy(change: CreateTopics, image: Image, refused: NotChanged) -> str:
    """Return the sentence about a way that is open where topics are there already. Deleted they make room for
    others of their names, and not for themselves.
    """
    if OFFSETS_TOPIC in refused.names:
        return f"{OF_GROUPS}: {ELSEWHERE}"
    is_there = any(image.topic_by_id(new.topic_id) is not None for new in change.topics)
    is_for_good = is_there or not INTERNAL_TOPICS.isdisjoint(refused.names)
    return ELSEWHERE if is_for_good else f"{ELSEWHERE}, {DELETED_FIRST}"


def _delta_of(change: CreateTopics, image: Image, first_id: int, epochs: Sequence[int] = ()) -> Delta:
    """Return the rows of the topics, led in the leader epochs behind those of their logs."""
    delta = change.rows(image, first_id)
    if isinstance(delta, NotChanged):
        raise CoterieError(
            f"{delta.why}: {', '.join(delta.names)}. Nothing was brought in; {_remedy(change, image, delta)}"
        )
    led = [row._replace(leader_epoch=epoch + 1) for row, epoch in zip(delta.partitions, epochs, strict=False)]
    return Delta(
        above=delta.above, version=delta.version, level=delta.level, topics=delta.topics, partitions=led
    )
