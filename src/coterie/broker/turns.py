"""Whose turn it is: long queues of work are answered in slices, between which everybody else is heard.

A heartbeat has a short way of its own and takes no turn. So it waits for a slice at most, however many joins
and commits came before it; and they wait for half of the time at most, however many heartbeats come.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.broker.server import Connection

__all__ = ["SLICE_S", "Turns"]

log = logging.getLogger("coterie.broker")

SLICE_S = 0.003


class Turns:
    """The requests of all connections that are not answered at once, oldest first.

    A round of the event loop reads every socket that has something. Of what it reads, as much is answered
    at once as fits into a slice; the rest waits here, for a slice after every round. But a round has no end
    while a thousand sockets always have something: libuv reads them 48 times over before it calls anybody.
    So whoever answers a heartbeat asks whether a slice is due (`share`), and what the node wants to have done
    soon is done before it.
    """

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = perf_counter
    ) -> None:
        """`call_soon` runs a function after the event loop's present round."""
        self.owed = False  # whether there is anything to share the time with
        self._call_soon = call_soon
        self._clock = clock
        self._waiting: deque[tuple[Connection, bytes]] = deque()
        self._soon: list[Callable[[], None]] = []
        self._at_once_until: float | None = None  # None before the round's first request
        self._due = 0.0  # when half of the time has gone to others
        self._scheduled = False
        self._working = False

    def soon(self, act: Callable[[], None]) -> None:
        """Have something done after the requests that are being answered now."""
        self._soon.append(act)
        self._owe()

    def mine(self) -> bool:
        """Return whether a request that has just been read may be answered at once."""
        if self._waiting:
            return False
        if self._at_once_until is None:
            self._at_once_until = self._clock() + SLICE_S
            self._owe()
            return True
        return self._clock() < self._at_once_until

    def wait(self, connection: Connection, sized: bytes) -> None:
        """Have a request answered when its turn comes; `mine` has just said that it is not."""
        self._waiting.append((connection, sized))
        self._owe()

    def share(self) -> None:
        """Answer for a slice if the last one was as long ago; asked while something is owed."""
        if self._clock() >= self._due and not self._working:
            self._work()

    def _owe(self) -> None:
        if not self.owed:
            self.owed = True
            self._due = self._clock() + SLICE_S
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._round)

    def _round(self) -> None:
        """Answer for a slice after a round of the event loop."""
        self._scheduled = False
        self._work()
        if self.owed:
            self._owe()

    def _work(self) -> None:
        self._working = True
        self._at_once_until = None
        todo, self._soon = self._soon, []
        for act in todo:
            do(act)
        until = self._clock() + SLICE_S
        while self._waiting:
            connection, sized = self._waiting.popleft()
            do(connection.answer_in_turn, sized)
            if self._clock() >= until:
                break
        self._working = False
        self._due = self._clock() + SLICE_S
        self.owed = bool(self._waiting or self._soon)


def do(act: Callable[..., None], *arguments: object) -> None:
    """Do what was put off. A mistake in it must not keep the others waiting."""
    try:
        act(*arguments)
    except Exception:  # the root of what was put off
        log.exception("%s failed", act)
