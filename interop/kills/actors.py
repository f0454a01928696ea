"""Who works while the broker is killed: each remembers what it was told, and asks for it afterwards.

What was acknowledged only grows, so a check first notes what was, and then asks: it holds at any moment.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import threading
import time
from typing import Any

import aiokafka  # type: ignore[import-untyped]
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Place

from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from interop.kills.probe import Probe, Seat
from interop.workers import Worker

__all__ = ["Actor", "Committer", "Producing", "Transactions", "Watcher", "Workers"]

KEPT, IN_TRANSACTIONS = "kept", "kept-in-transactions"
PARTITIONS = 3
QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
CALL_S = 10.0


class Actor(Worker):
    """Works until it is stopped, and can say what it was acknowledged."""

    @abc.abstractmethod
    def check(self, probe: Probe) -> None:
        """Fail if something that was acknowledged is not there."""


class Producing(Actor):
    """An idempotent producer with acks=all, which goes on through every kill: nothing lost, nothing twice."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__("producer", bootstrap)
        self._acknowledged: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self._next = [0] * PARTITIONS  # the offset, and the number, from which on was not looked yet
        self._expected = list(range(PARTITIONS))

    def work(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                **QUIET,
            }
        )
        number = 0
        while not self.stopping:
            for _ in range(10):
                partition = number % PARTITIONS
                value = str(number).encode()
                producer.produce(KEPT, value, partition=partition, on_delivery=self._delivered)
                number += 1
            producer.poll(0.01)
        left = producer.flush(CALL_S)
        assert not left, f"{left} records were never acknowledged"

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, f"an idempotent producer lost a record: {error}"
        self._acknowledged[message.partition()][message.offset()] = message.value()
        self.done += 1

    def check(self, probe: Probe) -> None:
        """Every acknowledged record is at its offset; every number comes once, in order."""
        for partition in range(PARTITIONS):
            acknowledged = dict(self._acknowledged[partition])
            first = self._next[partition]
            values = {
                record.offset: record.value or b""
                for record in probe.records(TopicPartition(KEPT, partition), first=first)
            }
            told = {offset: value for offset, value in acknowledged.items() if offset >= first}
            missing = sorted(offset for offset, value in told.items() if values.get(offset) != value)
            assert not missing, f"{KEPT}-{partition}: acknowledged, and not there: {missing[:5]}"
            numbers = [int(value) for value in values.values()]
            expected = self._expected[partition]
            after = expected + PARTITIONS * len(numbers)
            assert numbers == list(range(expected, after, PARTITIONS)), (
                f"{KEPT}-{partition}: a record is missing, twice or out of order"
            )
            self._expected[partition] = after
            self._next[partition] = max(values, default=first - 1) + 1


class Committer(Actor):
    """Commits ever larger offsets for a group that has no members, each awaited."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(f"committer-{number}", bootstrap)
        self.group = f"committed-{number}"
        self._acknowledged = dict.fromkeys(range(PARTITIONS), -1)
        self._tried = 0

    def work(self) -> None:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, **QUIET})
        try:
            while not self.stopping:
                self._tried += 1
                places = [Place(KEPT, partition, self._tried) for partition in range(PARTITIONS)]
                try:
                    answers = consumer.commit(offsets=places, asynchronous=False)
                except KafkaException:
                    time.sleep(0.01)  # nobody is there
                    continue
                for place in answers:
                    if place.error is None:
                        self._acknowledged[place.partition] = place.offset
                self.done += 1
        finally:
            consumer.close()

    def check(self, probe: Probe) -> None:
        """No committed offset is lower than one that was acknowledged, none higher than any that was sent."""
        acknowledged = dict(self._acknowledged)
        found = probe.committed(self.group, [TopicPartition(KEPT, one) for one in range(PARTITIONS)])
        for where, offset in found.items():
            least = acknowledged[where.partition]
            assert least <= offset <= self._tried, (
                f"{self.group}: {offset} is committed of {where}; {least} was acknowledged"
            )


class Workers(Actor):
    """One of the members of a group that share a topic, and commit what they have read, each time awaited."""

    GROUP = "workers"

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(f"worker-{number}", bootstrap)
        self._acknowledged: dict[int, int] = {}

    def work(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.GROUP,
                "client.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 200,
                "fetch.wait.max.ms": 50,
                **QUIET,
            }
        )
        consumer.subscribe([KEPT])
        try:
            while not self.stopping:
                messages = [one for one in consumer.consume(50, 0.05) if one.error() is None]
                if messages:
                    self._commit(consumer)
        finally:
            consumer.close()

    def _commit(self, consumer: Any) -> None:
        try:
            answers = consumer.commit(asynchronous=False)
        except KafkaException:
            return
        for place in answers:
            if place.error is None:
                known = self._acknowledged.get(place.partition, -1)
                self._acknowledged[place.partition] = max(known, place.offset)
        self.done += 1

    def check(self, probe: Probe) -> None:
        """The group has committed at least what this member was told; another may have gone on, or back.

        A partition that moved is read again from what was committed, never from before it.
        """
        acknowledged = dict(self._acknowledged)
        found = probe.committed(self.GROUP, [TopicPartition(KEPT, one) for one in acknowledged])
        for where, offset in found.items():
            least = acknowledged[where.partition]
            assert offset >= least, (
                f"{self.GROUP}: {offset} is committed of {where}; {least} was acknowledged"
            )


class Watcher(Actor):
    """A group of one member that joins and syncs all the time: what a SyncGroup has answered stays."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(f"watcher-{number}", bootstrap)
        self.group = f"watched-{number}"
        self._probe = Probe(bootstrap)
        self._seat = Seat(self._probe, self.group)
        self._lock = threading.Lock()

    def work(self) -> None:
        while not self.stopping:
            try:
                with self._lock:
                    code = self._seat.round()
            except CoterieError:
                time.sleep(0.01)  # nobody is there
                continue
            if not code:
                self.done += 1
            # A member that was given its id but never synced is forgotten by a failover; no other may be.
            elif code is Code.UNKNOWN_MEMBER_ID and self._seat.synced < 0:
                self._seat.member_id = ""
            else:
                assert code is not Code.UNKNOWN_MEMBER_ID, f"{self.group}: its member is forgotten"
                time.sleep(0.01)
        self._probe.close()

    def check(self, probe: Probe) -> None:
        """The member is one still, in the generation that was answered last or a later one."""
        with self._lock:
            synced = self._seat.synced
            if synced < 0:
                return
            theirs = Seat(probe, self.group)
            theirs.member_id = self._seat.member_id
            code = theirs.beat(synced)
            assert code in (Code.NONE, Code.ILLEGAL_GENERATION), (
                f"{self.group}: a heartbeat of generation {synced} is answered {code.name}"
            )
            joined, generation = probe.patiently(theirs.join)
            assert joined is Code.NONE, f"{self.group}: its member cannot rejoin: {joined.name}"
            assert generation > synced, (
                f"{self.group}: generation {generation} follows {synced}, which was answered"
            )


