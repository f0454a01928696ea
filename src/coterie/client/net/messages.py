"""The requests this client makes and what it reads from the answers. Pure.

Every function takes the version that was agreed with the broker. `SPEAKS` says which versions have the shape
that the functions here give a request; all brokers since Kafka 3.0 know one of each.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from struct import error as StructError  # noqa: N812
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from coterie.assign.model import Cluster as Assignable
from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.errors import Unsupported, WrongUse
from coterie.client.net.addresses import Address
from coterie.client.partitions import offset_and_metadata
from coterie.wire.api.apis import APIS, ApiKey
from coterie.wire.api.codec import (
    encode_request,
    only,
)
from coterie.wire.api.entities import (
    build,
    request_type,
)
from coterie.wire.api.layout import plan_of

T = TypeVar("T")

SPEAKS: Mapping[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (7, 12),  # from 13 on, topics go by id
    ApiKey.FETCH: (7, 12),  # from 13 on, topics go by id
    ApiKey.LIST_OFFSETS: (4, 7),
    ApiKey.METADATA: (9, 12),
    ApiKey.OFFSET_COMMIT: (7, 9),  # 10 goes by topic id
    ApiKey.OFFSET_FETCH: (8, 9),
    ApiKey.FIND_COORDINATOR: (4, 6),
    ApiKey.JOIN_GROUP: (5, 9),
    ApiKey.HEARTBEAT: (3, 4),
    ApiKey.LEAVE_GROUP: (3, 5),
    ApiKey.SYNC_GROUP: (3, 5),
    ApiKey.DESCRIBE_GROUPS: (5, 6),
    ApiKey.LIST_GROUPS: (3, 5),
    ApiKey.API_VERSIONS: (3, 3),
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (3, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (2, 3),  # from 4 on, brokers ask each other
    ApiKey.ADD_OFFSETS_TO_TXN: (2, 4),
    ApiKey.END_TXN: (2, 5),
    ApiKey.TXN_OFFSET_COMMIT: (3, 5),
    # What administrators ask: see admin_messages.
    ApiKey.CREATE_TOPICS: (5, 7),
    ApiKey.DELETE_TOPICS: (6, 6),
    ApiKey.CREATE_PARTITIONS: (2, 3),
    ApiKey.DESCRIBE_CONFIGS: (3, 4),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, 1),
    ApiKey.DELETE_GROUPS: (1, 2),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.ELECT_LEADERS: (1, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.UPDATE_FEATURES: (1, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.INIT_PRODUCER_ID: (2, 5),
}

EARLIEST = -2
LATEST = -1

# What a coordinator is looked for by.
GROUP, TRANSACTION = 0, 1


class Rpc(NamedTuple, Generic[T]):
    """A request to a broker, and the reader of its answer."""

    api_key: int
    make: Callable[[int], Any]
    """Returns the request in a version."""
    read: Callable[[Any], T]
    """Returns the content of an answer, or raises RefusedBy."""


class TopicInfo(NamedTuple):
    """One topic of a metadata answer; a leader of -1 is not known."""

    name: str
    code: Code
    leaders: Mapping[int, int]
    replicas: Mapping[int, tuple[int, ...]] = {}
    internal: bool = False
    """Whether it is one of the brokers' own: no pattern matches those."""
    epochs: Mapping[int, int] = {}
    """The epoch that each partition's leader leads in."""
    topic_id: UUID | None = None
    """Tells a topic from another one of its name; brokers before Kafka 2.8 have none."""


