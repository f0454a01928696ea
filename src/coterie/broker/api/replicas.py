"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, DescribeQuorum: who leads, and
where replicas lie, of a cluster of one. Everything is where it must be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.topic_names import RESERVED_TOPIC
from coterie.broker.net.context import Context
from coterie.broker.placement import manual
from coterie.broker.placement.model import Broker
from coterie.broker.refusal import Refusal
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.pieces import Pieces
    from coterie.broker.topics.catalog import TopicCatalog

ELECT_LEADERS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS, DESCRIBE_QUORUM = 43, 45, 46, 55
PREFERRED, UNCLEAN = 0, 1  # elections
FIRST_EPOCH = 1  # of the one that leads the metadata


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    settings: BrokerSettings
    topics: TopicCatalog
    clock: Clock


# -- ElectLeaders


def elect_leaders(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Answer that no election is needed: each partition is led by the one that it has."""
    kind = getattr(request, "election_type", PREFERRED)
    known = kind in (PREFERRED, UNCLEAN)
    topic_type = entity("elect_leaders", ctx.version, "ReplicaElectionResult", "response")
    partition_type = entity("elect_leaders", ctx.version, "PartitionResult", "response")
    topics = []
    asked = request.topic_partitions
    if asked is None and known:  # those that need none are left out, when all are meant
        topics = [build(topic_type, topic=topic.name, partition_result=()) for topic in parts.topics.all()]
    for one in asked or ():
        answers = []
        for partition in one.partitions:
            refusal = (
                _refuse_election(parts, one.topic, partition)
                if known
                else Refusal(Code.INVALID_REQUEST, f"Unknown election type {kind}")
            )
            code, text = refusal.code, refusal.message
            answers.append(build(partition_type, partition_id=partition, error_code=code, error_message=text))
            yield None
        topics.append(build(topic_type, topic=one.topic, partition_result=tuple(answers)))
        yield None
    code = Code.NONE if known or asked == () else Code.INVALID_REQUEST
    cls = response_type(ELECT_LEADERS, ctx.version)
    return build(cls, error_code=code, replica_election_results=tuple(topics))


def _refuse_election(parts: Parts, topic: str, partition: int) -> Refusal:
    there = parts.topics.get(topic)
    if there is None:
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
    if not 0 <= partition < there.partitions:
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{partition}")
    return Refusal(Code.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


# -- reassignments


def alter_reassignments(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Answer partition by partition: to stay here is no fault, and there is nowhere to go."""
    api = "alter_partition_reassignments"
    topic_type = entity(api, ctx.version, "ReassignableTopicResponse", "response")
    partition_type = entity(api, ctx.version, "ReassignablePartitionResponse", "response")
    topics = []
    for topic in request.topics:
        answers = []
        for one in topic.partitions:
            refusal = _refuse_reassignment(parts, topic.name, one)
            code, text = (refusal.code, refusal.message) if refusal else (Code.NONE, None)
            answers.append(
                build(
                    partition_type, partition_index=one.partition_index, error_code=code, error_message=text
                )
            )
            yield None
        topics.append(build(topic_type, name=topic.name, partitions=tuple(answers)))
        yield None
    return build(
        response_type(ALTER_REASSIGNMENTS, ctx.version),
        allow_replication_factor_change=not topics
        or getattr(request, "allow_replication_factor_change", True),
        error_code=Code.NONE,
        error_message=None if topics else "",
        responses=tuple(topics),
    )


def _refuse_reassignment(parts: Parts, name: str, one: Any) -> Refusal | None:
    topic = parts.topics.get(name)
    if topic is None:
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= one.partition_index < topic.partitions:
        text = f"Unable to find partition {name}:{one.partition_index}."
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, text)
    if one.replicas is None:
        return Refusal(Code.NO_REASSIGNMENT_IN_PROGRESS, None)
    here = (Broker(parts.settings.node_id),)
    problem = manual.problem_of_new([(0, tuple(one.replicas))], here)
    return None if problem is None else Refusal(problem.code, problem.text)


def list_reassignments(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer that nothing is on its way."""
    cls = response_type(LIST_REASSIGNMENTS, ctx.version)
    return build(cls, error_code=Code.NONE, error_message=None, topics=())


# -- DescribeQuorum


def describe_quorum(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Answer that this broker is the quorum; it keeps no log of the metadata, so its offsets are 0."""
    topic_type = entity("describe_quorum", ctx.version, "TopicData", "response")
    asked = request.topics
    few = [(one.topic_name, [part.partition_index for part in one.partitions[:2]]) for one in asked[:2]]
    if few == [(RESERVED_TOPIC, [0])]:
        topics = (build(topic_type, topic_name=RESERVED_TOPIC, partitions=(_the_quorum(parts, ctx),)),)
        return _quorum_answer(parts, ctx, topics)
    unknown_topics = []
    for one in asked:
        answers = []
        for partition in one.partitions:
            answers.append(_not_of_the_quorum(ctx, partition.partition_index))
            yield None
        unknown_topics.append(build(topic_type, topic_name=one.topic_name, partitions=tuple(answers)))
        yield None
    return _quorum_answer(None, ctx, tuple(unknown_topics))


def _quorum_answer(parts: Parts | None, ctx: Context, topics: tuple[Any, ...]) -> Any:
    nodes: tuple[Any, ...] = ()
    if parts is not None and ctx.version >= 2:
        node_type = entity("describe_quorum", ctx.version, "Node", "response")
        nodes = (build(node_type, node_id=parts.settings.node_id, listeners=()),)
    cls = response_type(DESCRIBE_QUORUM, ctx.version)
    return build(cls, error_code=Code.NONE, error_message="", topics=topics, nodes=nodes)


def _the_quorum(parts: Parts, ctx: Context) -> Any:
    now_ms = parts.clock.now_ms()
    voter = build(
        entity("describe_quorum", ctx.version, "ReplicaState", "response"),
        replica_id=parts.settings.node_id,
        replica_directory_id=None,
        log_end_offset=0,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return build(
        entity("describe_quorum", ctx.version, "PartitionData", "response"),
        partition_index=0,
        error_code=Code.NONE,
        error_message="",
        leader_id=parts.settings.node_id,
        leader_epoch=FIRST_EPOCH,
        high_watermark=0,
        current_voters=(voter,),
        observers=(),
    )


def _not_of_the_quorum(ctx: Context, partition: int) -> Any:
    return build(
        entity("describe_quorum", ctx.version, "PartitionData", "response"),
        partition_index=partition,
        error_code=Code.UNKNOWN_TOPIC_OR_PARTITION,
        error_message="This server does not host this topic-partition.",
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=(),
        observers=(),
    )


HANDLERS = {
    ELECT_LEADERS: elect_leaders,
    ALTER_REASSIGNMENTS: alter_reassignments,
    LIST_REASSIGNMENTS: list_reassignments,
    DESCRIBE_QUORUM: describe_quorum,
}
