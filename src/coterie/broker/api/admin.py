"""CreateTopics, DeleteTopics, CreatePartitions, DescribeCluster: the shape of the cluster.

Codes and messages are those of Apache Kafka 4.3.1, whose tools show them to their users. A check returns a
`Refusal` or None; only when every check of a topic has passed is anything done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.topic_names import INTERNAL_TOPICS, RESERVED_TOPIC, metric_name
from coterie.broker.api.metadata import (
    CLUSTER_OPERATIONS_ALL,
    NO_BROKER,
    PARTITIONS_OF_REQUEST_MAX,
    controller_of,
)
from coterie.broker.config.topic_settings import refusal_of
from coterie.broker.net.context import Context
from coterie.broker.placement import manual
from coterie.broker.placement.model import Layout, Problem, Replicas
from coterie.broker.refusal import STORAGE_ERRORS, Refusal
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, gathered
from coterie.broker.topics.catalog import GONE, OVERTAKEN, Failure, refused
from coterie.broker.topics.topic import Topic
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.topics.catalog import TopicCatalog, TopicChanges

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, DESCRIBE_CLUSTER = 19, 20, 37, 60

BY_DEFAULT = -1  # as a number of partitions or replicas: what the broker's settings say
BROKERS, CONTROLLERS = 1, 2  # what DescribeCluster may be asked about
OPERATIONS_UNASKED = -(2**31)

DUPLICATE_NAME = "Duplicate topic name."
TOO_MANY = "Excessively large number of partitions per request."


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    settings: BrokerSettings
    topics: TopicCatalog
    topic_manager: TopicChanges
    leadership: Leadership


# -- CreateTopics


def create_topics(parts: Parts, ctx: Context, request: Any) -> Any:
    """Create the topics that can be created, each apart from the others; a name given twice is refused."""
    return _create_topics(parts, ctx, request)


def _create_topics(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    times = Counter((yield from gathered(asked.name for asked in request.topics)))
    once = yield from gathered(asked if times[asked.name] == 1 else None for asked in request.topics)
    wanted = sum((yield from gathered(max(0, _partition_count(parts, asked)) for asked in once)))
    refused: dict[str, Refusal] = {}
    planned: dict[str, Topic] = {}
    planned_names: dict[str, str] = {}
    for asked in once:
        if wanted > PARTITIONS_OF_REQUEST_MAX:
            found: Topic | Refusal = Refusal(Code.POLICY_VIOLATION, TOO_MANY)
        else:
            found = _refuse_name_that_collides(asked.name, planned_names) or _plan(parts, asked)
        if isinstance(found, Refusal):
            refused[asked.name] = found
        else:
            planned[asked.name] = found
            planned_names[metric_name(asked.name)] = asked.name
        yield
    if planned and not request.validate_only:
        refused |= yield from _carry_out(parts, planned)
    results = []
    for asked in once:
        results.append(
            _not_created(ctx, asked.name, refused[asked.name])
            if asked.name in refused
            else _created(parts, ctx, planned[asked.name])
        )
        yield
    twice = Refusal(Code.INVALID_REQUEST, DUPLICATE_NAME)
    results += yield from gathered(
        _not_created(ctx, name, twice) if count > 1 else None for name, count in times.items()
    )
    return build(response_type(CREATE_TOPICS, ctx.version), topics=tuple(results))


def _refuse_name_that_collides(name: str, planned: Mapping[str, str]) -> Refusal | None:
    """Return why a topic cannot be created together with one that is planned, of a name that is alike."""
    other = planned.get(metric_name(name))
    if other is None:
        return None
    return Refusal(Code.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _plan(parts: Parts, asked: Any) -> Topic | Refusal:
    refusal = _refuse_name(parts, asked.name) or _refuse_configs(asked)
    layout = refusal or _layout(parts, asked)
    if isinstance(layout, Refusal):
        return layout
    configs = {config.name: config.value for config in asked.configs}
    return parts.topics.new(asked.name, replicas=layout, configs=configs)


def _carry_out(parts: Parts, planned: Mapping[str, Topic]) -> Pieces[dict[str, Refusal]]:
    """Create what is planned, and return why some of it could not be."""
    looked = {name: _refuse_name(parts, name) for name in planned}  # others may have taken one meanwhile
    taken = {name: refusal for name, refusal in looked.items() if refusal is not None}
    failed: Mapping[str, Failure]
    wanted = [topic for name, topic in planned.items() if name not in taken]
    try:
        failed = yield from parts.topic_manager.create_topics(wanted)
    except STORAGE_ERRORS as error:
        failed = {topic.name: error for topic in wanted}
    return {name: refused(f"create topic {name}", why) for name, why in failed.items()} | taken


def _partition_count(parts: Parts, asked: Any) -> int:
    if asked.assignments:
        return len(asked.assignments)
    if asked.num_partitions == BY_DEFAULT:
        return parts.settings.num_partitions
    count: int = asked.num_partitions
    return count


def _refuse_name(parts: Parts, name: str) -> Refusal | None:
    if name == RESERVED_TOPIC or name in INTERNAL_TOPICS:
        # Kafka lets anyone create its other internal topics, in any shape; ours are made when first needed.
        return Refusal(Code.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    problem = parts.topics.name_problem(name)
    if problem is not None:
        return Refusal(Code.INVALID_TOPIC_EXCEPTION, problem)
    if parts.topics.is_taken(name):
        return Refusal(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    return None


def _refuse_configs(asked: Any) -> Refusal | None:
    nulls = [config.name for config in asked.configs if config.value is None]
    if nulls:
        text = f"Null value not supported for topic configs: {','.join(nulls)}"
        return Refusal(Code.INVALID_CONFIG, text)
    problem = refusal_of({config.name: config.value for config in asked.configs})
    return None if problem is None else Refusal(Code.INVALID_CONFIG, problem)


def _layout(parts: Parts, asked: Any) -> Layout | Refusal:
    """Return the replicas of each partition, by hand or in Kafka's stripes, or why they cannot be there."""
    if asked.assignments:
        refusal = _refuse_assignments(parts, asked)
        return [replicas for _, replicas in sorted(_assigned(asked))] if refusal is None else refusal
    factor = asked.replication_factor
    if factor < BY_DEFAULT or factor == 0:
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        return Refusal(Code.INVALID_REPLICATION_FACTOR, text)
    if asked.num_partitions < BY_DEFAULT or asked.num_partitions == 0:
        text = "Number of partitions was set to an invalid non-positive value."
        return Refusal(Code.INVALID_PARTITIONS, text)
    if factor == BY_DEFAULT:
        factor = parts.topic_manager.default_factor
    placed = parts.topic_manager.placed(_partition_count(parts, asked), factor=factor)
    return Refusal(*placed) if isinstance(placed, Problem) else placed


