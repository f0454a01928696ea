"""The requests of an administrator, each with the reader of its answer. Pure.

A reader returns what was asked for, or raises `RefusedBy` with the broker's code and words.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import TopicPartition
from coterie.base.settings import nearest
from coterie.client.net.addresses import Address
from coterie.client.net.messages import TRANSACTION, Rpc, api_versions, by_topic, metadata, rpc
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import only

PREFERRED = 0  # elections
UPGRADE = 1  # of a feature
BY_DEFAULT = -1  # as a number of partitions or replicas: what the broker's settings say
UNKNOWN_SETTING = "Unknown topic config name: "  # as brokers say it, the name behind it


def refused(code: int, message: str | None, what: str) -> None:
    """Raise a refusal, if it is one, with the broker's words where it has any, and the setting that may have
    been meant, which they do not say.
    """
    if code:
        from coterie.base.settings.topic import TOPIC  # only on the way to an error

        name = (message or "").partition(UNKNOWN_SETTING)[2]
        near = nearest(name, TOPIC) if name else None
        hint = f" (did you mean {near}?)" if near else ""
        said = f"{what}: {message}{hint}" if message else what
        raise RefusedBy(Code(code), said, reason_given=bool(message))


# -- the cluster


class DescribedBroker(NamedTuple):
    """A broker; a fenced one is registered and takes no part."""

    broker_id: int
    address: Address
    rack: str | None
    fenced: bool


class ClusterInfo(NamedTuple):
    """A cluster, as `said_by` knows it, and the broker to send changes to: -1 where no broker that answers
    knows one. `cut_off` is who was asked first and knew none: Coterie's that does not reach its database.
    """

    cluster_id: str
    controller_id: int
    brokers: tuple[DescribedBroker, ...]
    said_by: Address | None = None
    cut_off: Address | None = None


def describe_cluster(*, fenced: bool = False) -> Rpc[ClusterInfo]:
    """Return the request for the cluster's brokers, with fenced ones from Kafka 4.0 on."""
    return rpc(ApiKey.DESCRIBE_CLUSTER, _cluster, include_fenced_brokers=fenced)


def _cluster(answer: Any) -> ClusterInfo:
    refused(answer.error_code, answer.error_message, "DescribeCluster")
    brokers = (
        DescribedBroker(
            one.broker_id, Address(one.host, one.port), one.rack, getattr(one, "is_fenced", False)
        )
        for one in answer.brokers
    )
    return ClusterInfo(answer.cluster_id, answer.controller_id, tuple(sorted(brokers)))


def unregister_broker(broker_id: int) -> Rpc[None]:
    """Return a request that a broker be none of the cluster's any more."""

    def read(answer: Any) -> None:
        refused(answer.error_code, answer.error_message, f"broker {broker_id}")

    return rpc(ApiKey.UNREGISTER_BROKER, read, broker_id=broker_id)


class FeatureLevels(NamedTuple):
    """The highest level of a feature that a broker's software has, and the one that its cluster is at."""

    supported: int
    finalized: int


def describe_feature(name: str) -> Rpc[FeatureLevels]:
    """Return the request for the levels of a feature; 0 where a broker does not know it."""

    def read(answer: Any) -> FeatureLevels:
        refused(answer.error_code, None, "ApiVersions")
        supported = {one.name: one.max_version for one in answer.supported_features}
        finalized = {one.name: one.max_version_level for one in answer.finalized_features}
        return FeatureLevels(supported.get(name, 0), finalized.get(name, 0))

    return Rpc(ApiKey.API_VERSIONS, lambda _: api_versions(), read)


def update_feature(name: str, level: int, *, timeout_ms: int) -> Rpc[None]:
    """Return a request that a cluster rely on a feature at a higher level."""

    def read(answer: Any) -> None:
        refused(answer.error_code, answer.error_message, f"feature {name}")
        for one in getattr(answer, "results", ()):
            refused(one.error_code, one.error_message, f"feature {name}")

    update = {"feature": name, "max_version_level": level, "upgrade_type": UPGRADE}
    return rpc(ApiKey.UPDATE_FEATURES, read, feature_updates=[update], timeout=timeout_ms)


# -- replicas


def alter_reassignments(
    wanted: Mapping[TopicPartition, Sequence[int]], *, timeout_ms: int
) -> Rpc[list[TopicPartition]]:
    """Return a request that partitions have these replicas from now on; the answer has those that are not."""

    def placed(one: TopicPartition) -> dict[str, Any]:
        return {"partition_index": one.partition, "replicas": tuple(wanted[one])}

    topics = [{"name": topic, "partitions": [*map(placed, some)]} for topic, some in by_topic(wanted)]
    return rpc(ApiKey.ALTER_PARTITION_REASSIGNMENTS, _reassigned, topics=topics, timeout=timeout_ms)


