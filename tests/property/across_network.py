"""Connections between pretended brokers: late, cut, broken with requests under way, read after later ones.

Bytes of one connection come in order and once, or not at all. Of one that was given up they may still come,
long after those of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coterie.broker.net.connection import Connection

if TYPE_CHECKING:
    from coterie.broker.interbroker.connection import PeerConnection
    from property.across_driver import Broker, Driver

DELAY_MS = 3


class Direction:
    """One direction of a connection: bytes on their way."""

    def __init__(self, driver: Driver, arrive: Callable[[bytes | None], None]) -> None:
        self._driver = driver
        self._arrive = arrive
        self._last_ms = 0
        self.frozen_until_ms = 0
        self.lost = False

    def send(self, data: bytes | None) -> None:
        """Put bytes on their way; None is the end."""
        world = self._driver.world
        at_ms = world.now_ms + world.between(0, DELAY_MS)
        self._last_ms = max(self._last_ms, at_ms, self.frozen_until_ms)
        world.at(self._last_ms, self._deliver, data)
        self._last_ms += 1  # what comes at one time comes in any order

    def _deliver(self, data: bytes | None) -> None:
        if self.frozen_until_ms > self._driver.world.now_ms:
            self._driver.world.at(self.frozen_until_ms, self._deliver_late, data)
        else:
            self._deliver_late(data)

    def _deliver_late(self, data: bytes | None) -> None:
        if not self.lost:
            self._arrive(data)


class Link:
    """A connection of one broker to another, both ends of it; it is the transport of both."""

    def __init__(self, driver: Driver, asks: Broker, serves: Broker, connection: PeerConnection) -> None:
        self.driver, self.asks, self.serves, self.connection = driver, asks, serves, connection
        self.requests = Direction(driver, self._request_came)
        self.answers = Direction(driver, self._answer_came)
        self.end: Served | None = None
        self.gone = self.refused = False
        driver.links.append(self)

    def __str__(self) -> str:
        return f"connection of {self.asks.node_id} to {self.serves.node_id}"

    # -- who asks

    def begin(self) -> None:
        """Open it, if somebody listens."""
        if self.gone or not self.asks.running:
            return
        if self.refused or not self.serves.running or self.driver.is_cut(self):
            self.gone = True
            self.connection.connection_lost(ConnectionRefusedError())
            return
        self.end = Served(self)
        self.connection.connection_made(self)

    def cancel(self) -> None:
        """Give up the attempt."""
        self.gone = True

    def write(self, data: bytes) -> None:
        """Send a request."""
        self.requests.send(data)

    def abort(self) -> None:
        """Give it up: what is on its way may still arrive, and nothing comes back."""
        if not self.gone:
            self.gone = True
            self.answers.lost = True
            self.requests.lost = self.driver.world.chance(0.3)
            self.requests.send(None)

    # -- what happens to it

    def broken(self) -> None:
        """Have both ends learn, in their time, that it is gone; what is under way is lost."""
        self.requests.lost = self.answers.lost = True
        world = self.driver.world
        world.later(world.between(0, 50), self._request_came, None)
        world.later(world.between(0, 50), self._answer_came, None)

    def half_broken(self, until_ms: int) -> None:
        """Have who asks learn that it is gone, and what was asked before come later all the same."""
        self.requests.frozen_until_ms = until_ms
        self.driver.world.later(self.driver.world.between(5, 100), self._answer_came, None)

    def _request_came(self, data: bytes | None) -> None:
        if self.end is None or not self.serves.running:
            return
        if data is None:
            end, self.end = self.end, None
            end.connection_lost(None)
        else:
            self.serves.run(lambda: self.end and self.end.data_received(data))

    def _answer_came(self, data: bytes | None) -> None:
        if self.gone or not self.asks.running:
            return
        if data is None:
            self.gone = True
            self.asks.run(lambda: self.connection.connection_lost(None))
        else:
            self.asks.run(lambda: self.connection.data_received(data))


class Served(Connection):
    """The production connection at the other end."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.serves.node)
        self.link = link
        self.connection_made(ServedTransport(link))


class ServedTransport:
    """What the other end writes to."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def get_extra_info(self, name: str) -> Any:
        return (f"broker{self._link.asks.node_id}", 9_092)

    def write(self, data: bytes) -> None:
        self._link.answers.send(bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self._link.end is None

    def close(self) -> None:
        """Hang up on who asks: what is answered goes first."""
        self._link.end = None
        self._link.answers.send(None)

    abort = close
