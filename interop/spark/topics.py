"""A topic, and all that was produced to it, by confluent-kafka."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

__all__ = ["Feeder", "Topic", "committed_by"]

WITHIN_S = 60.0


class Topic:
    """A topic with a name, and the places of all that it holds."""

    def __init__(self, bootstrap: str, name: str, *, partitions: int) -> None:
        self.bootstrap, self.name, self.partitions = bootstrap, name, partitions
        self.places: list[tuple[int, int]] = []
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WITHIN_S)
        # Whatever is sent again when a broker dies, what is counted is there once.
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer(settings)
        self._sent = 0

    def produce(self, count: int) -> None:
        """Produce so many records, round robin."""
        for _ in range(count):
            partition = self._sent % self.partitions
            self._sent += 1
            self._producer.produce(
                self.name, b"%d" % self._sent, partition=partition, on_delivery=self._noted
            )
        assert self._producer.flush(WITHIN_S) == 0

    def _noted(self, error: object, message: Any) -> None:
        assert error is None, error
        self.places.append((message.partition(), message.offset()))

    def options(self, **more: str) -> dict[str, str]:
        """Return the options of a query that reads it from its beginning."""
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.name,
            "startingOffsets": "earliest",
            **more,
        }

    def committed(self, group: str) -> dict[int, int]:
        """Return the group's committed offsets."""
        return committed_by(self.options(**{"group.id": group}), self.partitions)

    def ends(self) -> dict[int, int]:
        """Return where each partition ends."""
        return {partition: offset + 1 for partition, offset in sorted(self.places)}


def committed_by(options: Mapping[str, str], partitions: int) -> dict[int, int]:
    """Return what the group of a query with these options has committed in its topic."""
    settings = {"bootstrap.servers": options["kafka.bootstrap.servers"], "group.id": options["group.id"]}
    consumer = Consumer({**settings, "log_level": 0})
    asked = [Place(options["subscribe"], number) for number in range(partitions)]
    found = consumer.committed(asked, timeout=WITHIN_S)
    consumer.close()
    return {one.partition: one.offset for one in found if one.offset >= 0}


class Feeder(AbstractContextManager["Feeder"]):
    """Produces a little, again and again, until the end of its block."""

    def __init__(self, topic: Topic, *, count: int, every_s: float) -> None:
        self._topic, self._count, self._every_s = topic, count, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def _feed(self) -> None:
        while not self._over.wait(self._every_s):
            self._topic.produce(self._count)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
