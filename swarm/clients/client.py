"""A client's process in the simulation: its connections and its calls; it can be paused, or die."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from coterie.client.net.messages import SPEAKS
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import encode_request
from swarm.cluster import Broker, Cluster
from swarm.network import Channel
from swarm.session import Frame

Done = Callable[[Any], None]


class Waiting(NamedTuple):
    """A call without an answer yet."""

    done: Done
    line: Line


class Line:
    """The client's end of one connection."""

    def __init__(self, client: Client, broker: Broker, purpose: str) -> None:
        self.key = (broker.node_id, purpose)
        self.calls: set[int] = set()
        self.channel: Channel = client.cluster.network.connect(
            client.name,
            broker,
            received=lambda answer: client.awake(client.received, *answer),
            lost=lambda: client.awake(client.hang_up, self),
        )


class Client:
    """One process. What it does goes through `awake`: a paused process does it later, a dead one never."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.options = cluster.options
        self.name = name
        self.running = True
        self.slept_ms = 0
        """How much its monotonic clock has missed: it stands still while the machine is suspended."""
        self._asleep_since: int | None = None
        self._paused_until = 0
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._lines: dict[tuple[int, str], Line] = {}
        self._waiting: dict[int, Waiting] = {}
        self._correlation_id = 0

    @property
    def now_ms(self) -> int:
        """Return the time by this process's monotonic clock."""
        return self.world.now_ms - self.slept_ms

    # -- being there

    def awake(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something now, after the pause, or never."""
        if not self.running:
            return
        if self.world.now_ms < self._paused_until:
            self._deferred.append((do, arguments))
        else:
            do(*arguments)

    def later(self, delay_ms: int, do: Callable[..., None], *arguments: Any) -> None:
        """Do something after so long by the own clock, if awake by then."""
        world = self.world
        at_ms = world.now_ms + delay_ms
        world.at(at_ms, self._when_due, at_ms - self.slept_ms, do, arguments)

    def _when_due(self, due_ms: int, do: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Do something, or go on waiting for as long as the own clock has missed meanwhile."""
        if not self.running:
            return
        at_ms = due_ms + self.slept_ms
        if self.world.now_ms < self._paused_until:
            self._deferred.append((self._when_due, (due_ms, do, arguments)))
        elif self.world.now_ms < at_ms:
            self.world.at(at_ms, self._when_due, due_ms, do, arguments)
        else:
            do(*arguments)

    def pause(self, span_ms: int) -> None:
        """Stand still, as a process that is stopped or collects garbage; everything is done afterwards."""
        self._paused_until = self.world.now_ms + span_ms
        self.world.later(span_ms, self._go_on)

    def suspend(self, span_ms: int) -> None:
        """Stand still with the whole machine: its monotonic clock does not go on meanwhile either."""
        if self._asleep_since is None:
            self._asleep_since = self.world.now_ms
        self.pause(span_ms)

    def _go_on(self) -> None:
        if self.world.now_ms >= self._paused_until:
            self.wake_up()

    def wake_up(self) -> None:
        """Go on after a pause, or break it off."""
        self._paused_until = 0
        if self._asleep_since is not None:
            self.slept_ms += self.world.now_ms - self._asleep_since
            self._asleep_since = None
        deferred, self._deferred = self._deferred, []
        for do, arguments in deferred:
            self.awake(do, *arguments)

    def kill(self) -> None:
        """End without a word; the connections break."""
        self.running = False
        for line in self._lines.values():
            line.channel.close()
        self._lines.clear()
        self._waiting.clear()

    # -- calls

    def version(self, api_key: int) -> int:
        """Return a version that our client speaks: the newest, or now and then another one.

        A static leader that comes back with JoinGroup below 9 takes itself for a follower (ST-4): nobody
        leads then, and nobody sees that a topic has grown. That is Kafka's, and no fault to find here.
        """
        least, most = SPEAKS[api_key]
        if api_key == ApiKey.JOIN_GROUP and self.options.static_share:
            return most
        return self.world.between(least, most) if self.options.old_versions else most

    def call(
        self, broker: Broker, request: Any, *, timeout_ms: int, done: Done, purpose: str = "group"
    ) -> None:
        """Send a request; `done` gets the answer, or None when the connection broke or time ran out."""
        line = self._lines.get((broker.node_id, purpose))
        if line is None or not line.channel.open:
            line = Line(self, broker, purpose)
            self._lines[line.key] = line
        self._correlation_id = correlation_id = self._correlation_id + 1
        self._waiting[correlation_id] = Waiting(done, line)
        line.calls.add(correlation_id)
        sized = encode_request(correlation_id, self.name, request)
        line.channel.send(Frame(correlation_id, sized, request, self.name))
        self.later(timeout_ms, self._time_out, correlation_id)

    def received(self, correlation_id: int, answer: Any) -> None:
        """Hand an answer to who waits for it; nobody may, after a time-out."""
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is not None:
            waiting.line.calls.discard(correlation_id)
            waiting.done(answer)

    def _time_out(self, correlation_id: int) -> None:
        waiting = self._waiting.get(correlation_id)
        if waiting is not None:
            self.hang_up(waiting.line)

    def break_off(self, broker: Broker, purpose: str) -> None:
        """Close the connection to a broker that serves this purpose, if there is one."""
        line = self._lines.get((broker.node_id, purpose))
        if line is not None:
            self.hang_up(line)

    def hang_up(self, line: Line) -> None:
        """Close a connection, if the other end has not; who waits on it is told."""
        line.channel.close()
        if self._lines.get(line.key) is line:
            del self._lines[line.key]
        for correlation_id in sorted(line.calls):
            waiting = self._waiting.pop(correlation_id, None)
            if waiting is not None:
                waiting.done(None)
        line.calls.clear()
