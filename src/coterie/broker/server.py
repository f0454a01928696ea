"""Sockets in, sockets out: frames are cut from the stream, answered one at a time in order, and written.

As in Apache Kafka, a connection's next request is looked at only when the one before it has been answered,
so a parked join or fetch holds back its own connection and no other.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, Any, cast

from coterie.base.errors import Corrupt
from coterie.broker.context import SILENT, WAITS, Context, Hangup
from coterie.wire.codec import decode_request, encode_response_parts, read_request_header

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.wire.codec import RequestHeader

__all__ = ["Connection"]

log = logging.getLogger("coterie.broker")

SIZE = struct.Struct(">i")
API_VERSIONS = 18
SPACE_BYTES_FIRST = 1 << 11  # what a connection receives into until it needs more
SPACE_BYTES = 1 << 16
SPACE_BYTES_KEPT = 1 << 19  # a larger space is given back when all of it has been answered
UNREAD_BYTES_MAX = 1 << 20  # a busy connection stops reading when this much waits in its buffer
JOINED_BYTES_MAX = 1 << 16  # an answer up to this size is joined and written at once


class Connection(asyncio.BufferedProtocol):
    """One client. Holds the bytes not yet answered and whether an answer is owed.

    The event loop receives straight into `_space`; what lies between `_first` and `_last` is unanswered.
    """

    __slots__ = (
        "_awaiting",
        "_busy",
        "_closed",
        "_first",
        "_last",
        "_paused_reading",
        "_pumping",
        "_space",
        "_writable",
        "host",
        "listener_host_port",
        "node",
        "peer",
        "transport",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.peer = "?"
        self.host = "/?"
        self.listener_host_port = ("", 0)
        self._space = bytearray(SPACE_BYTES_FIRST)
        self._first = 0
        self._last = 0
        self._busy = False
        self._pumping = False
        self._closed = False
        self._writable = True
        self._paused_reading = False
        self._awaiting: Context | None = None

    # -- what the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = f"{host}:{port}"
        self.host = f"/{host}"
        own_host, own_port = transport.get_extra_info("sockname")[:2]
        self.listener_host_port = (own_host, own_port)
        self.node.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self.node.connections.discard(self)
        waiting, self._awaiting = self._awaiting, None
        if waiting is not None and waiting.gone is not None:
            waiting.gone()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to receive: behind what has come, with room for the whole of the next request."""
        if self._first == self._last:
            self._first = self._last = 0
        missing = self._frame_bytes() - (len(self._space) - self._first)
        if missing > 0 or self._last == len(self._space):
            self._make_room()
        return memoryview(self._space)[self._last :]

    def buffer_updated(self, nbytes: int) -> None:
        """Answer what has come whole."""
        self._last += nbytes
        self._pump()

    # -- frames

    def _frame_bytes(self) -> int:
        """Return how many bytes the next request takes with its size, 4 while even that is not known."""
        if self._last - self._first < SIZE.size:
            return SIZE.size
        size: int = SIZE.unpack_from(self._space, self._first)[0]
        return SIZE.size + min(max(size, 0), self.node.settings.socket_request_max_bytes)

    def _make_room(self) -> None:
        """Move what has come to the front of a space that the next request fits into, and some more."""
        held = self._last - self._first
        space = bytearray(max(self._frame_bytes(), held + SPACE_BYTES))
        space[:held] = memoryview(self._space)[self._first : self._last]
        self._space, self._first, self._last = space, 0, held

    def _pump(self) -> None:
        """Answer what has come whole, one request after the other, as long as none is owed an answer."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while not self._busy and self._writable and not self._closed:
                frame = self._next_frame()
                if frame is None:
                    break
                self._take(frame)
        finally:
            self._pumping = False
        self._balance_reading()

    def _next_frame(self) -> bytes | None:
        """Return the next request without its size, None before all of it has come."""
        first, held = self._first, self._last - self._first
        if held < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._space, first)
        if not 0 <= size <= self.node.settings.socket_request_max_bytes:
            limit = self.node.settings.socket_request_max_bytes
            self._hang_up(f"announced a request of {size} bytes (socket.request.max.bytes={limit})")
            return None
        end = first + SIZE.size + size
        if end > self._last:
            return None
        self._first = end
        frame = bytes(memoryview(self._space)[first + SIZE.size : end])
        if end == self._last and len(self._space) > SPACE_BYTES_KEPT:
            self._space, self._first, self._last = bytearray(SPACE_BYTES_FIRST), 0, 0
        return frame

    def _balance_reading(self) -> None:
        held_back = self._busy or not self._writable
        if held_back and self._last - self._first > UNREAD_BYTES_MAX and not self._paused_reading:
            self._paused_reading = True
            self.transport.pause_reading()
        elif self._paused_reading and not held_back and not self._closed:
            self._paused_reading = False
            self.transport.resume_reading()

    # -- requests

    def _take(self, frame: bytes) -> None:
        """Answer one request, given without its size."""
        quick = self.node.quick_answer(frame)
        if quick is not None:
            self.transport.write(quick)
        else:
            self.answer_generally(frame)

    def answer_generally(self, frame: bytes) -> None:
        """Answer one request through its handler."""
        try:
            header = read_request_header(frame)
            self._serve(header, frame)
        except Corrupt as rubbish:
            self._hang_up(f"sent what cannot be read: {rubbish}")
        except Hangup as order:
            self._hang_up(str(order))
        except Exception:  # a handler's mistake ends this connection, never the broker
            log.exception("a request of %s failed; its connection is closed", self.peer)
            self._hang_up("met a mistake of ours")

    def _serve(self, header: RequestHeader, frame: bytes) -> None:
        handler = self.node.handler_of(header)
        request = None if handler is None else decode_request(header, frame)
        context = Context(
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client_host=self.host,
            listener_host_port=self.listener_host_port,
            send=self._answer,
        )
        self._busy = True
        self._awaiting = context
        if handler is None:
            self._answer(context, self.node.refuse_version(header))
            return
        response = handler(self.node, context, request)
        if response is WAITS:
            return
        self._answer(context, response)

    def _answer(self, context: Context, response: Any) -> None:
        if self._closed:
            return
        assert self._awaiting is context, f"an answer to {context.api_key} that nobody waits for"
        self._awaiting = None
        self._busy = False
        if response is not SILENT:
            self._write(encode_response_parts(context.correlation_id, response))
        if self._last > self._first and not self._pumping:
            self._pump()

    def _write(self, parts: list[bytes]) -> None:
        if sum(map(len, parts)) <= JOINED_BYTES_MAX:
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)

    def _hang_up(self, reason: str) -> None:
        log.warning("%s %s; its connection is closed", self.peer, reason)
        self._closed = True
        self._first = self._last = 0
        self.transport.close()
