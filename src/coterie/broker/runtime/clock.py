"""The two clocks of a broker: one that never jumps, by which it waits, and the wall's, by which it dates."""

from __future__ import annotations

from collections.abc import Callable

SLEWED_MS = 1_000  # by less than this the wall's clock is brought in step, and not set


class Clock:
    """The clocks of one broker."""

    __slots__ = ("_wall_ahead_ms", "now_ms", "wall_ms")

    def __init__(self, now_ms: Callable[[], int], wall_ms: Callable[[], int] | None = None) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms or now_ms
        self._wall_ahead_ms = 0

    def dated_ms(self, now_ms: int) -> int:
        """Return the time by which to date what is decided now.

        It is the wall's, but for what that is slewed by: a transaction that goes on keeps its start to the
        millisecond.
        """
        ahead_ms = self.wall_ms() - now_ms
        if abs(ahead_ms - self._wall_ahead_ms) >= SLEWED_MS:
            self._wall_ahead_ms = ahead_ms
        return now_ms + self._wall_ahead_ms
