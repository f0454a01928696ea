"""What a command leads to in either coordinator: facts, answers, timers, records and why; and the draft.

Answers, like facts and commands, are made once and never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from coterie.base.marks import Why

TimerKey: TypeAlias = tuple[str, ...]
RawRecord: TypeAlias = tuple[bytes, bytes | None]


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
    way, in order. Both are slugs of `reasons.py`. `records` are those of the durable facts, each as the state
    was right after its fact; neither `replies` nor `markers` leave before they are appended.

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

    reasons: ClassVar[Mapping[str, Why]]
    """Every slug that may be the why of a decision, or a step of one."""

    def __init__(
        self,
        shard: Any,
        now_ms: int,
        call: int | None,
        before: Callable[[Any], None] | None = None,
        *,
        wall_ms: int | None = None,
    ) -> None:
        """Timers go by `now_ms`, and what is written is dated by `wall_ms`, without it by `now_ms` too.

        `before` is shown each fact before it is applied.
        """
        self.shard = shard
        self.now_ms = now_ms
        self.wall_ms = now_ms if wall_ms is None else wall_ms
        self.call = call
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
        self._answered = call is None

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
