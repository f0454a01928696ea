"""The requests of an administrator and what is read from their answers. Pure.

As in `messages`, every maker takes the version that was agreed. A reader raises `RefusedBy` with the broker's
code and words, or returns what was asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import TopicPartition
from coterie.base.settings import nearest
from coterie.client.net.addresses import Address
from coterie.client.net.messages import by_topic, part, whole
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import only

BY_DEFAULT = -1  # as a number of partitions or replicas: what the broker's settings say
TRANSACTION_KEY = 1
UNKNOWN_SETTING = "Unknown topic config name: "  # as brokers say it, the name behind it


def refused(code: int, message: str | None, what: str) -> None:
    """Raise a refusal, if it is one, with the broker's own words where it has any.

    They do not say which setting may have been meant, so that is added.
    """
    if code:
        from coterie.base.topic_settings import TOPIC  # only on the way to an error

        name = (message or "").partition(UNKNOWN_SETTING)[2]
        near = nearest(name, TOPIC, likeness=0.5) if name else None
        hint = f" (did you mean {near}?)" if near else ""
        raise RefusedBy(Code(code), f"{what}: {message}{hint}" if message else what)


# -- the cluster


class DescribedBroker(NamedTuple):
    """A broker; a fenced one is registered and takes no part."""

    broker_id: int
    address: Address
    rack: str | None
    fenced: bool


class ClusterInfo(NamedTuple):
    """A cluster; the controller is the broker to send changes to."""

    cluster_id: str
    controller_id: int
    brokers: tuple[DescribedBroker, ...]


def describe_cluster(version: int, *, fenced: bool = False) -> Any:
    """Return the request for the cluster's brokers, with fenced ones from Kafka 4.0 on."""
    return whole(ApiKey.DESCRIBE_CLUSTER, version, include_fenced_brokers=fenced)


def read_cluster(answer: Any) -> ClusterInfo:
    """Return the cluster."""
    refused(answer.error_code, answer.error_message, "DescribeCluster")
    brokers = (
        DescribedBroker(
            one.broker_id, Address(one.host, one.port), one.rack, getattr(one, "is_fenced", False)
        )
        for one in answer.brokers
    )
    return ClusterInfo(answer.cluster_id, answer.controller_id, tuple(sorted(brokers)))


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


def read_topics(answer: Any) -> tuple[dict[str, DescribedTopic], dict[str, Code]]:
    """Return the topics of a metadata answer, and the codes of those that cannot be described."""
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
    return DescribedPartition(
        one.partition_index,
        one.leader_id,
        tuple(one.replica_nodes),
        tuple(one.isr_nodes),
        tuple(one.offline_replicas),
    )


def create_topic(
    version: int,
    name: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    layout: Sequence[Sequence[int]] | None,
    configs: Mapping[str, str],
    validate_only: bool,
    timeout_ms: int,
) -> Any:
    """Return a request for one topic: of so many partitions and replicas, or with the replicas by hand."""
    api = "create_topics"
    placed = tuple(
        part(api, version, "CreatableReplicaAssignment", partition_index=number, broker_ids=tuple(replicas))
        for number, replicas in enumerate(layout or ())
    )
    given = tuple(
        part(api, version, "CreatableTopicConfig", name=key, value=value) for key, value in configs.items()
    )
    topic = part(
        api,
        version,
        "CreatableTopic",
        name=name,
        num_partitions=BY_DEFAULT if partitions is None else partitions,
        replication_factor=BY_DEFAULT if replication_factor is None else replication_factor,
        assignments=placed,
        configs=given,
    )
    return whole(
        ApiKey.CREATE_TOPICS, version, topics=(topic,), timeout=timeout_ms, validate_only=validate_only
    )


