"""Connections between brokers: the production ends of both, and the bytes on their way.

They break when a process ends, and now and then by themselves: what was sent before may still arrive then,
when who asked has given it up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coterie.broker.net.gated import GatedConnection
from swarm.network import PORT

if TYPE_CHECKING:
    from coterie.broker.interbroker.connection import PeerConnection
    from swarm.clustered.processes import ClusteredProcess

BREAK_CHANCE = 0.05


class Way:
    """One direction of a connection: what is on its way arrives in its order."""

    def __init__(self, process: ClusteredProcess, arrive: Callable[[bytes | None], None]) -> None:
        """What arrives comes to a process, once it runs."""
        self._process = process
        self._arrive = arrive
        self._last_ms = 0

    def send(self, data: bytes | None, *, after_ms: int = 0) -> None:
        """Put something on its way; None is the end."""
        world = self._process.world
        delay_ms = self._process.cluster.network.delay_ms()
        self._last_ms = max(self._last_ms, world.now_ms + after_ms + delay_ms)
        self._process.world.at(self._last_ms, self._deliver, data)

    def _deliver(self, data: bytes | None) -> None:
        self._process.when_running(self, lambda: self._arrive(data))


class Link:
    """A connection of one broker to another; it is the transport of the one that asks."""

    def __init__(self, asks: ClusteredProcess, serves: ClusteredProcess, connection: PeerConnection) -> None:
        self._asks = asks
        self._serves = serves
        self._connection = connection
        self._end: ServedLink | None = None
        self._gone = False
        self._requests = Way(serves, self._request_came)
        self._answers = Way(asks, self._answer_came)
        asks.world.later(asks.cluster.network.delay_ms(), asks.run, self._open)

    def _open(self) -> None:
        if self._gone:
            return
        if not self._serves.running:
            self._gone = True
            self._connection.connection_lost(ConnectionRefusedError())
            return
        self._end = ServedLink(self, self._serves, self._asks)
        self._serves.links.append(self)
        self._connection.connection_made(self)

    def cancel(self) -> None:
        """Give up the attempt."""
        self._gone = True

    def write(self, data: bytes) -> None:
        """Send a request."""
        world = self._asks.world
        late_ms = 0
        if not self._asks.cluster.calm and world.chance(BREAK_CHANCE):
            world.marks.add("brokers part")
            late_ms = world.between(0, 2_000)
            self._answers.send(None)
        self._requests.send(bytes(data), after_ms=late_ms)

    def abort(self) -> None:
        """Hang up; what is on its way may still arrive."""
        if not self._gone:
            self._gone = True
            self._requests.send(None)

    def answer(self, data: bytes | None) -> None:
        """Send an answer."""
        self._answers.send(data)

    def server_gone(self) -> None:
        """Take note that the process at the other end has ended."""
        self._end = None
        self._answers.send(None)

    def _request_came(self, data: bytes | None) -> None:
        end = self._end
        if end is None:
            return
        if data is None:
            self._end = None
            self._serves.run(lambda: end.connection_lost(None))
        else:
            self._serves.run(lambda: end.data_received(data))

    def _answer_came(self, data: bytes | None) -> None:
        if self._gone:
            return
        if data is None:
            self._gone = True
            self._asks.run(lambda: self._connection.connection_lost(None))
        else:
            self._asks.run(lambda: self._connection.data_received(data))


class ServedLink(GatedConnection):
    """The end of the broker that is asked."""

    def __init__(self, link: Link, serves: ClusteredProcess, asks: ClusteredProcess) -> None:
        super().__init__(serves.node)
        self.connection_made(ServedTransport(link, serves.broker.host, asks.broker.host))


class ServedTransport:
    """What it writes to."""

    def __init__(self, link: Link, host: str, peer: str) -> None:
        self._link = link
        self._closed = False
        self._info = {"peername": (peer, PORT), "sockname": (host, PORT)}

    def get_extra_info(self, name: str) -> Any:
        """Return the address of this end or of the other."""
        return self._info.get(name)

    def write(self, data: bytes) -> None:
        """Send an answer."""
        self._link.answer(bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        """Send an answer in parts."""
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing waits to be sent."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: brokers ask a few things at a time."""

    def resume_reading(self) -> None:
        """Do nothing, as nothing was paused."""

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Hang up; what was answered goes first."""
        if not self._closed:
            self._closed = True
            self._link.server_gone()

    abort = close
