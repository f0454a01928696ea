"""Answers leave in order, whether they go straight to the socket or wait in the transport."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from rig import Rig

from coterie.broker.net.context import WAITS, Context
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


def a_fetch() -> object:
    partition = build(
        entity("fetch", VERSION, "FetchPartition"),
        partition=0,
        fetch_offset=0,
        partition_max_bytes=1 << 20,
    )
    topic = build(entity("fetch", VERSION, "FetchTopic"), topic="t", partitions=(partition,))
    return build(request_type(FETCH, VERSION), max_bytes=1 << 20, topics=(topic,))


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


@pytest.mark.parametrize("requests", [a_mixture, many_small])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_answers_come_in_the_order_of_the_requests(
    rig: Rig, run: Callable[..., list[int]], requests: Callable[[], list[object]]
):
    rig.node.topic_manager.create_topic("t", partitions=1)
    batch = build_batch([Record(0, rig.now_ms, None, bytes(RECORD_BYTES))])
    rig.node.replica_manager.append("t", 0, batch, now_ms=rig.now_ms)
    asked = requests()

    assert run(answered(rig, asked)) == list(range(len(asked)))


def test_an_answer_that_cannot_be_written_ends_its_connection_and_not_who_brings_it(rig: Rig):
    waiting: list[Context] = []

    def later(context: Context, request: object) -> object:
        waiting.append(context)
        return WAITS

    client = rig.client()
    client.connection._serve(RequestHeader(API_VERSIONS, 0, 1, "test", 0), later, None)

    waiting[0].reply("no response at all")

    assert client.line.closed
