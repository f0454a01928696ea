"""What a node is handed of an event loop: its alarm, and a thread for what takes long to think about."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.broker.net.request_queue import Done

# A deadline that is noticed so late was slept through; for so long at most it then waits for what has come.
LATE_MS, CATCH_UP_MS = 500, 1_000
PUT_BACK_S = 1e-4  # for each thing that work aside looks at, many times what that takes


class Alarm:
    """Rings at the next deadline of the purgatory.

    Where the process has not run for a while (it was stopped, its machine was), what clients have sent
    meanwhile lies in the sockets, heartbeats among it: that is read before anybody's time is up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._overdue = False  # when it was set: it follows others that have been put off
        self._not_before_ms = 0
        self.expire: Callable[[int], object]
        """Called with the time when the alarm rings; to be set before the loop runs."""

    def set(self, at_ms: int) -> None:
        """Ring at `at_ms` instead of whenever it was to ring."""
        if self._handle is not None:
            self._handle.cancel()
        now_ms = self._clock()
        self._overdue = at_ms <= now_ms
        self._due_ms = max(at_ms, self._not_before_ms, now_ms)
        self._handle = self._loop.call_later((self._due_ms - now_ms) / 1000, self._ring)

    def _ring(self) -> None:
        self._handle = None
        now_ms = self._clock()
        late_ms = now_ms - self._due_ms
        if late_ms > LATE_MS and not self._overdue:
            self._not_before_ms = now_ms + min(late_ms, CATCH_UP_MS)
            self.set(self._due_ms)
        else:
            self.expire(now_ms)


class Timer:
    """Has one thing done at a time of a clock, instead of at the time before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self.act: Callable[[], object]
        """What is done; to be set before the first time is."""

    def set(self, at_ms: int | None) -> None:
        """Act at that time, or never."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if at_ms is not None:
            self._handle = self._loop.call_later(max(at_ms - self._clock(), 0) / 1000, self.act)


def thinking_of(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Return a way to have requests thought about aside: in one thread, so the event loop has its half.

    The process does not wait for it at its end: a few hundred bytes can take seconds, and many may wait. Who
    wants little does not wait for all of them: work on a million things lets go first what comes within the
    next hundred seconds.
    """
    asked: PriorityQueue[tuple[float, int, Callable[..., Any], tuple[Any, ...], Callable[[Done], None]]]
    asked, numbers = PriorityQueue(), count()

    def think() -> None:
        while True:
            _, _, work, arguments, finish = asked.get()
            done: Future[Any] = Future()
            try:
                done.set_result(work(*arguments))
            except Exception as error:  # noqa: BLE001  the root of what is thought: who asked has it raised
                done.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(finish, done)

    threading.Thread(target=think, name="requests", daemon=True).start()

    def aside(
        work: Callable[..., Any], arguments: tuple[Any, ...], finish: Callable[[Done], None], items: int
    ) -> None:
        asked.put((time.monotonic() + items * PUT_BACK_S, next(numbers), work, arguments, finish))

    return aside
