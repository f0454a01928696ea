"""What is asked of other brokers: gathered while requests are under way, and sent to each as few requests.

A connection is opened when there is something to ask. When it ends, whoever waits hears that nobody knows
what became of it, and asks again later if that still matters; the next is opened after a pause that grows
until a broker has answered.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from coterie.broker.interbroker.connection import Attempt, PeerConnection

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.interbroker.lives import SenderName
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.leadership import Leadership, NodeEndpoint
    from coterie.broker.runtime.pieces import Scheduler
    from coterie.broker.runtime.purgatory import Purgatory

log = logging.getLogger("coterie.broker")

UNDER_WAY_MAX = 5
"""So many requests are under way on a connection, as with Kafka's producers."""
GATHERED_MAX = 100_000
"""So many things wait for a connection to take them; what comes beyond is refused."""
PAUSES_MS = (20, 50, 100, 200, 500, 1_000)
"""Before each attempt to connect again, until an answer has come; the last goes on for the others."""
PARTITIONS_MAX = 1_000
"""So many partitions go into one request, unless one thing has more by itself: it is written, and read, at
once.
"""
SETUP_MS = 10_000
"""So long an attempt to connect may take."""
WORTH_A_LINE = 2  # failures one after the other: one may be a restart, and each of many would say the same
MOVED = "is not there any more"

Connect: TypeAlias = Callable[[str, int, PeerConnection], Attempt]
"""Begins to connect to a host and port, and calls the connection back later, never within."""

T = TypeVar("T")


class RequestKind(Protocol[T]):
    """How things that are asked become requests, and what the answers mean to whoever asked."""

    name: str
    """What the connections are for, in their client ids."""
    waits: bool
    """Whether what is asked while no connection is to be opened waits for the next, or is refused at once."""

    def cut(self, gathered: deque[T]) -> tuple[Any, Sequence[T]]:
        """Take from the front as much as goes into one request, one thing at least; return both."""
        ...

    def suffix(self, asked: Sequence[T]) -> str:
        """Return the end of the client id of a request that asks for these."""
        ...

    def answered(self, asked: Sequence[T], response: Any | None) -> None:
        """Answer whoever asked; None says that nobody knows what became of it, if it was asked at all."""
        ...


class SenderParts(NamedTuple):
    """The parts of the broker that senders use."""

    clock: Clock
    purgatory: Purgatory
    scheduler: Scheduler
    leadership: Leadership
    connect: Connect | None
    sender_name: SenderName
    settings: BrokerSettings


def taken_together(gathered: deque[T], added_by: Callable[[T], int | None]) -> tuple[T, ...]:
    """Return the things for one request: from the front, until they have `PARTITIONS_MAX` partitions.

    `added_by` returns how many partitions one adds; None if it cannot go with those that were taken before,
    and then it is left, in its order.
    """
    taken: list[T] = []
    left: list[T] = []
    partitions = 0
    while gathered and partitions < PARTITIONS_MAX:
        one = gathered.popleft()
        added = added_by(one)
        if added is None:
            left.append(one)
        else:
            taken.append(one)
            partitions += added
    gathered.extendleft(reversed(left))
    return tuple(taken)