class Metadata(NamedTuple):
    """Brokers by id, the topics asked for, the racks of the brokers that have one, and the cluster's id."""

    brokers: Mapping[int, Address]
    topics: Mapping[str, TopicInfo]
    racks: Mapping[int, str] = {}
    cluster_id: str | None = None

    def partition_counts(self) -> dict[str, int]:
        """Return the partition count of each topic that exists."""
        return {name: len(topic.leaders) for name, topic in self.topics.items() if topic.leaders}

    def why_without_leader(self, partition: TopicPartition) -> Code:
        """Return why nobody leads a partition: it is not known, or it is there, and has no leader now."""
        topic = self.topics.get(partition.topic)
        if topic is None or (not topic.code and partition.partition not in topic.leaders):
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        return topic.code or Code.LEADER_NOT_AVAILABLE

    def assignable(self, *, internal: bool = True) -> Assignable:
        """Return the topics that exist as assignors see them: partition counts and racks."""
        topics = [one for one in self.topics.values() if one.leaders and (internal or not one.internal)]
        racks = {
            TopicPartition(one.name, partition): frozenset(
                self.racks[broker] for broker in replicas if broker in self.racks
            )
            for one in topics
            for partition, replicas in one.replicas.items()
            if self.racks
        }
        return Assignable(partition_counts={one.name: len(one.leaders) for one in topics}, racks=racks)


class EpochEnd(NamedTuple):
    """Where a log's records of an epoch end, or of the last one before it; -1 and -1: it has none of them."""

    code: Code
    epoch: int
    offset: int


class ListedOffset(NamedTuple):
    """An answer of ListOffsets for one partition; offset -1: no record is that young."""

    code: Code
    offset: int
    timestamp: int


def agree(offered: Iterable[Any]) -> dict[int, int]:
    """Return the version to use for each API that the broker offers and we speak."""
    agreed = {}
    for api in offered:
        least, most = SPEAKS.get(api.api_key, (1, 0))
        version = min(most, api.max_version)
        if version >= max(least, api.min_version):
            agreed[int(api.api_key)] = version
    return agreed


def framed(correlation_id: int, client_id: str, request: Any) -> bytes:
    """Return a request's whole frame; raise WrongUse for a number or a text that none can carry."""
    try:
        return encode_request(correlation_id, client_id, request)
    except (StructError, UnicodeEncodeError) as error:
        raise WrongUse(f"{APIS[request.__api_key__].title} cannot carry what was given: {error}") from error


def version_for(agreed: Mapping[int, int], api_key: int, broker: object, *, most: int | None = None) -> int:
    """Return the version to speak, at most `most`, or raise Unsupported with what is missing."""
    version = agreed.get(api_key)
    if version is None:
        least, newest = SPEAKS[api_key]
        raise Unsupported(f"broker {broker} knows no {APIS[api_key].title} of versions {least} to {newest}")
    return version if most is None else min(version, most)


def by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[TopicPartition]]]:
    """Yield each topic with its partitions, sorted."""
    for topic, group in groupby(sorted(partitions), key=lambda partition: partition.topic):
        yield topic, list(group)


def numbers_of(partitions: Iterable[TopicPartition]) -> tuple[int, ...]:
    """Return the partitions' numbers."""
    return tuple(one.partition for one in partitions)


def request(api_key: int, version: int, **values: Any) -> Any:
    """Return a request whose nested entities are given as mappings of their fields."""
    return _filled(request_type(api_key, version), values)


def rpc(api_key: int, read: Callable[[Any], T], /, **values: Any) -> Rpc[T]:
    """Return the request of these values, as `request` takes them, with the reader of its answer."""
    return Rpc(api_key, lambda version: request(api_key, version, **values), read)


def _filled(cls: type, values: Mapping[str, Any]) -> Any:
    values = dict(values)
    for name, entity_type in _nested_of(cls):
        if values.get(name) is not None:
            values[name] = tuple(_filled(entity_type, one) for one in values[name])
    return build(cls, **values)


@cache
def _nested_of(cls: type) -> tuple[tuple[str, type], ...]:
    """Return the name and the class of each field that is an array of entities."""
    return tuple((one.name, one.entity) for one in plan_of(cls) if one.entity is not None and one.is_array)


def api_versions() -> Any:
    """Return the request that opens every connection."""
    return request(ApiKey.API_VERSIONS, 3, client_software_name="coterie", client_software_version="0.1.0")


