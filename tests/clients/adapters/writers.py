"""Transactional producers of each library behind one face, in plain values."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import confluent_kafka
import kafka
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPlace
from aiokafka.errors import KafkaError as AioError
from kafka import errors as kafka_errors
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from .aio import run
from .model import CALL_S, Denied, Place

__all__ = ["WRITERS", "AioWriter", "ConfluentWriter", "KafkaPythonWriter", "Writer"]

FENCED = 90
TIMEOUT_MS = 30_000


class Writer(abc.ABC):
    """A producer with a transactional id, which it owns from the start. Refusals raise `Denied`."""

    @abc.abstractmethod
    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> None:
        """Become the owner of the transactional id."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abc.abstractmethod
    def write(self, place: Place, value: bytes) -> None:
        """Write a record; return when it is acknowledged."""

    @abc.abstractmethod
    def offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Commit offsets of a group with the transaction."""

    @abc.abstractmethod
    def commit(self) -> None:
        """Commit the transaction."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Abort the transaction."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the client."""

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


class ConfluentWriter(Writer):
    """confluent-kafka's."""

    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self.inner = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, int(CALL_S * 1000)),
                "linger.ms": 0,
                "log_level": 1,
            }
        )
        self.failed: list[confluent_kafka.KafkaError] = []
        self._try(self.inner.init_transactions, CALL_S)

    @staticmethod
    def _try(call: Callable[..., Any], *terms: Any) -> None:
        try:
            call(*terms)
        except confluent_kafka.KafkaException as error:
            reason: confluent_kafka.KafkaError = error.args[0]
            fenced = reason.code() == confluent_kafka.KafkaError._FENCED
            raise Denied(FENCED if fenced else reason.code()) from error

    def _told(self, error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is not None:
            self.failed.append(error)

    def begin(self) -> None:
        self._try(self.inner.begin_transaction)

    def write(self, place: Place, value: bytes) -> None:
        self.inner.produce(place[0], value, partition=place[1], on_delivery=self._told)
        assert self.inner.flush(CALL_S) == 0
        if self.failed:
            raise Denied(self.failed.pop().code())

    def offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": ",".join(self._brokers()), "group.id": group}
        )
        told = [confluent_kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        try:
            self.send_offsets(told, consumer.consumer_group_metadata())
        finally:
            consumer.close()

    def send_offsets(self, offsets: list[confluent_kafka.TopicPartition], metadata: Any) -> None:
        """Commit offsets with the transaction, as a member of the group."""
        self._try(self.inner.send_offsets_to_transaction, offsets, metadata, CALL_S)

    def _brokers(self) -> list[str]:
        return [f"{one.host}:{one.port}" for one in self.inner.list_topics(timeout=CALL_S).brokers.values()]

    def commit(self) -> None:
        self._try(self.inner.commit_transaction, CALL_S)

    def abort(self) -> None:
        self._try(self.inner.abort_transaction, CALL_S)

    def close(self) -> None:
        self.inner.purge()
        with contextlib.suppress(confluent_kafka.KafkaException):  # of a producer that was fenced
            self.inner.flush(1)


class KafkaPythonWriter(Writer):
    """kafka-python's."""

    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self.inner = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            retry_backoff_ms=20,
        )
        self._try(self.inner.init_transactions)

    @staticmethod
    def _try(call: Callable[..., Any], *terms: Any) -> Any:
        try:
            return call(*terms)
        except kafka_errors.KafkaError as error:
            raise Denied(getattr(error, "errno", -1)) from error

    def begin(self) -> None:
        self._try(self.inner.begin_transaction)

    def write(self, place: Place, value: bytes) -> None:
        sent = self._try(lambda: self.inner.send(place[0], value, partition=place[1]))
        self.inner.flush(CALL_S)
        self._try(sent.get, CALL_S)

    def offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        told = {
            kafka.TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
            for place, offset in offsets.items()
        }
        self._try(self.inner.send_offsets_to_transaction, told, ConsumerGroupMetadata(group, -1, "", None))

    def commit(self) -> None:
        self._try(self.inner.commit_transaction)

    def abort(self) -> None:
        self._try(self.inner.abort_transaction)

    def close(self) -> None:
        self.inner.close(timeout=1)


class AioWriter(Writer):
    """aiokafka's."""

    def __init__(self, bootstrap: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> None:
        async def started() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                retry_backoff_ms=20,
            )
            await producer.start()
            return producer

        self.inner = run(started())

    @staticmethod
    def _try(work: Any) -> None:
        try:
            run(work)
        except AioError as error:
            raise Denied(getattr(error, "errno", FENCED)) from error

    def begin(self) -> None:
        self._try(self.inner.begin_transaction())

    def write(self, place: Place, value: bytes) -> None:
        self._try(self.inner.send_and_wait(place[0], value, partition=place[1]))

    def offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        told = {AioPlace(*place): offset for place, offset in offsets.items()}
        self._try(self.inner.send_offsets_to_transaction(told, group))

    def commit(self) -> None:
        self._try(self.inner.commit_transaction())

    def abort(self) -> None:
        self._try(self.inner.abort_transaction())

    def close(self) -> None:
        run(self.inner.stop())


WRITERS: tuple[type[Writer], ...] = (ConfluentWriter, KafkaPythonWriter, AioWriter)
