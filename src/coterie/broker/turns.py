"""Whose turn it is: long queues of work are answered in slices, between which the event loop hears everyone.

A heartbeat has a short way of its own and takes no turn. So it waits for a slice at most, however many joins
and commits came before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.broker.server import Connection

__all__ = ["Turns"]

SLICE_S, LONG_SLICE_S = 0.003, 0.02


class Turns:
    """The requests of all connections that are not answered at once, oldest first.

    A round of the event loop reads every socket that has something. Of what it reads, as much is answered
    at once as fits into a slice; the rest waits here for the slices of the following rounds. A slice is as
    long as the reading before it took, within bounds: a flood of heartbeats must not starve the rest.
    """

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = perf_counter
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._waiting: deque[tuple[Connection, bytes]] = deque()
        self._until: float | None = None  # when this round's slice is used up; None before its first request
        self._read_from = 0.0

    def mine(self) -> bool:
        """Return whether a request that has just been read may be answered at once."""
        if self._waiting:
            return False
        if self._until is None:
            self._read_from = self._clock()
            self._until = self._read_from + SLICE_S
            self._call_soon(self._round)
            return True
        return self._clock() < self._until

    def wait(self, connection: Connection, sized: bytes) -> None:
        """Have a request answered when its turn comes; `mine` has just said that it is not."""
        self._waiting.append((connection, sized))

    def _round(self) -> None:
        """Answer for a slice; runs once a round while something waits, and once after the last."""
        begun = self._clock()
        until = begun + min(max(SLICE_S, begun - self._read_from), LONG_SLICE_S)
        self._until = None
        while self._waiting:
            connection, sized = self._waiting.popleft()
            connection.answer_in_turn(sized)
            if self._clock() >= until:
                break
        self._read_from = self._clock()
        if self._waiting:
            self._until = self._read_from  # what is read meanwhile waits behind
            self._call_soon(self._round)
