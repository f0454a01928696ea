"""The shape of a clock. The shells own one; the core is handed `now_ms` and never asks."""

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """Something that knows the wall-clock time in milliseconds since 1970."""

    def now_ms(self) -> int:
        """Return the milliseconds since 1970-01-01T00:00Z."""
        ...