def sasl_handshake(version: int, mechanism: str) -> Any:
    """Return the request to begin a SASL exchange of this mechanism."""
    return request(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)


def sasl_authenticate(version: int, message: bytes) -> Any:
    """Return one message of a SASL exchange."""
    return request(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=message)


def metadata(version: int, topics: Iterable[str] | None, *, create: bool = False) -> Any:
    """Return a request for these topics, or for all there are; it creates what is not there if it may."""
    wanted = None if topics is None else [{"name": name} for name in sorted(topics)]
    return request(ApiKey.METADATA, version, topics=wanted, allow_auto_topic_creation=create)


def features_of(answer: Any) -> dict[str, int]:
    """Return the features that the whole cluster has by now, by the answer to ApiVersions."""
    return {one.name: one.max_version_level for one in answer.finalized_features}


def read_metadata(answer: Any) -> Metadata:
    """Return the brokers and topics of a metadata answer."""
    brokers = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
    topics = {}
    for topic in answer.topics:
        leaders = {one.partition_index: one.leader_id for one in topic.partitions}
        replicas = {one.partition_index: tuple(one.replica_nodes) for one in topic.partitions}
        epochs = {one.partition_index: one.leader_epoch for one in topic.partitions}
        code = Code(topic.error_code)
        topic_id = getattr(topic, "topic_id", None)
        topics[topic.name] = TopicInfo(
            topic.name, code, leaders, replicas, topic.is_internal, epochs, topic_id
        )
    racks = {broker.node_id: broker.rack for broker in answer.brokers if broker.rack}
    return Metadata(brokers, topics, racks, getattr(answer, "cluster_id", None))


def find_coordinator(version: int, *keys: str, kind: int = GROUP) -> Any:
    """Return the request for the coordinators of these groups, or transactional ids."""
    return request(ApiKey.FIND_COORDINATOR, version, key_type=kind, coordinator_keys=keys)


def find_coordinators(keys: Iterable[str], *, kind: int = GROUP) -> Rpc[list[tuple[str, Address]]]:
    """Return the request for the coordinators of groups or transactional ids: each key with its address."""

    def read(answer: Any) -> list[tuple[str, Address]]:
        for one in answer.coordinators:
            if one.error_code:
                raise RefusedBy(Code(one.error_code), f"FindCoordinator of {one.key}")
        return [(one.key, Address(one.host, one.port)) for one in answer.coordinators]

    return Rpc(ApiKey.FIND_COORDINATOR, lambda version: find_coordinator(version, *keys, kind=kind), read)


def list_offsets(version: int, stamps: Mapping[TopicPartition, int], *, isolation: int) -> Any:
    """Return a request for the offsets at these timestamps (EARLIEST and LATEST are timestamps, too)."""
    topics = [
        {
            "name": topic,
            "partitions": [{"partition_index": one.partition, "timestamp": stamps[one]} for one in group],
        }
        for topic, group in by_topic(stamps)
    ]
    return request(ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=isolation, topics=topics)


def read_list_offsets(answer: Any) -> dict[TopicPartition, ListedOffset]:
    """Return the offset of each partition."""
    return {
        TopicPartition(topic.name, one.partition_index): ListedOffset(
            Code(one.error_code), one.offset, one.timestamp
        )
        for topic in answer.topics
        for one in topic.partitions
    }


def offset_fetch(version: int, group_id: str, partitions: Iterable[TopicPartition] | None) -> Any:
    """Return a request for the group's committed offsets (None: all), none of which may be unstable."""
    return offset_fetch_of(version, [group_id], partitions)


def offset_fetch_of(
    version: int, group_ids: Iterable[str], partitions: Iterable[TopicPartition] | None
) -> Any:
    """Return the same of several groups."""
    topics = None if partitions is None else [
        {"name": topic, "partition_indexes": numbers_of(group)} for topic, group in by_topic(partitions)
    ]  # fmt: skip
    groups = [{"group_id": one, "topics": topics} for one in group_ids]
    return request(ApiKey.OFFSET_FETCH, version, groups=groups, require_stable=True)


