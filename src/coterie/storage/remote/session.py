"""The session: a lane's way to the database, and everything that a statement there may be answered with.

A session has one connection at a time, and one statement under way on it. What becomes of a statement is one
of the values here; what a lane does about an error is in one table, `SQLSTATES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from coterie.storage.remote.chunk import Chunk, RowIdentity


class Look(NamedTuple):
    """The rows that a lane looks for after a break, when nothing that was sent before can happen any more.

    `in_doubt` is the first of the round without an outcome, `acknowledged` the last that has landed, and must
    be there; None if there is no such row. Between the beginning of the life and the look another broker may
    take over and write in their places: its rows are of another leader epoch, and are not these.
    """

    in_doubt: RowIdentity | None
    acknowledged: RowIdentity | None


class Inserted(NamedTuple):
    """An append has ended: all its rows are there, or none, since the gate was shut."""

    rows: int


class Reopened(NamedTuple):
    """The lane's row is in the new life; whether the rows of a Look are there. None counts as one that is."""

    in_doubt_there: bool
    acknowledged_there: bool


class Fenced(NamedTuple):
    """The database has no such lane in the broker's epoch: another broker has taken over."""


class Failed(NamedTuple):
    """The database has answered with an error, or has warned that a wait for the synchronous replica was
    cancelled: then the rows are there, and may be lost again.

    An error that ends the connection (its severity is FATAL or PANIC) is Broken instead, whatever its
    SQLSTATE: what it interrupted may have been committed.
    """

    sqlstate: str
    message: str = ""


class Broken(NamedTuple):
    """The connection is gone, and no answer will come."""

    reason: str


LaneAnswer: TypeAlias = Inserted | Reopened | Fenced | Failed | Broken


class Session(Protocol):
    """What a lane asks for. Each answer goes to `Lane.answered` with the life that it was asked in, and never
    from within one of these calls.

    An append is answered with Inserted, Failed or Broken, once or not at all. A reopening is answered with
    Reopened, Fenced, Failed or Broken. A connection that breaks while nothing is under way is Broken, too.
    """

    def append(self, life: int, chunks: Sequence[Chunk]) -> None:
        """Insert all rows in one statement, if the lane's row is there in this life and broker epoch."""
        ...

    def reopen(self, life: int, look: Look) -> None:
        """Connect anew, have the lane's row be in this life unless it is in a later one, and then look.

        Broken where the engine is of another history than the broker's metadata: it has gone back to an older
        state, in which others may lead.
        """
        ...

    def abort(self) -> None:
        """Give up the connection, without waiting for anything."""
        ...


class NewSession(Protocol):
    """Makes the session of a lane, `lane` being its number."""

    def __call__(
        self,
        lane: int,
        broker_epoch: int,
        *,
        history: Callable[[], str],
        answered: Callable[[int, LaneAnswer], None],
    ) -> Session:
        """Return a session; `answered` takes the answers, each with its life."""
        ...


class Verdict(Enum):
    """What a lane does about an error that an append is answered with."""

    REOPEN = "the outcome is not known, or the connection of no use: reopen, and look"
    RESEND = "nothing has happened: send the same rows again"
    REFUSE = "nothing has happened: undo what is under way and gathered, newest first"
    CONFLICT = "cannot be: undo the same, and have the partitions loaded anew"


SQLSTATES: dict[str, tuple[Verdict, str]] = {
    "01000": (Verdict.REOPEN, "the wait for the synchronous replica was cancelled (a warning)"),
    "08": (Verdict.REOPEN, "connection exceptions"),
    "22": (Verdict.REFUSE, "data exceptions"),
    "23505": (Verdict.CONFLICT, "unique violation: another leader's row is in this place"),
    "25006": (Verdict.REOPEN, "read-only: this is no longer the primary"),
    "26000": (Verdict.REOPEN, "a prepared statement is not known: a pooler's other connection"),
    "40001": (Verdict.RESEND, "serialization failure"),
    "40003": (Verdict.REOPEN, "statement completion unknown"),
    "40P01": (Verdict.RESEND, "deadlock"),
    "42P05": (Verdict.REOPEN, "a prepared statement is there already: a pooler's other connection"),
    "53": (Verdict.REFUSE, "out of disk, memory or connections"),
    "54": (Verdict.REFUSE, "a limit of the database is exceeded"),
    "57014": (Verdict.REOPEN, "the statement was cancelled, perhaps after its commit"),
    "57P": (Verdict.REOPEN, "the database shuts down, has crashed or starts"),
    "": (Verdict.REFUSE, "every other error: a statement that fails has done nothing"),
}
"""By the longest of these that a SQLSTATE begins with. An error of a reopening leads to the next, whatever it
is.
"""


def verdict_of(sqlstate: str) -> Verdict:
    """Return the Verdict about a SQLSTATE."""
    beginnings = (sqlstate[:end] for end in range(len(sqlstate), -1, -1))
    return next(SQLSTATES[one][0] for one in beginnings if one in SQLSTATES)
