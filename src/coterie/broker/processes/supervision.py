"""When a child is started, again, or no more: events and the time in, actions out. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTerms:
    """How a child that has ended is started again. The first time it is at once."""

    pause_ms: int = 500
    """The pause before the second start in a row; each further one is twice as long."""
    pause_max_ms: int = 30_000
    ends_max: int = 10
    """After so many ends in a row it is not started again, and all end."""
    steady_ms: int = 60_000
    """Whoever has answered for so long begins to count anew."""
    stop_within_ms: int = 60_000
    """Whoever does not end for so long after it was asked to is killed: more than a clean stop takes."""
    silent_max_ms: int = 30_000
    """Whoever was ready and shows no sign of life for so long is killed, and started again."""
    look_every_ms: int = 1_000
    """How often it is looked for who is silent. After a stretch without looks, as when the parent is stopped
    for a while, everybody's silence begins anew.
    """

    def pause_after(self, ends: int) -> int:
        """Return the ms to wait after so many ends in a row."""
        return 0 if ends <= 1 else min(self.pause_ms << min(ends - 2, 30), self.pause_max_ms)


class Start(NamedTuple):
    """Start the process of a broker."""

    broker_id: int


class Stop(NamedTuple):
    """Ask the process of a broker to stop."""

    broker_id: int


class Kill(NamedTuple):
    """End the process of a broker that does not stop."""

    broker_id: int


class KillSilent(NamedTuple):
    """End the process of a broker that has shown no sign of life for so long: it hangs."""

    broker_id: int
    silent_ms: int


class SayReady(NamedTuple):
    """Say that all brokers answer, each at its HOST:PORT."""

    addresses: tuple[str, ...]


class Gone(NamedTuple):
    """Take note that a broker's process has ended so: it answers nobody until it is ready again."""

    broker_id: int
    status: int
    again_in_ms: int | None
    """None if it is not started again."""


class Back(NamedTuple):
    """Take note that a broker whose process had ended answers again."""

    broker_id: int


class ParentExit(NamedTuple):
    """End the parent: no child runs any more. `sentence` says why, empty if it was asked to."""

    code: int
    sentence: str


Action: TypeAlias = Start | Stop | Kill | KillSilent | SayReady | Gone | Back | ParentExit


class Stage(Enum):
    """How far a broker's process is."""

    PAUSING = "not running; it is started when its pause is over"
    STARTING = "running, and not ready yet"
    READY = "running, and it answers"
    ENDED = "not running, and not started again"


@dataclass(slots=True)
class Child:
    """One broker, and the process that it has, if any."""

    stage: Stage = Stage.PAUSING
    due_ms: int = 0
    ends: int = 0  # in a row
    ready_since_ms: int = 0
    alive_ms: int = 0  # when it has shown last that it lives, or was killed for that it does not
    address: str | None = None  # since it was ready for the first time

    @property
    def runs(self) -> bool:
        """Whether it has a process."""
        return self.stage in (Stage.STARTING, Stage.READY)


