"""What Apache Kafka's metadata log says of the topics of its cluster, once all of its records are taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.base.topic_names import name_problem
from coterie.wire.payloads.cluster_metadata import (
    ABORT,
    BEGIN,
    BROKER_RESOURCE,
    LEADER_UNCHANGED,
    TOPIC_RESOURCE,
    ClusterRecord,
    ConfigOf,
    PartitionChanged,
    PartitionMade,
    ProducerIdsTaken,
    TopicMade,
    TopicRemoved,
    TransactionStep,
    read_cluster_record,
)

PRODUCER_IDS_END = 1 << 62


@dataclass(slots=True)
class KnownTopic:
    """One topic of Kafka's; replicas and leader epochs by partition."""

    name: str
    topic_id: UUID
    replicas: dict[int, tuple[int, ...]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return len(self.epochs)


class KafkaMetadata:
    """The topics, settings and producer ids of a cluster, as its log tells them record by record."""

    def __init__(self) -> None:
        self.by_id: dict[UUID, KnownTopic] = {}
        self.by_name: dict[str, KnownTopic] = {}
        self.next_producer_id = 0
        self._configs: dict[tuple[int, str], dict[str, str]] = {}

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Return the settings that a topic has of its own."""
        return self._configs.get((TOPIC_RESOURCE, name), {})

    def broker_configs(self, node_id: int) -> Mapping[str, str]:
        """Return the settings that a broker was given while it ran: those for all, and its own."""
        everybody = self._configs.get((BROKER_RESOURCE, ""), {})
        return {**everybody, **self._configs.get((BROKER_RESOURCE, str(node_id)), {})}

    def take(self, record: ClusterRecord) -> None:
        """Let a record change what is known. Raises Corrupt if it cannot have been written."""
        match record:
            case TopicMade():
                self._make_topic(record)
            case TopicRemoved(topic_id):
                gone = self._topic(topic_id)
                del self.by_id[topic_id], self.by_name[gone.name]
                self._configs.pop((TOPIC_RESOURCE, gone.name), None)
            case PartitionMade():
                topic = self._topic(record.topic_id)
                topic.replicas[record.partition_id] = record.replicas
                topic.epochs[record.partition_id] = record.leader_epoch
            case PartitionChanged():
                self._change_partition(record)
            case ConfigOf(kind, resource, name, value):
                configs = self._configs.setdefault((kind, resource), {})
                configs.pop(name, None)
                if value is not None:
                    configs[name] = value
            case ProducerIdsTaken(next_producer_id):
                if not 0 <= next_producer_id < PRODUCER_IDS_END:
                    raise Corrupt(f"next producer id {next_producer_id}", expected="one that can be")
                self.next_producer_id = next_producer_id

    def check(self) -> None:
        """Raise Corrupt if a topic lacks partitions."""
        for topic in self.by_id.values():
            if not topic.epochs or max(topic.epochs) != topic.partitions - 1 or min(topic.epochs) < 0:
                raise Corrupt(f"topic {topic.name} with the partitions {sorted(topic.epochs)[:5]}")

    def _make_topic(self, record: TopicMade) -> None:
        if name_problem(record.name) or record.name in self.by_name or record.topic_id in self.by_id:
            raise Corrupt(f"topic {record.name!r}", expected="a name and an id that no other topic has")
        topic = KnownTopic(record.name, record.topic_id)
        self.by_name[topic.name] = self.by_id[topic.topic_id] = topic

    def _change_partition(self, record: PartitionChanged) -> None:
        topic = self._topic(record.topic_id)
        if record.partition_id not in topic.epochs:
            raise Corrupt(f"change of {topic.name}-{record.partition_id}", expected="a partition")
        if record.replicas is not None:
            topic.replicas[record.partition_id] = record.replicas
        if record.leader != LEADER_UNCHANGED:
            topic.epochs[record.partition_id] += 1

    def _topic(self, topic_id: UUID) -> KnownTopic:
        found = self.by_id.get(topic_id)
        if found is None:
            raise Corrupt(f"topic {topic_id}", expected="one that was made")
        return found


def image_of(values: Iterable[bytes]) -> KafkaMetadata:
    """Return the KafkaMetadata that the values of all records add up to. Raises Corrupt."""
    image = KafkaMetadata()
    held: list[ClusterRecord] | None = None  # of a transaction that has not ended
    for value in values:
        record = read_cluster_record(value)
        if isinstance(record, TransactionStep):
            for ready in held or () if record.kind != ABORT else ():
                image.take(ready)
            held = [] if record.kind == BEGIN else None
        elif record is not None and held is not None:
            held.append(record)
        elif record is not None:
            image.take(record)
    image.check()
    return image
