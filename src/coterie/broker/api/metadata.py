"""ApiVersions, Metadata, FindCoordinator: how a client finds its way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.reasons import mark
from coterie.base.topic_names import OFFSETS_TOPIC, RESERVED_TOPIC, TRANSACTIONS_TOPIC, metric_name
from coterie.broker.net.context import Context
from coterie.broker.placement.model import Problem
from coterie.broker.refusal import STORAGE_ERRORS, storage_failed
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, mapped, paced
from coterie.broker.topics.catalog import Failure, refused
from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.placement.model import Replicas
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.topics.catalog import TopicCatalog, TopicChanges
    from coterie.broker.topics.replica_proposals import ReplicaProposals
    from coterie.broker.topics.topic import (
        Topic,
    )

PARTITIONS_OF_REQUEST_MAX = 10_000
NO_BROKER = -1  # the id of a broker where there is none
GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
COORDINATED = {GROUP_KEY: OFFSETS_TOPIC, TRANSACTION_KEY: TRANSACTIONS_TOPIC}
TRANSACTION_VERSION = ("transaction.version", 2)
LEVEL_FEATURE = "coterie.level"  # of brokers over a database, that of their software and of the cluster
AUTHORIZED_OPERATIONS_UNASKED = -(2**31)
NAMED_SINCE = 3  # since this version of ApiVersions a client says which software it is (KIP-511)
# By somebody else, or perhaps after all: whoever asks again will see.
TO_BE_FOUND = frozenset({Code.TOPIC_ALREADY_EXISTS, Code.REQUEST_TIMED_OUT})
SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
CLUSTER_OPERATIONS_ALL = 0b1_1111_1010_0000  # CREATE to IDEMPOTENT_WRITE of KIP-430, no authorizer being set
TOPIC_OPERATIONS_ALL = 0b0000_1101_1111_1000  # READ to ALTER_CONFIGS of KIP-430, no authorizer being set


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    settings: BrokerSettings
    topics: TopicCatalog
    topic_manager: TopicChanges
    leadership: Leadership
    replica_changes: ReplicaProposals | None
    apis: frozenset[int]


# -- ApiVersions


def api_versions(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with the APIs that are served, each with exactly Apache Kafka 4.3.1's range.

    A client that gives its software a name which Kafka does not take is refused (SA-2).
    """
    if ctx.version >= NAMED_SINCE and not (
        SOFTWARE.fullmatch(request.client_software_name)
        and SOFTWARE.fullmatch(request.client_software_version)
    ):
        return build(response_type(18, ctx.version), error_code=Code.INVALID_REQUEST, api_keys=())
    mark("versions-told", ctx.api_key)
    ranges = tuple((key, APIS[key].least, APIS[key].most) for key in sorted(parts.apis))
    return _versions(ctx.version, Code.NONE, ranges, parts.replica_changes)


def versions_refused() -> Any:
    """Return the v0 answer to a version of ApiVersions that is not known, naming those that are (KIP-511)."""
    mark("versions-told-to-a-stranger")
    api = APIS[18]
    return _versions(0, Code.UNSUPPORTED_VERSION, ((18, api.least, api.most),))


def _versions(
    version: int,
    code: Code,
    ranges: tuple[tuple[int, int, int], ...],
    levels: ReplicaProposals | None = None,
) -> Any:
    cls = entity("api_versions", version, "ApiVersion", "response")
    keys = tuple(build(cls, api_key=key, min_version=low, max_version=high) for key, low, high in ranges)
    return build(response_type(18, version), error_code=code, api_keys=keys, **_features(version, levels))


def _features(version: int, levels: ReplicaProposals | None) -> dict[str, Any]:
    """Return the fields for features. By Kafka's Java bumps epochs with EndTxn 5 (KIP-890). Ours is the level
    of the broker's software, and that of the cluster, from 1 on.

    One that may be 0 is supported is not said before version 4, whose clients can read it (KAFKA-17011).
    """
    if version < 3:
        return {}
    name, level = TRANSACTION_VERSION
    supported = entity("api_versions", version, "SupportedFeatureKey", "response")
    finalized = entity("api_versions", version, "FinalizedFeatureKey", "response")
    readable = version >= 4
    there = [build(supported, name=name, min_version=0, max_version=level)] * readable
    agreed = [build(finalized, name=name, max_version_level=level, min_version_level=level)]
    if levels is not None and levels.software_level:
        most = levels.software_level
        there.append(build(supported, name=LEVEL_FEATURE, min_version=1, max_version=most))
    if levels is not None and levels.level:
        at = levels.level
        agreed.append(build(finalized, name=LEVEL_FEATURE, max_version_level=at, min_version_level=at))
    return {
        "supported_features": tuple(there),
        "finalized_features_epoch": 0,
        "finalized_features": tuple(agreed),
    }


# -- Metadata