def _refuse_assignments(parts: Parts, asked: Any) -> Refusal | None:
    for field, number in (
        ("replication factor", asked.replication_factor),
        ("numPartitions", asked.num_partitions),
    ):
        if number != BY_DEFAULT:
            text = f"A manual partition assignment was specified, but {field} was not set to -1."
            return Refusal(Code.INVALID_REQUEST, text)
    return _refusal(manual.problem_of_new(_assigned(asked), parts.topic_manager.brokers()))


def _assigned(asked: Any) -> list[tuple[int, Replicas]]:
    return [(one.partition_index, tuple(one.broker_ids)) for one in asked.assignments]


def _refusal(problem: Problem | None) -> Refusal | None:
    return None if problem is None else Refusal(*problem)


def _created(parts: Parts, ctx: Context, topic: Topic) -> Any:
    return build(
        entity("create_topics", ctx.version, "CreatableTopicResult", "response"),
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=Code.NONE,
        error_message=None,
        num_partitions=topic.partitions,
        replication_factor=len(topic.replicas[0]),
        configs=_configs_created(parts, ctx, topic.configs),
    )


def _configs_created(parts: Parts, ctx: Context, configs: Mapping[str, str]) -> tuple[Any, ...]:
    """Return every setting the topic goes by, which version 5 and later tell."""
    from coterie.broker.api.configs import topic_entries

    if ctx.version < 5:
        return ()
    cls = entity("create_topics", ctx.version, "CreatableTopicConfigs", "response")
    return tuple(
        build(cls, name=entry.name, value=entry.value, config_source=entry.source)
        for entry in topic_entries(parts.settings, configs)
    )


def _not_created(ctx: Context, name: str, refusal: Refusal) -> Any:
    return build(
        entity("create_topics", ctx.version, "CreatableTopicResult", "response"),
        name=name,
        error_code=refusal.code,
        error_message=refusal.message,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )


# -- DeleteTopics


class Named(NamedTuple):
    """One topic as a deletion names it: by name, from version 6 on or by id; both or neither is a mistake."""

    name: str | None
    topic_id: UUID | None


def delete_topics(parts: Parts, ctx: Context, request: Any) -> Any:
    """Delete the topics named; one that is named twice, in whatever way, stays."""
    return _delete_topics(parts, ctx, request)


