"""DescribeLogDirs: how much each partition takes of the disk, and how much room is left there (KIP-827).
AlterReplicaLogDirs: whether it can lie where it is told to.

* v3: an error for all
* v4: the size of the disk
* v5: whether new partitions are kept off it (KIP-1066); here they never are
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.net.context import Context
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, paced
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.storage.kind import LogStore

ALTER_LOG_DIRS, DESCRIBE_LOG_DIRS = 34, 35

log = logging.getLogger("coterie.broker")


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    topics: TopicCatalog
    store: LogStore


def describe_log_dirs(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with the one directory that there is. Partitions that it does not hold are left out."""
    partitions = _asked(parts, request.topics)
    return paced(_described(parts, ctx, partitions), len(partitions))


def _described(parts: Parts, ctx: Context, partitions: list[TopicPartition]) -> Pieces[Any]:
    result_type = entity("describe_log_dirs", ctx.version, "DescribeLogDirsResult", "response")
    where = parts.store.log_dir
    try:
        space = parts.store.space()
    except OSError as error:
        log.error("cannot find out how much room %s has: %s", where, error)
        result = build(result_type, error_code=Code.KAFKA_STORAGE_ERROR, log_dir=where, topics=())
    else:
        result = build(
            result_type,
            error_code=Code.NONE,
            log_dir=where,
            topics=(yield from _topics(parts, ctx.version, partitions)),
            total_bytes=space.total,
            usable_bytes=space.usable,
        )
    return build(response_type(DESCRIBE_LOG_DIRS, ctx.version), error_code=Code.NONE, results=(result,))


def _asked(parts: Parts, topics: Any) -> list[TopicPartition]:
    """Return the partitions that are asked for and are there, each once; None asks for all."""
    if topics is None:
        return sorted(parts.store.logs)
    named = {TopicPartition(one.topic, partition) for one in topics for partition in one.partitions}
    return sorted(named & parts.store.logs.keys())


def _topics(parts: Parts, version: int, partitions: list[TopicPartition]) -> Pieces[tuple[Any, ...]]:
    topic_type = entity("describe_log_dirs", version, "DescribeLogDirsTopic", "response")
    partition_type = entity("describe_log_dirs", version, "DescribeLogDirsPartition", "response")
    by_topic: dict[str, list[Any]] = {}
    for place, name in enumerate(partitions):
        there = parts.store.logs.get(name)  # it may have gone since the last stop
        if there is not None:
            values = {"partition_index": name.partition, "partition_size": there.size_bytes}
            one = build(partition_type, **values, offset_lag=0, is_future_key=False)  # no replica lags behind
            by_topic.setdefault(name.topic, []).append(one)
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    return tuple(build(topic_type, name=name, partitions=tuple(those)) for name, those in by_topic.items())


# -- AlterReplicaLogDirs


def alter_log_dirs(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Answer partition by partition whether it can lie where it is told to: there is one directory."""
    here = parts.store.log_dir
    codes: dict[str, dict[int, Code]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            there = parts.topics.get(topic.name)
            count = 0 if there is None else there.partitions
            for partition in topic.partitions:
                code = Code.LOG_DIR_NOT_FOUND
                if directory.path == here:
                    code = Code.NONE if 0 <= partition < count else Code.UNKNOWN_TOPIC_OR_PARTITION
                codes.setdefault(topic.name, {})[partition] = code
                yield None
            yield None
        yield None
    api = "alter_replica_log_dirs"
    topic_type = entity(api, ctx.version, "AlterReplicaLogDirTopicResult", "response")
    partition_type = entity(api, ctx.version, "AlterReplicaLogDirPartitionResult", "response")
    results = []
    for name, partitions in codes.items():
        answers = []
        for partition, code in partitions.items():
            answers.append(build(partition_type, partition_index=partition, error_code=code))
            yield None
        results.append(build(topic_type, topic_name=name, partitions=tuple(answers)))
    return build(response_type(ALTER_LOG_DIRS, ctx.version), results=tuple(results))


HANDLERS = {DESCRIBE_LOG_DIRS: describe_log_dirs, ALTER_LOG_DIRS: alter_log_dirs}
