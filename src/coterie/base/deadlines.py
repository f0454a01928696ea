"""Deadlines by key, cheap to move: a heartbeat moves its member's and pushes nothing."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Armed(Generic[K]):
    """A key's deadline, and the earliest entry of the key in the heap; every other one there is stale.

    A class with slots, because a hundred thousand members have one each. It has the key, so that whoever
    arms it again with an equal one need not keep that.
    """

    __slots__ = ("at_ms", "key", "pushed_ms", "sequence")

    def __init__(self, key: K, at_ms: int, sequence: int) -> None:
        self.key = key
        self.at_ms = self.pushed_ms = at_ms
        self.sequence = sequence


class Deadlines(Generic[K]):
    """At most one deadline a key. The heap holds, for each key, a time not later than its deadline.

    Moving a deadline later only writes it down; the heap learns of it when the old time comes up. Moving it
    earlier, or clearing it, leaves a stale entry behind; the heap is rebuilt when stale entries outnumber
    live ones, so it never holds more than twice the keys (and a few).
    """

    __slots__ = ("_armed", "_heap", "_sequence")

    def __init__(self) -> None:
        self._armed: dict[K, Armed[K]] = {}
        # The sequence number breaks ties, so that keys are never compared and ties come in order. It also
        # tells an entry from the stale ones of its key.
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._armed)

    def __contains__(self, key: object) -> bool:
        return key in self._armed

    def at(self, key: K) -> int | None:
        """Return the deadline of a key in ms, None if it has none."""
        armed = self._armed.get(key)
        return None if armed is None else armed.at_ms

    def arm(self, key: K, at_ms: int) -> None:
        """Set the key's deadline, whatever it was before."""
        armed = self._armed.get(key)
        if armed is None:
            self._sequence += 1
            self._armed[key] = Armed(key, at_ms, self._sequence)
            self._push(key, at_ms)
            return
        armed.at_ms = at_ms
        if at_ms < armed.pushed_ms:
            self._sequence += 1
            armed.pushed_ms, armed.sequence = at_ms, self._sequence
            self._push(armed.key, at_ms)

    def clear(self, key: K) -> None:
        """Forget the key's deadline, if it has one."""
        if self._armed.pop(key, None) is not None:
            self._sweep()

    def next_ms(self) -> int | None:
        """Return the earliest deadline of all, or None if there is none."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int, at_most: int | None = None) -> list[K]:
        """Remove and return the keys whose deadline is `now_ms` or earlier, earliest first, so many if there
        are more.
        """
        due: list[K] = []
        self._settle()
        while self._heap and self._heap[0][0] <= now_ms and len(due) != at_most:
            key = heappop(self._heap)[2]
            del self._armed[key]
            due.append(key)
            self._settle()
        return due

    def _push(self, key: K, at_ms: int) -> None:
        heappush(self._heap, (at_ms, self._sequence, key))
        self._sweep()

    def _settle(self) -> None:
        """Make the top of the heap tell the truth: drop stale entries, push back those that moved later."""
        while self._heap:
            pushed_ms, sequence, key = self._heap[0]
            armed = self._armed.get(key)
            if armed is None or armed.sequence != sequence:
                heappop(self._heap)
            elif armed.at_ms > pushed_ms:
                armed.pushed_ms = armed.at_ms
                heapreplace(self._heap, (armed.at_ms, sequence, key))
            else:
                return

    def _sweep(self) -> None:
        """Rebuild the heap from the live deadlines once most of its entries are stale."""
        if len(self._heap) <= 2 * len(self._armed) + 64:
            return
        for armed in self._armed.values():
            armed.pushed_ms = armed.at_ms
        self._heap = [(armed.at_ms, armed.sequence, key) for key, armed in self._armed.items()]
        heapify(self._heap)
