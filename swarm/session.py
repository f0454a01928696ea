"""A broker's end of a connection: the production one, over a channel of the simulated network."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.broker.net.connection import Connection
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    decode_response,
)
from coterie.wire.api.entities import (
    response_type,
)
from swarm.network import PORT, Channel
from swarm.world import Violation

if TYPE_CHECKING:
    from coterie.broker.runtime.groups import ShardHost
    from swarm.checks.calls import Call
    from swarm.cluster import Process


class Frame(NamedTuple):
    """A request on its way: its bytes, and for the checks what they say."""

    correlation_id: int
    data: bytes
    request: Any
    client: str


class Wire:
    """A broker's end of a channel, as a connection sees its transport: it takes whatever is written."""

    def __init__(self, session: Session, process: Process, channel: Channel) -> None:
        self._session, self._channel = session, channel
        self._info = {"peername": (channel.client, PORT), "sockname": (process.broker.host, PORT)}

    def get_extra_info(self, name: str) -> Any:
        """Return the address of this end or of the other."""
        return self._info[name]

    def write(self, data: bytes) -> None:
        """Send answers."""
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            self._channel.answer(self._session.answered(data[:end]))
            data = data[end:]

    def writelines(self, parts: list[bytes]) -> None:
        """Send a large answer, which comes in parts."""
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing waits to be sent."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: clients send one request at a time, or a few."""

    def resume_reading(self) -> None:
        """Do nothing, as nothing was paused."""

    def is_closing(self) -> bool:
        """Return False: it ends with the channel."""
        return False

    def close(self) -> None:
        """Do nothing: a mistake of ours closes connections, and the next look at the process finds it."""

    abort = close


class Session(Connection):
    """The production connection over a channel, each request and each answer shown to the checks."""

    def __init__(self, process: Process, channel: Channel) -> None:
        super().__init__(process.node)
        self.process = process
        self._channel = channel
        self._checks = process.cluster.checks
        self._frames: deque[Frame] = deque()
        self._call: Call | None = None
        """The request that is in flight."""
        self._overlapped: deque[Call] = deque()
        """Produces before it that are not answered either."""
        self._on_hold = False
        """Whether it waits until its shard has appended what it holds."""
        self.connection_made(Wire(self, process, channel))

    def receive(self, frame: Frame) -> None:
        """Take a request that has arrived."""
        if self._call is not None and self._call.api == ApiKey.FETCH != frame.request.__api_key__:
            self.process.world.marks.add("hurried")
        self._frames.append(frame)
        self.process.run(lambda: self.data_received(frame.data), only_asked=True)
        if self in self.process.sessions:
            self._check_hurried()

    def _check_hurried(self) -> None:
        """A fetch does not keep a request of another kind waiting behind it."""
        waits, behind = self._call, self._frames[0].request.__api_key__ if self._frames else ApiKey.FETCH
        if waits is not None and waits.api == ApiKey.FETCH and behind != ApiKey.FETCH:
            raise Violation("fetches are hurried", f"{waits} keeps a request of API {behind} waiting")

    def lost(self) -> None:
        """Take note that the connection is gone."""
        if self not in self.process.sessions:
            return
        del self.process.sessions[self]
        for call in (*self._overlapped, self._call):
            if call is not None:
                self._checks.gone(call)
        self.process.run(lambda: self.connection_lost(None))

    def end(self, *, answers_too: bool) -> None:
        """End with the process."""
        self.drop(None)
        self._channel.server_gone(answers_too=answers_too)

    def answered(self, data: bytes) -> tuple[int, Any]:
        """Return an answer that goes out, and its correlation id, once the checks have seen it."""
        call = self._overlapped.popleft() if self._overlapped else self._call
        if call is None:
            raise Violation("answered once", f"an answer that nobody waits for: {data!r}")
        if call is self._call:
            self._call = None
        request = call.request
        correlation_id, answer = decode_response(
            response_type(request.__api_key__, request.__version__), data[4:]
        )
        assert correlation_id == call.frame.correlation_id
        self._checks.answered(call, answer)
        return correlation_id, answer

    def _take(self, sized: bytes) -> None:
        if self._peer_closed:
            super()._take(sized)
            return
        if self._on_hold:
            assert self._call is not None
            self._checks.held(self._call)
        elif (
            self._call is not None and self._call.api == self._frames[0].request.__api_key__ == ApiKey.PRODUCE
        ):
            self.process.world.marks.add("overlapped")
            self._overlapped.append(self._call)
            self._call = self._checks.asked(self.process, self._frames.popleft())
        elif self._call is not None:
            raise Violation("answered once", f"{self._call} is not answered, and the next request is taken")
        else:
            self._call = self._checks.asked(self.process, self._frames.popleft())
        self._on_hold = False
        call = self._call
        assert call.frame.data == sized
        super()._take(sized)
        if not self._on_hold:
            self._checks.handled(call)

    def _await_append(self, host: ShardHost, sized: bytes) -> None:
        self._on_hold = True
        super()._await_append(host, sized)

    def _hang_up(self, reason: str) -> None:
        raise Violation("served", f"{self._call} was hung up on: {reason}")
