"""How long to wait before the next try. Pure: chance is an argument."""

from collections.abc import Callable

SOONEST_MS = 100
"""What a client asks by itself again and again, it asks no sooner, whatever is set."""


def steady() -> float:
    """Return 1: no chance in it."""
    return 1.0


def spaced(interval_ms: int) -> int:
    """Return the time between two requests of a kind, in milliseconds."""
    return max(interval_ms, SOONEST_MS)


class Backoff:
    """Pauses that double, up to a most, each a fifth longer or shorter by chance (behaviours 0.6)."""

    def __init__(self, first_ms: int, most_ms: int, *, jitter: Callable[[], float] = steady) -> None:
        self.first_ms, self.most_ms, self.jitter = first_ms, max(first_ms, most_ms) or SOONEST_MS, jitter
        self._next_ms = first_ms

    def next_ms(self) -> int:
        """Return the next pause."""
        pause_ms = self._next_ms
        self._next_ms = min(2 * self._next_ms or 1, self.most_ms)
        return min(round(pause_ms * self.jitter()), self.most_ms)

    def reset(self) -> None:
        """Begin anew: it went well."""
        self._next_ms = self.first_ms
