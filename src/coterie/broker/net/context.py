"""What a handler knows of the request that it answers, and how an answer that comes later gets out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from coterie.broker.runtime.purgatory import Parked, Purgatory
    from coterie.wire.api.codec import RequestHeader


class Answerless:
    """The type of the two marks a handler returns when it returns no response."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


WAITS: Final = Answerless("WAITS")
SILENT: Final = Answerless("SILENT")


class Hangup(Exception):
    """Raised by a handler where Apache Kafka closes the connection instead of answering."""


class Read(NamedTuple):
    """A request that has been read."""

    header: RequestHeader
    request: Any


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """From where requests come, as far as their answers depend on it. There is one object for each."""

    listener: tuple[str, int]
    """The address that the client has connected to."""
    host: str
    """The client's address, as a group's members are shown."""


@lru_cache(maxsize=10_000)
def origin_of(listener: tuple[str, int], address: str) -> Origin:
    """Return the origin of a connection from an IP address to a listener's."""
    return Origin(listener, intern(f"/{address}"))  # every member keeps it


UNKNOWN_ORIGIN = Origin(("", 0), "/?")


class Context:
    """One request: who sent it, in which version, and where its answer goes."""

    __slots__ = (
        "_gone",
        "_hung_up",
        "_parked",
        "_send",
        "api_key",
        "client_host",
        "client_id",
        "correlation_id",
        "listener_host_port",
        "placed",
        "version",
    )

    def __init__(self, header: RequestHeader, origin: Origin, send: Callable[[Context, Any], None]) -> None:
        """`send` gets an answer that comes later, with this."""
        self.api_key, self.version, self.correlation_id, self.client_id, _ = header
        self.client_host = origin.host
        self.listener_host_port = origin.listener
        self.placed = False
        """Whether what it asked to write has its place, and it waits for nothing but that it lasts."""
        self._gone: Callable[[], None] | None = None
        self._hung_up = False
        self._parked: tuple[Purgatory, Parked] | None = None
        self._send = send

    def reply(self, response: Any) -> None:
        """Send the answer of a request whose handler returned `WAITS`, or the pieces it comes of. Once."""
        self._send(self, response)

    def when_gone(self, act: Callable[[], None]) -> None:
        """Have `act` called when the client hangs up before its answer, at once if it has: a request that is
        answered in pieces goes on without it. What was to be called before is not any more.
        """
        if self._hung_up:
            act()
        else:
            self._gone = act

    def waits_in(self, purgatory: Purgatory, parked: Parked) -> None:
        """Take note of the operation that will answer: it is withdrawn when the client hangs up, and finishes
        with what there is when a request of another kind waits behind this one.
        """
        if self._hung_up:
            purgatory.withdraw(parked)
        else:
            self._parked = purgatory, parked

    def hung_up(self) -> None:
        """Take note that the client has gone."""
        self._hung_up = True
        if self._gone is not None:
            self._gone()
        if self._parked is not None:
            purgatory, parked = self._parked
            purgatory.withdraw(parked)

    def hurry(self) -> bool:
        """Answer now what would wait for more; return False of a request that cannot."""
        if self._parked is None:
            return False
        (purgatory, parked), self._parked = self._parked, None
        purgatory.force(parked)
        return True


def milliseconds(span: Any) -> int:
    """Return a time span of a request in ms."""
    return span if isinstance(span, int) else round(span.total_seconds() * 1000)
