"""Sockets to other brokers, on asyncio."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from coterie.broker.interbroker.connection import PeerConnection


SEND_NO_MORE = struct.pack("ii", 1, 0)  # once a connection is given up: what it has sent is sent anew


class PeerSocket(asyncio.Protocol):
    """A socket that carries a connection to another broker."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection
        self.data_received = connection.data_received  # type: ignore[method-assign]  # one call less

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, SEND_NO_MORE)
        self._connection.connection_made(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)


class Connector:
    """Connects to other brokers in a loop: the `connect` of a node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._attempts: set[asyncio.Task[None]] = set()  # the loop itself would not keep them

    def __call__(self, host: str, port: int, connection: PeerConnection) -> asyncio.Task[None]:
        """Begin to connect; the connection is called back later. Return the task, which may be cancelled."""
        attempt = self._loop.create_task(self._connect(host, port, connection))
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)
        return attempt

    async def _connect(self, host: str, port: int, connection: PeerConnection) -> None:
        try:
            await self._loop.create_connection(lambda: PeerSocket(connection), host, port)
        except (OSError, UnicodeError) as error:  # UnicodeError: what can be no host name
            connection.connection_lost(error)