class Supervisor:
    """Starts each broker's process, and again when it has ended, until it is told to stop."""

    def __init__(self, broker_ids: Sequence[int], terms: RestartTerms | None = None) -> None:
        self._terms = terms or RestartTerms()
        self._children = {broker_id: Child() for broker_id in broker_ids}
        self._said_ready = False
        self._leaving: ParentExit | None = None
        self._kill_at_ms: int | None = None
        self._looked_ms = 0
        self._exited = False

    @property
    def due_ms(self) -> int | None:
        """When `tick` is to be called next; None if nobody waits."""
        times = [child.due_ms for child in self._children.values() if child.stage is Stage.PAUSING]
        if self._watched():
            times.append(self._looked_ms + self._terms.look_every_ms)
        return min(times, default=self._kill_at_ms)

    def tick(self, now_ms: int) -> list[Action]:
        """Start whoever is due; at first all are. Kill whoever does not stop, or hangs."""
        actions = self._kill_silent(now_ms)
        if self._kill_at_ms is not None and self._kill_at_ms <= now_ms:
            actions += self._kill()
        for broker_id, child in self._children.items():
            if child.stage is Stage.PAUSING and child.due_ms <= now_ms:
                child.stage = Stage.STARTING
                actions.append(Start(broker_id))
        return actions

    def ready(self, broker_id: int, address: str, now_ms: int) -> list[Action]:
        """Take note that a broker answers."""
        child = self._children[broker_id]
        if child.stage is not Stage.STARTING:
            return []
        back: list[Action] = [Back(broker_id)] if child.ends else []
        child.stage, child.ready_since_ms, child.address = Stage.READY, now_ms, address
        child.alive_ms = now_ms
        addresses = [one.address for one in self._children.values() if one.address is not None]
        if self._said_ready or self._leaving or len(addresses) < len(self._children):
            return back
        self._said_ready = True
        return [*back, SayReady(tuple(addresses))]

    def alive(self, broker_id: int, now_ms: int) -> list[Action]:
        """Take note that a broker's process does its work."""
        self._children[broker_id].alive_ms = now_ms
        return []

    def ended(self, broker_id: int, status: int, now_ms: int) -> list[Action]:
        """Take note that a process has ended, with an exit code, or by a signal (its number below 0)."""
        child = self._children[broker_id]
        if not child.runs:
            return []
        if child.stage is Stage.READY and now_ms - child.ready_since_ms >= self._terms.steady_ms:
            child.ends = 0
        child.ends += 1
        sentence = self._why_not_again(broker_id, status)
        if self._leaving is not None or sentence:
            child.stage = Stage.ENDED
            gone = Gone(broker_id, status, None)
            return [gone, *(self._exit_if_none_runs() if self._leaving else self._leave(1, sentence, now_ms))]
        pause_ms = self._terms.pause_after(child.ends)
        child.stage, child.due_ms = Stage.PAUSING, now_ms + pause_ms
        return [Gone(broker_id, status, pause_ms), *self.tick(now_ms)]

    def stop(self, now_ms: int) -> list[Action]:
        """Stop all, and end when they have ended; once more it kills them."""
        return self._kill() if self._leaving is not None else self._leave(0, "", now_ms)

    def _watched(self) -> dict[int, Child]:
        """Return the children that are to show that they live: not those that start, which may take long."""
        if self._leaving is not None:
            return {}
        return {one: child for one, child in self._children.items() if child.stage is Stage.READY}

    def _kill_silent(self, now_ms: int) -> list[Action]:
        watched, terms = self._watched(), self._terms
        stood_still = now_ms - self._looked_ms > 2 * terms.look_every_ms
        self._looked_ms = now_ms
        actions: list[Action] = []
        for broker_id, child in watched.items():
            silent_ms = now_ms - child.alive_ms
            if silent_ms >= terms.silent_max_ms and not stood_still:
                actions.append(KillSilent(broker_id, silent_ms))
            elif not stood_still:
                continue
            child.alive_ms = now_ms
        return actions

    def _kill(self) -> list[Action]:
        self._kill_at_ms = None
        return [Kill(one) for one, child in self._children.items() if child.runs]

    def _why_not_again(self, broker_id: int, status: int) -> str:
        """Return why a broker that has ended is not started again, empty if it is."""
        child = self._children[broker_id]
        if child.address is None and status > 0:  # it has said why on standard error
            return f"broker {broker_id} could not be started ({said(status)})"
        if child.ends < self._terms.ends_max:
            return ""
        return f"broker {broker_id} has ended {child.ends} times in a row, the last time with {said(status)}"

    def _leave(self, code: int, sentence: str, now_ms: int) -> list[Action]:
        self._leaving = ParentExit(code, sentence)
        self._kill_at_ms = now_ms + self._terms.stop_within_ms
        for child in self._children.values():
            if not child.runs:
                child.stage = Stage.ENDED
        stopping: list[Action] = [Stop(one) for one, child in self._children.items() if child.runs]
        return [*stopping, *self._exit_if_none_runs()]

    def _exit_if_none_runs(self) -> list[Action]:
        if self._leaving is None or self._exited or any(one.runs for one in self._children.values()):
            return []
        self._exited = True
        return [self._leaving]


def said(status: int) -> str:
    """Return words for the status that a process has ended with."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