class PeerSender(Generic[T]):
    """The way to one broker at one address."""

    def __init__(self, parts: SenderParts, kind: RequestKind[T], endpoint: NodeEndpoint) -> None:
        self.endpoint = endpoint
        self._parts = parts
        self._kind = kind
        self._gathered: deque[T] = deque()
        self._connection: PeerConnection | None = None
        self._failures = 0  # since the last answer
        self._not_before_ms = 0
        self._flush_is_due = False
        self._closed = False

    def __str__(self) -> str:
        return f"broker {self.endpoint.node_id} at {self.endpoint.host}:{self.endpoint.port}"

    def put(self, asked: T) -> None:
        """Ask something: with the next request, or not at all while there is no way to."""
        pauses = self._connection is None and self._parts.clock.now_ms() < self._not_before_ms
        full = len(self._gathered) >= GATHERED_MAX
        if self._closed or full or (pauses and not self._kind.waits) or self._parts.connect is None:
            self._kind.answered((asked,), None)
            return
        self._gathered.append(asked)
        if pauses:
            self._parts.purgatory.arm(self._timer, self._not_before_ms, self._ring)
        elif self._connection is None:
            self._open(self._parts.connect)
        elif self._connection.is_open and not self._flush_is_due:
            self._flush_is_due = True
            self._parts.scheduler.call_soon(self._flush)

    def close(self, why: str) -> None:
        """Ask nothing any more: the broker has gone, or has another address, or this one stops."""
        self._closed = True
        if self._connection is not None:
            self._connection.close(why)
        else:
            self._give_up_gathered()

    # -- the connection

    def _open(self, connect: Connect) -> None:
        self._connection = PeerConnection(
            self._parts.sender_name.next_client_id(self._kind.name),
            self._parts.clock.now_ms,
            opened=self._flush,
            ended=self._ended,
        )
        self._watch()
        self._connection.begun(connect(self.endpoint.host, self.endpoint.port, self._connection))

    def _watch(self) -> None:
        """Look again when the peer may have been silent for too long."""
        connection = self._connection
        since_ms = None if connection is None else connection.waits_since_ms
        if connection is None or since_ms is None:
            return
        most_ms = self._parts.settings.request_timeout_ms
        due_ms = since_ms + (most_ms if connection.is_open else min(SETUP_MS, most_ms))
        if due_ms <= self._parts.clock.now_ms():
            connection.close("has been silent for too long")
        else:
            self._parts.purgatory.arm(self._timer, due_ms, self._ring)

    def _ring(self, _: object, now_ms: int) -> None:
        if self._connection is not None:
            self._watch()
        elif self._gathered and self._parts.connect is not None:
            self._open(self._parts.connect)

    @property
    def _timer(self) -> tuple[str, str, int]:
        return ("silence of a broker", self._kind.name, self.endpoint.node_id)

    def _ended(self, why: str) -> None:
        """Pause, and give up what has gathered for the connection that is gone."""
        pause_ms = PAUSES_MS[min(self._failures, len(PAUSES_MS) - 1)]
        self._failures += 1
        self._not_before_ms = self._parts.clock.now_ms() + pause_ms
        if self._failures == WORTH_A_LINE and not self._closed:
            log.warning("%s is not reached (%s); what is for it is asked again later", self, why)
        self._connection = None
        self._give_up_gathered()

    def _give_up_gathered(self) -> None:
        self._parts.purgatory.clear(self._timer)
        gathered, self._gathered = self._gathered, deque()
        if gathered:
            self._kind.answered(tuple(gathered), None)

    # -- requests

    def _flush(self) -> None:
        """Send what has gathered, as far as there is room under way."""
        self._flush_is_due = False
        connection = self._connection
        if connection is None or not connection.is_open:
            return
        while self._gathered and connection.under_way < UNDER_WAY_MAX:
            request, asked = self._kind.cut(self._gathered)
            was_idle = connection.waits_since_ms is None
            connection.send(request, partial(self._answered, asked), suffix=self._kind.suffix(asked))
            if was_idle:
                self._watch()

    def _answered(self, asked: Sequence[T], response: Any | None) -> None:
        if response is not None:
            if self._failures >= WORTH_A_LINE:
                log.info("%s is reached again", self)
            self._failures = 0
        self._kind.answered(asked, response)
        self._flush()


class Senders(Generic[T]):
    """The ways to all brokers, for one kind of request."""

    def __init__(self, parts: SenderParts, kind: RequestKind[T]) -> None:
        self._parts = parts
        self._kind = kind
        self._senders: dict[int, PeerSender[T]] = {}
        parts.leadership.when_brokers_change(self._brokers_changed)

    def send(self, endpoint: NodeEndpoint, asked: T) -> None:
        """Ask a broker something; the answer may come before this returns."""
        sender = self._senders.get(endpoint.node_id)
        if sender is not None and not is_at(endpoint, sender.endpoint):
            sender.close(MOVED)
            sender = None
        if sender is None:
            sender = self._senders[endpoint.node_id] = PeerSender(self._parts, self._kind, endpoint)
        sender.put(asked)

    def _brokers_changed(self) -> None:
        """Wait for no answer of a broker that is not there any more, or not at that address."""
        live = {one.node_id: one for one in self._parts.leadership.live_brokers()}
        for node_id, sender in tuple(self._senders.items()):
            there = live.get(node_id)
            if there is None or not is_at(there, sender.endpoint):
                del self._senders[node_id]
                sender.close(MOVED)

    def close(self) -> None:
        """End all connections."""
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            sender.close("this broker stops")


def is_at(endpoint: NodeEndpoint, other: NodeEndpoint) -> bool:
    """Return whether two endpoints name the same address."""
    return (endpoint.host, endpoint.port) == (other.host, other.port)
