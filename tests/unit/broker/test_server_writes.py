"""Answers leave in order, whether they go straight to the socket or wait in the transport."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from rig import Rig

from coterie.broker.net.context import WAITS, Context
from coterie.broker.net.large import LARGE_BYTES
from coterie.broker.net.server import SocketProtocol
from coterie.wire.api.codec import (
    RequestHeader,
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from coterie.wire.records.batches import Record, build_batch

FETCH, API_VERSIONS, VERSION = 1, 18, 11
RECORD_BYTES = 300_000
LARGE, SMALL = 8, 2_000  # answers; the small ones are more than a socket holds


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    broker = Rig(tmp_path)
    yield broker
    broker.close()


def a_fetch(max_bytes: int = RECORD_BYTES) -> object:
    partition = build(
        entity("fetch", VERSION, "FetchPartition"),
        partition=0,
        fetch_offset=0,
        partition_max_bytes=max_bytes,
    )
    topic = build(entity("fetch", VERSION, "FetchTopic"), topic="t", partitions=(partition,))
    return build(request_type(FETCH, VERSION), max_bytes=max_bytes, topics=(topic,))


def some_that_are_written_in_pieces() -> list[object]:
    """Small ones, and such as are larger than what is written at once."""
    return [a_fetch(2 * LARGE_BYTES) if number == 2 else small() for number in range(5)]


def a_mixture() -> list[object]:
    """Small and large answers by turns."""
    return [a_fetch() if number % 3 == 1 else small() for number in range(3 * LARGE)]


def many_small() -> list[object]:
    return [small() for _ in range(SMALL)]


def small() -> object:
    return build(request_type(API_VERSIONS, 0))


async def answered(rig: Rig, requests: list[object]) -> list[int]:
    """Return the correlation ids in the order of the answers, which a client reads slowly."""
    loop = asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    server = await loop.create_server(lambda: SocketProtocol(rig.node), sock=listening)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.setblocking(False)
    await loop.sock_connect(client, listening.getsockname())
    reader, writer = await asyncio.open_connection(sock=client, limit=1 << 12)
    for number, request in enumerate(requests):
        writer.write(encode_request(number, "c", request))
    order = []
    for _ in requests:
        size = int.from_bytes(await reader.readexactly(4), "big")
        order.append(int.from_bytes((await reader.readexactly(size))[:4], "big"))
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    return order


@pytest.mark.parametrize("requests", [a_mixture, many_small, some_that_are_written_in_pieces])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_answers_come_in_the_order_of_the_requests(
    rig: Rig, run: Callable[..., list[int]], requests: Callable[[], list[object]]
):
    rig.node.topic_manager.create_topic("t", partitions=1)
    batch = build_batch([Record(0, rig.now_ms, None, bytes(RECORD_BYTES))])
    for _ in range(2 + LARGE_BYTES // RECORD_BYTES):
        rig.node.replica_manager.append("t", 0, batch, now_ms=rig.now_ms)
    asked = requests()

    assert run(answered(rig, asked)) == list(range(len(asked)))


class Pair:
    """Both ends of a socket, one of them with a protocol around it, as a loop puts one."""

    def __init__(self, rig: Rig) -> None:
        self.client, self._socket = socket.socketpair()
        self.client.setblocking(False)
        self._socket.setblocking(False)
        self.protocol = SocketProtocol(rig.node)
        self.protocol.connection_made(cast("asyncio.Transport", self))

    def get_extra_info(self, name: str) -> Any:
        known = {"socket": self._socket, "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}
        return known.get(name)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def is_closing(self) -> bool:
        return self._socket.fileno() < 0

    def set_write_buffer_limits(self, high: int) -> None:
        """It has no buffer."""

    def close(self) -> None:
        self._socket.close()

    abort = close

    def answers(self) -> list[int]:
        """The correlation ids of the answers that have come."""
        found, rest = [], self.client.recv(1 << 20)
        while rest:
            found.append(int.from_bytes(rest[4:8], "big"))
            rest = rest[4 + int.from_bytes(rest[:4], "big") :]
        return found


@pytest.fixture
def pair(rig: Rig) -> Iterator[Pair]:
    both = Pair(rig)
    yield both
    both.close()
    both.client.close()


def test_answers_to_requests_that_come_with_one_read_leave_with_one_call(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append(len(data)) or write(fd, data))

    pair.protocol.data_received(b"".join(encode_request(number, "c", small()) for number in range(5)))
    pair.protocol.data_received(encode_request(5, "c", small()))

    assert len(calls) == 2
    assert pair.answers() == [0, 1, 2, 3, 4, 5]


def test_what_was_answered_is_sent_before_a_connection_ends_for_what_comes_behind_it(pair: Pair):
    rubbish = (6).to_bytes(4, "big") + b"\0\x12\x7f\xff\0\0"

    pair.protocol.data_received(
        b"".join(encode_request(number, "c", small()) for number in range(2)) + rubbish
    )

    assert pair.answers() == [0, 1]
    assert pair.is_closing()


def test_an_answer_that_cannot_be_written_ends_its_connection_and_not_who_brings_it(rig: Rig):
    waiting: list[Context] = []

    def later(context: Context, request: object) -> object:
        waiting.append(context)
        return WAITS

    client = rig.client()
    client.connection._serve(RequestHeader(API_VERSIONS, 0, 1, "test", 0), later, None)

    waiting[0].reply("no response at all")

    assert client.line.closed
