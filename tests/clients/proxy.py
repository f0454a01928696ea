"""A proxy before a broker: it loses answers, is slow, cuts connections, or makes the broker look older."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coterie.base.codes import Code
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_response,
    read_request_header,
)
from coterie.wire.api.entities import (
    build,
    response_type,
)

__all__ = ["LAST_BEFORE_KIP_890", "Proxy", "Slow", "until"]

SASL = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
# The newest versions of Kafka 3.9, with its features.
LAST_BEFORE_KIP_890 = {ApiKey.PRODUCE: 11, ApiKey.END_TXN: 4, ApiKey.TXN_OFFSET_COMMIT: 4}
# What says where brokers are, and the list that it says it in.
NAMING: dict[int, str] = {
    ApiKey.METADATA: "brokers",
    ApiKey.DESCRIBE_CLUSTER: "brokers",
    ApiKey.FIND_COORDINATOR: "coordinators",
}


class Proxy:
    """Passes frames on between clients and a broker, which has to advertise the proxy's address, unless it is
    `hidden`: then clients are told the proxy's where it says its own.
    """

    def __init__(self, *, most: dict[int, int] | None = None, hidden: bool = False) -> None:
        self.most = most or {}
        self.hidden = hidden
        self.password: str | None = None
        """What clients have to show in the user's name `me`, if anything: mechanism PLAIN."""
        self.port = 0
        self.target = 0
        self.seen: list[tuple[str | None, int]] = []
        """The requests that were passed on: client id and API key. Apache Kafka asks itself, too."""
        self.cut_after: Callable[[int], bool] = lambda api_key: False
        """Whether to close the connection after such a request was answered, and keep the answer."""
        self.hold: Callable[[int], bool] = lambda api_key: False
        """Whether to swallow such a request."""
        self.keep_back: Callable[[int], bool] = lambda api_key: False
        """Whether to keep such a request back, and its connection with it; asked until it is not."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        try:
            while await self._pass(reader, writer, to_reader, to_writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            to_writer.close()

    async def _pass(self, reader: Any, writer: Any, to_reader: Any, to_writer: Any) -> bool:
        """Pass a request on and its answer back; False if the connection is to be closed."""
        request = await frame_from(reader)
        header = read_request_header(request)
        if self.hold(header.api_key):
            return True
        if header.api_key in SASL:
            writer.write(self._admitted(request, header))
            return True
        await until(lambda: not self.keep_back(header.api_key))
        self.seen.append((header.client_id, header.api_key))
        to_writer.write(len(request).to_bytes(4, "big") + request)
        answer = await frame_from(to_reader)
        if self.cut_after(header.api_key):
            return False
        if header.api_key == ApiKey.API_VERSIONS and self.password is not None:
            writer.write(guarded(answer, header.api_version))
        elif header.api_key == ApiKey.API_VERSIONS and self.most:
            writer.write(self._aged(answer, header.api_version))
        elif self.hidden and header.api_key in NAMING:
            writer.write(self._hiding(answer, header.api_key, header.api_version))
        else:
            writer.write(len(answer).to_bytes(4, "big") + answer)
        return True

    def _admitted(self, frame: bytes, header: RequestHeader) -> bytes:
        """Return the answer to who shows a password, or is about to."""
        asked = decode_request(header, frame)
        kind = response_type(header.api_key, header.api_version)
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            return encode_response(header.correlation_id, build(kind, error_code=0, mechanisms=("PLAIN",)))
        right = asked.auth_bytes == f"\0me\0{self.password}".encode()
        code = Code.NONE if right else Code.SASL_AUTHENTICATION_FAILED
        return encode_response(header.correlation_id, build(kind, error_code=code))

    def hang_up(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()

    def _aged(self, frame: bytes, version: int) -> bytes:
        """Return the answer of a broker that knows no newer versions, and none of the newer features."""
        correlation, answer = decode_response(response_type(ApiKey.API_VERSIONS, version), frame)
        keys = tuple(
            replace(one, max_version=min(one.max_version, self.most.get(one.api_key, one.max_version)))
            for one in answer.api_keys
        )
        return encode_response(correlation, replace(answer, api_keys=keys, finalized_features=()))

    def _hiding(self, frame: bytes, api_key: int, version: int) -> bytes:
        """Return the answer with our address for the broker's."""
        correlation, answer = decode_response(response_type(api_key, version), frame)
        name = NAMING[api_key]
        told = tuple(replace(one, host="127.0.0.1", port=self.port) for one in getattr(answer, name))
        return encode_response(correlation, replace(answer, **{name: told}))


class Slow:
    """Keeps requests of one kind back, which a proxy asks about, until they may pass."""

    def __init__(self, api_key: int) -> None:
        self.api_key = api_key
        self.kept = False
        self.passes = False

    def __call__(self, api_key: int) -> bool:
        keeps = api_key == self.api_key and not self.passes
        self.kept = self.kept or keeps
        return keeps


def guarded(frame: bytes, version: int) -> bytes:
    """Return the answer of a broker that wants to be shown a password."""
    correlation, answer = decode_response(response_type(ApiKey.API_VERSIONS, version), frame)
    keys = tuple(replace(answer.api_keys[0], api_key=key, min_version=0, max_version=1) for key in SASL)
    return encode_response(correlation, replace(answer, api_keys=answer.api_keys + keys))


async def until(true: Callable[[], object]) -> None:
    """Return once it is true."""
    while not true():  # noqa: ASYNC110  # there is nothing that could tell
        await asyncio.sleep(0.002)


async def frame_from(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame without its size."""
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
