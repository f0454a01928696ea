"""What the coordinators of groups and of transactions have in common: one machine, two tables.

A core is a partition of an internal topic: commands in, decisions out, facts the only way state moves, and a
journal of what they change. Answers, facts and commands are made once and never changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from coterie.base.codes import Code
from coterie.base.journal import Journal

C = TypeVar("C")
F = TypeVar("F")

TimerKey: TypeAlias = tuple[str, ...]
RawRecord: TypeAlias = tuple[bytes, bytes | None]

# What a client is answered for an error of the log, by either coordinator (P-10).
LOG_ERRORS: Mapping[Code, Code] = MappingProxyType(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_ENOUGH_REPLICAS: Code.COORDINATOR_NOT_AVAILABLE,
        Code.REQUEST_TIMED_OUT: Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER: Code.NOT_COORDINATOR,
        Code.KAFKA_STORAGE_ERROR: Code.NOT_COORDINATOR,
        Code.MESSAGE_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
        Code.RECORD_LIST_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    }
)


class Reply(NamedTuple):
    """Who is answered, and what; the shell makes a response of it, of the version that was asked."""

    call: int
    answer: Any


class Timer(NamedTuple):
    """A timer to set, or to clear with None. When it is due the shell asks `Expire(key)`."""

    key: TimerKey
    at_ms: int | None


class Markers(NamedTuple):
    """The control records that end a transaction: one into each partition, then `MarkersWritten`.

    From `client_version` 2 on their epoch is newer than the transaction's, and a log may insist on it.
    """

    transactional_id: str
    producer: Any
    commit: bool
    partitions: tuple[Any, ...]
    client_version: int


class Decision(NamedTuple):
    """What one command has led to: its facts are applied. The shell appends, sets timers and replies.

    `why` is the test's handle, the metric's label, the story's line; `steps` are what else happened on the
    way, in order. Both are names of the catalogue (`base/reasons.py`). `records` are those of the durable
    facts, each as the state was right after its fact; neither `replies` nor `markers` leave before they are
    appended.

    Of groups: `waits` says that the call which asked is parked. `dropped` are parked calls that nobody will
    ever answer: a newer request took their place (JG-21). `more` says that this is a part of what was asked
    for: the same command, asked again, decides the next.

    Of transactional ids: `markers` end their transactions. For each that `overdue` names, the shell asks
    `Expire((*key, id))` with the key of the command that has found it.
    """

    why: str
    facts: tuple[Any, ...] = ()
    replies: tuple[Reply, ...] = ()
    timers: tuple[Timer, ...] = ()
    waits: bool = False
    dropped: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()
    more: bool = False
    records: Sequence[RawRecord] = ()
    markers: tuple[Markers, ...] = ()
    overdue: tuple[str, ...] = ()


class Draft:
    """A decision in the making.

    What Kafka does it does step by step, each step reading what the one before changed. A draft does the
    same: a fact is applied as it is drafted. A draft that comes to nothing, and one whose records the log
    refuses, is rolled back by the journal.
    """

    __slots__ = (
        "_answered",
        "_before",
        "call",
        "dropped",
        "facts",
        "markers",
        "more",
        "now_ms",
        "overdue",
        "records",
        "replies",
        "shard",
        "steps",
        "timers",
        "wall_ms",
    )

    reasons: ClassVar[AbstractSet[str]]
    """The names of all that may be the why of a decision, or a step of one."""

    def __init__(
        self,
        shard: Any,
        command: Any,
        now_ms: int,
        before: Callable[[Any], None] | None = None,
        *,
        wall_ms: int | None = None,
    ) -> None:
        """`command` is None where nobody has asked; the other terms are those of `Core.perform`."""
        self.shard = shard
        self.now_ms = now_ms
        self.wall_ms = now_ms if wall_ms is None else wall_ms
        self.call: int | None = getattr(command, "call", None)
        self.facts: list[Any] = []
        self.records: list[RawRecord] = []
        self.replies: list[Reply] = []
        self.timers: list[Timer] = []
        self.dropped: list[int] = []
        self.steps: tuple[str, ...] = ()
        self.more = False
        self.markers: tuple[Markers, ...] = ()
        self.overdue: tuple[str, ...] = ()
        self._before = before
        self._answered = self.call is None

    def apply(self, fact: Any) -> None:
        """Apply a fact: the steps that follow read the state that it leaves."""
        if self._before is not None:
            self._before(fact)
        self.shard.apply(fact)
        self.facts.append(fact)
        if fact.durable:
            self.records += self.shard.records(fact)

    def then(self, step: str) -> None:
        """Name what else happens on the way to the decision."""
        assert step in self.reasons, step
        self.steps += (step,)

    def reply(self, call: int, answer: Any) -> None:
        """Answer a call, the asking one or a parked one."""
        self.replies.append(Reply(call, answer))
        if call == self.call:
            self._answered = True

    def arm(self, key: TimerKey, at_ms: int) -> None:
        """Set a timer, or move it."""
        self.timers.append(Timer(key, at_ms))

    def clear(self, key: TimerKey) -> None:
        """Take a timer off."""
        self.timers.append(Timer(key, None))

    def decision(self, why: str) -> Decision:
        """Return the Decision that has been drafted."""
        assert why in self.reasons, why
        return Decision(
            why,
            tuple(self.facts),
            tuple(self.replies),
            tuple(self.timers),
            not self._answered,
            tuple(self.dropped),
            self.steps,
            self.more,
            self.records,
            self.markers,
            self.overdue,
        )


# -- the core


class Core(ABC, Generic[C, F]):
    """State that facts of the type `F` move, as commands of the type `C` ask for.

    It can go back to any mark since it was last settled. It knows no clock, socket or thread.
    """

    drafts: ClassVar[type[Draft]]

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
            return self._answer(self.drafts(self, command, now_ms, before, wall_ms=wall_ms), command)
        except BaseException:
            self.take_back(mark)
            raise

    def append_failed(
        self,
        command: C,
        code: Code,
        now_ms: int,
        before: Callable[[F], None] | None = None,
        *,
        wall_ms: int | None = None,
    ) -> Decision:
        """Return the Decision that follows for one command of a batch that the log refused with `code`.

        The batch has been undone (`undo_to`) before the first of its commands comes here, in the batch's
        order; each decision is carried out before the next is asked for. What only reads is answered as if
        there had been no batch. The terms are those of `perform`.
        """
        draft = self.drafts(self, command, now_ms, before, wall_ms=wall_ms)
        self._rearm(draft)
        if self._only_reads(command):
            return self._answer(draft, command)
        self._after_failure(draft, command, code)
        return draft.decision("append-failed")

    def _rearm(self, draft: Any) -> None:
        """Set again the timers that what was undone had taken off, and the reverse."""

    @abstractmethod
    def _only_reads(self, command: C) -> bool:
        """Return whether a failed append is none of a command's business."""

    @abstractmethod
    def _after_failure(self, draft: Any, command: C, code: Code) -> None:
        """Answer the command's call, if it has one, and do what else its failure asks for."""

    @abstractmethod
    def _answer(self, draft: Any, command: C) -> Decision:
        """Return the Decision of the table for a command."""

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

    def take_back(self, mark: int) -> None:
        """Roll back what was decided after the mark, and not carried out: it is no decision after all."""
        self.journal.roll_back(mark)

    def undo_to(self, mark: int) -> None:
        """Roll back what was decided and carried out after the mark, and could not be appended."""
        self.journal.roll_back(mark)


# -- the table

Handler: TypeAlias = Callable[[Any, Any, Any], Decision]
"""Of a draft, of the group or the transactional id, None where there is none, and of a command."""
Row: TypeAlias = Mapping[type, Handler]


def check(absent: Row, answers: Mapping[Any, Row], states: type[Enum], *, asked: Iterable[type]) -> None:
    """Raise AssertionError unless every state answers whatever may be asked, and so does what is absent."""
    assert answers.keys() == set(states)
    assert set(absent) == set(asked)
    assert all(row.keys() == absent.keys() for row in answers.values())
