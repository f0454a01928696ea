"""Clients that work in transactions: one that writes to several partitions, and one that copies a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, Producer

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client import BlockingConsumer, BlockingProducer
from interop.consistency.clients import ATTEMPT_S, QUIET, Client, now
from interop.consistency.history import BY, Commit, End, History, Outcome, Send, Transaction

__all__ = ["Copier", "TransactionalProducing"]

TRANSACTION_MS = 8_000
MAX_BLOCK_MS = 10_000
EVERY_ABORTED = 5
SETTLED_ATTEMPTS = 12


class Transactional(Client):
    """One transactional id, whose producer is made anew after each error: that ends what was left open."""

    def __init__(self, name: str, bootstrap: str, history: History) -> None:
        super().__init__(name, bootstrap, history)
        self.number = 0
        self.lives = 0
        self.sends: list[Send] = []
        self._unanswered: dict[str, tuple[str, int, float]] = {}

    @property
    def transaction(self) -> str:
        """The name of the transaction."""
        return f"{self.name}-{self.number}"

    def new_producer(self) -> Producer:
        """Return a producer that may begin. Raises KafkaException where nobody lets it in time."""
        self.lives += 1
        producer = Producer(
            {**QUIET, "transactional.id": self.name, "transaction.timeout.ms": TRANSACTION_MS}
            | {"linger.ms": 2, "retry.backoff.ms": 20}
            | self.settings()
        )
        producer.init_transactions(ATTEMPT_S)
        return producer

    def send(self, producer: Producer, topic: str, partition: int, value: str) -> None:
        """Send a record of the transaction."""
        self._unanswered[value] = (topic, partition, now())
        producer.produce(
            topic, value.encode(), partition=partition, on_delivery=partial(self._delivered, value)
        )

    def _delivered(self, value: str, error: Any, message: Any) -> None:
        if value in self._unanswered:
            self._note(value, Outcome.UNKNOWN if error else Outcome.OK, None if error else message.offset())

    def _note(self, value: str, outcome: Outcome, offset: int | None) -> None:
        topic, partition, began = self._unanswered.pop(value)
        self.history.add(
            Send(
                client=f"{self.name}/{self.lives}",
                topic=topic,
                partition=partition,
                value=value,
                began=began,
                ended=now(),
                outcome=outcome,
                offset=offset,
                transaction=self.transaction,
            )
        )

    def ended(self, end: End) -> None:
        """Note how the transaction ended, and that of the rest of its records nothing is known."""
        for value in [*self._unanswered]:
            self._note(value, Outcome.UNKNOWN, None)
        self.history.add(Transaction(name=self.transaction, end=end))
        self.done += end is not End.UNKNOWN

    def work(self) -> None:
        while not self.stopping:
            self.begin_life()
        self._settle()

    def begin_life(self) -> None:
        """Work with a new producer until something fails."""
        try:
            producer = self.new_producer()
        except KafkaException as error:
            self.errors[f"init {error.args[0].name()}"] += 1
            self.pause(0.1)
            return
        try:
            while not self.stopping:
                self.number += 1
                producer.begin_transaction()
                self.ended(self.one_transaction(producer))
        except (KafkaException, SystemError) as raised:
            first = told_by(raised)
            self.errors[first.args[0].name()] += 1
            self.ended(self._aborted(producer, first))

    def one_transaction(self, producer: Producer) -> End:
        """Carry out a transaction; return how it ended. Raises KafkaException where it could not."""
        raise NotImplementedError

    @staticmethod
    def _aborted(producer: Producer, error: KafkaException) -> End:
        if not error.args[0].txn_requires_abort():
            return End.UNKNOWN
        try:
            producer.abort_transaction(ATTEMPT_S)
        except KafkaException:
            return End.UNKNOWN
        return End.ABORTED

    def _settle(self) -> None:
        """End what was left open, so that whoever reads what is committed gets to the end."""
        for _ in range(SETTLED_ATTEMPTS):
            try:
                self.new_producer()
            except KafkaException:
                continue
            return
        raise AssertionError(f"{self.name}: no producer may begin any more")


def told_by(raised: KafkaException | SystemError) -> KafkaException:
    """Return the error that was raised first: confluent-kafka raises a fatal one as soon as it is told, and
    calls for a record's outcome behind it nevertheless, which fails by it. Raises any other SystemError.
    """
    if isinstance(raised, KafkaException):
        return raised
    if isinstance(raised.__cause__, KafkaException):
        return raised.__cause__
    raise raised


class TransactionalProducing(Transactional):
    """Transactions of a record in each partition of a topic; every fifth is aborted."""

    def __init__(
        self, name: str, bootstrap: str, history: History, *, topic: str, partitions: int, every_s: float
    ) -> None:
        super().__init__(name, bootstrap, history)
        self.topic, self.partitions, self.every_s = topic, partitions, every_s

    def one_transaction(self, producer: Producer) -> End:
        for partition in range(self.partitions):
            self.send(producer, self.topic, partition, f"{self.transaction}.{partition}")
        producer.poll(0)
        self.pause(self.every_s)
        if self.number % EVERY_ABORTED == 0:
            # While the transaction before is completed none begins, and then librdkafka ends none that began.
            producer.flush(ATTEMPT_S)
            producer.abort_transaction(ATTEMPT_S)
            return End.ABORTED
        producer.commit_transaction(ATTEMPT_S)
        return End.COMMITTED


class Discarded(CoterieError):
    """A transaction that is given up on purpose."""


class Copier(Client):
    """A member of a group that copies what it is given, in transactions that commit its offsets (KIP-447).

    Of our own clients: librdkafka 2.16 now and then waits for ever for an AddOffsetsToTxn that met a broker
    which was about to go, whatever its time-out.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        history: History,
        *,
        group: str,
        source: str,
        target: str,
        every_discarded: int = 0,
    ) -> None:
        """Of so many transactions one is aborted when all of it is there, none if it is 0."""
        super().__init__(name, bootstrap, history)
        self.group, self.source, self.target = group, source, target
        self.every_discarded = every_discarded
        self.number = 0

    def work(self) -> None:
        while not self.stopping:
            try:
                with self._consumer() as consumer, self._producer() as producer:
                    while not self.stopping:
                        self._copy(consumer, producer)
            except CoterieError as error:
                self.errors[type(error).__name__] += 1
                self.pause(0.1)

    def _consumer(self) -> BlockingConsumer[bytes, bytes]:
        return BlockingConsumer(
            self.source,
            bootstrap_servers=self.bootstrap,
            client_id=self.name,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=300,
            max_poll_records=20,
        )

    def _producer(self) -> BlockingProducer:
        return BlockingProducer(
            self.bootstrap,
            client_id=self.name,
            transactional_id=self.name,
            transaction_timeout_ms=TRANSACTION_MS,
            max_block_ms=MAX_BLOCK_MS,
        )

    def _copy(self, consumer: BlockingConsumer[bytes, bytes], producer: BlockingProducer) -> None:
        """Copy what has come, in one transaction; note how it ended, whatever that was."""
        records = consumer.getmany(timeout_ms=200)
        if not records:
            return
        self.number += 1
        name, began = f"{self.name}-{self.number}", now()
        following = {place: some[-1].offset + 1 for place, some in records.items()}
        found = [one for some in records.values() for one in some]
        copies = [(one.partition, f"{(one.value or b'').decode()}{BY}{name}") for one in found]
        self._note_tried(following)
        end = End.UNKNOWN
        offsets: list[int | None] = [None] * len(copies)
        try:
            with producer.transaction():
                deliveries = [
                    producer.send(self.target, value.encode(), partition=partition)
                    for partition, value in copies
                ]
                producer.send_offsets(following, consumer.group_metadata())
                if self.every_discarded and self.number % self.every_discarded == 0:
                    raise Discarded("a transaction in a while is aborted")
            offsets = [one.result().offset for one in deliveries]
            end = End.COMMITTED
        finally:
            self._note(name, copies, offsets, began, end)

    def _note(
        self, name: str, copies: list[tuple[int, str]], offsets: Sequence[int | None], began: float, end: End
    ) -> None:
        for (partition, value), offset in zip(copies, offsets, strict=True):
            self.history.add(
                Send(
                    client=name,
                    topic=self.target,
                    partition=partition,
                    value=value,
                    began=began,
                    ended=now(),
                    outcome=Outcome.UNKNOWN if offset is None else Outcome.OK,
                    offset=offset,
                    transaction=name,
                )
            )
        self.history.add(Transaction(name=name, end=end))
        self.done += end is End.COMMITTED

    def _note_tried(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that these offsets may be committed: when they are is not said, only that they will be."""
        for place, offset in offsets.items():
            self.history.add(
                Commit(
                    group=self.group,
                    topic=place.topic,
                    partition=place.partition,
                    offset=offset,
                    began=now(),
                    ended=now(),
                    outcome=Outcome.UNKNOWN,
                )
            )
