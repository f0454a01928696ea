"""When something may come due at the brokers, so that no request is sent at such a moment.

Two brokers' timers never fire in the same millisecond. A request sent just then would meet one broker
before and the other after, and their answers would rightly differ.
"""

from __future__ import annotations

__all__ = ["Moments"]

BEFORE_S, AFTER_S = 0.09, 0.14
ECHOES = 2  # a time-out starts other clocks, and those may start others again


class Moments:
    """The spans of time in which deadlines may lie, from all requests so far and all time-outs in use."""

    def __init__(self, spans_s: tuple[float, ...]) -> None:
        self._spans_s = spans_s
        self._windows: list[tuple[float, float]] = []

    def asked(self, begun: float, done: float) -> None:
        """Note that requests between these two times may have started any of the clocks."""
        windows = [(begun, done)]
        for _ in range(ECHOES):
            windows = [(low + span, high + span) for low, high in windows for span in self._spans_s]
            self._windows += windows

    def next_calm(self, now: float, needed_s: float) -> float:
        """Return the first time from `now` on after which nothing comes due for a while."""
        self._windows = sorted(window for window in self._windows if window[1] + AFTER_S > now)
        for low, high in self._windows:
            if low - BEFORE_S < now + needed_s and high + AFTER_S > now:
                now = high + AFTER_S
        return now
