"""One partition of an internal topic as a pure core: facts by one door, a journal of what they change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from coterie.base.journal import Journal

if TYPE_CHECKING:
    from coterie.base.codes import Code
    from coterie.coordinator.machine.decision import Decision, Draft, RawRecord

C = TypeVar("C")
F = TypeVar("F")


class Core(ABC, Generic[C, F]):
    """State that facts of the type `F` move, as commands of the type `C` ask for.

    It can go back to any mark since it was last settled. It knows no clock, socket or thread.
    """

    def __init__(self) -> None:
        self.journal = Journal()

    # -- deciding

    def perform(
        self,
        command: C,
        now_ms: int,
        before: Callable[[F], None] | None = None,
        *,
        wall_ms: int | None = None,
    ) -> Decision:
        """Return the Decision that the command led to, its facts applied.

        Timers go by `now_ms`, which never jumps; what is written is dated by `wall_ms`, if that is given.
        `before` is shown each fact before it is applied. A decision that raises leaves nothing behind.
        """
        mark = self.journal.mark()
        try:
            return self._answer(self.draft(command, now_ms, before, wall_ms=wall_ms), command)
        except BaseException:
            self.take_back(mark)
            raise

    @abstractmethod
    def append_failed(
        self,
        command: C,
        code: Code,
        now_ms: int,
        before: Callable[[F], None] | None = None,
        *,
        wall_ms: int | None = None,
    ) -> Decision:
        """Return what followed for one command of a batch that the log refused with `code`, facts applied.

        The batch has been undone (`undo_to`) before the first of its commands comes here, in the batch's
        order; each decision is carried out before the next is asked for. The terms are those of `perform`.
        """

    @abstractmethod
    def draft(
        self,
        command: C | None,
        now_ms: int,
        before: Callable[[F], None] | None = None,
        *,
        wall_ms: int | None = None,
    ) -> Draft:
        """Return an empty Draft; the terms are those of `perform`."""

    @abstractmethod
    def _answer(self, draft: Any, command: C) -> Decision:
        """Return what the table makes of a command."""

    # -- the one door

    @abstractmethod
    def apply(self, fact: F) -> None:
        """Change the state as the fact says, through the journal: the one door."""

    @abstractmethod
    def records(self, fact: F) -> tuple[RawRecord, ...]:
        """Return the records of a durable fact, asked for right after its `apply`; () for a volatile one."""

    def load_fact(self, fact: F) -> None:
        """Apply what the log says; it is never rolled back."""
        mark = self.journal.mark()
        self.apply(fact)
        self.journal.forget(mark)

    # -- the way back

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
