"""One asyncio connection to a broker: requests out, answers matched by correlation id; TLS and SASL."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
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
from coterie.client.net.tokens import AnyCredentials, TokenCredentials
from coterie.client.settings import Security
from coterie.security.bearer import NoToken
from coterie.security.sasl import SaslExchange
from coterie.wire.api.apis import APIS, ApiKey
from coterie.wire.api.codec import (
    decode_response,
)
from coterie.wire.api.entities import (
    response_type,
)

Maker = Callable[[int], Any]

PLAIN = Security()
# Frames smaller than this are cut from what one read brought; larger ones are read into a place of their own.
READ_BYTES = 1 << 16
# The room of an answer of up to so many bytes is kept for the next.
MOST_KEPT = 8 << 20


class Frames(asyncio.BufferedProtocol):
    """Cuts answers from the stream. A large one is received where it is read: it is not copied."""

    def __init__(self, deliver: Callable[[bytes], None], ended: Callable[[Exception | None], None]) -> None:
        self.deliver, self.ended = deliver, ended
        self.transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()
        """Set when the socket is closed."""
        self.writable = asyncio.Event()
        """Set while the system takes what is written."""
        self.writable.set()
        self.most = MOST_GREETING
        """How long an answer may be."""
        self._small = bytearray(READ_BYTES)
        self._held = 0
        self._large: memoryview | None = None
        self._filled = 0
        self._kept = bytearray()
        """Where the last large answer was received: who decodes copies what it wants."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # create_connection makes nothing else

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._filled :]
        return memoryview(self._small)[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is None:
            self._held += nbytes
            self._cut()
            return
        self._filled += nbytes
        if self._filled == len(self._large):
            frame, self._large = self._large.toreadonly(), None
            self.deliver(cast(bytes, frame))  # what reads bytes reads a view that is read-only

    def _cut(self) -> None:
        """Deliver each whole frame; what is left moves to the front, or begins a large frame."""
        at, held = 0, self._held
        while held - at >= 4:
            size = int.from_bytes(self._small[at : at + 4], "big", signed=True)
            if not 4 <= size <= self.most:
                self._refuse(size)
                return
            if held - at - 4 < size:
                break
            self.deliver(bytes(memoryview(self._small)[at + 4 : at + 4 + size]))
            at += 4 + size
        left = held - at
        if left >= 4 and size + 4 > READ_BYTES:
            self._large, self._filled, self._held = self.room_for(size), left - 4, 0
            self._large[: left - 4] = memoryview(self._small)[at + 4 : held]
            return
        self._small[:left] = memoryview(self._small)[at:held]
        self._held = left

    def room_for(self, size: int) -> memoryview:
        """Return room for a large answer; the same again where it is enough: fresh memory is slow."""
        if size > MOST_KEPT:
            return memoryview(bytearray(size))
        if size > len(self._kept):
            self._kept = bytearray(size)
        return memoryview(self._kept)[:size]

    def _refuse(self, size: int) -> None:
        self._held = 0
        self.ended(no_answer(size))
        assert self.transport is not None
        self.transport.abort()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        self.gone.set()
        self.ended(exc)


def settle(deliver: Callable[[Any], None], what: Any) -> None:
    """Tell who waits, unless they have given up just now.

    Ctrl-C cancels whoever waits between any two steps of ours, as an answer is decoded: asyncio's handler
    of the signal does not wait for the loop. That must not end the connection, on which others wait as well.
    """
    with suppress(asyncio.InvalidStateError):
        deliver(what)


class Connection:
    """An open connection. A broker answers one connection's requests in order: a parked JoinGroup holds up
    what is sent after it, so a member's group requests have a connection to themselves.
    """

    def __init__(
        self, address: Address, *, client_id: str, credentials: AnyCredentials | None = None
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.agreed: dict[int, int] = {ApiKey.API_VERSIONS: 3}
        self.features: dict[str, int] = {}
        self.clock = asyncio.get_running_loop()
        self._frames = Frames(self._deliver, self._ended)
        self._correlation = 0
        self._waiting: dict[int, tuple[type, asyncio.Future[Any]]] = {}
        self._over: str | None = None
        """Why no answer can come any more."""
        self._credentials = credentials
        self._renewal = asyncio.Lock()
        self._session = SessionLife()

    @classmethod
    async def open(
        cls, address: Address, *, client_id: str, timeout_s: float, security: Security = PLAIN
    ) -> "Connection":
        """Return a connection that has agreed on versions and shown who we are.

        Raises Disconnected, ClientTimeout or AuthenticationFailed.
        """
        connection = cls(address, client_id=client_id, credentials=security.credentials)
        try:
            await connection._connect(security.tls, timeout_s)
            await connection._greet(timeout_s)
        except BaseException:
            connection.close()
            await connection.wait_closed()
            raise
        return connection

    async def _connect(self, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        host, port = self.address
        name = None if tls is None else host
        try:
            async with asyncio.timeout(timeout_s):
                await self.clock.create_connection(
                    lambda: self._frames, host, port, ssl=tls, server_hostname=name
                )
        except TimeoutError:
            raise ClientTimeout(f"no connection to {self.address} within {timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise untrusted(self.address, error) from None
        except ssl.SSLError as error:
            raise no_tls(self.address, error) from error
        except NO_CONNECTION as error:
            raise unreachable(self.address, error, over_tls=tls is not None) from error

    async def _greet(self, timeout_s: float) -> None:
        """Agree on versions, then show who we are."""
        try:
            answer = await self._ask(ApiKey.API_VERSIONS, lambda _: messages.api_versions(), timeout_s)
        except Disconnected as error:
            raise wordless(error) from None
        self._frames.most = MOST_ANSWER
        self.agreed = messages.agree(answer.api_keys)
        self.features = messages.features_of(answer)
        if self._credentials is not None:
            await self._authenticate(self._credentials, timeout_s)

    @property
    def waiting(self) -> int:
        """How many calls wait for their answers."""
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether no answer can come any more."""
        return self._over is not None

    async def call(self, api_key: int, make: Maker, timeout_s: float, *, most: int | None = None) -> Any:
        """Return the answer to the request that `make` builds for the agreed version, `most` at most."""
        await self.renewed(timeout_s)
        return await self._ask(api_key, make, timeout_s, most=most)

    async def _ask(self, api_key: int, make: Maker, timeout_s: float, *, most: int | None = None) -> Any:
        answer = self.send(api_key, make, most=most)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            title = APIS[api_key].title
            raise ClientTimeout(f"{title}: no answer from {self.address} within {timeout_s:g} s") from None

    def send(self, api_key: int, make: Maker, *, most: int | None = None) -> "asyncio.Future[Any]":
        """Send a request at once, while the connection is `fresh`; return where its answer will be."""
        correlation, version = self._write(api_key, make, most)
        answer: asyncio.Future[Any] = self.clock.create_future()
        self._waiting[correlation] = (response_type(api_key, version), answer)
        return answer

    def post(self, api_key: int, make: Maker, *, most: int | None = None) -> None:
        """Send a request that the broker does not answer."""
        self._write(api_key, make, most)

    def _write(self, api_key: int, make: Maker, most: int | None) -> tuple[int, int]:
        if self._over is not None:
            raise Disconnected(f"connection to {self.address} is closed")
        version = messages.version_for(self.agreed, api_key, self.address, most=most)
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        assert self._frames.transport is not None
        self._frames.transport.write(messages.framed(self._correlation, self.client_id, make(version)))
        return self._correlation, version

    @property
    def writable(self) -> bool:
        """Return whether what was sent has gone out, but for a little."""
        return self._frames.writable.is_set()

    async def wait_writable(self) -> None:
        """Wait until what was sent has gone out, but for a little, or the connection is over."""
        await self._frames.writable.wait()

    def _deliver(self, frame: bytes) -> None:
        correlation = int.from_bytes(frame[:4], "big")
        kind, answer = self._waiting.get(correlation, (None, None))
        try:
            # Nobody may wait for it any more: its caller gave up.
            if kind is not None and answer is not None and not answer.done():
                settle(answer.set_result, decode_response(kind, frame)[1])
        except Corrupt as error:
            self._ended(error)
            self.close()
        self._waiting.pop(correlation, None)

    def _ended(self, error: Exception | None) -> None:
        """Note that the connection is over, the first time; then nobody waits in vain."""
        why = "closed by the broker" if error is None else str(error) or type(error).__name__
        self._over = self._over or why
        for _, answer in self._waiting.values():
            if not answer.done():
                settle(answer.set_exception, Disconnected(f"connection to {self.address} {self._over}"))

    def close(self) -> None:
        """Close at once; calls under way raise Disconnected."""
        self._over = self._over or "closed"
        if self._frames.transport is not None and not self.clock.is_closed():
            self._frames.transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed, after `close`."""
        if self._frames.transport is not None:
            await self._frames.gone.wait()

    # SASL

    @property
    def fresh(self) -> bool:
        """Return whether requests may be sent: not if the session ends soon."""
        return self._session.fresh(self.clock.time())

    async def renewed(self, timeout_s: float) -> None:
        """Wait until requests may be sent: a session that ends soon is renewed first, while others wait."""
        if self._credentials is None:
            return
        async with self._renewal:
            if not self.fresh:
                try:
                    await self._authenticate(self._credentials, timeout_s)
                except asyncio.CancelledError:
                    self.close()  # the broker is in the middle of it: it would take no request now
                    raise

    async def _authenticate(self, credentials: AnyCredentials, timeout_s: float) -> None:
        """Show who we are, or raise AuthenticationFailed."""
        mechanism = credentials.mechanism
        try:  # what to say is there first: a broker that has heard of a renewal takes no other request
            exchange = await self._exchange(credentials, self._session.token_s(timeout_s))
        except NoToken as error:
            self._session.put_off(error, self.clock.time())
            return
        answer = await self._ask(
            ApiKey.SASL_HANDSHAKE, lambda version: messages.sasl_handshake(version, mechanism), timeout_s
        )
        shaken(answer, mechanism, self.address)
        message: bytes | None = exchange.first()
        while message is not None:
            answer = await self._say(message, timeout_s)
            message = exchange.answer(answer.auth_bytes)
        self._session.began(answer, self.clock.time())

    async def _exchange(self, credentials: AnyCredentials, timeout_s: float) -> SaslExchange:
        if isinstance(credentials, TokenCredentials):  # their provider may ask others, and block
            return await asyncio.to_thread(begun, credentials, timeout_s)
        return begun(credentials, timeout_s)

    async def _say(self, message: bytes, timeout_s: float) -> Any:
        answer = await self._ask(
            ApiKey.SASL_AUTHENTICATE, lambda version: messages.sasl_authenticate(version, message), timeout_s
        )
        accepted(answer, self.address)
        return answer