def metadata(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with the brokers and the topics asked for, creating those that may be created."""
    return _metadata(parts, ctx, request)


def _metadata(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    asked = request.topics
    topics = []
    if asked is None or (ctx.version == 0 and not asked):
        for place, one in enumerate(parts.topics.all()):
            topic = parts.topics.by_id(one.topic_id)  # it may have gone, or grown, since the last stop
            if topic is not None:
                topics.append((yield from _described(parts, ctx, request, topic)))
            if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                yield
    else:
        # each once, as in Kafka
        named = yield from mapped(((one.name, getattr(one, "topic_id", None)), one) for one in asked)
        refused = yield from _create(parts, request, named.values())
        for place, one in enumerate(named.values()):
            topics.append((yield from _find_topic(parts, ctx, request, one, refused)))
            if place % ITEMS_AT_ONCE == 0:
                yield
    operations = AUTHORIZED_OPERATIONS_UNASKED
    if getattr(request, "include_cluster_authorized_operations", False):
        operations = CLUSTER_OPERATIONS_ALL
    cls = entity("metadata", ctx.version, "MetadataResponseBroker", "response")
    known = parts.leadership.live_brokers() or parts.leadership.fenced_brokers()
    # librdkafka forgets brokers that are not named: where it is told of none, it never finds one again.
    brokers = [build(cls, node_id=one.node_id, host=one.host, port=one.port, rack=one.rack) for one in known]
    return build(
        response_type(3, ctx.version),
        brokers=tuple(brokers),
        cluster_id=parts.topics.cluster_id,
        controller_id=controller_of(parts.leadership),
        topics=tuple(topics),
        cluster_authorized_operations=operations,
        error_code=Code.NONE,
    )


def _create(parts: Parts, request: Any, named: Iterable[Any]) -> Pieces[Mapping[str, Code]]:
    """Create the topics that are not there and may be created; return why some could not be.

    Kafka's controller makes its own topic for nobody, whoever asks.
    """
    if not (getattr(request, "allow_auto_topic_creation", True) and parts.settings.auto_create_topics_enable):
        return {}
    codes: dict[str, Code] = {}
    wanted: dict[str, Topic] = {}  # by what no two names may share
    for place, one in enumerate(named):
        if place == 1 or place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
        name = one.name
        if (
            name is None
            or name == RESERVED_TOPIC
            or parts.topics.is_taken(name)
            or parts.topics.name_error(name)
        ):
            continue
        if parts.topics.is_internal(name):
            try:
                parts.topic_manager.ensure_internal(name)
            except STORAGE_ERRORS as error:
                codes[name] = storage_failed(f"create topic {name}", error).code
        elif wanted.get(metric_name(name)) is None:
            placed = parts.topic_manager.placed(
                parts.settings.num_partitions, factor=parts.topic_manager.default_factor
            )
            if isinstance(placed, Problem):
                codes[name] = placed.code
            else:
                wanted[metric_name(name)] = parts.topics.new(name, replicas=placed)
    # others may have taken a name while this was planned
    topics = [topic for topic in wanted.values() if parts.topics.is_free(topic.name)]
    if not topics or len(topics) * parts.settings.num_partitions > PARTITIONS_OF_REQUEST_MAX:
        return codes  # Kafka's controller refuses so many at once
    failed: Mapping[str, Failure]
    try:
        failed = yield from parts.topic_manager.create_topics(topics)
    except STORAGE_ERRORS as error:
        failed = {topic.name: error for topic in topics}
    codes |= {name: refused(f"create topic {name}", why).code for name, why in failed.items()}
    return {name: code for name, code in codes.items() if code not in TO_BE_FOUND}


def _find_topic(
    parts: Parts, ctx: Context, request: Any, asked: Any, refused: Mapping[str, Code]
) -> Pieces[Any]:
    topic_id = getattr(asked, "topic_id", None)
    if asked.name is None and topic_id is not None:
        topic = parts.topics.by_id(topic_id)
        if topic is None:
            return _unknown(ctx, None, topic_id, Code.UNKNOWN_TOPIC_ID)
    else:
        topic = parts.topics.get(asked.name)
        if topic is None:
            unknown = refused.get(asked.name, Code.UNKNOWN_TOPIC_OR_PARTITION)
            return _unknown(ctx, asked.name, None, parts.topics.name_error(asked.name) or unknown)
    return (yield from _described(parts, ctx, request, topic))


def _unknown(ctx: Context, name: str | None, topic_id: Any, code: Code) -> Any:
    cls = entity("metadata", ctx.version, "MetadataResponseTopic", "response")
    nameable = name if name is not None or ctx.version >= 12 else ""
    return build(cls, error_code=code, name=nameable, topic_id=topic_id, partitions=())


def controller_of(leadership: Leadership) -> int:
    """Return the id of the broker that is named as the controller, -1 while none is known to live."""
    controller = leadership.controller()
    return NO_BROKER if controller is None else controller


def described_partition(
    leadership: Leadership,
    cls: Any,
    topic: Topic,
    partition: int,
    *,
    leaderless: Code = Code.LEADER_NOT_AVAILABLE,
    **more: Any,
) -> Any:
    """Return a partition's leader and replicas as an instance of `cls`, an entity of a response.

    Without a leader its code is `leaderless`. A replica that lives is in sync.
    """
    replicas = topic.replicas[partition]
    leader_id, code, in_sync = replicas[0], Code.NONE, replicas
    offline: Replicas = ()
    if not leadership.alone:
        leader = leadership.leader_of(topic.name, partition)
        leader_id, code = (NO_BROKER, leaderless) if leader is None else (leader.node_id, Code.NONE)
        in_sync = tuple(one for one in replicas if leadership.lives(one))
        offline = tuple(one for one in replicas if not leadership.lives(one))
    return build(
        cls,
        error_code=code,
        partition_index=partition,
        leader_id=leader_id,
        leader_epoch=leadership.leader_epoch(topic.name, partition),
        replica_nodes=replicas,
        isr_nodes=in_sync,
        offline_replicas=offline,
        **more,
    )


def _described(parts: Parts, ctx: Context, request: Any, topic: Topic) -> Pieces[Any]:
    cls = entity("metadata", ctx.version, "MetadataResponseTopic", "response")
    partition_type = entity("metadata", ctx.version, "MetadataResponsePartition", "response")
    partitions = []
    for partition in range(topic.partitions):
        partitions.append(described_partition(parts.leadership, partition_type, topic, partition))
        if partition % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    operations = AUTHORIZED_OPERATIONS_UNASKED
    if getattr(request, "include_topic_authorized_operations", False):
        operations = TOPIC_OPERATIONS_ALL
    return build(
        cls,
        error_code=Code.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=tuple(partitions),
        topic_authorized_operations=operations,
    )


# -- FindCoordinator


def find_coordinator(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with who coordinates each key: the leader of its partition (FC-1 to FC-12)."""
    kind = getattr(request, "key_type", GROUP_KEY)
    cls = response_type(10, ctx.version)
    if ctx.version >= 4:
        mark("coordinators-told", ctx.api_key)
        return paced(_find_coordinators(parts, ctx, request, kind), len(request.coordinator_keys))
    mark("coordinator-told-alone", ctx.api_key)
    return build(cls, **_coordinator(parts, kind, request.key, "NONE"))


def _find_coordinators(parts: Parts, ctx: Context, request: Any, kind: int) -> Pieces[Any]:
    item = entity("find_coordinator", ctx.version, "Coordinator", "response")
    found = []
    for key in request.coordinator_keys:
        found.append(build(item, key=key, **_coordinator(parts, kind, key, "")))
        if len(found) % ITEMS_AT_ONCE == 0:
            yield
    return build(response_type(10, ctx.version), coordinators=tuple(found))


def _coordinator(parts: Parts, kind: int, key: str, message: str) -> dict[str, Any]:
    """Return the fields of one answer; its message on success is the enum's text or empty (FC-9, FC-10)."""
    if kind not in COORDINATED:
        mark("share-key" if kind == SHARE_KEY else "key-type-unknown")
        wordless = kind == SHARE_KEY and not message  # Kafka answers a list of keys so, key by key
        return _no_coordinator(Code.INVALID_REQUEST, "" if wordless else f"key type {kind} is not served")
    try:
        topic = parts.topic_manager.ensure_internal(COORDINATED[kind])
    except STORAGE_ERRORS as error:
        mark("internal-topic-failed")
        refusal = storage_failed(f"create topic {COORDINATED[kind]}", error)
        return _no_coordinator(Code.COORDINATOR_NOT_AVAILABLE, refusal.message or "" if message else "")
    if topic is None:
        mark("internal-topic-comes")
        words = f"topic {COORDINATED[kind]} is being created; try again"
        return _no_coordinator(Code.COORDINATOR_NOT_AVAILABLE, words if message else "")
    partition = coordinator_partition(key, partition_count=topic.partitions)
    leader = parts.leadership.leader_of(topic.name, partition)
    if leader is None:
        mark("coordinator-missing")
        words = f"partition {partition} of {topic.name} has no leader now; try again"
        return _no_coordinator(Code.COORDINATOR_NOT_AVAILABLE, words if message else "")
    mark("coordinator-found")
    return {
        "node_id": leader.node_id,
        "host": leader.host,
        "port": leader.port,
        "error_code": Code.NONE,
        "error_message": message,
    }


def _no_coordinator(code: Code, message: str) -> dict[str, Any]:
    return {"node_id": NO_BROKER, "host": "", "port": -1, "error_code": code, "error_message": message}


HANDLERS = {3: metadata, 10: find_coordinator, 18: api_versions}
