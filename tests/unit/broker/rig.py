"""A node in this process, driven by hand: real handlers, real core, real files, and a clock that a test
turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarm.late import Lane

from coterie.base.ids import TopicPartition
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.net.connection import Connection
from coterie.broker.net.context import Context, Origin
from coterie.broker.node import Node
from coterie.broker.runtime.leadership import Leadership
from coterie.broker.topics.registry import Topics
from coterie.storage.directory import Store
from coterie.storage.files import FileStore
from coterie.wire.api.codec import (
    RequestHeader,
    decode_response,
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    request_type,
    response_type,
)


def a_context(
    api_key: int, version: int, *, send: Callable[[Context, Any], None] = lambda *answer: None
) -> Context:
    """Return what a handler is told beside a request's fields; `send` gets an answer that comes later."""
    return Context(
        RequestHeader(api_key, version, 1, "rig", 0), Origin(("127.0.0.1", 9092), "/127.0.0.1"), send
    )


class Line(asyncio.Transport):
    """The other end of a connection: keeps what the broker writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 9_092)})
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, parts: Any) -> None:
        self.written += b"".join(parts)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Rig:
    """A node whose time stands still until it is told to pass."""

    wall_ahead_ms = 0  # of the clock that never jumps
    lane: Lane | None = None  # of logs whose appends land later
    rounds: list[Callable[[], None]] = []  # noqa: RUF012  # what is to land; there is none without a lane

    def __init__(self, directory: Path, **settings: object) -> None:
        named = {name.replace("_", "."): str(value) for name, value in settings.items()}
        defaults = {"log.dirs": str(directory), "group.initial.rebalance.delay.ms": "0"}
        self.settings = BrokerSettings.of(defaults | named)
        self.now_ms = 1_700_000_000_000
        self.soon: list[Callable[[], None]] = []
        self.store = FileStore.open(self.settings.data_directory, now_ms=self.now_ms)
        self.node = self.a_node()
        self.node.start()
        self.settle()

    def a_node(self, leadership: Leadership | None = None) -> Node:
        """Return a node on the store, in this rig's time; without a `leadership` it leads everything."""
        return self.node_type()(
            settings=self.settings,
            topics=Topics.open(self.settings, self.files),
            store=self.store,
            clock=lambda: self.now_ms,
            wall=lambda: self.now_ms + self.wall_ahead_ms,
            call_soon=self.soon.append,
            alarm=lambda at_ms: None,
            aside=lambda work, arguments, finish, computes: finish(work(*arguments)),
            leadership=leadership,
            when_writable=self.when_writable(),
        )

    def node_type(self) -> type[Node]:
        """Return the class of the node."""
        return Node

    @property
    def files(self) -> Store:
        """Where the topics are written down."""
        return self.store

    def when_writable(self) -> Callable[[TopicPartition, Callable[[], None]], object] | None:
        """Return what is told of records to append, for logs that write at times of their own."""
        return None if self.lane is None else self.lane.ask

    def close(self) -> None:
        self.settle()
        self.node.stop()

    def settle(self) -> None:
        """Run what was put off until after the requests, and what that puts off."""
        while self.soon or self.rounds:
            todo, self.soon[:] = list(self.soon) or [self.rounds.pop(0)], []
            for run in todo:
                run()

    def pass_ms(self, span_ms: int) -> None:
        """Let time pass a millisecond at a time where something is due, else at once."""
        until = self.now_ms + span_ms
        while True:
            following = self.node.purgatory.next_ms()
            if following is None or following > until:
                break
            self.now_ms = max(self.now_ms, following)
            self.node.purgatory.expire(self.now_ms)
            self.settle()
        self.now_ms = until

    def client(self, client_id: str = "test") -> Client:
        """Return a new connection."""
        return Client(self, client_id)


class Client:
    """One connection to the rig's node."""

    def __init__(self, rig: Rig, client_id: str) -> None:
        self.rig = rig
        self.client_id = client_id
        self.line = Line()
        self.connection = Connection(rig.node)
        self.connection.connection_made(self.line)
        self.asked: list[tuple[int, int]] = []

    def send(self, api_key: int, version: int, **values: Any) -> None:
        """Send a request; its answer may come later."""
        self.send_at_once(api_key, version, **values)
        self.rig.settle()

    def send_at_once(self, api_key: int, version: int, **values: Any) -> None:
        """Send a request, and leave undone what is put off."""
        request = build(request_type(api_key, version), **values)
        self.asked.append((api_key, version))
        self.connection.data_received(encode_request(len(self.asked), self.client_id, request))

    def answers(self) -> list[Any]:
        """Return the answers that have come since the last call."""
        found = []
        while self.line.written:
            size = int.from_bytes(self.line.written[:4], "big")
            frame, self.line.written = self.line.written[4 : 4 + size], self.line.written[4 + size :]
            correlation_id = int.from_bytes(frame[:4], "big")
            api_key, version = self.asked[correlation_id - 1]
            found.append(decode_response(response_type(api_key, version), frame)[1])
        return found

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        """Send a request and return its answer, which must come without time passing."""
        self.send(api_key, version, **values)
        (answer,) = self.answers()
        return answer
