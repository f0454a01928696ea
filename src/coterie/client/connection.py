"""One asyncio connection to a broker: requests out, answers matched by correlation id."""

import asyncio
from collections.abc import Callable
from typing import Any

from coterie.base.errors import Corrupt
from coterie.client import messages
from coterie.client.addresses import Address
from coterie.client.errors import ClientTimeout, Disconnected
from coterie.wire.apis import APIS, ApiKey
from coterie.wire.codec import decode_response, encode_request, response_type

__all__ = ["Connection"]

Maker = Callable[[int], Any]


class Connection:
    """An open connection. A broker answers one connection's requests in order: a parked JoinGroup holds up
    what is sent after it, so a member's group requests have a connection to themselves.
    """

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client_id: str
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.agreed: dict[int, int] = {ApiKey.API_VERSIONS: 3}
        self._reader, self._writer = reader, writer
        self._correlation = 0
        self._waiting: dict[int, tuple[type, asyncio.Future[Any]]] = {}
        self._pump = asyncio.create_task(self._read_answers(), name=f"answers of {address}")

    @classmethod
    async def open(cls, address: Address, *, client_id: str, timeout_s: float) -> "Connection":
        """Return a connection that has agreed on versions, or raise Disconnected or ClientTimeout."""
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(address.host, address.port, limit=1 << 20)
        except TimeoutError:
            raise ClientTimeout(f"no connection to {address} within {timeout_s:g} s") from None
        except OSError as error:
            raise Disconnected(f"no connection to {address}: {error}") from error
        connection = cls(address, reader, writer, client_id=client_id)
        try:
            answer = await connection.call(ApiKey.API_VERSIONS, lambda _: messages.api_versions(), timeout_s)
        except BaseException:
            connection.close()
            raise
        connection.agreed = messages.agree(answer.api_keys)
        return connection

    @property
    def waiting(self) -> int:
        """How many calls wait for their answers."""
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether no answer can come any more."""
        return self._pump.done()

    async def call(self, api_key: int, make: Maker, timeout_s: float) -> Any:
        """Return the broker's answer to the request that `make` builds for the agreed version."""
        if self.closed:
            raise Disconnected(f"connection to {self.address} is closed")
        version = messages.version_for(self.agreed, api_key, self.address)
        self._correlation = correlation = (self._correlation + 1) & 0x7FFFFFFF
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = (response_type(api_key, version), answer)
        try:
            self._writer.write(encode_request(correlation, self.client_id, make(version)))
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            title = APIS[api_key].title
            raise ClientTimeout(f"{title}: no answer from {self.address} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(correlation, None)

    async def _read_answers(self) -> None:
        """Hand each answer to whom it belongs, until the connection ends; then nobody waits in vain."""
        why = "closed by the broker"
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big", signed=True)
                if size < 4:
                    raise Corrupt("answer", expected="its size")
                self._deliver(await self._reader.readexactly(size))
        except asyncio.IncompleteReadError:
            pass
        except (OSError, Corrupt) as error:
            why = str(error) or type(error).__name__
        except asyncio.CancelledError:
            why = "closed"
        finally:
            self._writer.close()
            for _, answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(Disconnected(f"connection to {self.address} {why}"))

    def _deliver(self, frame: bytes) -> None:
        correlation = int.from_bytes(frame[:4], "big")
        kind, answer = self._waiting.pop(correlation, (None, None))
        # Nobody waits for it any more: its caller gave up.
        if kind is not None and answer is not None and not answer.done():
            answer.set_result(decode_response(kind, frame)[1])

    def close(self) -> None:
        """Close at once; calls under way raise Disconnected."""
        self._pump.cancel()