def _reassigned(answer: Any) -> list[TopicPartition]:
    refused(answer.error_code, answer.error_message, "AlterPartitionReassignments")
    unknown = []
    for topic in answer.responses:
        for one in topic.partitions:
            name = TopicPartition(topic.name, one.partition_index)
            if one.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                unknown.append(name)
            else:
                refused(one.error_code, one.error_message, f"{name}")
    return unknown


def list_reassignments(*, timeout_ms: int) -> Rpc[list[TopicPartition]]:
    """Return the request for the partitions whose replicas are on their way."""
    return rpc(ApiKey.LIST_PARTITION_REASSIGNMENTS, _on_their_way, topics=None, timeout=timeout_ms)


def _on_their_way(answer: Any) -> list[TopicPartition]:
    refused(answer.error_code, answer.error_message, "ListPartitionReassignments")
    return [
        TopicPartition(topic.name, one.partition_index) for topic in answer.topics for one in topic.partitions
    ]


def elect_leaders(
    partitions: Iterable[TopicPartition], *, timeout_ms: int
) -> Rpc[dict[TopicPartition, Code]]:
    """Return a request that partitions be led by the first of their replicas; those that need not be, or
    cannot, are in the answer.
    """
    wanted = [
        {"topic": topic, "partitions": tuple(one.partition for one in some)}
        for topic, some in by_topic(partitions)
    ]
    return rpc(
        ApiKey.ELECT_LEADERS, _elected, topic_partitions=wanted, election_type=PREFERRED, timeout=timeout_ms
    )


def _elected(answer: Any) -> dict[TopicPartition, Code]:
    refused(getattr(answer, "error_code", 0), None, "ElectLeaders")
    return {
        TopicPartition(topic.topic, one.partition_id): Code(one.error_code)
        for topic in answer.replica_election_results
        for one in topic.partition_result
        if one.error_code
    }


# -- topics


class DescribedPartition(NamedTuple):
    """A partition; a leader of -1 is not known."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


class DescribedTopic(NamedTuple):
    """A topic and its partitions, in order."""

    name: str
    topic_id: UUID | None
    internal: bool
    partitions: tuple[DescribedPartition, ...]

    @property
    def layout(self) -> list[tuple[int, ...]]:
        """The replicas of each partition."""
        return [one.replicas for one in self.partitions]


class CreatedTopic(NamedTuple):
    """A topic that was created, or could be."""

    name: str
    topic_id: UUID | None
    partitions: int
    replication_factor: int


def describe_topics(names: Iterable[str] | None) -> Rpc[tuple[dict[str, DescribedTopic], dict[str, Code]]]:
    """Return the request for these topics, or all: described, or with the code why they cannot be."""
    return Rpc(ApiKey.METADATA, lambda version: metadata(version, names), _topics)


def _topics(answer: Any) -> tuple[dict[str, DescribedTopic], dict[str, Code]]:
    topics, codes = {}, {}
    for topic in answer.topics:
        if topic.error_code and not topic.partitions:
            codes[topic.name] = Code(topic.error_code)
            continue
        partitions = sorted(_partition(one) for one in topic.partitions)
        topic_id = getattr(topic, "topic_id", None)
        topics[topic.name] = DescribedTopic(topic.name, topic_id, topic.is_internal, tuple(partitions))
    return topics, codes


def _partition(one: Any) -> DescribedPartition:
    lists = map(tuple, (one.replica_nodes, one.isr_nodes, one.offline_replicas))
    return DescribedPartition(one.partition_index, one.leader_id, *lists)


def create_topic(
    name: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    layout: Sequence[Sequence[int]] | None,
    configs: Mapping[str, str],
    validate_only: bool,
    timeout_ms: int,
) -> Rpc[CreatedTopic]:
    """Return a request for one topic: of so many partitions and replicas, or with the replicas by hand."""
    topic = {
        "name": name,
        "num_partitions": BY_DEFAULT if partitions is None else partitions,
        "replication_factor": BY_DEFAULT if replication_factor is None else replication_factor,
        "assignments": [
            {"partition_index": number, "broker_ids": tuple(replicas)}
            for number, replicas in enumerate(layout or ())
        ],
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    return rpc(
        ApiKey.CREATE_TOPICS, _created, topics=[topic], timeout=timeout_ms, validate_only=validate_only
    )


def _created(answer: Any) -> CreatedTopic:
    topic = only(answer.topics, "topics")
    refused(topic.error_code, topic.error_message, f"topic {topic.name}")
    topic_id = getattr(topic, "topic_id", None)
    return CreatedTopic(topic.name, topic_id, topic.num_partitions, topic.replication_factor)


def delete_topic(name: str, *, timeout_ms: int) -> Rpc[None]:
    """Return a request that deletes one topic."""
    topics = [{"name": name, "topic_id": None}]
    return rpc(
        ApiKey.DELETE_TOPICS, lambda answer: _changed(answer.responses), topics=topics, timeout=timeout_ms
    )


def _changed(topics: Sequence[Any]) -> None:
    """Return if the one topic of an answer was changed."""
    topic = only(topics, "topics")
    refused(topic.error_code, topic.error_message, f"topic {topic.name}")


def create_partitions(
    name: str,
    *,
    total: int,
    layout: Sequence[Sequence[int]] | None,
    validate_only: bool,
    timeout_ms: int,
) -> Rpc[None]:
    """Return a request that a topic grow to `total` partitions, where the new ones may be placed by hand."""
    placed = None if layout is None else [{"broker_ids": tuple(replicas)} for replicas in layout]
    topic = {"name": name, "count": total, "assignments": placed}
    return rpc(
        ApiKey.CREATE_PARTITIONS,
        lambda answer: _changed(answer.results),
        topics=[topic],
        timeout=timeout_ms,
        validate_only=validate_only,
    )


# -- configs


class ResourceKind(IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    """Something that has settings. A broker is named by its id, all of them by the empty name."""

    kind: ResourceKind
    name: str

    @classmethod
    def topic(cls, name: str) -> "Resource":
        """Return a topic."""
        return cls(ResourceKind.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int | None = None) -> "Resource":
        """Return a broker, or what holds for all of them."""
        return cls(ResourceKind.BROKER, "" if broker_id is None else str(broker_id))

    @classmethod
    def group(cls, group_id: str) -> "Resource":
        """Return a group."""
        return cls(ResourceKind.GROUP, group_id)

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.name}".strip()


class ConfigSource(IntEnum):
    """Who set a setting."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigEntry(NamedTuple):
    """A setting; one that is a secret has no value here."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool


class Operation(IntEnum):
    """How a setting is changed; the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def describe_configs(resource: Resource) -> Rpc[dict[str, ConfigEntry]]:
    """Return the request for a resource's settings."""
    asked = {"resource_type": resource.kind, "resource_name": resource.name, "configuration_keys": None}
    return rpc(ApiKey.DESCRIBE_CONFIGS, partial(_configs, resource), resources=[asked])


