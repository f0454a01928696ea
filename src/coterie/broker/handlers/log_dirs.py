"""DescribeLogDirs: how much each partition takes of the disk, and how much room is left there (KIP-827).

* v3: an error for all
* v4: the size of the disk
* v5: whether new partitions are kept off it (KIP-1066); here they never are
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.context import Context
from coterie.wire.codec import build, entity, response_type

if TYPE_CHECKING:
    from coterie.broker.node import Node

__all__ = ["HANDLERS"]

DESCRIBE_LOG_DIRS = 35

log = logging.getLogger("coterie.broker")


def describe_log_dirs(node: Node, ctx: Context, request: Any) -> Any:
    """Answer with the one directory that there is. Partitions that it does not hold are left out."""
    result_type = entity("describe_log_dirs", ctx.version, "DescribeLogDirsResult", "response")
    where = str(Path(node.store.path).absolute())
    try:
        space = node.store.disk.space(node.store.path)
    except OSError as error:
        log.error("cannot find out how much room %s has: %s", where, error)
        result = build(result_type, error_code=Code.KAFKA_STORAGE_ERROR, log_dir=where, topics=())
    else:
        result = build(
            result_type,
            error_code=Code.NONE,
            log_dir=where,
            topics=_topics(node, ctx.version, _asked(node, request.topics)),
            total_bytes=space.total,
            usable_bytes=space.usable,
        )
    return build(response_type(DESCRIBE_LOG_DIRS, ctx.version), error_code=Code.NONE, results=(result,))


def _asked(node: Node, topics: Any) -> list[TopicPartition]:
    """Return the partitions that are asked for and are there, each once; None asks for all."""
    if topics is None:
        return sorted(node.store.logs)
    named = {TopicPartition(one.topic, partition) for one in topics for partition in one.partitions}
    return sorted(named & node.store.logs.keys())


def _topics(node: Node, version: int, partitions: list[TopicPartition]) -> tuple[Any, ...]:
    topic_type = entity("describe_log_dirs", version, "DescribeLogDirsTopic", "response")
    partition_type = entity("describe_log_dirs", version, "DescribeLogDirsPartition", "response")
    by_topic: dict[str, list[Any]] = {}
    for name in partitions:
        size = node.store.logs[name].size_bytes
        values = {"partition_index": name.partition, "partition_size": size}
        one = build(partition_type, **values, offset_lag=0, is_future_key=False)  # no replica lags behind
        by_topic.setdefault(name.topic, []).append(one)
    return tuple(build(topic_type, name=name, partitions=tuple(those)) for name, those in by_topic.items())


HANDLERS = {DESCRIBE_LOG_DIRS: describe_log_dirs}
