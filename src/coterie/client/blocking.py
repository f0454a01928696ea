"""One plain socket to a broker, for Spark's workers: a request may be sent before the last answer is read."""

import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from coterie.base.errors import Corrupt
from coterie.client import messages
from coterie.client.addresses import Address
from coterie.client.errors import ClientTimeout, Disconnected
from coterie.wire.apis import ApiKey
from coterie.wire.codec import decode_response, encode_request, response_type

__all__ = ["BlockingConnection"]

MOST_ANSWER = 1 << 30


class BlockingConnection:
    """An open connection. Answers come in the order of the requests, as Kafka promises."""

    def __init__(self, address: Address, *, client_id: str, timeout_s: float) -> None:
        self.address, self.client_id, self.timeout_s = address, client_id, timeout_s
        self.agreed: dict[int, int] = {ApiKey.API_VERSIONS: 3}
        self._correlation = 0
        self.broken = False
        self._sent: deque[tuple[int, type]] = deque()
        try:
            self._socket = socket.create_connection(address, timeout=timeout_s)
        except OSError as error:
            raise Disconnected(f"no connection to {address}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            offered = self.call(ApiKey.API_VERSIONS, lambda _: messages.api_versions()).api_keys
        except BaseException:
            self._socket.close()
            raise
        self.agreed = messages.agree(offered)

    @property
    def awaited(self) -> int:
        """How many requests have been sent whose answers were not read."""
        return len(self._sent)

    def call(self, api_key: int, make: Callable[[int], Any]) -> Any:
        """Return the broker's answer to the request that `make` builds for the agreed version."""
        assert not self._sent
        self.send(api_key, make)
        return self.receive()

    def send(self, api_key: int, make: Callable[[int], Any]) -> None:
        """Send a request; `receive` gives the answer."""
        version = messages.version_for(self.agreed, api_key, self.address)
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        frame = encode_request(self._correlation, self.client_id, make(version))
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._broken(error) from error
        self._sent.append((self._correlation, response_type(api_key, version)))

    def receive(self) -> Any:
        """Return the answer to the oldest request that has none yet."""
        correlation, kind = self._sent.popleft()
        size = int.from_bytes(self._read(4), "big", signed=True)
        if not 4 <= size <= MOST_ANSWER:
            raise Corrupt("answer", expected=f"a size, not {size}")
        answered, answer = decode_response(kind, self._read(size))
        if answered != correlation:
            raise Corrupt("answer", expected=f"correlation id {correlation}, not {answered}")
        return answer

    def _read(self, size: int) -> bytes:
        """Return exactly so many bytes."""
        data = bytearray(size)
        view = memoryview(data)
        at = 0
        try:
            while at < size:
                got = self._socket.recv_into(view[at:])
                if not got:
                    self.broken = True
                    raise Disconnected(f"connection to {self.address} closed by the broker")
                at += got
        except OSError as error:
            raise self._broken(error) from error
        return bytes(data)

    def _broken(self, error: OSError) -> Disconnected | ClientTimeout:
        self.broken = True
        if isinstance(error, TimeoutError):
            return ClientTimeout(f"no answer from {self.address} within {self.timeout_s:g} s")
        return Disconnected(f"connection to {self.address} broke: {error}")

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
