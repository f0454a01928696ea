"""One partition of an internal topic as a pure core: facts by one door, a journal of what they change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from coterie.base.journal import Journal

F = TypeVar("F")


class Core(ABC, Generic[F]):
    """State that facts of the type `F` move, and that can go back to any mark since it was last settled."""

    def __init__(self) -> None:
        self.journal = Journal()

    @abstractmethod
    def apply(self, fact: F) -> None:
        """Change the state as the fact says, through the journal: the one door."""

    def load_fact(self, fact: F) -> None:
        """Apply what the log says; it is never rolled back."""
        mark = self.journal.mark()
        self.apply(fact)
        self.journal.forget(mark)

    def mark(self) -> int:
        """Return the place in the journal up to which everything is applied now."""
        return self.journal.mark()

    def settle(self, mark: int) -> None:
        """Have what came before the mark last: it is appended, or there was nothing to append."""
        self.journal.settle(mark)

    def take_back(self, mark: int) -> None:
        """Roll back what was decided after the mark, and not carried out: it is no decision after all."""
        self.journal.roll_back(mark)

    def undo_to(self, mark: int) -> None:
        """Roll back what was decided and carried out after the mark, and could not be appended."""
        self.journal.roll_back(mark)
