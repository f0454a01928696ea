"""Deadlines by key, cheap to move: a heartbeat moves its member's and pushes nothing."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """At most one deadline a key. The heap holds, for each key, a time not later than its deadline.

    Moving a deadline later only writes the dict; the heap learns of it when the old time comes up.
    Moving it earlier, or clearing it, leaves a stale entry behind; the heap is rebuilt when stale
    entries outnumber live ones, so it never holds more than twice the keys (and a few).
    """

    __slots__ = ("_at", "_heap", "_pushed", "_sequence")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        # The earliest entry that the heap holds for a key; every other entry of that key is stale.
        self._pushed: dict[K, tuple[int, int]] = {}
        # The sequence number breaks ties, so that keys are never compared and ties come in order.
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: object) -> bool:
        return key in self._at

    def at(self, key: K) -> int | None:
        """Return when the key is due, or None if it has no deadline."""
        return self._at.get(key)

    def arm(self, key: K, at_ms: int) -> None:
        """Set the key's deadline, whatever it was before."""
        self._at[key] = at_ms
        pushed = self._pushed.get(key)
        if pushed is None or at_ms < pushed[0]:
            self._push(key, at_ms)

    def clear(self, key: K) -> None:
        """Forget the key's deadline, if it has one."""
        if self._at.pop(key, None) is not None:
            self._sweep()

    def next_ms(self) -> int | None:
        """Return the earliest deadline of all, or None if there is none."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> list[K]:
        """Remove and return the keys whose deadline is `now_ms` or earlier, earliest first."""
        due: list[K] = []
        self._settle()
        while self._heap and self._heap[0][0] <= now_ms:
            key = heappop(self._heap)[2]
            del self._at[key], self._pushed[key]
            due.append(key)
            self._settle()
        return due

    def _push(self, key: K, at_ms: int) -> None:
        self._sequence += 1
        self._pushed[key] = at_ms, self._sequence
        heappush(self._heap, (at_ms, self._sequence, key))
        self._sweep()

    def _settle(self) -> None:
        """Make the top of the heap tell the truth: drop stale entries, push back those that moved later."""
        while self._heap:
            pushed_ms, sequence, key = self._heap[0]
            if self._pushed.get(key) != (pushed_ms, sequence):
                heappop(self._heap)
            elif (at_ms := self._at.get(key)) is None:
                heappop(self._heap)
                del self._pushed[key]
            elif at_ms > pushed_ms:
                self._pushed[key] = at_ms, sequence
                heapreplace(self._heap, (at_ms, sequence, key))
            else:
                return

    def _sweep(self) -> None:
        """Rebuild the heap from the live deadlines once most of its entries are stale."""
        if len(self._heap) <= 2 * len(self._at) + 64:
            return
        self._pushed = {key: (at_ms, self._pushed[key][1]) for key, at_ms in self._at.items()}
        self._heap = [(at_ms, sequence, key) for key, (at_ms, sequence) in self._pushed.items()]
        heapify(self._heap)
