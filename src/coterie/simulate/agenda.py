"""Virtual time for scenarios that a user writes: what is to happen, in an order that only names make.

The swarm (`swarm/world.py`) lets chance order what falls on one millisecond. Here that order must not
depend on how many heartbeats were played before, or a folded run would tell another story: it goes by `rank`,
who does it, and then by what was planned first.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any

START_MS = 1_700_000_000_000
FOREVER = 1 << 62

WHAT = 3
Event = list[Any]
"""When, by whom, in which order; what, None if it was called off; and its arguments."""


class Queue(IntEnum):
    """What kind of event something is, for whoever looks for quiet stretches."""

    MOVING = 0
    """May move a group."""
    BROKER = 1
    """The broker's own timers; of these only deadlines of groups can move one."""
    CALM = 2
    """The heartbeats of members at work in a stable group."""


class Agenda:
    """The clock, and everything that is to happen."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.played = 0
        self.moving_count = 0
        """Goes up with every event that may move a group, planned or played."""
        self._queues: tuple[list[Event], ...] = tuple([] for _ in Queue)
        self._sequence = 0

    def clock(self) -> int:
        """Return the time."""
        return self.now_ms

    def at(
        self,
        at_ms: int,
        rank: int,
        do: Callable[..., None],
        *arguments: Any,
        queue: Queue = Queue.MOVING,
    ) -> Event:
        """Have something done at a time; of one millisecond, the lowest rank comes first."""
        self._sequence += 1
        if queue is Queue.MOVING:
            self.moving_count += 1
        event: Event = [max(at_ms, self.now_ms), rank, self._sequence, do, arguments]
        heappush(self._queues[queue], event)
        return event

    def call_off(self, event: Event) -> None:
        """Have something not done after all."""
        event[WHAT:] = None, ()

    def next_moving_ms(self) -> int:
        """Return the time of the next event that may move a group, the broker's own deadlines aside."""
        moving = self._queues[Queue.MOVING]
        while moving and moving[0][WHAT] is None:
            heappop(moving)
        return int(moving[0][0]) if moving else FOREVER

    def step(self, until_ms: int) -> Queue | None:
        """Do the next thing that is due before then; return its queue, None if there is nothing."""
        moving, broker, calm = self._queues
        events, queue = moving, Queue.MOVING
        if not events or (broker and broker[0] < events[0]):
            events, queue = broker, Queue.BROKER
        if not events or (calm and calm[0] < events[0]):
            events, queue = calm, Queue.CALM
        if not events or events[0][0] >= until_ms:
            self.now_ms = until_ms
            return None
        self.now_ms, _, _, do, arguments = heappop(events)
        if do is None:
            return Queue.CALM
        if queue is Queue.MOVING:
            self.moving_count += 1
        self.played += 1
        do(*arguments)
        return queue
