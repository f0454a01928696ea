"""Transactions of real clients whose coordinator, group and partitions lie on different brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as Place

from coterie.base.errors import CoterieError
from coterie.base.ids import GroupMetadata, TopicPartition
from coterie.client import Producer
from no_task_left import run

from .several_brokers import NODES, PARTITIONS, Brokers, several_brokers
from .test_transactions import committed_offset, read

pytestmark = pytest.mark.ours("the test holds elections in the brokers")

RECORDS, AT_ONCE = 120, 8
CALL_S, WITHIN_S = 10.0, 60.0


async def contents(brokers: Brokers, topic: str) -> list[list[int]]:
    """Return the numbers that a reader of committed records finds in each partition."""
    values = await asyncio.to_thread(
        read, brokers.bootstrap, topic, partitions=PARTITIONS, isolation="read_committed"
    )
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for value in values:
        partition, number = value.split(b"-")
        found[int(partition)].append(int(number))
    return found


def test_aiokafka_commits_and_aborts_across_brokers() -> None:
    async def scenario() -> None:
        async with several_brokers("out") as brokers:
            for at in range(3):
                producer = AIOKafkaProducer(bootstrap_servers=brokers.bootstrap, transactional_id=f"tx-{at}")
                async with producer:
                    for number in range(4):
                        await producer.begin_transaction()
                        for partition in range(PARTITIONS):
                            value = f"{partition}-{10 * at + number}".encode()
                            await producer.send_and_wait("out", value, partition=partition)
                        place = Place("out", number % PARTITIONS)
                        await producer.send_offsets_to_transaction({place: number + 1}, f"g-{at}")
                        end = producer.commit_transaction if number % 2 == 0 else producer.abort_transaction
                        await end()
            expected = [[0, 2, 10, 12, 20, 22]] * PARTITIONS
            while await contents(brokers, "out") != expected:  # its markers come a little later
                pass
            for at in range(3):
                offsets = [
                    await asyncio.to_thread(committed_offset, brokers.bootstrap, f"g-{at}", ("out", number))
                    for number in range(PARTITIONS)
                ]
                assert offsets == [1, -1001, 3]  # what was aborted at 1 is not there

    run(scenario(), within_s=60)


class Pipeline:
    """Reads `in`, writes `out`, and commits the offsets with it, as one who goes on after every error."""

    def __init__(self, bootstrap: str, progress: Callable[[int], object]) -> None:
        self._common = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "topic.metadata.refresh.interval.ms": 500,
        }
        self._progress = progress
        self._until = time.monotonic() + WITHIN_S
        self.done = 0

    def run(self) -> None:
        """Go on until every record is written."""
        while self.done < RECORDS:
            with self._clients() as (producer, consumer), suppress(Again):
                while self.done < RECORDS:
                    self._one(producer, consumer)

    @contextmanager
    def _clients(self) -> Iterator[tuple[Any, Any]]:
        producer = confluent_kafka.Producer({**self._common, "transactional.id": "pipeline"})
        settings = {
            **self._common,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        consumer = confluent_kafka.Consumer(settings)
        try:
            producer.init_transactions(CALL_S)
            places = [confluent_kafka.TopicPartition("in", number) for number in range(PARTITIONS)]
            consumer.assign(consumer.committed(places, timeout=CALL_S))
            yield producer, consumer
        finally:
            consumer.close()

    def _one(self, producer: Any, consumer: Any) -> None:
        assert time.monotonic() < self._until, f"{self.done} of {RECORDS} records are written"
        records = [one for one in consumer.consume(AT_ONCE, 0.2) if one.error() is None]
        if not records:
            return
        producer.begin_transaction()
        try:
            for record in records:
                _, number = record.value().split(b"-")
                partition = int(number) % PARTITIONS
                producer.produce("out", b"%d-%s" % (partition, number), partition=partition)
            offsets = consumer.position(consumer.assignment())
            metadata = consumer.consumer_group_metadata()
            self._until_done(lambda: producer.send_offsets_to_transaction(offsets, metadata, CALL_S))
            self._until_done(lambda: producer.commit_transaction(CALL_S))
        except confluent_kafka.KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                self._until_done(lambda: producer.abort_transaction(CALL_S))
            raise Again from failure
        self.done += len(records)
        self._progress(self.done)

    def _until_done(self, call: Callable[[], None]) -> None:
        while True:
            try:
                call()
            except confluent_kafka.KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > self._until:
                    raise
            else:
                return


class Again(Exception):
    """A transaction was given up."""


def test_librdkafka_writes_each_record_once_while_each_broker_leads_nothing_for_a_while() -> None:
    """Its coordinator, its group's and the leaders of what it reads and writes are among what moves.

    No broker goes: a librdkafka of today does not get over one that is in no Metadata any more, and that its
    cache of coordinators names (2.16: `Handle is terminating in state TRY_CONNECT`, for ever).
    """

    async def scenario() -> None:
        async with several_brokers("in", "out") as brokers:
            await fill(brokers)
            loop = asyncio.get_running_loop()
            done: asyncio.Queue[int] = asyncio.Queue()
            pipeline = Pipeline(
                brokers.bootstrap, lambda count: loop.call_soon_threadsafe(done.put_nowait, count)
            )
            async with asyncio.TaskGroup() as tasks:  # who fails ends the test
                tasks.create_task(asyncio.to_thread(pipeline.run))
                for node_id in NODES:
                    await done.get()
                    brokers.give_away(node_id)
                    await done.get()
                    brokers.give_back()
            await check_each_once(brokers)

    run(scenario(), within_s=90)


class OurPipeline:
    """The same with our producer, over records of which it knows where they are."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.done: asyncio.Queue[int] = asyncio.Queue()

    async def run(self) -> None:
        """Go on until every record is written; whatever goes wrong, begin where the group is."""
        while True:
            with suppress(CoterieError):
                producer = Producer(
                    self._brokers.bootstrap, transactional_id="ours", linger_ms=1, retry_backoff_ms=10
                )
                async with producer:
                    await self._write(producer)
                    return

    async def _write(self, producer: Producer) -> None:
        bootstrap = self._brokers.bootstrap
        places = [TopicPartition("in", number) for number in range(PARTITIONS)]
        at = {
            place: max(0, await asyncio.to_thread(committed_offset, bootstrap, "g", place))
            for place in places
        }
        while min(at.values()) < RECORDS // PARTITIONS:
            async with producer.transaction():
                for place in places:
                    number = at[place] * PARTITIONS + place.partition
                    value = f"{place.partition}-{number}".encode()
                    await producer.send("out", value, partition=place.partition)
                at = {place: offset + 1 for place, offset in at.items()}
                await producer.send_offsets(at, GroupMetadata("g"))
            self.done.put_nowait(at[places[0]])


def test_each_record_is_written_once_while_every_broker_goes_and_comes_back() -> None:
    async def scenario() -> None:
        async with several_brokers("in", "out") as brokers:
            pipeline = OurPipeline(brokers)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pipeline.run())
                for node_id in NODES:
                    for _ in range(3):
                        await pipeline.done.get()
                    await brokers.stop(node_id)
                    for _ in range(3):
                        await pipeline.done.get()
                    await brokers.start(node_id)
            await check_each_once(brokers)

    run(scenario(), within_s=90)


async def check_each_once(brokers: Brokers) -> None:
    """Wait until all that was committed is to be read, and have each number there once."""
    found: list[list[int]] = []
    while sum(map(len, found)) < RECORDS:
        found = await contents(brokers, "out")
    for partition, numbers in enumerate(found):
        assert sorted(numbers) == list(range(partition, RECORDS, PARTITIONS))


async def fill(brokers: Brokers) -> None:
    """Write the numbers into the three partitions of `in` by turns."""
    async with AIOKafkaProducer(bootstrap_servers=brokers.bootstrap) as producer:
        for number in range(RECORDS):
            await producer.send_and_wait("in", f"0-{number}".encode(), partition=number % PARTITIONS)
