"""The undo log behind a core's one door: what was applied and is not known to last, and the way back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

T = TypeVar("T")


class Undoable(ABC, Generic[T]):
    """State that can go back to any mark since it was last settled: a step of type `T` at a time."""

    def __init__(self) -> None:
        self._log: list[T] = []
        self._settled = 0

    def mark(self) -> int:
        """Return the place in the undo log up to which everything is applied now."""
        return self._settled + len(self._log)

    def settle(self, mark: int) -> None:
        """Forget how to undo what came before the mark: it lasts."""
        assert self._settled <= mark <= self._settled + len(self._log)
        del self._log[: mark - self._settled]
        self._settled = mark

    def undo_to(self, mark: int) -> None:
        """Take back, newest first, every fact applied after the mark."""
        assert self._settled <= mark <= self.mark()
        while self.mark() > mark:
            self._undo(self._log.pop())

    def take_back(self, mark: int) -> None:
        """Take back, newest first, every fact applied after the mark: their decision is none after all."""
        self.undo_to(mark)

    @abstractmethod
    def _undo(self, step: T) -> None:
        """Take back the newest step."""