def read_offset_fetch(answer: Any) -> tuple[Code, dict[TopicPartition, int | None]]:
    """Return the first error there is, and the committed offset of each partition, None where none is."""
    code, noted = read_committed(answer)
    return code, {at: None if one is None else one.offset for at, one in noted.items()}


def read_committed(answer: Any) -> tuple[Code, dict[TopicPartition, OffsetAndMetadata | None]]:
    """Return the same with what was noted beside each offset."""
    return committed_of(only(answer.groups, "groups"))


def read_committed_of(
    answer: Any,
) -> dict[str, tuple[Code, dict[TopicPartition, OffsetAndMetadata | None]]]:
    """Return the same for each of several groups."""
    return {group.group_id: committed_of(group) for group in answer.groups}


def committed_of(group: Any) -> tuple[Code, dict[TopicPartition, OffsetAndMetadata | None]]:
    """Return the first error that a group's answer has, and what it has committed."""
    noted: dict[TopicPartition, OffsetAndMetadata | None] = {}
    code = Code(group.error_code)
    for topic in group.topics:
        for one in topic.partitions:
            code = code or Code(one.error_code)
            found = OffsetAndMetadata(one.committed_offset, one.committed_leader_epoch, one.metadata or "")
            noted[TopicPartition(topic.name, one.partition_index)] = found if found.offset >= 0 else None
    return code, noted


def end_of_epochs(version: int, asked: Mapping[TopicPartition, tuple[int, int]]) -> Any:
    """Return the request for the ends of epochs; a value is that epoch and the leader's own."""
    topics = [
        {
            "topic": topic,
            "partitions": [
                {
                    "partition": one.partition,
                    "leader_epoch": asked[one][0],
                    "current_leader_epoch": asked[one][1],
                }
                for one in group
            ],
        }
        for topic, group in by_topic(asked)
    ]
    return request(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=topics)


def read_epoch_ends(answer: Any) -> dict[TopicPartition, EpochEnd]:
    """Return the end of each partition's epoch."""
    return {
        TopicPartition(topic.topic, one.partition): EpochEnd(
            Code(one.error_code), one.leader_epoch, one.end_offset
        )
        for topic in answer.topics
        for one in topic.partitions
    }


def offset_commit(
    version: int,
    group_id: str,
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    *,
    generation: int,
    member_id: str,
    instance_id: str | None,
) -> Any:
    """Return a commit of these offsets, by topic names (CC-7); WrongUse if one is below 0 (CC-8).

    The defaults of its callers are those of nobody's member (CC-3).
    """
    noted = {one: offset_and_metadata(offset) for one, offset in offsets.items()}
    below = sorted(one for one, offset in noted.items() if offset.offset < 0)
    if below:
        raise WrongUse(f"offset {noted[below[0]].offset} of {below[0]} cannot be committed: it is below 0")
    return request(
        ApiKey.OFFSET_COMMIT,
        version,
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=committed_topics(noted),
    )


def committed_topics(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[dict[str, Any]]:
    """Return the topics of OffsetCommit and TxnOffsetCommit."""
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": one.partition,
                    "committed_offset": offsets[one].offset,
                    "committed_leader_epoch": offsets[one].leader_epoch,
                    "committed_metadata": offsets[one].metadata,
                }
                for one in group
            ],
        }
        for topic, group in by_topic(offsets)
    ]


def read_offset_commit(answer: Any) -> Code:
    """Return the first error of a commit's answer; a topic that is not allowed counts when nothing else is
    wrong (4.8-6).
    """
    codes = [Code(one.error_code) for topic in answer.topics for one in topic.partitions if one.error_code]
    weighty = [code for code in codes if code is not Code.TOPIC_AUTHORIZATION_FAILED]
    return next(iter(weighty or codes), Code.NONE)


