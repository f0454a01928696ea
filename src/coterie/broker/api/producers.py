"""DescribeProducers: who writes to a partition, and since when a transaction is open there (KIP-664)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import name_problem
from coterie.broker.net.context import Context
from coterie.broker.repeats import Repeats
from coterie.broker.runtime.leadership import why_absent
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, gathered
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.storage.kind import Log


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    topics: TopicCatalog
    leadership: Leadership
    led_log: Callable[[TopicPartition], Log | None]


def describe_producers(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with the producers that each partition remembers."""
    return _describe_producers(parts, ctx, request)


def _describe_producers(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """A partition is answered as often as it is named, as Kafka does, within bounds."""
    topic_type = entity("describe_producers", ctx.version, "TopicResponse", "response")
    topics = []
    described: dict[tuple[str, int], Any] = {}
    repeats = Repeats()
    for asked in request.topics:
        partitions = []
        for place, index in enumerate(asked.partition_indexes):
            name = asked.name, index
            if name not in described:
                described[name] = yield from _partition(parts, asked.name, index, ctx.version)
                partitions.append(described[name])
            elif repeats.allow(len(described[name].active_producers)):
                partitions.append(described[name])
            if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                yield
        topics.append(build(topic_type, name=asked.name, partitions=tuple(partitions)))
        yield
    return build(response_type(61, ctx.version), topics=tuple(topics))


def _partition(parts: Parts, topic: str, index: int, version: int) -> Pieces[Any]:
    cls = entity("describe_producers", version, "PartitionResponse", "response")
    log = parts.led_log(TopicPartition(topic, index))
    if log is None:
        code, message = _missing(parts, topic, index)
        return build(cls, partition_index=index, error_code=code, error_message=message, active_producers=())
    producer_type = entity("describe_producers", version, "ProducerState", "response")
    producers = yield from gathered(
        build(
            producer_type,
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            last_sequence=one.last_sequence,
            last_timestamp=one.last_timestamp,
            coordinator_epoch=one.coordinator_epoch,
            current_txn_start_offset=one.open_since,
        )
        for one in log.producers.active()
    )
    code = Code.NONE
    active = tuple(producers)
    return build(cls, partition_index=index, error_code=code, error_message=None, active_producers=active)


def _missing(parts: Parts, topic: str, index: int) -> tuple[Code, str | None]:
    """Return why a partition is not here; Kafka explains itself for a topic, not for a partition."""
    problem = name_problem(topic)
    if problem is not None:
        return Code.INVALID_TOPIC_EXCEPTION, problem
    known = parts.topics.get(topic) is not None
    return (
        why_absent(parts.topics, parts.leadership, topic, index),
        None if known else "This server does not host this topic-partition.",
    )


HANDLERS = {61: describe_producers}
