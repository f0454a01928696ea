"""What comes on a connection behind a request that is not answered yet.

A fetch that waits for more answers early when another kind of request is behind it. And produces overlap:
what is written to a database lasts a round trip later. A producer has five requests in flight; were each
looked at when the one before it is answered, as in Apache Kafka, it would wait for five round trips, and
each row would hold one request's batches (decision 34).
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.broker.net.context import Context

SIZE = Struct(">i")
UNREAD_BYTES_MAX = 1 << 20  # a busy connection stops reading when this much waits in its buffer
OVERLAPPING_MOST = 16
"""So many produces of a connection are begun at most. Clients have five in flight."""


def is_another_kind(buffer: bytearray, api_key: int) -> bool:
    """Return whether a request of another kind has come whole, or is longer than what is read."""
    if len(buffer) < SIZE.size or buffer[4:6] == api_key.to_bytes(2, "big"):
        return False
    size: int = SIZE.unpack_from(buffer)[0]
    return size >= 0 and len(buffer) >= min(SIZE.size + size, UNREAD_BYTES_MAX + 1)


class LateAnswers:
    """The answers that are expected, in the order in which they are sent."""

    __slots__ = ("_expected", "_taken", "closes")

    def __init__(self) -> None:
        self.closes = False
        """Whether the request behind them ends the connection: once they are sent, and not before."""
        self._expected: deque[Context] = deque()
        self._taken: dict[Context, list[bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._expected)

    @property
    def enough(self) -> bool:
        """Whether nothing more is to be begun before some have been sent."""
        return self.closes or len(self._expected) >= OVERLAPPING_MOST

    def expect(self, context: Context) -> None:
        """Expect the answer to one more request."""
        self._expected.append(context)

    def take(self, context: Context, parts: list[bytes]) -> list[bytes]:
        """Take an answer, and return what may be sent with it: nothing while one is missing before it."""
        assert context not in self._taken, f"answered twice: {context.api_key}"
        self._taken[context] = parts
        ready: list[bytes] = []
        while self._expected and self._expected[0] in self._taken:
            ready += self._taken.pop(self._expected.popleft())
        return ready