def _delete_topics(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    if ctx.version < 6:
        named = yield from gathered(Named(name, None) for name in request.topic_names)
    else:
        named = yield from gathered(Named(one.name, one.topic_id) for one in request.topics)
    times = Counter(named)
    judged: list[tuple[Named, Topic | None, Refusal | None]] = []
    for one in times:
        topic = _topic_of(parts, one)
        if topic is not None and one.name is not None and Named(None, topic.topic_id) in times:
            continue  # answered with its id
        judged.append((one, topic, _refuse_deletion(parts, ctx, one, topic, times)))
        if len(judged) % ITEMS_AT_ONCE == 0:
            yield
    # What others have deleted since it was judged is theirs, and what has its name by now was not meant.
    for place, (one, topic, refusal) in enumerate(judged):
        if topic is not None and refusal is None and parts.topics.by_id(topic.topic_id) is None:
            judged[place] = one, None, _refuse_deletion(parts, ctx, one, None, times)
    names = [topic.name for _, topic, refusal in judged if topic and not refusal]
    failed: Mapping[str, Failure]
    try:
        failed = yield from parts.topic_manager.delete_topics(names)
    except STORAGE_ERRORS as error:
        failed = dict.fromkeys(names, error)
    results = []
    for one, topic, refusal in judged:
        if refusal is None and topic is not None and topic.name in failed:
            why = failed[topic.name]
            if why is GONE:  # since it was judged
                topic, refusal = None, _refuse_deletion(parts, ctx, one, None, times)
            else:
                refusal = refused(f"delete topic {topic.name}", why)
        results.append(_deletion(ctx, one, topic if times[one] == 1 else None, refusal))
        if len(results) % ITEMS_AT_ONCE == 0:
            yield
    return build(response_type(DELETE_TOPICS, ctx.version), responses=tuple(results))


def _topic_of(parts: Parts, named: Named) -> Topic | None:
    """Return the topic that exactly one of name and id points at."""
    match named:
        case Named(name=str(name), topic_id=None):
            return parts.topics.get(name)
        case Named(name=None, topic_id=UUID() as topic_id):
            return parts.topics.by_id(topic_id)
    return None


def _refuse_deletion(
    parts: Parts, ctx: Context, named: Named, topic: Topic | None, times: Mapping[Named, int]
) -> Refusal | None:
    if not parts.settings.delete_topic_enable:
        code = Code.TOPIC_DELETION_DISABLED if ctx.version >= 3 else Code.INVALID_REQUEST
        return Refusal(code, "Topic deletion is disabled.")
    if named.name is not None and named.topic_id is not None:
        return Refusal(Code.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if named.name is None and named.topic_id is None:
        return Refusal(Code.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if times[named] > 1:
        return Refusal(
            Code.INVALID_REQUEST, DUPLICATE_NAME if named.name is not None else "Duplicate topic id."
        )
    if topic is None and named.name is not None:
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    if topic is None:
        return Refusal(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if named.name is None and Named(topic.name, None) in times:
        text = "The provided topic name maps to an ID that was already supplied."
        return Refusal(Code.INVALID_REQUEST, text)
    if topic.internal:
        return Refusal(Code.INVALID_REQUEST, f"Deletion of internal topic {topic.name} is prohibited.")
    return None


def _deletion(ctx: Context, named: Named, topic: Topic | None, refusal: Refusal | None) -> Any:
    """Return the answer about one topic: by name and id where it is sure that both were meant."""
    if topic is not None and (refusal is None or named.name is None):
        named = Named(topic.name, topic.topic_id)
    return build(
        entity("delete_topics", ctx.version, "DeletableTopicResult", "response"),
        name=named.name,
        topic_id=named.topic_id,
        error_code=refusal.code if refusal else Code.NONE,
        error_message=refusal.message if refusal else None,
    )


# -- CreatePartitions


def create_partitions(parts: Parts, ctx: Context, request: Any) -> Any:
    """Grow the topics that can grow as asked; a name given twice is refused."""
    return _create_partitions(parts, ctx, request)


def _create_partitions(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    times = Counter(asked.name for asked in request.topics)
    twice = Refusal(Code.INVALID_REQUEST, DUPLICATE_NAME)
    refusals: dict[str, Refusal | None] = {}
    pending = [asked for asked in request.topics if times[asked.name] == 1]
    while pending:
        found = yield from _refuse_each_growth(parts, pending)
        if not request.validate_only:
            found |= yield from _grow(parts, [asked for asked in pending if found[asked.name] is None])
        refusals |= found
        pending = [asked for asked in pending if found[asked.name] is OVERTAKEN]
    refusals |= {name: twice for name, count in times.items() if count > 1}
    cls = entity("create_partitions", ctx.version, "CreatePartitionsTopicResult", "response")
    results = []
    for name, refusal in refusals.items():
        code, message = (Code.NONE, None) if refusal is None else refusal
        results.append(build(cls, name=name, error_code=code, error_message=message))
        if len(results) % ITEMS_AT_ONCE == 0:
            yield
    return build(response_type(CREATE_PARTITIONS, ctx.version), results=tuple(results))


def _refuse_each_growth(parts: Parts, pending: Sequence[Any]) -> Pieces[dict[str, Refusal | None]]:
    """Return for each topic why it cannot grow as asked, None if it can."""
    refusals: dict[str, Refusal | None] = {}
    room = PARTITIONS_OF_REQUEST_MAX
    for asked in pending:
        topic = parts.topics.get(asked.name)
        refusal = refusals[asked.name] = _refuse_growth(parts, topic, asked, room)
        if topic is not None and refusal is None:
            room -= asked.count - topic.partitions
        yield
    return refusals


def _grow(parts: Parts, wanted: Sequence[Any]) -> Pieces[dict[str, Refusal | None]]:
    """Grow topics, and return why some could not be. What others have done to one meanwhile stands."""
    topics = {asked.name: parts.topics.get(asked.name) for asked in wanted}
    still = [asked for asked in wanted if (one := topics[asked.name]) and one.partitions < asked.count]
    totals = {asked.name: asked.count for asked in still}
    assigned = {asked.name: _added(asked) for asked in still if asked.assignments is not None}
    failed: Mapping[str, Failure]
    try:
        failed = yield from parts.topic_manager.grow_topics(totals, assigned)
    except STORAGE_ERRORS as error:
        failed = dict.fromkeys(totals, error)
    return {name: refused(f"add partitions to topic {name}", why) for name, why in failed.items()}


def _added(asked: Any) -> Layout:
    """Return the replicas that new partitions are to have."""
    return [tuple(assignment.broker_ids) for assignment in asked.assignments]


def _refuse_growth(parts: Parts, topic: Topic | None, asked: Any, room: int) -> Refusal | None:
    """Return why a topic cannot grow as asked; `room` is how many partitions the request may still create."""
    if topic is None:
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, None)
    extra = asked.count - topic.partitions
    if extra == 0:
        return Refusal(Code.INVALID_PARTITIONS, f"Topic already has {topic.partitions} partition(s).")
    if extra < 0:
        has = f"The topic {topic.name} currently has {topic.partitions} partition(s)"
        return Refusal(Code.INVALID_PARTITIONS, f"{has}; {asked.count} would not be an increase.")
    if topic.internal:
        return Refusal(Code.INVALID_REQUEST, f"Growth of internal topic {topic.name} is prohibited.")
    if extra > room:
        return Refusal(Code.POLICY_VIOLATION, TOO_MANY)
    changes, factor = parts.topic_manager, len(topic.replicas[0])
    if asked.assignments is None:
        placed = changes.placed(extra, factor=factor)
        return _refusal(placed) if isinstance(placed, Problem) else None
    return _refusal(
        manual.problem_of_growth(
            _added(asked),
            changes.brokers(),
            existing=topic.partitions,
            total=asked.count,
            factor=factor,
        )
    )


# -- DescribeCluster


def describe_cluster(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with the brokers; a client that looks for controllers has come to the wrong door.

    Who does not reach the others' engine has no controller to name: it answers with what was before, and
    takes no changes. Metadata name it nevertheless: Kafka's clients send changes there, and are told why.
    """
    asked = getattr(request, "endpoint_type", BROKERS)
    cls = response_type(DESCRIBE_CLUSTER, ctx.version)
    if asked != BROKERS:
        refusal = _wrong_endpoint(asked)
        return build(
            cls, error_code=refusal.code, error_message=refusal.message, cluster_id="", controller_id=-1
        )
    broker_type = entity("describe_cluster", ctx.version, "DescribeClusterBroker", "response")
    known = [(one, False) for one in parts.leadership.live_brokers()]
    if getattr(request, "include_fenced_brokers", False):
        known += [(one, True) for one in parts.leadership.fenced_brokers()]
    brokers = [
        build(
            broker_type,
            broker_id=one.node_id,
            host=one.host,
            port=one.port,
            rack=one.rack,
            is_fenced=is_fenced,
        )
        for one, is_fenced in known
    ]
    wanted = request.include_cluster_authorized_operations
    return build(
        cls,
        cluster_id=parts.topics.cluster_id,
        controller_id=NO_BROKER if parts.leadership.suspended else controller_of(parts.leadership),
        brokers=tuple(brokers),
        cluster_authorized_operations=CLUSTER_OPERATIONS_ALL if wanted else OPERATIONS_UNASKED,
    )


def _wrong_endpoint(asked: int) -> Refusal:
    if asked == CONTROLLERS:
        text = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        )
        return Refusal(Code.MISMATCHED_ENDPOINT_TYPE, text)
    return Refusal(Code.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {asked}")


HANDLERS = {
    CREATE_TOPICS: create_topics,
    DELETE_TOPICS: delete_topics,
    CREATE_PARTITIONS: create_partitions,
    DESCRIBE_CLUSTER: describe_cluster,
}
