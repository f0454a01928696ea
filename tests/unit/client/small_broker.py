"""A broker of a few lines on loopback: it answers what a test tells it to."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

from coterie.client.net.addresses import Address
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    decode_request,
    encode_response,
    read_request_header,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

OFFERED = {
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_FETCH: (0, 9),
    ApiKey.OFFSET_COMMIT: (0, 9),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.LEAVE_GROUP: (0, 5),
}


def offer(offered=OFFERED):
    """The answer to ApiVersions: a few APIs, one of them in a version that we do not know yet."""
    kind = response_type(ApiKey.API_VERSIONS, 3)
    one = entity("api_versions", 3, "ApiVersion", "response")
    keys = tuple(
        build(one, api_key=key, min_version=least, max_version=most) for key, (least, most) in offered.items()
    )
    return build(kind, api_keys=keys)


class SmallBroker:
    """Answers ApiVersions, and hands everything else to `react(header, request) -> bytes | None`."""

    def __init__(self, react=lambda header, request: None, *, offered=OFFERED, tls=None):
        self.react = react
        self.offered, self.tls = offered, tls
        self.seen = []
        self.connections = []
        self.writers = []
        self.may_answer = asyncio.Event()
        """Is there while answers go out at once; they wait for it."""
        self.may_answer.set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=self.tls)
        self.address = Address("127.0.0.1", self.server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for writer in self.writers:  # since Python 3.12.1 the server waits for those, too
            writer.close()
        await asyncio.gather(*(one.wait_closed() for one in self.writers), return_exceptions=True)
        await self.server.wait_closed()

    async def serve(self, reader, writer):
        asked = []
        self.connections.append(asked)
        self.writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                asked.append(read_request_header(frame).api_key)
                answer = self.answer(frame)
                if answer is None:
                    break
                await self.may_answer.wait()
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client hung up, and may have left an answer unread
        finally:
            writer.close()

    def answer(self, frame):
        header = read_request_header(frame)
        self.seen.append((header.api_key, header.api_version))
        if header.api_key == ApiKey.API_VERSIONS:
            return encode_response(header.correlation_id, offer(self.offered))
        return self.react(header, decode_request(header, frame))


class SmallBrokers:
    """Several of them, which begin and end together; whoever makes some sets `brokers`."""

    brokers: list[SmallBroker]

    async def __aenter__(self):
        for broker in self.brokers:
            await broker.__aenter__()
        return self

    async def __aexit__(self, *_):
        for broker in self.brokers:
            await broker.__aexit__()


@contextmanager
def brokers_beside():
    """What starts small brokers on a loop in a thread, for callers that block; returns an address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    brokers = []

    def start(react, **more):
        broker = SmallBroker(react, **more)
        asyncio.run_coroutine_threadsafe(broker.__aenter__(), loop).result(5)
        brokers.append(broker)
        return broker.address

    try:
        yield start
    finally:
        for broker in brokers:
            asyncio.run_coroutine_threadsafe(broker.__aexit__(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