def _configs(resource: Resource, answer: Any) -> dict[str, ConfigEntry]:
    found = only(answer.results, "resources")
    refused(found.error_code, found.error_message, f"settings of {resource}")
    entries = (
        ConfigEntry(one.name, one.value, ConfigSource(one.config_source), one.read_only, one.is_sensitive)
        for one in found.configs
    )
    return {entry.name: entry for entry in sorted(entries)}


def alter_configs(
    resource: Resource,
    changes: Iterable[tuple[Operation, str, str | None]],
    *,
    validate_only: bool,
) -> Rpc[None]:
    """Return a request that changes these settings and leaves the others."""
    asked = {
        "resource_type": resource.kind,
        "resource_name": resource.name,
        "configs": [
            {"name": name, "config_operation": operation, "value": value}
            for operation, name, value in changes
        ],
    }
    read = partial(_altered, resource)
    return rpc(ApiKey.INCREMENTAL_ALTER_CONFIGS, read, resources=[asked], validate_only=validate_only)


def _altered(resource: Resource, answer: Any) -> None:
    found = only(answer.responses, "resources")
    refused(found.error_code, found.error_message, f"settings of {resource}")


# -- groups


def delete_group(group_id: str) -> Rpc[tuple[int, None]]:
    """Return a request that deletes an empty group with its offsets, with its code."""
    return rpc(
        ApiKey.DELETE_GROUPS,
        lambda answer: (only(answer.results, "groups").error_code, None),
        groups_names=(group_id,),
    )


def delete_offsets(
    group_id: str, partitions: Iterable[TopicPartition]
) -> Rpc[tuple[int, dict[TopicPartition, Code]]]:
    """Return a request that drops a group's offsets of partitions: the code of all, and of each."""
    topics = [
        {"name": topic, "partitions": [{"partition_index": one.partition} for one in group]}
        for topic, group in by_topic(partitions)
    ]
    return rpc(ApiKey.OFFSET_DELETE, _deleted_offsets, group_id=group_id, topics=topics)


