"""What the smallest shells of both cores have in common: they log, keep deadlines, note who was told what.

A log is a list, time is a number, and a log that refuses is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from coterie.base.deadlines import Deadlines

D = TypeVar("D")


class Asked(NamedTuple, Generic[D]):
    """One request: the number it waits under, and what was decided."""

    call: int
    decision: D

    @property
    def why(self) -> str:
        return str(self.decision.why)  # type: ignore[attr-defined]


@dataclass
class Pending:
    """What has been decided and not yet been appended."""

    commands: list[Any] = field(default_factory=list)
    replies: list[Any] = field(default_factory=list)
    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)


P = TypeVar("P", bound=Pending)


class ShardRig(ABC, Generic[D, P]):
    """Drives one shard. Each request is appended and answered at once, unless `hold` was called before."""

    shard: Any
    expire: ClassVar[type]  # the command of a deadline that has come
    pending: type[P]

    def __init__(self, *, now_ms: int) -> None:
        """The shard is there already."""
        self.now_ms = now_ms
        self.log: list[tuple[bytes, bytes | None]] = []
        self.deadlines: Deadlines[Any] = Deadlines()
        self.answers: dict[int, Any] = {}
        self.waiting: set[int] = set()
        self.whys: list[str] = []
        self._calls = count(1)
        self._held: P | None = None
        self._mark = self.shard.journal.mark()
        self._due: set[Any] = set()

    def call(self) -> int:
        return next(self._calls)

    def ask(self, command: Any) -> Asked[D]:
        call = getattr(command, "call", 0)
        if call:
            assert call not in self.waiting
            assert call not in self.answers
            self.waiting.add(call)
        decision = self.perform(command)
        held = self._held or self.pending()
        held.commands.append(command)
        self._carry_out(decision, held)
        if self._held is None:
            self._release(held)
        return Asked(call, decision)

    def perform(self, command: Any) -> D:
        """Return what the command led to, its facts applied."""
        with self._watched() as before:
            decision: D = self.shard.perform(command, self.now_ms, before)
        return decision

    @contextmanager
    def _watched(self) -> Iterator[Callable[[Any], None]]:
        """Have `carried` see the state right after each fact, by what is shown each before it is applied."""
        shown: list[Any] = []

        def before(fact: Any) -> None:
            if shown:
                self.carried(shown[-1])
            shown.append(fact)

        yield before
        if shown:
            self.carried(shown[-1])

    @abstractmethod
    def _carry_out(self, decision: D, pending: P) -> None:
        """Do what a decision asks for."""

    def carried(self, fact: Any) -> None:
        """A fact has been applied. Rigs that watch put something here."""

    def _set(self, timer: Any) -> None:
        self._due.discard(timer.key)
        if timer.at_ms is None:
            self.deadlines.clear(timer.key)
        else:
            self.deadlines.arm(timer.key, timer.at_ms)

    def _release(self, pending: P) -> None:
        self.log.extend(pending.records)
        for reply in pending.replies:
            assert reply.call in self.waiting, f"call {reply.call} is answered twice, or never asked"
            self.waiting.remove(reply.call)
            self.answers[reply.call] = reply.answer
        self._mark = self.shard.journal.mark()
        self.shard.journal.settle(self._mark)

    def hold(self) -> None:
        """Gather what follows into one batch, until `append` or `fail`."""
        assert self._held is None
        self._mark = self.shard.journal.mark()
        self._held = self.pending()

    def append(self) -> None:
        self._release(self._let_go())

    def _let_go(self) -> P:
        held, self._held = self._held, None
        assert held is not None
        return held

    def run_to(self, at_ms: int) -> None:
        """Let time pass, and everything that is due until then come due in its order."""
        for _ in range(100_000):
            next_ms = self.deadlines.next_ms()
            if next_ms is None or next_ms > at_ms:
                break
            self.now_ms = max(self.now_ms, next_ms)
            due = self.deadlines.pop_due(self.now_ms)
            self._due = set(due)
            for key in due:
                if key in self._due:
                    self.ask(self.expire(key=key))
        else:
            raise AssertionError("deadlines never end")
        self.now_ms = max(self.now_ms, at_ms)

    def run_ms(self, span_ms: int) -> None:
        self.run_to(self.now_ms + span_ms)
