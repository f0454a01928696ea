"""A client's socket, on asyncio: what it sends goes to a `Connection`, what that answers is written.

All that a connection decides is in `connection`; here are the loop, the transport and the descriptor.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from coterie.broker.net.connection import JOINED_BYTES_MAX, Connection
from coterie.broker.net.gated import GatedConnection

if TYPE_CHECKING:
    from coterie.broker.net.request_queue import RequestQueue
    from coterie.broker.node import Node


def writable_fd(transport: asyncio.BaseTransport) -> int:
    """Return the descriptor of a plain socket, -1 where writes have to go through the transport."""
    socket = transport.get_extra_info("socket")
    if socket is None or sys.platform == "win32" or transport.get_extra_info("sslcontext") is not None:
        return -1
    fd: int = socket.fileno()
    return fd


class SocketProtocol(asyncio.Protocol):
    """One client's socket, with the connection that it carries."""

    __slots__ = (
        "_direct",
        "_fd",
        "_held",
        "_held_bytes",
        "_holds",
        "_transport",
        "connection",
        "data_received",
    )

    data_received: Callable[[bytes], None]  # type: ignore[assignment]  # the connection's own

    def __init__(self, node: Node, queue: RequestQueue | None = None) -> None:
        """Without a `queue` every request is answered as soon as it is read."""
        kind = Connection if node.leadership.alone else GatedConnection
        self.connection = kind(node, queue)
        self.data_received = self.connection.data_received  # one call less for every request
        self._holds, self._held_bytes = False, 0
        self._held: list[bytes] = []  # what is written while it holds
        self._fd = -1  # the socket, where it may be written to directly
        self._direct = False  # whether the transport holds nothing that has to go before

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._fd = writable_fd(transport)
        self._direct = self._fd >= 0
        self.connection.connection_made(self._transport, descriptor=self._fd, writer=self)
        if not self._transport.is_closing():
            self._transport.set_write_buffer_limits(0)  # so that we are told as soon as anything is not sent

    def connection_lost(self, exc: Exception | None) -> None:
        self._direct = False
        self.connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._direct = False
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        self._direct = self._fd >= 0
        self.connection.resume_writing()

    def write(self, frame: bytes, /) -> None:
        """Write at once: the transport would wait until all requests of this round have been read.

        A tenth more heartbeats a second came of it. While several requests are answered that came with one
        read, their answers are held and go out together: the call costs more than a small answer does.
        """
        if not self._holds:
            self._write(frame)
            return
        self._held.append(frame)
        self._held_bytes += len(frame)
        if self._held_bytes >= JOINED_BYTES_MAX:
            self._write_held()

    def hold(self) -> None:
        self._holds = True

    def flush(self) -> None:
        self._holds = False
        if self._held:
            self._write_held()

    def _write_held(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        self._write(held[0] if len(held) == 1 else b"".join(held))

    def _write(self, frame: bytes) -> None:
        """Write to the socket; what it does not take the transport gets."""
        if self._direct and not self._transport.is_closing():
            try:
                sent = os.write(self._fd, frame)
            except OSError:  # full, or broken: the transport knows what to do
                sent = 0
            if sent == len(frame):
                return
            frame = frame[sent:]
        self._transport.write(frame)

    def writelines(self, parts: list[bytes], /) -> None:
        """Write a large answer through the transport, which does not join it."""
        if self._held:
            self._write_held()
        self._transport.writelines(parts)
        if self._direct:
            # asyncio's own transports do not pause in writelines (3.12.1, 3.13.0): what is written to the
            # socket next would overtake what they still hold. Setting the limits has them look again.
            self._transport.set_write_buffer_limits(0)