def read_created(answer: Any) -> CreatedTopic:
    """Return the topic that was created."""
    topic = only(answer.topics, "topics")
    refused(topic.error_code, topic.error_message, f"topic {topic.name}")
    topic_id = getattr(topic, "topic_id", None)
    return CreatedTopic(topic.name, topic_id, topic.num_partitions, topic.replication_factor)


def delete_topic(version: int, name: str, *, timeout_ms: int) -> Any:
    """Return a request that deletes one topic."""
    topic = part("delete_topics", version, "DeleteTopicState", name=name, topic_id=None)
    return whole(ApiKey.DELETE_TOPICS, version, topics=(topic,), timeout=timeout_ms)


def read_deleted(answer: Any) -> None:
    """Return if the topic was deleted."""
    topic = only(answer.responses, "topics")
    refused(topic.error_code, topic.error_message, f"topic {topic.name}")


def create_partitions(
    version: int,
    name: str,
    *,
    total: int,
    layout: Sequence[Sequence[int]] | None,
    validate_only: bool,
    timeout_ms: int,
) -> Any:
    """Return a request that a topic grow to `total` partitions, where the new ones may be placed by hand."""
    api = "create_partitions"
    placed = None if layout is None else tuple(
        part(api, version, "CreatePartitionsAssignment", broker_ids=tuple(replicas)) for replicas in layout
    )  # fmt: skip
    topic = part(api, version, "CreatePartitionsTopic", name=name, count=total, assignments=placed)
    return whole(
        ApiKey.CREATE_PARTITIONS, version, topics=(topic,), timeout=timeout_ms, validate_only=validate_only
    )


def read_grown(answer: Any) -> None:
    """Return if the topic grew."""
    topic = only(answer.results, "topics")
    refused(topic.error_code, topic.error_message, f"topic {topic.name}")


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


def describe_configs(version: int, resource: Resource) -> Any:
    """Return the request for a resource's settings."""
    asked = part(
        "describe_configs",
        version,
        "DescribeConfigsResource",
        resource_type=resource.kind,
        resource_name=resource.name,
        configuration_keys=None,
    )
    return whole(ApiKey.DESCRIBE_CONFIGS, version, resources=(asked,))


def read_configs(answer: Any, resource: Resource) -> dict[str, ConfigEntry]:
    """Return the settings by name."""
    found = only(answer.results, "resources")
    refused(found.error_code, found.error_message, f"settings of {resource}")
    entries = (
        ConfigEntry(one.name, one.value, ConfigSource(one.config_source), one.read_only, one.is_sensitive)
        for one in found.configs
    )
    return {entry.name: entry for entry in sorted(entries)}


def alter_configs(
    version: int,
    resource: Resource,
    changes: Iterable[tuple[Operation, str, str | None]],
    *,
    validate_only: bool,
) -> Any:
    """Return a request that changes these settings and leaves the others."""
    api = "incremental_alter_configs"
    asked = tuple(
        part(api, version, "AlterableConfig", name=name, config_operation=operation, value=value)
        for operation, name, value in changes
    )
    whose = part(
        api,
        version,
        "AlterConfigsResource",
        resource_type=resource.kind,
        resource_name=resource.name,
        configs=asked,
    )
    return whole(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=(whose,), validate_only=validate_only)


def read_altered(answer: Any, resource: Resource) -> None:
    """Return if the settings were changed."""
    found = only(answer.responses, "resources")
    refused(found.error_code, found.error_message, f"settings of {resource}")


# -- groups


def delete_group(version: int, group_id: str) -> Any:
    """Return a request that deletes an empty group with its offsets."""
    return whole(ApiKey.DELETE_GROUPS, version, groups_names=(group_id,))


def delete_offsets(version: int, group_id: str, partitions: Iterable[TopicPartition]) -> Any:
    """Return a request that drops what a group has committed for these partitions."""
    api = "offset_delete"
    topics = tuple(
        part(api, version, "OffsetDeleteRequestTopic", name=topic, partitions=tuple(
            part(api, version, "OffsetDeleteRequestPartition", partition_index=one.partition)
            for one in group
        ))
        for topic, group in by_topic(partitions)
    )  # fmt: skip
    return whole(ApiKey.OFFSET_DELETE, version, group_id=group_id, topics=topics)


