"""DescribeTopicPartitions, ListConfigResources: what there is, a page at a time or kind by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.broker.api.metadata import (
    AUTHORIZED_OPERATIONS_UNASKED,
    TOPIC_OPERATIONS_ALL,
    described_partition,
)
from coterie.broker.net.context import Context
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.pieces import Pieces
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.broker.topics.topic import (
        Topic,
    )

LIST_CONFIG_RESOURCES, DESCRIBE_TOPIC_PARTITIONS = 74, 75
OF_TOPICS, OF_BROKERS, OF_LOGGERS, OF_METRICS, OF_GROUPS = 2, 4, 8, 16, 32  # kinds of settings
ALL_KINDS = frozenset({OF_TOPICS, OF_BROKERS, OF_LOGGERS, OF_METRICS, OF_GROUPS})


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    settings: BrokerSettings
    topics: TopicCatalog
    leadership: Leadership


# -- DescribeTopicPartitions


def describe_topic_partitions(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Answer with topics by name, from the cursor on and up to the limit, and where to go on."""
    cursor = request.cursor
    begin = "" if cursor is None else cursor.topic_name
    named = {one.name for one in request.topics}
    there = sorted(named) or [topic.name for topic in parts.topics.all()]
    names = [name for name in there if name >= begin]
    if cursor is not None and (cursor.partition_index < 0 or (named and begin not in names)):
        refused = []
        for one in request.topics:
            refused.append(_no_topic(ctx, one.name, Code.INVALID_REQUEST))
            yield None
        return _answer(ctx, refused)
    left = max(1, min(parts.settings.max_request_partition_size_limit, request.response_partition_limit))
    topics: list[Any] = []
    for name in names:
        if left <= 0:
            return _answer(ctx, topics, (name, 0))
        first = cursor.partition_index if cursor is not None and name == begin else 0
        topic = parts.topics.get(name)
        if topic is not None:
            span = range(first, min(topic.partitions, first + left))
            topics.append(_described(parts, ctx, topic, span))
            left -= len(span)
            if first + len(span) < topic.partitions:
                return _answer(ctx, topics, (name, span.stop))
        elif named:
            code = parts.topics.name_error(name) or Code.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(_no_topic(ctx, name, code, operations=TOPIC_OPERATIONS_ALL))
        yield None
    return _answer(ctx, topics)


def _answer(ctx: Context, topics: list[Any], following: tuple[str, int] | None = None) -> Any:
    cursor = None
    if following is not None:
        cursor_type = entity("describe_topic_partitions", ctx.version, "Cursor", "response")
        cursor = build(cursor_type, topic_name=following[0], partition_index=following[1])
    cls = response_type(DESCRIBE_TOPIC_PARTITIONS, ctx.version)
    return build(cls, topics=tuple(topics), next_cursor=cursor)


def _described(parts: Parts, ctx: Context, topic: Topic, partitions: range) -> Any:
    api = "describe_topic_partitions"
    partition_type = entity(api, ctx.version, "DescribeTopicPartitionsResponsePartition", "response")
    more: dict[str, Any] = {"leaderless": Code.NONE, "eligible_leader_replicas": (), "last_known_elr": ()}
    answers = tuple(
        described_partition(parts.leadership, partition_type, topic, partition, **more)
        for partition in partitions
    )
    return build(
        entity(api, ctx.version, "DescribeTopicPartitionsResponseTopic", "response"),
        error_code=Code.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=answers,
        topic_authorized_operations=TOPIC_OPERATIONS_ALL,
    )


def _no_topic(ctx: Context, name: str, code: Code, *, operations: int = AUTHORIZED_OPERATIONS_UNASKED) -> Any:
    return build(
        entity("describe_topic_partitions", ctx.version, "DescribeTopicPartitionsResponseTopic", "response"),
        error_code=code,
        name=name,
        topic_id=None,
        is_internal=False,
        partitions=(),
        topic_authorized_operations=operations,
    )


# -- ListConfigResources


def list_config_resources(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with what has settings; version 0 asks about clients' metrics, of which there are none."""
    cls = response_type(LIST_CONFIG_RESOURCES, ctx.version)
    wanted = {OF_METRICS} if ctx.version == 0 else set(request.resource_types) or ALL_KINDS
    if not wanted <= ALL_KINDS:
        return build(cls, error_code=Code.UNSUPPORTED_VERSION, config_resources=())
    resource_type = entity("list_config_resources", ctx.version, "ConfigResource", "response")
    own = str(parts.settings.node_id)
    found = [(own, kind) for kind in (OF_LOGGERS, OF_BROKERS) if kind in wanted]
    if OF_TOPICS in wanted:
        found += [(topic.name, OF_TOPICS) for topic in parts.topics.all()]
    resources = tuple(build(resource_type, resource_name=name, resource_type=kind) for name, kind in found)
    return build(cls, error_code=Code.NONE, config_resources=resources)


HANDLERS = {
    LIST_CONFIG_RESOURCES: list_config_resources,
    DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
}
