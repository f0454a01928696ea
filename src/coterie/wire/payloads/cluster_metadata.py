"""The records of `__cluster_metadata` that tell of topics, as Apache Kafka's controllers write them.

A record's value is the version of its frame, its kind, the version of that, and a struct. Its key is empty.
They are read only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.wire.api.codec import decode
from coterie.wire.api.declared import Declared, Field, shared
from coterie.wire.varints import read_uvarint

FRAME_VERSION = 1
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
LEADER_UNCHANGED = -2
BEGIN, END, ABORT = 23, 24, 25


class TopicMade(NamedTuple):
    """A topic, from here on."""

    name: str
    topic_id: UUID


class PartitionMade(NamedTuple):
    """A partition as it stands: made, or whole in a snapshot."""

    partition_id: int
    topic_id: UUID
    replicas: tuple[int, ...]
    leader_epoch: int


class PartitionChanged(NamedTuple):
    """What has changed of a partition. Any change of its leader, to none as well, begins the next epoch."""

    partition_id: int
    topic_id: UUID
    leader: int
    replicas: tuple[int, ...] | None


class ConfigOf(NamedTuple):
    """A setting of a resource; no value takes it away."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class TopicRemoved(NamedTuple):
    """A topic is gone, its partitions and settings too."""

    topic_id: UUID


class ProducerIdsTaken(NamedTuple):
    """All producer ids below this one are given out, or will be."""

    next_producer_id: int


class TransactionStep(NamedTuple):
    """What follows a BEGIN counts once there is its END; what an ABORT ends never happened (KIP-868)."""

    kind: int


ClusterRecord = (
    TopicMade
    | PartitionMade
    | PartitionChanged
    | ConfigOf
    | TopicRemoved
    | ProducerIdsTaken
    | TransactionStep
)

TOPIC = Declared("TopicRecord", 0, 0, (Field("name", "string"), Field("topic_id", "uuid")))
PARTITION = Declared(
    "PartitionRecord",
    most=2,
    flexible_from=0,
    fields=(
        Field("partition_id", "int32"),
        Field("topic_id", "uuid"),
        Field("replicas", "int32", array=True),
        Field("isr", "int32", array=True),
        Field("removing_replicas", "int32", array=True),
        Field("adding_replicas", "int32", array=True),
        Field("leader", "int32"),
        Field("leader_recovery_state", "int8", 0, tag=0),
        Field("leader_epoch", "int32"),
        Field("partition_epoch", "int32"),
        Field("directories", "uuid", since=1, array=True),
        Field("eligible_leader_replicas", "int32", None, since=2, nullable=True, tag=1, array=True),
        Field("last_known_elr", "int32", None, since=2, nullable=True, tag=2, array=True),
    ),
)
CONFIG = Declared(
    "ConfigRecord",
    most=0,
    flexible_from=0,
    fields=(
        Field("resource_type", "int8"),
        Field("resource_name", "string"),
        Field("name", "string"),
        Field("value", "string", nullable=True),
    ),
)
PARTITION_CHANGE = Declared(
    "PartitionChangeRecord",
    most=2,
    flexible_from=0,
    fields=(
        Field("partition_id", "int32"),
        Field("topic_id", "uuid"),
        Field("isr", "int32", None, nullable=True, tag=0, array=True),
        Field("leader", "int32", LEADER_UNCHANGED, tag=1),
        Field("replicas", "int32", None, nullable=True, tag=2, array=True),
        Field("removing_replicas", "int32", None, nullable=True, tag=3, array=True),
        Field("adding_replicas", "int32", None, nullable=True, tag=4, array=True),
        Field("leader_recovery_state", "int8", -1, tag=5),
        Field("eligible_leader_replicas", "int32", None, since=2, nullable=True, tag=6, array=True),
        Field("last_known_elr", "int32", None, since=2, nullable=True, tag=7, array=True),
        Field("directories", "uuid", None, since=1, nullable=True, tag=8, array=True),
    ),
)
REMOVE_TOPIC = Declared("RemoveTopicRecord", 0, 0, (Field("topic_id", "uuid"),))
PRODUCER_IDS = Declared(
    "ProducerIdsRecord",
    most=0,
    flexible_from=0,
    fields=(Field("broker_id", "int32"), Field("broker_epoch", "int64"), Field("next_producer_id", "int64")),
)

KINDS: dict[int, tuple[Declared, Callable[..., Any]]] = {
    2: (TOPIC, TopicMade),
    3: (PARTITION, PartitionMade),
    4: (CONFIG, ConfigOf),
    5: (PARTITION_CHANGE, PartitionChanged),
    9: (REMOVE_TOPIC, TopicRemoved),
    15: (PRODUCER_IDS, ProducerIdsTaken),
}


def read_cluster_record(data: bytes) -> ClusterRecord | None:
    """Return the ClusterRecord of a value, None if it is about something else than topics. Raises Corrupt.

    So it does for a version yet to come of a kind that is read here: what it changes is not known.
    """
    frame, at = read_uvarint(data, 0)
    kind, at = read_uvarint(data, at)
    version, at = read_uvarint(data, at)
    if frame != FRAME_VERSION:
        raise Corrupt(f"metadata record in frame {frame}", at=0, expected=f"{FRAME_VERSION}")
    if kind in (BEGIN, END, ABORT):
        return TransactionStep(kind)  # the rest is a name or a reason
    if kind not in KINDS:
        return None
    schema, made = KINDS[kind]
    if version > schema.most:
        raise Corrupt(f"{schema.name} of version {version}", at=at, expected=f"at most {schema.most}")
    found: ClusterRecord = made(**shared(made, decode(schema.at(version), data, at)))
    if getattr(found, "topic_id", TOPIC_RESOURCE) is None:
        raise Corrupt(f"{schema.name} without a topic", at=at)
    return found
