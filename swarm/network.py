"""Connections as TCP makes them, between clients and brokers that may die, and links that may be cut.

Bytes of one connection come in order and once, or not at all: what is lost is the connection. A request that
was under way when its connection broke has been carried out or not, and nobody knows. A cut link is silent:
what is on its way waits, until the link heals or the client gives up; what waits may then still arrive,
behind newer requests of the same client that took another connection. Requests come twice since clients try
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from swarm.world import World

PORT = 9092

Link = tuple[str, int]


class Served(Protocol):
    """The broker's end of a connection."""

    def receive(self, frame: Any) -> None: ...
    def lost(self) -> None: ...


class Server(Protocol):
    """Who takes connections: a broker's process, dead or alive."""

    node_id: int

    def accept(self, channel: Channel) -> Served | None:
        """Return the broker's end of a new connection, None if nobody listens."""


@dataclass(slots=True, kw_only=True)
class Weather:
    """How the network is just now."""

    delay_ms: int = 1
    spike_chance: float = 0.0
    spike_ms: int = 0
    reset_chance: float = 0.0
    """That a frame finds its connection broken."""


class Direction:
    """One direction of a connection: what is on its way, in order."""

    __slots__ = ("_armed", "_arrive", "_channel", "_frames", "_last_ms", "_requests")

    def __init__(self, channel: Channel, arrive: Callable[[Any], None], *, requests: bool) -> None:
        self._channel = channel
        self._arrive = arrive
        self._requests = requests
        self._frames: deque[tuple[int, Any]] = deque()
        self._last_ms = 0
        self._armed = False

    def send(self, frame: Any) -> None:
        """Put something on its way."""
        network = self._channel.network
        self._last_ms = max(self._last_ms, network.world.now_ms + network.delay_ms())
        self._frames.append((self._last_ms, frame))
        self._arm()

    def _arm(self) -> None:
        if self._frames and not self._armed:
            self._armed = True
            self._channel.network.world.at(self._frames[0][0], self._deliver)

    def _deliver(self) -> None:
        self._armed = False
        if not self._frames:
            return
        if self._channel.is_cut(requests=self._requests):
            self._channel.network.stalled.append(self)
            return
        frame = self._frames.popleft()[1]
        self._arm()
        self._arrive(frame)

    def resume(self) -> None:
        """Go on after a cut has healed. What a client had given up may be lost by now."""
        world = self._channel.network.world
        if self._requests and not self._channel.open and world.chance(0.5):
            self._channel.break_off()
            return
        self._arm()

    def clear(self) -> None:
        """Lose what is on its way."""
        self._frames.clear()


END = object()
"""Comes behind the last frame of a connection that was closed."""


class Channel:
    """One connection. `received` gets answers, `lost` is called when the client learns that it is broken."""

    __slots__ = (
        "_answers",
        "_broken",
        "_lost",
        "_owed",
        "_received",
        "_requests",
        "_server",
        "_session",
        "client",
        "network",
        "open",
    )

    def __init__(
        self,
        network: Network,
        client: str,
        server: Server,
        *,
        received: Callable[[Any], None],
        lost: Callable[[], None],
    ) -> None:
        self.network = network
        self.client = client
        self.open = True
        self._broken = False
        self._owed = 0
        self._server = server
        self._session: Served | None = None
        self._received = received
        self._lost = lost
        self._requests = Direction(self, self._request_came, requests=True)
        self._answers = Direction(self, self._answer_came, requests=False)

    def is_cut(self, *, requests: bool) -> bool:
        """Return whether nothing gets through in this direction."""
        cut = self.network.requests_cut if requests else self.network.answers_cut
        return (self.client, self._server.node_id) in cut

    # -- the client's end

    @property
    def owes(self) -> bool:
        """Whether the broker has answered, and the client does not know."""
        return self._owed > 0

    def send(self, frame: Any) -> None:
        """Send a request."""
        if not self._broken:
            self._requests.send(frame)

    def close(self) -> None:
        """Hang up: answers are not waited for any more, what was sent still goes out."""
        if self.open:
            self.open = False
            self.send(END)

    # -- the broker's end

    def answer(self, frame: Any) -> None:
        """Send an answer."""
        self._owed += 1
        self._answers.send(frame)

    def server_gone(self, *, answers_too: bool) -> None:
        """Take note that the broker's process ended; its answers that are under way may still arrive."""
        self._broken, self._session = True, None
        self._requests.clear()
        if answers_too:
            self._answers.clear()
        self._answers.send(END)

    # -- what arrives

    def _request_came(self, frame: Any) -> None:
        if frame is END:
            self._broken = True
            self._end_session()
            return
        fate = self.network.fate()
        if fate == "before" or self.client in self.network.banned:
            self.break_off()
            return
        if self._session is None:
            self._session = self._server.accept(self)
        if self._session is None:  # refused
            self.break_off()
            return
        self._session.receive(frame)
        if fate == "after":
            self.break_off()

    def _answer_came(self, frame: Any) -> None:
        if not self.open:
            return
        if frame is END:
            self._tell_lost()
        elif self.network.fate():
            self.break_off()
        else:
            self._owed -= 1
            self._received(frame)

    # -- the end

    def break_off(self) -> None:
        """Break the connection. Whom the news reaches learns of it."""
        self._broken = True
        self._requests.clear()
        self._answers.clear()
        self._end_session()
        if self.open:
            self._answers.send(END)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.lost()

    def _tell_lost(self) -> None:
        self.open = False
        self._end_session()
        self._lost()


@dataclass(slots=True)
class Network:
    """All links between clients and brokers."""

    world: World
    weather: Weather = field(default_factory=Weather)
    requests_cut: set[Link] = field(default_factory=set)
    answers_cut: set[Link] = field(default_factory=set)
    stalled: list[Direction] = field(default_factory=list)
    banned: set[str] = field(default_factory=set)
    """Clients of which nothing more arrives, not even what is under way."""

    def connect(
        self, client: str, server: Server, *, received: Callable[[Any], None], lost: Callable[[], None]
    ) -> Channel:
        """Return a new connection; whether anybody listens shows with the first request."""
        return Channel(self, client, server, received=received, lost=lost)

    def delay_ms(self) -> int:
        """Return the time in ms that the next frame takes."""
        weather, world = self.weather, self.world
        if weather.spike_chance and world.chance(weather.spike_chance):
            return world.between(weather.delay_ms, weather.spike_ms)
        return 1 if weather.delay_ms <= 1 else world.between(1, weather.delay_ms)

    def fate(self) -> str:
        """Return whether a frame's connection breaks `before` it arrives or `after`; mostly neither: ""."""
        if self.weather.reset_chance and self.world.chance(self.weather.reset_chance):
            return "before" if self.world.chance(0.5) else "after"
        return ""

    def cut(self, links: set[Link], *, requests: bool, answers: bool) -> None:
        """Cut these links, in one direction or both."""
        if requests:
            self.requests_cut |= links
        if answers:
            self.answers_cut |= links

    def heal(self, links: set[Link] | None = None) -> None:
        """Mend these links, or all; what waited goes on."""
        if links is None:
            self.requests_cut.clear()
            self.answers_cut.clear()
        else:
            self.requests_cut -= links
            self.answers_cut -= links
        stalled, self.stalled = self.stalled, []
        for direction in stalled:
            direction.resume()
