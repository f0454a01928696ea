"""Clients that work until they are stopped, and write down what they did: librdkafka's."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place

from interop.consistency.history import Commit, EndRead, History, OffsetRead, Outcome, Poll, Send
from interop.workers import Worker

__all__ = [
    "ATTEMPT_S",
    "QUIET",
    "Client",
    "Committer",
    "GroupMember",
    "OffsetReader",
    "Producing",
    "QuietProducing",
    "Reader",
    "now",
    "read_offsets",
    "records_of",
]

now = time.monotonic
SILENT = logging.Logger("librdkafka")
"""Takes what librdkafka says, and shows nothing: it has a lot to say while brokers die."""
SILENT.addHandler(logging.NullHandler())
QUIET = {
    "logger": SILENT,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    # What a dying broker has not answered of metadata is asked for again by the periodic refresh alone.
    "topic.metadata.refresh.interval.ms": 3_000,
}
ATTEMPT_S = 10.0
FLUSHED_S = 45.0
DELIVERY_MS = 600_000
"""Longer than a run: librdkafka begins another producer epoch once a record has timed out, and then sends
others again that may be there.
"""
MEMBER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 300,
    "fetch.wait.max.ms": 100,
    **QUIET,
}


class Client(Worker):
    """Works until it is stopped, and writes down what it did."""

    def __init__(self, name: str, bootstrap: str, history: History) -> None:
        super().__init__(name, bootstrap)
        self.history = history
        self.errors: Counter[str] = Counter()
        """What went wrong, and how often."""

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return a client's settings, with `.` for `_`."""
        given = {name.replace("_", "."): value for name, value in others.items()}
        return {"bootstrap.servers": self.bootstrap, "client.id": self.name, **given}


class Producing(Client):
    """An idempotent producer, evenly over a topic's partitions."""

    def __init__(
        self, name: str, bootstrap: str, history: History, *, topic: str, partitions: int, every_s: float
    ) -> None:
        super().__init__(name, bootstrap, history)
        self.topic, self.partitions, self.every_s = topic, partitions, every_s
        self._number = 0
        self._fatal: str | None = None

    def new_producer(self) -> Producer:
        """Return the producer."""
        return Producer(
            {**QUIET, "delivery.timeout.ms": DELIVERY_MS, "retry.backoff.ms": 20, "linger.ms": 2}
            | self.settings(enable_idempotence=True)
        )

    def send(self, producer: Producer, partition: int) -> None:
        """Send the next value."""
        value = f"{self.name}-{self._number}"
        self._number += 1
        answered = partial(self._delivered, value, partition, now())
        producer.produce(self.topic, value.encode(), partition=partition, on_delivery=answered)

    def _delivered(self, value: str, partition: int, began: float, error: Any, message: Any) -> None:
        if error is not None and error.fatal():
            self._fatal = str(error)
        if error is not None:
            self.errors[error.name()] += 1
        self.history.add(
            Send(
                client=self.name,
                topic=self.topic,
                partition=partition,
                value=value,
                began=began,
                ended=now(),
                outcome=Outcome.UNKNOWN if error else Outcome.OK,
                offset=None if error else message.offset(),
            )
        )
        self.done += not error

    def work(self) -> None:
        producer = self.new_producer()
        while self.pause(self.every_s):
            self.send(producer, self._number % self.partitions)
            producer.poll(0)
            assert self._fatal is None, f"{self.name}: {self._fatal}"
        assert not producer.flush(FLUSHED_S), f"{self.name}: some are neither acknowledged nor refused"


class QuietProducing(Producing):
    """An idempotent producer of a record now and then, which looks for each where it was acknowledged.

    Nothing else is written there: what reaches the database late is in nobody's way.
    """

    def work(self) -> None:
        producer = self.new_producer()
        asking = Consumer({"group.id": "ends", **QUIET} | self.settings())
        while self.pause(self.every_s):
            partition = self._number % self.partitions
            self.send(producer, partition)
            producer.flush(FLUSHED_S)
            assert self._fatal is None, f"{self.name}: {self._fatal}"
            self._look(asking, partition)
        asking.close()

    def _look(self, asking: Consumer, partition: int) -> None:
        began = now()
        try:
            _, end = asking.get_watermark_offsets(Place(self.topic, partition), timeout=2.0, cached=False)
        except KafkaException:
            return
        self.history.add(EndRead(topic=self.topic, partition=partition, offset=end, began=began, ended=now()))


class Reader(Client):
    """A consumer that was given all partitions of some topics, from their beginning on."""

    def __init__(
        self, name: str, bootstrap: str, history: History, *, topics: dict[str, int], read_committed: bool
    ) -> None:
        super().__init__(name, bootstrap, history)
        self.places = [Place(topic, one, 0) for topic, count in topics.items() for one in range(count)]
        self.read_committed = read_committed

    def work(self) -> None:
        isolation = "read_committed" if self.read_committed else "read_uncommitted"
        consumer = Consumer(
            {**MEMBER, "auto.offset.reset": "error", "group.id": self.name}
            | self.settings(isolation_level=isolation)
        )
        consumer.assign(self.places)
        while not self.stopping:
            records = records_of(consumer.consume(200, 0.2))
            if records:
                self.done += len(records)
                self.history.add(Poll(client=self.name, read_committed=self.read_committed, records=records))
        consumer.close()


