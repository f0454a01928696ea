"""A proxy before a broker: it loses answers, cuts connections, or makes the broker look older than it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coterie.wire.apis import ApiKey
from coterie.wire.codec import decode_response, encode_response, read_request_header, response_type

__all__ = ["LAST_BEFORE_KIP_890", "Proxy"]

# The newest versions of Kafka 3.9, with its features.
LAST_BEFORE_KIP_890 = {ApiKey.PRODUCE: 11, ApiKey.END_TXN: 4, ApiKey.TXN_OFFSET_COMMIT: 4}


class Proxy:
    """Passes frames on between clients and a broker. The broker has to advertise the proxy's address."""

    def __init__(self, *, most: dict[int, int] | None = None) -> None:
        self.most = most or {}
        self.port = 0
        self.target = 0
        self.seen: list[tuple[str | None, int]] = []
        """The requests that were passed on: client id and API key. Apache Kafka asks itself, too."""
        self.cut_after: Callable[[int], bool] = lambda api_key: False
        """Whether to close the connection after such a request was answered, and keep the answer."""
        self.hold: Callable[[int], bool] = lambda api_key: False
        """Whether to swallow such a request."""
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
        except OSError:
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
        self.seen.append((header.client_id, header.api_key))
        to_writer.write(len(request).to_bytes(4, "big") + request)
        answer = await frame_from(to_reader)
        if self.cut_after(header.api_key):
            return False
        if header.api_key == ApiKey.API_VERSIONS and self.most:
            writer.write(self._aged(answer, header.api_version))
        else:
            writer.write(len(answer).to_bytes(4, "big") + answer)
        return True

    def _aged(self, frame: bytes, version: int) -> bytes:
        """Return the answer of a broker that knows no newer versions, and none of the newer features."""
        correlation, answer = decode_response(response_type(ApiKey.API_VERSIONS, version), frame)
        keys = tuple(
            replace(one, max_version=min(one.max_version, self.most.get(one.api_key, one.max_version)))
            for one in answer.api_keys
        )
        return encode_response(correlation, replace(answer, api_keys=keys, finalized_features=()))


async def frame_from(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame without its size."""
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