def _deleted_offsets(answer: Any) -> tuple[int, dict[TopicPartition, Code]]:
    codes = {
        TopicPartition(topic.name, one.partition_index): Code(one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    }
    return answer.error_code, codes


# -- transactions


class ListedTransaction(NamedTuple):
    """A transactional id in a list, with its producer and Kafka's name of its state."""

    transactional_id: str
    producer_id: int
    state: str


class DescribedTransaction(NamedTuple):
    """A transactional id; while no transaction is under way it has no start and no partitions."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]
    coordinator: str


class ActiveProducer(NamedTuple):
    """A producer that a partition's log knows; `transaction_start` is the offset its open one began at."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start: int | None


def find_transaction_coordinator(transactional_id: str) -> Rpc[Address]:
    """Return the request for the coordinator of this transactional id."""
    return rpc(
        ApiKey.FIND_COORDINATOR, _coordinator, key_type=TRANSACTION, coordinator_keys=(transactional_id,)
    )


def _coordinator(answer: Any) -> Address:
    found = only(answer.coordinators, "coordinators")
    refused(found.error_code, found.error_message, f"coordinator of transactional id {found.key}")
    return Address(found.host, found.port)


def list_transactions(*, states: Iterable[str], producer_ids: Iterable[int]) -> Rpc[list[ListedTransaction]]:
    """Return the request for the transactional ids that a broker coordinates; no filter is all."""
    return rpc(
        ApiKey.LIST_TRANSACTIONS,
        _transactions,
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
    )


def _transactions(answer: Any) -> list[ListedTransaction]:
    refused(answer.error_code, None, "ListTransactions")
    if answer.unknown_state_filters:
        unknown = ", ".join(answer.unknown_state_filters)
        raise RefusedBy(Code.INVALID_REQUEST, f"transactions have no state {unknown}")
    return [
        ListedTransaction(one.transactional_id, one.producer_id, one.transaction_state)
        for one in answer.transaction_states
    ]


def describe_transaction(transactional_id: str, coordinator: Address) -> Rpc[DescribedTransaction]:
    """Return the request to its coordinator for the state of a transactional id."""
    read = partial(_transaction, coordinator)
    return rpc(ApiKey.DESCRIBE_TRANSACTIONS, read, transactional_ids=(transactional_id,))


def _transaction(coordinator: Address, answer: Any) -> DescribedTransaction:
    one = only(answer.transaction_states, "transactional ids")
    refused(one.error_code, None, f"transactional id {one.transactional_id}")
    partitions = (TopicPartition(topic.topic, number) for topic in one.topics for number in topic.partitions)
    return DescribedTransaction(
        one.transactional_id,
        one.transaction_state,
        one.producer_id,
        one.producer_epoch,
        round(one.transaction_timeout.total_seconds() * 1000),
        _milliseconds(one.transaction_start_time),
        tuple(sorted(partitions)),
        str(coordinator),
    )


def _milliseconds(at: datetime) -> int | None:
    """Return a time as Kafka counts it; 0 is how the codec reads that there is none."""
    return round(at.timestamp() * 1000) or None


def describe_producers(partition: TopicPartition) -> Rpc[list[ActiveProducer]]:
    """Return the request for the producers that a partition's log knows."""
    topic = {"name": partition.topic, "partition_indexes": (partition.partition,)}
    return rpc(ApiKey.DESCRIBE_PRODUCERS, _producers, topics=[topic])


def _producers(answer: Any) -> list[ActiveProducer]:
    ((found,),) = (topic.partitions for topic in answer.topics)
    refused(found.error_code, found.error_message, "DescribeProducers")
    return [
        ActiveProducer(
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.last_timestamp,
            one.coordinator_epoch,
            None if one.current_txn_start_offset < 0 else one.current_txn_start_offset,
        )
        for one in found.active_producers
    ]


def write_abort_marker(partition: TopicPartition, producer: ActiveProducer) -> Rpc[None]:
    """Return a request that ends a producer's transaction in one partition, as its coordinator would."""
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": max(producer.coordinator_epoch, 0),
        "transaction_result": False,
        "topics": [{"name": partition.topic, "partition_indexes": (partition.partition,)}],
    }
    return rpc(ApiKey.WRITE_TXN_MARKERS, partial(_marked, partition), markers=[marker])


def _marked(partition: TopicPartition, answer: Any) -> None:
    topic = only(only(answer.markers, "markers").topics, "topics")
    found = only(topic.partitions, "partitions")
    refused(found.error_code, None, f"transaction in {partition}")


def init_producer(transactional_id: str, *, timeout_ms: int) -> Rpc[None]:
    """Return a request for the next epoch of a transactional id, which ends what is under way."""
    return rpc(
        ApiKey.INIT_PRODUCER_ID,
        lambda answer: refused(answer.error_code, None, f"transactional id {transactional_id}"),
        transactional_id=transactional_id,
        transaction_timeout=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
