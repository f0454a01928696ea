"""Delayed operations as values: a fetch that waits for bytes, a join that waits for the others.

An operation is tried at once, tried again when something it watches changes, forced by its deadline, and
finished exactly once. Nothing here sleeps or knows a clock: the shell is told by `alarm` when to call
`expire`. Named after Kafka's own (behaviours TW-6, TW-7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Protocol, TypeAlias

from coterie.base.deadlines import Deadlines

FORCED_AT_ONCE = 50

# What a timer calls when it rings, with its key and the time in ms. It gets the key so that one function, or
# one method of an object, may do for many timers.
Ring: TypeAlias = Callable[[Any, int], None]


class Delayed(Protocol):
    """An operation that may have to wait. `finish` is called exactly once, by the purgatory alone."""

    def ready(self, changed: Any = None) -> bool:
        """Return whether the operation can finish now that what it watches by this key has changed."""

    def finish(self, *, forced: bool) -> None:
        """Finish: answer whoever waits. `forced` says that the deadline came first."""


class Parked:
    """One operation in the purgatory, with what it watches."""

    __slots__ = ("done", "keys", "operation")

    def __init__(self, operation: Delayed, keys: Collection[Hashable]) -> None:
        self.operation = operation
        self.keys = keys
        self.done = False


class Purgatory:
    """Every operation that waits in this node, and every timer that is armed."""

    def __init__(self, alarm: Callable[[int], None]) -> None:
        """`alarm(at_ms)` is called whenever the next deadline has become an earlier one."""
        self._alarm = alarm
        self._alarm_ms: int | None = None
        self._deadlines: Deadlines[Hashable] = Deadlines()
        self._watchers: dict[Hashable, dict[Parked, None]] = {}
        self._timers: dict[Hashable, Ring] = {}
        self._mistakes: list[Exception] = []
        self._changed: deque[Hashable] = deque()
        self._waking = False

    def __len__(self) -> int:
        """Return the number of operations and timers that wait."""
        return len(self._deadlines)

    # -- operations

    def park(self, operation: Delayed, *, keys: Iterable[Hashable], deadline_ms: int) -> Parked | None:
        """Try `operation`; when it is not ready, let it wait for `keys` to change. None: it has finished."""
        if operation.ready():
            operation.finish(forced=False)
            return None
        parked = Parked(operation, dict.fromkeys(keys))
        for key in parked.keys:
            self._watchers.setdefault(key, {})[parked] = None
        self._deadlines.arm(parked, deadline_ms)
        self._warn(deadline_ms)
        return parked

    def changed(self, key: Hashable) -> None:
        """Try again whoever watches `key`.

        Who is woken may have the next request answered at once, which may change more. Whoever watches that
        is tried when all who watch this have been: to do it within would take a deeper stack for each.
        """
        if self._waking:
            self._changed.append(key)
            return
        if key not in self._watchers:
            return
        self._waking = True
        self._changed.append(key)
        try:
            while self._changed:
                key = self._changed.popleft()
                for parked in tuple(self._watchers.get(key, ())):
                    self._apart(self.look_again, parked, key)
        finally:
            self._waking = False

    def look_again(self, parked: Parked, key: Hashable) -> None:
        """Try one operation again, for one of the keys that it watches."""
        if not parked.done and parked.operation.ready(key):
            self._finish(parked, forced=False)

    def go_on(self, parked: Parked, deadline_ms: int) -> None:
        """Try an operation again that has waited for something else than what it watches; unless it finishes
        it waits until another deadline.
        """
        self._apart(self.look_again, parked, None)
        if not parked.done:
            self._deadlines.arm(parked, deadline_ms)
            self._warn(deadline_ms)

    def press(self, parked: Parked) -> None:
        """Finish an operation now, as `force` does, among others who are not to hear of a mistake in it."""
        self._apart(self.force, parked)

    def force(self, parked: Parked) -> None:
        """Finish an operation now as at its deadline, unless it has finished."""
        if not parked.done:
            self._finish(parked, forced=True)

    def force_watching(self, key: Hashable) -> None:
        """Finish now, as at their deadlines, all operations that watch `key`."""
        for parked in tuple(self._watchers.get(key, ())):
            self._apart(self.force, parked)

    def withdraw(self, parked: Parked) -> None:
        """Forget an operation whose caller is gone; it is not finished."""
        if not parked.done:
            self._unwatch(parked)

    def _finish(self, parked: Parked, *, forced: bool) -> None:
        self._unwatch(parked)
        parked.operation.finish(forced=forced)

    def _unwatch(self, parked: Parked) -> None:
        parked.done = True
        self._deadlines.clear(parked)
        for key in parked.keys:
            watching = self._watchers[key]
            del watching[parked]
            if not watching:
                del self._watchers[key]

    # -- timers

    def arm(self, key: Hashable, at_ms: int, ring: Ring) -> None:
        """Have `ring(key, now_ms)` called at `at_ms`, unless the timer is armed anew or cleared before."""
        self._timers[key] = ring
        self._deadlines.arm(key, at_ms)
        self._warn(at_ms)

    def move(self, key: Hashable, at_ms: int) -> bool:
        """Move the deadline of a timer; return False if it is not armed. The heartbeat's whole cost."""
        if key not in self._timers:
            return False
        self._deadlines.arm(key, at_ms)
        if self._alarm_ms is None or at_ms < self._alarm_ms:
            self._warn(at_ms)
        return True

    def at(self, key: Hashable) -> int | None:
        """Return the time at which a timer rings, in ms; None when it is not armed."""
        return self._deadlines.at(key)

    def clear(self, key: Hashable) -> None:
        """Disarm a timer; one that is not armed is left alone."""
        if self._timers.pop(key, None) is not None:
            self._deadlines.clear(key)

    # -- time

    def next_ms(self) -> int | None:
        """Return the next deadline, None when nothing waits."""
        return self._deadlines.next_ms()

    def _warn(self, at_ms: int) -> None:
        if self._alarm_ms is None or at_ms < self._alarm_ms:
            self._alarm_ms = at_ms
            self._alarm(at_ms)

    def expire(self, now_ms: int) -> None:
        """Force what is due, then ask to be called again.

        What is set in motion now with a deadline of now waits for that next call (ID-8: a join with no delay
        completes at the next tick). So does what is too much for once: thousands of sessions may run out
        together, and others want to be answered meanwhile.
        """
        self._alarm_ms = None
        for key in self._deadlines.pop_due(now_ms, at_most=FORCED_AT_ONCE):
            self._apart(self._force, key, now_ms)
        following = 0 if len(self._mistakes) > 1 else self.next_ms()
        if following is not None:
            self._warn(following)
        if self._mistakes:
            raise self._mistakes.pop(0)

    def _apart(self, act: Callable[..., None], key: Hashable, *arguments: Any) -> None:
        """See to one of several. A mistake in it costs none of the others, nor whoever set them in motion.

        It is raised at the end of a round, where nobody else's request is being answered.
        """
        try:
            act(key, *arguments)
        except Exception as mistake:  # noqa: BLE001, the root of what waits
            self._mistakes.append(mistake)
            self._warn(0)

    def _force(self, key: Hashable, now_ms: int) -> None:
        if isinstance(key, Parked):
            self.force(key)
            return
        ring = self._timers.pop(key, None)
        if ring is not None and self._deadlines.at(key) is None:
            ring(key, now_ms)
        elif ring is not None:  # armed anew by an earlier one of this round
            self._timers[key] = ring
