"""confluent-kafka (librdkafka) behind the tests' common face."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

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

NO_OFFSET = -1001
AT_THE_END = -1

REFRESH_MS = 5_000


class ConfluentConsumer(Consumer):
    """A confluent-kafka consumer."""

    refusals = (KafkaException,)

    def __init__(self, bootstrap: str, settings: dict[str, Any]) -> None:
        super().__init__()
        common = {
            "bootstrap.servers": bootstrap,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "log_level": 3,
        }
        self.inner = confluent_kafka.Consumer({**common, **settings})

    def subscribe(self, topics: Iterable[str]) -> None:
        """Join the group for these topics."""
        self.inner.subscribe(list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, _: object, partitions: list[TopicPartition]) -> None:
        self.hear("assigned", partitions)

    def _on_revoke(self, _: object, partitions: list[TopicPartition]) -> None:
        self.hear("revoked", partitions)

    def poll(self, seconds: float) -> list[Message]:
        found = self.inner.consume(500, seconds)
        for message in found:
            if message.error():
                raise KafkaException(message.error())
        return [plain(message) for message in found]

    def assignment(self) -> frozenset[Place]:
        return frozenset((p.topic, p.partition) for p in self.inner.assignment())

    def seek(self, place: Place, offset: int) -> None:
        self.inner.seek(TopicPartition(*place, offset))

    def commit(self) -> None:
        self.inner.commit(asynchronous=False)

    def committed(self, place: Place) -> int | None:
        [found] = self.inner.committed([TopicPartition(*place)], CALL_S)
        return None if found.offset == NO_OFFSET else found.offset

    def offset_at_time(self, place: Place, at_ms: int) -> int | None:
        [found] = self.inner.offsets_for_times([TopicPartition(*place, at_ms)], CALL_S)
        return None if found.offset == AT_THE_END else found.offset

    def bounds(self, place: Place) -> tuple[int, int]:
        low, high = self.inner.get_watermark_offsets(TopicPartition(*place), CALL_S)
        return low, high

    def close(self) -> None:
        self.inner.close()


def plain(message: confluent_kafka.Message) -> Message:
    """Return a message as the tests compare it."""
    return Message(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        timestamp_ms=message.timestamp()[1],
        headers=tuple(message.headers() or ()),
    )


class ConfluentAdmin(Admin):
    """confluent-kafka's AdminClient."""

    def __init__(self, bootstrap: str) -> None:
        self.inner = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})

    def create(self, topic: str, *, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        settle(self.inner.create_topics([NewTopic(topic, partitions, 1, config=config or {})]))

    def delete(self, topic: str) -> None:
        settle(self.inner.delete_topics([topic]))

    def grow(self, topic: str, *, partitions: int) -> None:
        settle(self.inner.create_partitions([NewPartitions(topic, partitions)]))

    def partition_count(self, topic: str) -> int | None:
        known = self.inner.list_topics(timeout=CALL_S).topics
        return len(known[topic].partitions) if topic in known else None

    def serves(self, topic: str, *, partitions: int) -> bool:
        """Whether the broker knows the topic and leads all its partitions, as Apache Kafka does later."""
        if self.partition_count(topic) != partitions:
            return False
        places = [TopicPartition(topic, number) for number in range(partitions)]
        answers = self.inner.list_offsets({place: OffsetSpec.latest() for place in places})
        return all(answer.exception(CALL_S) is None for answer in answers.values())

    def close(self) -> None:
        self.inner.poll(0)


def settle(futures: dict[str, Any]) -> None:
    """Wait for the answers of an administrator's call."""
    for future in futures.values():
        try:
            future.result(CALL_S)
        except KafkaException as error:
            raise Denied(error.args[0].code()) from error


class Confluent(Client):
    """confluent-kafka: librdkafka with Python around it."""

    name = "confluent-kafka"
    codecs = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})

    def produce(
        self,
        bootstrap: str,
        messages: Iterable[Message],
        *,
        codec: str = "none",
        idempotent: bool = False,
        acks: str = "all",
    ) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "acks": acks,
                "linger.ms": 2,
                "message.max.bytes": 8_000_000,  # the broker is to refuse what is too large, not the client
                "log_level": 3,
            }
        )
        refusals: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                refusals.append(error)

        for message in messages:
            optional = {} if message.timestamp_ms is None else {"timestamp": message.timestamp_ms}
            producer.produce(
                message.topic,
                message.value,
                message.key,
                message.partition,
                on_delivery=delivered,
                headers=list(message.headers),
                **optional,
            )
        assert producer.flush(CALL_S) == 0, "not every record was acknowledged"
        if refusals:
            raise Denied(refusals[0].code())

    def reader(self, bootstrap: str, *places: Place) -> Consumer:
        consumer = ConfluentConsumer(bootstrap, {"group.id": f"reader-{uuid.uuid4()}"})
        for topic, _ in places:  # whoever assigns before it knows the leader waits half a second to ask again
            consumer.inner.list_topics(topic, CALL_S)
        consumer.inner.assign([TopicPartition(*place, confluent_kafka.OFFSET_BEGINNING) for place in places])
        return consumer

    def member(self, bootstrap: str, membership: Membership) -> Consumer:
        settings: dict[str, Any] = {
            "group.id": membership.group,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": membership.assignor,
            # Whose broker dies while it asks for metadata to join by, asks again no earlier than this.
            "topic.metadata.refresh.interval.ms": REFRESH_MS,
        }
        if membership.instance is not None:
            settings["group.instance.id"] = membership.instance
        consumer = ConfluentConsumer(bootstrap, settings)
        consumer.subscribe(membership.topics)
        return consumer

    def admin(self, bootstrap: str) -> Admin:
        return ConfluentAdmin(bootstrap)
