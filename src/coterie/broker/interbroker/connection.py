"""A connection to another broker, without input or output: requests out, answers matched with them.

It is told what happens by the names of `asyncio.Protocol`'s callbacks, as a client's connection is. A broker
answers one connection's requests in their order, so an answer that is not the next one's ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple, Protocol

from coterie.base.errors import Corrupt
from coterie.wire.api.codec import decode_response, encode_request
from coterie.wire.api.entities import response_type

SIZE = Struct(">i")
ANSWER_BYTES_MAX = 4 << 20  # thirty times what the longest of our requests can be answered with

TakeResponse = Callable[[Any | None], None]
"""Takes the answer to a request; None when none will come, and nobody knows what became of the request."""


class PeerTransport(Protocol):
    """The other side of a connection; asyncio's transports have these methods."""

    def write(self, data: bytes, /) -> None: ...
    def abort(self) -> None: ...


class Attempt(Protocol):
    """An attempt to connect that is under way, or over: to cancel it changes nothing then."""

    def cancel(self) -> object: ...


class UnderWay(NamedTuple):
    """A request that is sent and not answered."""

    correlation_id: int
    sent_ms: int
    response: type
    answered: TakeResponse


class PeerConnection:
    """One attempt to connect, and the connection that comes of it.

    Whoever opens the socket calls `connection_made` and `connection_lost`, or `connection_lost` alone, and
    neither within the call that begins it.
    """

    def __init__(
        self,
        client_id: str,
        clock: Callable[[], int],
        *,
        opened: Callable[[], None],
        ended: Callable[[str], None],
    ) -> None:
        """`opened` is called once requests may be sent; `ended`, once, with the reason, before anybody who
        waits hears of it.
        """
        self.is_open = False
        self.client_id = client_id
        self._clock = clock
        self._opened = opened
        self._ended = ended
        self._over = False
        self._attempt: Attempt | None = None
        self._transport: PeerTransport | None = None
        self._began_ms = clock()
        self._correlation_id = 0
        self._under_way: deque[UnderWay] = deque()
        self._buffer = bytearray()

    @property
    def under_way(self) -> int:
        """The number of requests that are sent and not answered."""
        return len(self._under_way)

    @property
    def waits_since_ms(self) -> int | None:
        """Since when it waits for the peer, to take the connection or to answer; None where it does not."""
        if not self.is_open:
            return None if self._over else self._began_ms
        return self._under_way[0].sent_ms if self._under_way else None

    def begun(self, attempt: Attempt) -> None:
        """Take note of the attempt that `close` gives up."""
        self._attempt = attempt

    def send(self, request: Any, answered: TakeResponse, *, suffix: str = "") -> None:
        """Send a request on a connection that is open; `answered` is called once, and never within. The
        `suffix` follows the connection's client id.
        """
        assert self._transport is not None, "nothing is sent before it is open"
        self._correlation_id += 1
        cls = type(request)
        response = response_type(cls.__api_key__, cls.__version__)
        self._under_way.append(UnderWay(self._correlation_id, self._clock(), response, answered))
        self._transport.write(encode_request(self._correlation_id, self.client_id + suffix, request))

    def close(self, why: str) -> None:
        """End it, unless it has: whoever waits is answered with None, and what still comes is dropped."""
        if self._over:
            return
        self._over, self.is_open = True, False
        self._buffer = bytearray()
        if self._transport is not None:
            self._transport.abort()
        elif self._attempt is not None:
            self._attempt.cancel()
        waiting, self._under_way = self._under_way, deque()
        self._ended(why)
        for one in waiting:
            one.answered(None)

    # -- what happens to it

    def connection_made(self, transport: PeerTransport) -> None:
        """Take the connection that was asked for."""
        if self._over:  # it has come too late
            transport.abort()
            return
        self._transport = transport
        self.is_open = True
        self._began_ms = self._clock()
        self._opened()

    def data_received(self, data: bytes) -> None:
        """Take a piece of the stream of answers."""
        if self._over:
            return
        self._buffer += data
        try:
            while (frame := self._next_frame()) is not None:
                self._take(frame)
        except Corrupt as error:
            self.close(f"answered what cannot be read: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Take note that there is no connection, or none any more."""
        self.close("closed the connection" if error is None else str(error) or type(error).__name__)

    def _next_frame(self) -> bytes | None:
        """Return the next answer without its size, None before all of it has come or once it is over."""
        buffer = self._buffer
        if self._over or len(buffer) < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(buffer)
        if not SIZE.size <= size <= ANSWER_BYTES_MAX:
            raise Corrupt("answer's size", at=0, expected=f"{SIZE.size} to {ANSWER_BYTES_MAX}")
        if len(buffer) < SIZE.size + size:
            return None
        frame = bytes(memoryview(buffer)[SIZE.size : SIZE.size + size])
        del buffer[: SIZE.size + size]
        return frame

    def _take(self, frame: bytes) -> None:
        if not self._under_way:
            raise Corrupt("answer to nothing", at=0, expected="a request under way")
        first = self._under_way[0]
        correlation_id, response = decode_response(first.response, frame)
        if correlation_id != first.correlation_id:
            raise Corrupt(f"answer {correlation_id}", at=0, expected=str(first.correlation_id))
        self._under_way.popleft()
        first.answered(response)
