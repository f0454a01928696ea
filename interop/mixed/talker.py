"""`python -m interop.mixed.talker CLIENT TOPIC NAME=VALUE ...`: a member that tells what it owns and reads.

A JSON object a line on standard output, until standard input ends: `assigned`, `revoked` and `lost` as the
listener hears of them, `state` when generation or assignment are others than before, `read` for each run of
offsets, told before it is committed. `Talker.java` says the same for Java's client. Settings have Kafka's
names.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

__all__ = ["CLIENTS"]

POLL_MS = 100
STUCK_S = 12.0
Settings = dict[str, Any]


class Voice:
    """What is told, and whether there is still somebody to tell."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._state: tuple[int, list[int]] | None = None
        self._held: set[int] = set()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        sys.stdin.read()
        self.stopping.set()

    def say(self, kind: str, **what: Any) -> None:
        """Tell one thing. The clock is the machine's: what several members tell can be put in order."""
        print(json.dumps({"kind": kind, "at_ns": time.monotonic_ns(), **what}), flush=True)

    def heard(self, kind: str, partitions: Iterable[Any]) -> None:
        """Tell what the listener was told."""
        numbers = {one.partition for one in partitions}
        self._held = self._held | numbers if kind == "assigned" else self._held - numbers
        self.say(kind, partitions=sorted(numbers))

    def stands(self, generation: int, assignment: Iterable[Any]) -> None:
        """Tell where the member stands, if that is news, and not in the midst of a rebalance.

        kafka-python and aiokafka go on to show the assignment of the generation before while they join.
        """
        state = generation, sorted(one.partition for one in assignment)
        if state != self._state and set(state[1]) == self._held:
            self._state = state
            self.say("state", generation=state[0], owned=state[1])

    def read(self, runs: Mapping[int, tuple[int, int]]) -> None:
        """Tell what was read: the first and last offset by partition."""
        for partition, (first, last) in runs.items():
            self.say("read", partition=partition, first=first, last=last)


def runs_of(found: Mapping[Any, list[Any]]) -> dict[int, tuple[int, int]]:
    """Return first and last offset by partition of what a poll of three of the clients returns."""
    return {place.partition: (records[0].offset, records[-1].offset) for place, records in found.items()}


def snake(settings: Settings, **more: Any) -> Settings:
    """Return the settings with names and values as the clients in Python want them."""
    plain = {name: int(text) if text.isdigit() else text for name, text in settings.items()}
    plain |= {"enable.auto.commit": False}
    return {name.replace(".", "_"): value for name, value in plain.items()} | more


# -- ours


async def ours(voice: Voice, topic: str, settings: Settings) -> None:
    """Be a member of ours."""
    from coterie.base.errors import CoterieError
    from coterie.client.consumer.consumer import Consumer
    from coterie.client.consumer.listener import RebalanceListener

    class Listener(RebalanceListener):
        def on_partitions_assigned(self, partitions: Any) -> None:
            voice.heard("assigned", partitions)

        def on_partitions_revoked(self, partitions: Any) -> None:
            voice.heard("revoked", partitions)

        def on_partitions_lost(self, partitions: Any) -> None:
            voice.heard("lost", partitions)

    async with Consumer(**snake(settings)) as consumer:
        consumer.subscribe([topic], listener=Listener())
        while not voice.stopping.is_set():
            found = await consumer.getmany(timeout_ms=POLL_MS)
            voice.read(runs_of(found))
            # At once: the generation is the records', and a rebalance may end during the commit.
            voice.stands(consumer.group_metadata().generation, consumer.assignment())
            if found:
                with suppress(CoterieError):  # what was read is read again by whoever comes next
                    await consumer.commit()
        voice.say("closing", partitions=[])


# -- librdkafka


class Generation:
    """A logger that finds in librdkafka's words which generation it has joined: no call tells."""

    JOINED = re.compile(r"JoinGroup response: GenerationId (-?\d+)")

    def __init__(self) -> None:
        self.number = -1

    def log(self, level: int, form: str, *terms: object) -> None:
        """Take a line as `logging.Logger.log` does."""
        if found := self.JOINED.search(form % terms if terms else form):
            self.number = int(found[1])