def fetch(
    version: int,
    positions: Mapping[TopicPartition, int],
    *,
    max_wait_ms: int,
    max_bytes: int,
    partition_max_bytes: int,
    isolation: int,
    min_bytes: int = 1,
    session: tuple[int, int] = (0, -1),
    forgotten: Iterable[TopicPartition] = (),
    rack: str = "",
    epochs: Mapping[TopicPartition, int] = {},
) -> Any:
    """Return a fetch from these offsets on; by default outside any fetch session (id and epoch).

    `epochs` are those that the leaders lead in, as far as that is known: one of another epoch refuses.
    """
    topics = [
        {
            "topic": topic,
            "partitions": [
                {
                    "partition": one.partition,
                    "fetch_offset": positions[one],
                    "current_leader_epoch": epochs.get(one, -1),
                    "partition_max_bytes": partition_max_bytes,
                }
                for one in group
            ],
        }
        for topic, group in by_topic(positions)
    ]
    dropped = [{"topic": topic, "partitions": numbers_of(group)} for topic, group in by_topic(forgotten)]
    return request(
        ApiKey.FETCH,
        version,
        replica_id=-1,
        max_wait=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=dropped,
        rack_id=rack,
    )


def join_group(
    version: int,
    *,
    group_id: str,
    member_id: str,
    instance_id: str | None,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    protocols: Sequence[tuple[str, bytes]],
    reason: str,
) -> Any:
    """Return a join of the group, with the subscription once for each assignor, by its name (CJ-2, EN-5)."""
    return request(
        ApiKey.JOIN_GROUP,
        version,
        group_id=group_id,
        session_timeout=session_timeout_ms,
        rebalance_timeout=rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[{"name": name, "metadata": data} for name, data in protocols],
        reason=reason[:255],
    )


def sync_group(
    version: int,
    *,
    group_id: str,
    generation: int,
    member_id: str,
    instance_id: str | None,
    protocol: str,
    assignments: Mapping[str, bytes],
) -> Any:
    """Return a sync; the leader's carries everybody's assignment."""
    return request(
        ApiKey.SYNC_GROUP,
        version,
        group_id=group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocol_name=protocol,
        assignments=[{"member_id": member, "assignment": data} for member, data in assignments.items()],
    )


def heartbeat(
    version: int, *, group_id: str, generation: int, member_id: str, instance_id: str | None
) -> Any:
    """Return a heartbeat."""
    return request(
        ApiKey.HEARTBEAT,
        version,
        group_id=group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
    )


def leave_group(
    version: int, *, group_id: str, member_id: str, reason: str, instance_id: str | None = None
) -> Any:
    """Return a leave: member id and reason. An instance id instead takes another member out (CV-5, LG-4)."""
    leaver = {"member_id": member_id, "group_instance_id": instance_id, "reason": reason[:255]}
    return request(ApiKey.LEAVE_GROUP, version, group_id=group_id, members=[leaver])


def list_groups(version: int) -> Any:
    """Return the request for the groups that a broker coordinates."""
    return request(ApiKey.LIST_GROUPS, version)


def describe_group(version: int, group_id: str) -> Any:
    """Return the request for a classic group's state and members."""
    return request(ApiKey.DESCRIBE_GROUPS, version, groups=(group_id,))


def read_fetch(answer: Any) -> tuple[Code, bytes]:
    """Return the code and the batches of the one partition that was asked for."""
    code = Code(answer.error_code)
    for topic in answer.responses:
        for one in topic.partitions:
            return code or Code(one.error_code), one.records or b""
    return code, b""


def read_fetch_of_several(answer: Any) -> dict[TopicPartition, tuple[Code, bytes]]:
    """Return the code and the batches of each partition; raise RefusedBy if the whole fetch is refused."""
    if answer.error_code:
        raise RefusedBy(Code(answer.error_code), "Fetch")
    return {
        TopicPartition(topic.topic, one.partition_index): (Code(one.error_code), one.records or b"")
        for topic in answer.responses
        for one in topic.partitions
    }
