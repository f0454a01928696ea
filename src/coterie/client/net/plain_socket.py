"""One plain socket to a broker, for Spark's workers: a request may be sent before the last answer is read."""

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from struct import Struct
from typing import Any, cast

from coterie.base.errors import Corrupt
from coterie.client.errors import ClientTimeout, Disconnected
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.authentication import (
    MOST_ANSWER,
    MOST_GREETING,
    NO_CONNECTION,
    SessionLife,
    accepted,
    begun,
    no_answer,
    no_tls,
    shaken,
    unreachable,
    untrusted,
    wordless,
)
from coterie.client.net.tokens import AnyCredentials
from coterie.client.settings import Security
from coterie.security.bearer import NoToken
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    decode_response,
)
from coterie.wire.api.entities import (
    response_type,
)

# From a frame, and the version of what is in it, to the correlation id and the answer.
Reader = Callable[..., tuple[int, Any]]

INT32 = Struct(">i")
PLAIN = Security()


class BlockingConnection:
    """An open connection. Answers come in the order of the requests, as Kafka promises."""

    def __init__(
        self, address: Address, *, client_id: str, timeout_s: float, security: Security = PLAIN
    ) -> None:
        self.address, self.client_id, self.timeout_s = address, client_id, timeout_s
        self.security = security
        self.agreed: dict[int, int] = {ApiKey.API_VERSIONS: 3}
        self._correlation = 0
        self.broken = False
        """Whether this connection is of no more use: no answer to come would be the one that is awaited."""
        self._sent: deque[tuple[int, Callable[[bytes], tuple[int, Any]]]] = deque()
        self._most = MOST_GREETING
        self._room = bytearray()
        """Where answers are read into, one after the other: most of what is made of them is a copy."""
        self._session = SessionLife()
        self._socket = self._connected(security.tls)
        try:
            self.agreed = messages.agree(self._offered().api_keys)
            self._most = MOST_ANSWER
            if security.credentials is not None:
                self._authenticate(security.credentials)
        except BaseException:
            self._socket.close()
            raise

    def _connected(self, tls: ssl.SSLContext | None) -> socket.socket:
        try:
            plain = socket.create_connection(self.address, timeout=self.timeout_s)
        except NO_CONNECTION as error:
            raise unreachable(self.address, error) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return plain
        try:
            return tls.wrap_socket(plain, server_hostname=self.address.host)
        except ssl.SSLCertVerificationError as error:
            plain.close()
            raise untrusted(self.address, error) from None
        except ssl.SSLError as error:
            plain.close()
            raise no_tls(self.address, error) from error
        except OSError as error:
            plain.close()
            raise unreachable(self.address, error, over_tls=True) from error

    def _offered(self) -> Any:
        try:
            return self.call(ApiKey.API_VERSIONS, lambda _: messages.api_versions())
        except (Disconnected, Corrupt) as error:
            raise wordless(error) from None

    def _authenticate(self, credentials: AnyCredentials) -> None:
        """Show who we are, or raise AuthenticationFailed."""
        mechanism = credentials.mechanism
        try:  # what to say is there first: a broker that has heard of a renewal takes no other request
            exchange = begun(credentials, self._session.token_s(self.timeout_s))
        except NoToken as error:
            self._session.put_off(error, time.monotonic())
            return
        answer = self.call(ApiKey.SASL_HANDSHAKE, lambda version: messages.sasl_handshake(version, mechanism))
        shaken(answer, mechanism, self.address)
        message: bytes | None = exchange.first()
        while message is not None:
            answer = self._say(message)
            message = exchange.answer(answer.auth_bytes)
        self._session.began(answer, time.monotonic())

    def _say(self, message: bytes) -> Any:
        answer = self.call(
            ApiKey.SASL_AUTHENTICATE, lambda version: messages.sasl_authenticate(version, message)
        )
        accepted(answer, self.address)
        return answer

    def renew(self) -> None:
        """Show again who we are, if the session ends soon; nothing may be awaited."""
        if not self._session.fresh(time.monotonic()):
            assert self.security.credentials is not None
            self._room = bytearray()  # somebody may still look at the last answer
            with self._breaking():
                self._authenticate(self.security.credentials)

    @property
    def awaited(self) -> int:
        """How many requests have been sent whose answers were not read."""
        return len(self._sent)

    def call(self, api_key: int, make: Callable[[int], Any]) -> Any:
        """Return the broker's answer to the request that `make` builds for the agreed version."""
        assert not self._sent
        self.send(api_key, make)
        return self.receive()

    def send(self, api_key: int, make: Callable[[int], Any], read: Reader | None = None) -> None:
        """Send a request; `receive` gives the answer, as `read` reads it."""
        version = messages.version_for(self.agreed, api_key, self.address)
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        frame = messages.framed(self._correlation, self.client_id, make(version))
        with self._breaking():
            self._socket.sendall(frame)
        kind = response_type(api_key, version)
        reader = partial(decode_response, kind) if read is None else partial(read, version=version)
        self._sent.append((self._correlation, reader))

    def receive(self) -> Any:
        """Return the answer to the oldest request that has none yet.

        What is no copy in it holds until the next call of `receive` or `call`. Whatever goes wrong here, the
        connection is `broken`: the answers that follow, if any do, would be taken for others'.
        """
        correlation, reader = self._sent.popleft()
        with self._breaking():
            until = time.monotonic() + self.timeout_s
            size = INT32.unpack(self._read(4, until))[0]
            if not 4 <= size <= self._most:
                raise Corrupt(f"connection to {self.address} {no_answer(size)}")
            answered, answer = reader(self._read(size, until))
            if answered != correlation:
                raise Corrupt("answer", expected=f"correlation id {correlation}, not {answered}")
        return answer

    def _read(self, size: int, until: float) -> bytes:
        """Return exactly so many bytes, as a view that the next call writes over."""
        if len(self._room) < size:
            self._room = bytearray(size)
        view = memoryview(self._room)[:size]
        at = 0
        while at < size:
            got = self._socket.recv_into(view[at:])
            if not got:
                raise Disconnected(f"connection to {self.address} closed by the broker")
            at += got
            # The socket's own time begins anew with each byte that comes.
            if at < size and time.monotonic() > until:
                raise TimeoutError
        return cast(bytes, view.toreadonly())

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """What ends this early, an interrupt too, leaves the sides out of step: it is `broken`."""
        try:
            yield
        except BaseException as error:
            self.broken = True
            if not isinstance(error, OSError):
                raise
            if isinstance(error, TimeoutError):
                why = f"no answer from {self.address} within {self.timeout_s:g} s"
                raise ClientTimeout(why) from error
            raise Disconnected(f"connection to {self.address} broke: {error}") from error

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