def read_deleted_offsets(answer: Any) -> tuple[Code, dict[TopicPartition, Code]]:
    """Return the code of the whole and of each partition."""
    codes = {
        TopicPartition(topic.name, one.partition_index): Code(one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    }
    return Code(answer.error_code), codes


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


def find_transaction_coordinator(version: int, transactional_id: str) -> Any:
    """Return the request for the coordinator of this transactional id."""
    return whole(
        ApiKey.FIND_COORDINATOR, version, key_type=TRANSACTION_KEY, coordinator_keys=(transactional_id,)
    )


def read_coordinator(answer: Any) -> Address:
    """Return the coordinator's address."""
    found = only(answer.coordinators, "coordinators")
    refused(found.error_code, found.error_message, f"coordinator of transactional id {found.key}")
    return Address(found.host, found.port)


def list_transactions(version: int, *, states: Iterable[str], producer_ids: Iterable[int]) -> Any:
    """Return the request for the transactional ids that a broker coordinates; no filter is all."""
    return whole(
        ApiKey.LIST_TRANSACTIONS,
        version,
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
    )


def read_transactions(answer: Any) -> list[ListedTransaction]:
    """Return the transactional ids of one broker."""
    refused(answer.error_code, None, "ListTransactions")
    if answer.unknown_state_filters:
        unknown = ", ".join(answer.unknown_state_filters)
        raise RefusedBy(Code.INVALID_REQUEST, f"transactions have no state {unknown}")
    return [
        ListedTransaction(one.transactional_id, one.producer_id, one.transaction_state)
        for one in answer.transaction_states
    ]


def describe_transaction(version: int, transactional_id: str) -> Any:
    """Return the request for the state of a transactional id."""
    return whole(ApiKey.DESCRIBE_TRANSACTIONS, version, transactional_ids=(transactional_id,))


def read_transaction(answer: Any, coordinator: Address) -> DescribedTransaction:
    """Return the state of the one transactional id that was asked for."""
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


def describe_producers(version: int, partition: TopicPartition) -> Any:
    """Return the request for the producers that a partition's log knows."""
    topic = part(
        "describe_producers",
        version,
        "TopicRequest",
        name=partition.topic,
        partition_indexes=(partition.partition,),
    )
    return whole(ApiKey.DESCRIBE_PRODUCERS, version, topics=(topic,))


def read_producers(answer: Any) -> list[ActiveProducer]:
    """Return the producers."""
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


def write_abort_marker(version: int, partition: TopicPartition, producer: ActiveProducer) -> Any:
    """Return a request that ends a producer's transaction in one partition, as its coordinator would."""
    api = "write_txn_markers"
    topic = part(
        api,
        version,
        "WritableTxnMarkerTopic",
        name=partition.topic,
        partition_indexes=(partition.partition,),
    )
    marker = part(
        api,
        version,
        "WritableTxnMarker",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        coordinator_epoch=max(producer.coordinator_epoch, 0),
        transaction_result=False,
        topics=(topic,),
    )
    return whole(ApiKey.WRITE_TXN_MARKERS, version, markers=(marker,))


def read_marker(answer: Any, partition: TopicPartition) -> None:
    """Return if the marker was written."""
    topic = only(only(answer.markers, "markers").topics, "topics")
    found = only(topic.partitions, "partitions")
    refused(found.error_code, None, f"transaction in {partition}")


def init_producer(version: int, transactional_id: str, *, timeout_ms: int) -> Any:
    """Return a request for the next epoch of a transactional id, which ends what is under way."""
    return whole(
        ApiKey.INIT_PRODUCER_ID,
        version,
        transactional_id=transactional_id,
        transaction_timeout=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
