"""Virtual time: what is to happen in it, the one source of chance, and the trace of what did happen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Any

from coterie.simulate.agenda import START_MS

TOLD_LAST = 60
STEPS_MOST = 40_000
"""Several times what the busiest scenario takes: whoever asks again without a pause goes beyond."""


class Violation(BaseException):
    """Something happened that must not happen. `rule` names the promise that was broken.

    No `Exception`: production code that goes on after a mistake must not take it for one.
    """

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule, self.what = rule, what


class World:
    """The clock, the queue of events, and chance. Whatever differs between two runs comes from `random`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = START_MS
        self.steps = 0
        self.marks: set[str] = set()
        """What came about: whoever wants to know whether the seeds see enough asks here."""
        self.told: deque[str] = deque(maxlen=TOLD_LAST)
        self.listener: Callable[[str], None] | None = None
        self._queue: list[tuple[int, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._digest = blake2b(digest_size=8)

    # -- time

    def clock(self) -> int:
        """Return the time."""
        return self.now_ms

    def later(self, delay_ms: int, do: Callable[..., None], *arguments: Any) -> None:
        """Have something done after so long."""
        self.at(self.now_ms + delay_ms, do, *arguments)

    def at(self, at_ms: int, do: Callable[..., None], *arguments: Any) -> None:
        """Have something done at a time; what falls on one millisecond comes in any order."""
        self._sequence += 1
        if at_ms < self.now_ms:
            at_ms = self.now_ms
        heappush(self._queue, (at_ms, self.random.random(), self._sequence, do, arguments))

    def run(self, until_ms: int) -> None:
        """Let time pass, and do what is due by then."""
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            self.now_ms, _, _, do, arguments = heappop(queue)
            self.steps += 1
            if self.steps > STEPS_MOST:
                last = getattr(do, "__qualname__", do)
                raise Violation("nobody spins", f"{self.steps} steps, and no end; last {last}")
            do(*arguments)
        self.now_ms = max(self.now_ms, until_ms)

    # -- chance

    def chance(self, probability: float) -> bool:
        """Return True so often."""
        return probability > 0 and self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        """Return a whole number from low to high, both included."""
        return low if high <= low else low + int(self.random.random() * (high - low + 1))

    # -- the trace

    def tell(self, text: str) -> None:
        """Note what happened; the last of it is shown with a failure, all of it makes the trace's hash."""
        line = f"{self.now_ms - START_MS:>10} {text}"
        self.told.append(line)
        self._digest.update(line.encode())
        if self.listener is not None:
            self.listener(line)

    def trace_hash(self) -> str:
        """Return a hash of the trace so far: two runs of one seed have the same."""
        return self._digest.hexdigest()