def confluent(voice: Voice, topic: str, settings: Settings) -> None:
    """Be a member of librdkafka's."""
    import confluent_kafka

    generation = Generation()
    settings |= {"enable.auto.commit": False, "debug": "cgrp", "logger": generation}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: voice.heard("assigned", partitions),
        on_revoke=lambda _, partitions: voice.heard("revoked", partitions),
        on_lost=lambda _, partitions: voice.heard("lost", partitions),
    )
    while not voice.stopping.is_set():
        runs: dict[int, tuple[int, int]] = {}
        for message in consumer.consume(500, POLL_MS / 1000):
            partition, offset = message.partition(), message.offset()
            if message.error() is None and partition is not None and offset is not None:
                runs[partition] = runs.get(partition, (offset, 0))[0], offset
        voice.read(runs)
        if runs:
            with suppress(confluent_kafka.KafkaException):
                consumer.commit(asynchronous=False)
        voice.stands(generation.number, consumer.assignment())
    voice.say("closing", partitions=[])
    consumer.close()


# -- kafka-python


class Patience:
    """How long kafka-python is left alone in a rebalance: as leader it sometimes never sends its sync."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_over(self, rebalancing: bool) -> bool:
        """Whether it has been rebalancing for too long."""
        if not rebalancing:
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since > STUCK_S


def kafka_python(voice: Voice, topic: str, settings: Settings) -> None:
    """Be a member of kafka-python's."""
    import kafka  # type: ignore[import-untyped, unused-ignore]
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor  # type: ignore[import-untyped, unused-ignore]
    from kafka.coordinator.assignors.range import RangePartitionAssignor  # type: ignore[import-untyped, unused-ignore]
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor  # type: ignore[import-untyped, unused-ignore]
    from kafka.structs import MemberState  # type: ignore[import-untyped, unused-ignore]

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc, unused-ignore]
        def on_partitions_assigned(self, assigned: Any) -> None:
            voice.heard("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            voice.heard("revoked", revoked)

        def on_partitions_lost(self, lost: Any) -> None:
            voice.heard("lost", lost)

    def until_stopped_or_stuck(consumer: Any) -> None:
        consumer.partitions_for_topic(topic)  # a leader gives nothing of a topic that it does not know yet
        consumer.subscribe([topic], listener=Listener())
        patience = Patience()
        while not voice.stopping.is_set():
            if patience.is_over(consumer.group_metadata().state == MemberState.REBALANCING):
                return
            found = consumer.poll(timeout_ms=POLL_MS)
            voice.read(runs_of(found))
            if found:
                with suppress(kafka.errors.KafkaError):
                    consumer.commit()
            voice.stands(consumer.group_metadata().generation_id, consumer.assignment())

    assignors = (RangePartitionAssignor, RoundRobinPartitionAssignor, CooperativeStickyAssignor)
    chosen = [one for one in assignors if one.name == settings["partition.assignment.strategy"]]
    while not voice.stopping.is_set():
        consumer = kafka.KafkaConsumer(**snake(settings, partition_assignment_strategy=chosen))
        until_stopped_or_stuck(consumer)
        voice.say("closing" if voice.stopping.is_set() else "stuck", partitions=[])
        consumer.close(timeout_ms=5000)


# -- aiokafka


async def aiokafka(voice: Voice, topic: str, settings: Settings) -> None:
    """Be a member of aiokafka's, which has no cooperative assignor."""
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener  # type: ignore[import-untyped, unused-ignore]
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor  # type: ignore[import-untyped, unused-ignore]
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor  # type: ignore[import-untyped, unused-ignore]
    from aiokafka.errors import KafkaError  # type: ignore[import-untyped, unused-ignore]

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc, unused-ignore]
        def on_partitions_assigned(self, assigned: Any) -> None:
            voice.heard("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            voice.heard("revoked", revoked)

    assignors = (RangePartitionAssignor, RoundRobinPartitionAssignor)
    chosen = [one for one in assignors if one.name == settings["partition.assignment.strategy"]]
    consumer = AIOKafkaConsumer(**snake(settings, partition_assignment_strategy=chosen))
    consumer.subscribe([topic], listener=Listener())
    async with consumer:
        while not voice.stopping.is_set():
            found = await consumer.getmany(timeout_ms=POLL_MS)
            voice.read(runs_of(found))
            if found:
                with suppress(KafkaError):
                    await consumer.commit()
            voice.stands(consumer._coordinator.generation, consumer.assignment())
        voice.say("closing", partitions=[])


CLIENTS: Mapping[str, Callable[[Voice, str, Settings], Any]] = {
    "ours": ours,
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def main(words: list[str]) -> None:
    """Be a member until standard input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")  # kept if it fails
    client, topic, *pairs = words
    settings: Settings = dict(pair.split("=", 1) for pair in pairs)
    work = CLIENTS[client](Voice(), topic, settings)
    if asyncio.iscoroutine(work):
        asyncio.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