def records_of(messages: list[Message]) -> list[tuple[str, int, int, str]]:
    """Return what there is among messages as (topic, partition, offset, value); errors are left out."""
    found: list[tuple[Any, Any, Any, Any]] = [
        (one.topic(), one.partition(), one.offset(), one.value()) for one in messages if one.error() is None
    ]
    return [(topic, partition, offset, value.decode()) for topic, partition, offset, value in found]


def commit(client: Client, group: str, offsets: list[Place], ask: Callable[[list[Place]], Any]) -> bool:
    """Note what `ask` was answered about offsets to commit; return whether all were taken."""
    began = now()
    try:
        answers = ask(offsets) or []
    except KafkaException as error:
        client.errors[error.args[0].name()] += 1
        answers = []
    ended = now()
    taken = {(one.topic, one.partition) for one in answers if one.error is None}
    for one in offsets:
        outcome = Outcome.OK if (one.topic, one.partition) in taken else Outcome.UNKNOWN
        client.history.add(
            Commit(
                group=group,
                topic=one.topic,
                partition=one.partition,
                offset=one.offset,
                began=began,
                ended=ended,
                outcome=outcome,
            )
        )
    client.done += len(taken)
    return len(taken) == len(offsets)


class Committer(Client):
    """Commits ever higher offsets for a group that has no members; every second time it looks at them."""

    def __init__(
        self, name: str, bootstrap: str, history: History, *, topic: str, partitions: int, every_s: float
    ) -> None:
        super().__init__(name, bootstrap, history)
        self.topic, self.partitions, self.every_s = topic, partitions, every_s

    def work(self) -> None:
        consumer = Consumer({**MEMBER, "group.id": self.name} | self.settings())
        number = 0
        while self.pause(self.every_s):
            number += 1
            offsets = [Place(self.topic, one, number) for one in range(self.partitions)]
            commit(self, self.name, offsets, lambda asked: consumer.commit(offsets=asked, asynchronous=False))
            if number % 2:
                read_offsets(self, consumer, self.name, offsets)
        consumer.close()


def read_offsets(client: Client, consumer: Consumer, group: str, places: list[Place]) -> None:
    """Note what is committed of some partitions."""
    began = now()
    try:
        found = consumer.committed([Place(one.topic, one.partition) for one in places], timeout=5.0)
    except KafkaException:
        return
    ended = now()
    for one in found:
        if one.error is None:
            client.history.add(
                OffsetRead(
                    group=group,
                    topic=one.topic,
                    partition=one.partition,
                    offset=max(one.offset, -1),  # librdkafka has -1001 for none
                    began=began,
                    ended=ended,
                )
            )


class GroupMember(Client):
    """A member of a group that commits what it was given, each time awaited, and goes on from there."""

    def __init__(
        self, name: str, bootstrap: str, history: History, *, group: str, topic: str, assignor: str
    ) -> None:
        super().__init__(name, bootstrap, history)
        self.group, self.topic, self.assignor = group, topic, assignor
        self._new: list[Place] = []

    def work(self) -> None:
        consumer = Consumer(
            {**MEMBER, "group.id": self.group, "partition.assignment.strategy": self.assignor}
            | self.settings()
        )
        consumer.subscribe([self.topic], on_assign=self._assigned)
        while not self.stopping:
            if self._new:
                new, self._new = self._new, []
                read_offsets(self, consumer, self.group, new)
            following: dict[tuple[str, int], int] = {}
            messages = consumer.consume(50, 0.1)
            errors = [error.code() for one in messages if (error := one.error()) is not None]
            if KafkaError.NOT_COORDINATOR in errors:
                # Where its coordinator moved as it asked for offsets, librdkafka reads what it was assigned
                # never (its issue 5586): whoever uses it has to join anew.
                self.errors["joined anew"] += 1
                consumer.unsubscribe()
                consumer.subscribe([self.topic], on_assign=self._assigned)
            for topic, partition, offset, _ in records_of(messages):
                following[topic, partition] = offset + 1
            if following:
                offsets = [Place(*place, offset) for place, offset in following.items()]
                commit(
                    self,
                    self.group,
                    offsets,
                    lambda asked: consumer.commit(offsets=asked, asynchronous=False),
                )
        consumer.close()

    def _assigned(self, _: Consumer, places: list[Place]) -> None:
        self._new += places


class OffsetReader(Client):
    """Looks at what groups have committed, each by a consumer that is no member."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        history: History,
        *,
        groups: list[str],
        topic: str,
        partitions: int,
        every_s: float,
    ) -> None:
        super().__init__(name, bootstrap, history)
        self.groups, self.every_s = groups, every_s
        self.places = [Place(topic, one) for one in range(partitions)]

    def work(self) -> None:
        consumers = {
            group: Consumer({**MEMBER, "group.id": group} | self.settings()) for group in self.groups
        }
        while self.pause(self.every_s):
            for group, consumer in consumers.items():
                read_offsets(self, consumer, group, self.places)
                self.done += 1
        for consumer in consumers.values():
            consumer.close()
