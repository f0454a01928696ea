"""A proxy before a database that cuts connections, swallows answers, and delivers requests late, also when
whoever sent them is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum, auto

__all__ = ["Link", "Proxy", "Trouble"]

GONE = (OSError, asyncio.IncompleteReadError)
BYTES_AT_ONCE = 1 << 20
LISTENS_ON_S = 0.5
WAITED_S = 10.0


class Trouble(Enum):
    """What happens to the next request of a connection."""

    LATE = auto()
    """Its client is cut off at once, and the server gets it later."""
    DEAF = auto()
    """The server gets it, and its client is cut off before the answer."""
    HELD = auto()
    """The server gets it later, and its client waits."""


class _Requests:
    """How many requests have been delivered, and who waits for more."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[asyncio.Event, int] = {}

    def count(self) -> None:
        """Take note of one."""
        self._count += 1
        for event, threshold in self._waiting.items():
            if threshold <= self._count:
                event.set()

    async def wait(self, more: int) -> None:
        """Return once so many more have been delivered, or too few come."""
        event = asyncio.Event()
        self._waiting[event] = self._count + more
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), WAITED_S)
        del self._waiting[event]


class Link:
    """One client's connection."""

    def __init__(
        self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter], requests: _Requests,
    ) -> None:  # fmt: skip
        self._client_in, self._client_out = client
        self._requests = requests
        self._server_in, self._server_out = server
        self.trouble: Trouble | None = None
        self.late_s = 0.0
        """How much later, for `LATE` and `HELD`."""
        self.late_requests = 0
        """If not 0, `LATE` is when so many requests of other connections have been delivered."""
        self.slow_s = 0.0
        """How much later each request is delivered."""

    async def run(self) -> None:
        """Carry bytes until either side has gone."""
        answers = asyncio.ensure_future(self._carry_answers())
        with suppress(*GONE):
            await self._carry_requests()
        self.cut()
        await answers

    async def _carry_requests(self) -> None:
        while data := await self._client_in.read(BYTES_AT_ONCE):
            if self.slow_s:
                await asyncio.sleep(self.slow_s)
            if self.trouble is Trouble.HELD:
                await asyncio.sleep(self.late_s)
                self.trouble = None
            if self.trouble is None:
                self._requests.count()
                self._server_out.write(data)
                await self._server_out.drain()
                continue
            if self.trouble is Trouble.LATE:
                self._client_out.transport.abort()
                if self.late_requests:
                    await self._requests.wait(self.late_requests)
                else:
                    await asyncio.sleep(self.late_s)
            self._server_out.write(data)
            await asyncio.sleep(LISTENS_ON_S)  # the server does it all the same
            return

    async def _carry_answers(self) -> None:
        with suppress(*GONE):
            while data := await self._server_in.read(BYTES_AT_ONCE):
                if self.trouble is Trouble.DEAF:
                    self._client_out.transport.abort()
                elif not self._client_out.is_closing():
                    self._client_out.write(data)
        self._client_out.transport.abort()

    def cut(self) -> None:
        """End both sides."""
        self._client_out.transport.abort()
        self._server_out.transport.abort()


class Proxy:
    """Listens on a port of its own for whoever would connect to the server's."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.slow_s = 0.0
        """How much later each request is delivered of connections that are made from now on."""
        self.open = asyncio.Event()
        """Set while whoever connects gets through, and does not wait."""
        self.open.set()
        self.port = 0
        self.links: dict[Link, asyncio.Task[None]] = {}
        self._listening: asyncio.Server | None = None
        self._requests = _Requests()

    async def start(self) -> None:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut all, and take nobody any more."""
        assert self._listening is not None
        self._listening.close()
        for link in self.links:
            link.cut()
        while self.links:
            await asyncio.wait([*self.links.values()])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.open.wait()
        try:
            server = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            writer.transport.abort()
            return
        link = Link((reader, writer), server, self._requests)
        task = asyncio.current_task()
        assert task is not None
        link.slow_s = self.slow_s
        self.links[link] = task
        await link.run()
        del self.links[link]
