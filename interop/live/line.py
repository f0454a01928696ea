"""One client's connection to one broker, and what it gets: an answer, or the broker's hanging up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from struct import Struct
from typing import Any

from coterie.base.errors import Corrupt
from coterie.wire.api.codec import (
    decode_response,
    encode_request,
)
from coterie.wire.api.entities import (
    response_type,
)

__all__ = ["Line", "NoAnswer"]

SIZE = Struct(">i")
VERSION = Struct(">h")
VERSION_AT = 6  # behind the frame's size and the key of the API


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """What stands for an answer where there is none: why."""

    why: str


class Line:
    """A connection that is opened when first used, and again after the broker has closed it."""

    def __init__(self, port: int, client_id: str) -> None:
        self.port, self.client_id = port, client_id
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._correlation = 0

    async def ask(self, key: int, version: int, request: Any, *, claimed: int | None = None) -> Any:
        """Return the answer. `claimed` is a version to put on the request that is not its own."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self._reader is not None
        self._correlation += 1
        frame = bytearray(encode_request(self._correlation, self.client_id, request))
        if claimed is not None:
            VERSION.pack_into(frame, VERSION_AT, claimed)
        self._writer.write(frame)
        try:
            (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
            answer = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            return NoAnswer("the connection was closed")
        try:
            return decode_response(response_type(key, version), answer)[1]
        except Corrupt as rubbish:
            return NoAnswer(f"an answer that cannot be read: {rubbish}")

    def close(self) -> None:
        """Hang up."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
