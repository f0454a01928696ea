"""kafka-python 3 behind the tests' common face."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterable
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka import codec as codecs
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError
from kafka.net.inet import KafkaNetSocket
from kafka.structs import MemberState

from .model import (
    CALL_S,
    FETCH_WAIT_MS,
    HEARTBEAT_MS,
    SESSION_MS,
    Admin,
    Client,
    Consumer,
    Denied,
    Membership,
    Message,
    Place,
)

STUCK_S = 10.0
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class ClosedAtItsEnd(socket.socket):
    """A socket that says nothing when nobody closes it: 3.0.12 forgets one that connects, or still writes,
    when its client is closed, and the warning would fail whichever test comes next.
    """

    def __del__(self) -> None:
        self.close()


KafkaNetSocket.socket = lambda _, *kind: ClosedAtItsEnd(*kind)


class Listener(kafka.ConsumerRebalanceListener):
    """Tells the adapter what was assigned and revoked."""

    def __init__(self, consumer: KafkaPythonConsumer) -> None:
        self.consumer = consumer

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.consumer.hear("assigned", assigned)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.consumer.hear("revoked", revoked)


class KafkaPythonConsumer(Consumer):
    """A kafka-python consumer."""

    refusals = (KafkaError,)

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        super().__init__()
        self._make = lambda: KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            retry_backoff_ms=20,
            **settings,
        )
        self.inner = self._make()
        self._topics: Collection[str] = ()
        self._rebalancing_since: float | None = None

    def subscribe(self, topics: Collection[str]) -> None:
        """Join the group for these topics."""
        self._topics = topics
        for topic in topics:
            # A leader that does not know a topic yet gives nothing of it to anybody, for good.
            self.inner.partitions_for_topic(topic)
        self.inner.subscribe(list(topics), listener=Listener(self))

    def poll(self, seconds: float) -> list[Message]:
        self._start_anew_if_stuck()
        found = self.inner.poll(timeout_ms=int(seconds * 1000))
        return [Message.of(record) for records in found.values() for record in records]

    def _start_anew_if_stuck(self) -> None:
        """Do as an operator would: 3.0.12 sometimes never sends a leader's sync, however long one polls."""
        if not self._topics or self.inner.group_metadata().state != MemberState.REBALANCING:
            self._rebalancing_since = None
            return
        self._rebalancing_since = self._rebalancing_since or time.monotonic()
        if time.monotonic() - self._rebalancing_since > STUCK_S:
            self.close()
            self.anew += 1
            self._rebalancing_since, self.inner = None, self._make()
            self.subscribe(self._topics)

    def assignment(self) -> frozenset[Place]:
        return frozenset((p.topic, p.partition) for p in self.inner.assignment())

    def seek(self, place: Place, offset: int) -> None:
        self.inner.seek(TopicPartition(*place), offset)

    def commit(self) -> None:
        self.inner.commit(timeout_ms=int(CALL_S * 1000))

    def committed(self, place: Place) -> int | None:
        found: int | None = self.inner.committed(TopicPartition(*place))
        return found

    def offset_at_time(self, place: Place, at_ms: int) -> int | None:
        partition = TopicPartition(*place)
        found = self.inner.offsets_for_times({partition: at_ms})[partition]
        return None if found is None else found.offset

    def bounds(self, place: Place) -> tuple[int, int]:
        partition = TopicPartition(*place)
        first, last = self.inner.beginning_offsets([partition]), self.inner.end_offsets([partition])
        return first[partition], last[partition]

    def close(self) -> None:
        self.inner.close(timeout_ms=2000)


class KafkaPythonAdmin(Admin):
    """kafka-python's KafkaAdminClient."""

    def __init__(self, bootstrap: str) -> None:
        self.inner = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create(self, topic: str, *, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": config or {}}
        self._asked(self.inner.create_topics, {topic: wanted})

    def delete(self, topic: str) -> None:
        self._asked(self.inner.delete_topics, [topic])

    def grow(self, topic: str, *, partitions: int) -> None:
        self._asked(self.inner.create_partitions, {topic: partitions})

    @staticmethod
    def _asked(call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except KafkaError as error:
            raise Denied(error.errno) from error

    def partition_count(self, topic: str) -> int | None:
        if topic not in self.inner.list_topics():
            return None
        [described] = self.inner.describe_topics([topic])
        return len(described["partitions"])

    def close(self) -> None:
        self.inner.close()


class KafkaPython(Client):
    """kafka-python 3: all Python."""

    name = "kafka-python"
    codecs = frozenset(
        {"none", "gzip"}
        | ({"snappy"} if codecs.has_snappy() else set())
        | ({"lz4"} if codecs.has_lz4() else set())
        | ({"zstd"} if codecs.has_zstd() else set())
    )

    def produce(
        self,
        bootstrap: str,
        messages: Iterable[Message],
        *,
        codec: str = "none",
        idempotent: bool = False,
        acks: str = "all",
    ) -> None:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks=acks if acks == "all" else int(acks),
            max_request_size=8_000_000,
            linger_ms=2,
        )
        try:
            sent = [
                producer.send(
                    message.topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=None if message.partition < 0 else message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            producer.flush(CALL_S)
            for future in sent:
                future.get(CALL_S)
        except KafkaError as error:
            raise Denied(error.errno) from error
        finally:
            producer.close(2)

    def reader(self, bootstrap: str, *places: Place) -> Consumer:
        consumer = KafkaPythonConsumer(bootstrap)
        consumer.inner.assign([TopicPartition(*place) for place in places])
        return consumer

    def member(self, bootstrap: str, membership: Membership) -> Consumer:
        consumer = KafkaPythonConsumer(
            bootstrap,
            group_id=membership.group,
            group_instance_id=membership.instance,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=(ASSIGNORS[membership.assignor],),
        )
        consumer.subscribe(membership.topics)
        return consumer

    def admin(self, bootstrap: str) -> Admin:
        return KafkaPythonAdmin(bootstrap)
