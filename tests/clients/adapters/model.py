"""What the tests ask of a client, whichever it is: produce, consume, administer, in plain values."""

from __future__ import annotations

import abc
import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar

Place = tuple[str, int]  # topic, partition

SESSION_MS = 20_000  # a busy machine keeps a process waiting for seconds
HEARTBEAT_MS = 200  # short, so that members hear of a rebalance at once
FETCH_WAIT_MS = 100
CALL_S = 40.0


@dataclass(frozen=True, kw_only=True)
class Message:
    """A record on its way in (offset -1) or out."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int = -1
    offset: int = -1
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(cls, record: Any) -> Message:
        """Return a record of aiokafka's or kafka-python's as the tests compare it."""
        return cls(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            timestamp_ms=record.timestamp,
            headers=tuple((name, value) for name, value in record.headers),
        )


@dataclass(frozen=True, kw_only=True)
class Membership:
    """How a consumer joins a group."""

    topics: tuple[str, ...]
    group: str = field(default_factory=lambda: f"group-{uuid.uuid4()}")
    instance: str | None = None
    assignor: str = "range"


class Consumer(abc.ABC):
    """A consumer in use by one thread. `heard` is what its listener was told, in order."""

    refusals: ClassVar[tuple[type[Exception], ...]]
    """What a commit raises that the group refuses."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, frozenset[Place]]] = []
        self.anew = 0
        """How often it got stuck and was made anew, and so left its group and came back."""

    def hear(self, kind: str, partitions: Iterable[Any]) -> None:
        """Note that partitions were `assigned` or `revoked`; whichever thread calls the listener."""
        self.heard.append((kind, frozenset((one.topic, one.partition) for one in partitions)))

    @abc.abstractmethod
    def poll(self, seconds: float) -> list[Message]:
        """Return what has come within that time."""

    @abc.abstractmethod
    def assignment(self) -> frozenset[Place]:
        """Return the partitions that are this consumer's now."""

    @abc.abstractmethod
    def seek(self, place: Place, offset: int) -> None:
        """Go on reading at an offset."""

    @abc.abstractmethod
    def commit(self) -> None:
        """Commit the positions and wait for the answer."""

    @abc.abstractmethod
    def committed(self, place: Place) -> int | None:
        """Return the committed offset, or None if there is none."""

    @abc.abstractmethod
    def offset_at_time(self, place: Place, at_ms: int) -> int | None:
        """Return the first offset with at least that timestamp, or None if all are older."""

    @abc.abstractmethod
    def bounds(self, place: Place) -> tuple[int, int]:
        """Return the first offset and the one after the last."""

    @abc.abstractmethod
    def close(self) -> None:
        """Leave the group (a static member stays in it) and end."""

    def commit_if_it_may(self) -> None:
        """Commit, unless a rebalance is in the way: then what was read is read again by whoever is next."""
        with contextlib.suppress(*self.refusals):
            self.commit()

    def take(self, count: int, *, within_s: float = CALL_S) -> list[Message]:
        """Return at least `count` records, polled within the time; fewer fail the test."""
        import time

        end = time.monotonic() + within_s
        got: list[Message] = []
        while len(got) < count:
            assert time.monotonic() < end, f"{len(got)} of {count} records after {within_s} s"
            got += self.poll(0.2)
        return got

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


class Admin(abc.ABC):
    """The few calls on topics that every client has. Refusals raise `Denied` with Kafka's code."""

    @abc.abstractmethod
    def create(self, topic: str, *, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        """Create a topic."""

    @abc.abstractmethod
    def delete(self, topic: str) -> None:
        """Delete a topic."""

    @abc.abstractmethod
    def grow(self, topic: str, *, partitions: int) -> None:
        """Raise the number of partitions."""

    @abc.abstractmethod
    def partition_count(self, topic: str) -> int | None:
        """Return the number of partitions, or None if there is no such topic."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the client."""

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


class Denied(Exception):
    """The broker refused; `code` is Kafka's number of the error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"Kafka's error {code}")
        self.code = code


class Joins(abc.ABC):
    """A client library as far as its members of groups go."""

    name: ClassVar[str]

    @abc.abstractmethod
    def member(self, bootstrap: str, membership: Membership) -> Consumer:
        """Return a consumer that joins a group, and starts where it has committed, or at the start."""


class Client(Joins):
    """One of the client libraries."""

    codecs: ClassVar[frozenset[str]]

    @abc.abstractmethod
    def produce(
        self,
        bootstrap: str,
        messages: Iterable[Message],
        *,
        codec: str = "none",
        idempotent: bool = False,
        acks: str = "all",
    ) -> None:
        """Produce the messages in order and wait until each is acknowledged."""

    @abc.abstractmethod
    def reader(self, bootstrap: str, *places: Place) -> Consumer:
        """Return a consumer of these partitions from their start, in no group."""

    @abc.abstractmethod
    def admin(self, bootstrap: str) -> Admin:
        """Return an administrator."""