class Transactions(Actor):
    """A transactional producer that also commits a group's offsets: a transaction is there whole or not.

    aiokafka's: librdkafka 2.16 now and then never sends an AddOffsetsToTxn again that met a dead broker.
    """

    GROUP = "in-transactions"

    def __init__(self, bootstrap: str) -> None:
        super().__init__("transactions", bootstrap)
        self._committed = -1  # the last transaction whose commit was answered
        self._aborted: set[int] = set()

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        number = 0
        while not self.stopping:
            # Each producer fences the one before, and so ends what that left open.
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                transactional_id="the-one",
                transaction_timeout_ms=20_000,
                request_timeout_ms=5_000,
                retry_backoff_ms=20,
            )
            try:
                async with asyncio.timeout(CALL_S):
                    await producer.start()
                while not self.stopping:
                    number += 1
                    async with asyncio.timeout(CALL_S):
                        await self._transaction(producer, number)
            except (KafkaError, TimeoutError, OSError):
                await asyncio.sleep(0.05)  # nobody is there, or nobody knows how the transaction ended
            finally:
                with contextlib.suppress(KafkaError, TimeoutError, OSError):
                    async with asyncio.timeout(CALL_S):
                        await producer.stop()

    async def _transaction(self, producer: AIOKafkaProducer, number: int) -> None:
        """Run the transaction of a number; every fifth is aborted."""
        await producer.begin_transaction()
        value = str(number).encode()
        sent = [await producer.send(IN_TRANSACTIONS, value, partition=one) for one in range(PARTITIONS)]
        await asyncio.gather(*sent)
        place = aiokafka.TopicPartition(IN_TRANSACTIONS, 0)
        await producer.send_offsets_to_transaction({place: number}, self.GROUP)
        if number % 5 == 0:
            self._aborted.add(number)
            await producer.abort_transaction()
        else:
            await producer.commit_transaction()
            self._committed = number
        self.done += 1

    def check(self, probe: Probe) -> None:
        """The offset of the last transaction that was answered is committed, or that of a later one."""
        committed = self._committed
        found = probe.committed(self.GROUP, [TopicPartition(IN_TRANSACTIONS, 0)])
        offset = found[TopicPartition(IN_TRANSACTIONS, 0)]
        assert offset >= committed, f"offset {offset} is committed; transaction {committed} was answered"
        assert offset not in self._aborted, f"the offset of transaction {offset} counts, which was aborted"

    def check_all(self) -> None:
        """Read what is committed: each transaction is there once and whole, and no aborted one."""
        seen = [self._read(partition) for partition in range(PARTITIONS)]
        assert seen[0] == seen[1] == seen[2], "a transaction is not whole"
        assert len(set(seen[0])) == len(seen[0]), "a transaction is there twice"
        assert self._aborted.isdisjoint(seen[0]), "an aborted transaction is there"
        assert self._committed in seen[0] or self._committed < 0, "an answered transaction is missing"

    def _read(self, partition: int) -> list[int]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "reader-of-transactions",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                **QUIET,
            }
        )
        consumer.assign([Place(IN_TRANSACTIONS, partition, 0)])
        numbers: list[int] = []
        try:
            while True:
                message = consumer.poll(CALL_S)
                assert message is not None, f"{IN_TRANSACTIONS}-{partition} has no end"
                error = message.error()
                if error is None:
                    numbers.append(int(message.value() or b""))
                elif error.name() == "_PARTITION_EOF":
                    return numbers
        finally:
            consumer.close()
