"""The two clocks of a broker: one that never jumps, by which it waits, and the wall's, by which it dates."""

from __future__ import annotations

from collections.abc import Callable


class Clock:
    """The clocks of one broker, which may be one and the same."""

    __slots__ = ("now_ms", "wall_ms")

    def __init__(self, now_ms: Callable[[], int], wall_ms: Callable[[], int] | None = None) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms or now_ms
