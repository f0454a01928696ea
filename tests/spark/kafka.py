"""The other side of the tests: confluent-kafka produces, and asks for what was committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic


class Sent(NamedTuple):
    """A record as it was produced, and where it came to lie."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass
class Topic:
    """A topic, and all that was produced to it."""

    bootstrap: str
    name: str
    partitions: int
    sent: list[Sent] = field(default_factory=list)

    def produce(
        self,
        values: Iterable[bytes | None],
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        timestamp: int = 0,
        **config: object,
    ) -> list[Sent]:
        """Produce the values, round robin over the partitions unless one is named; return where they are."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **config})
        made: list[Sent] = []
        for number, value in enumerate(values):

            def noted(error: object, message: object) -> None:
                assert error is None, error
                made.append(sent_of(message, headers))

            producer.produce(
                self.name,
                key=key,
                value=value,
                partition=number % self.partitions if partition is None else partition,
                headers=list(headers) or None,
                timestamp=timestamp,
                on_delivery=noted,
            )
            producer.poll(0)
        assert producer.flush(30) == 0
        made.sort()
        self.sent += made
        return made

    def committed(self, group: str) -> dict[int, int]:
        """Return the group's committed offset of each partition that has one."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        asked = [Place(self.name, number) for number in range(self.partitions)]
        found = consumer.committed(asked, timeout=20)
        consumer.close()
        return {one.partition: one.offset for one in found if one.offset >= 0}

    def commit(self, group: str, offsets: dict[int, int]) -> None:
        """Commit these offsets for a group without members."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        consumer.commit(
            offsets=[Place(self.name, number, offset) for number, offset in offsets.items()],
            asynchronous=False,
        )
        consumer.close()

    def ends(self) -> dict[int, int]:
        """Return where each partition with records ends."""
        return {one.partition: one.offset + 1 for one in sorted(self.sent)}


def sent_of(message: object, headers: tuple[tuple[str, bytes | None], ...]) -> Sent:
    """Return what a delivery report says, which leaves out the headers."""
    return Sent(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.timestamp()[1],
        headers,
    )


def create_topic(bootstrap: str, name: str, *, partitions: int, config: dict[str, str]) -> Topic:
    """Create a topic and return it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (made,) = admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values()
    made.result(20)
    return Topic(bootstrap, name, partitions)
