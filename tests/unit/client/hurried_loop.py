"""Brokers and clients in one loop, over real sockets and in virtual time: a busy machine makes nothing late.

What one end sends on loopback lies ready for the other at once. So where no socket has anything, nothing is
to happen before the next timer, and time jumps to it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from no_task_left import watched

T = TypeVar("T")
LOOPBACK_S = 0.02
"""How long sockets are waited for, by the wall's clock, before time jumps: the kernel takes far less."""
LEAST_S = 1e-6
"""Each round of the loop takes some time, or whoever waits for the next instant waits for ever."""


class HurriedSelector(selectors.DefaultSelector):
    """Lets time pass instead of waiting for longer than loopback takes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what sockets have; without anything it is the time of the next timer."""
        if timeout is None or timeout <= 0:
            found = super().select(timeout)
            self.now_s += LEAST_S
            return found
        found = super().select(LOOPBACK_S)
        self.now_s += LEAST_S if found else timeout
        return found


class HurriedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes as soon as nothing is to be done."""

    def __init__(self) -> None:
        self._hurried = HurriedSelector()
        super().__init__(self._hurried)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._hurried.now_s


def run_hurried(work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns, in virtual time; it must leave no task behind."""
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        return runner.run(watched(work, within_s=3_600))
