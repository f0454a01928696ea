"""Logs that take an append now and say later whether it lasts, as those of an engine elsewhere do.

What all logs of a process have to write goes in rounds: what is put while one is under way goes with the
next. Here a round ends up on the process's own disk, as late as the seed has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from coterie.base.ids import TopicPartition
from coterie.storage.log.contract import Appended, AppendRefused, Landed
from coterie.storage.log.partition import PartitionLog
from coterie.storage.log.placing import Placed, learn
from coterie.storage.log.producers import ProducerState
from coterie.storage.memory import MemoryStore

if TYPE_CHECKING:
    from uuid import UUID

    from coterie.storage.config import LogConfig
    from coterie.storage.log.recovery import Loaded
    from coterie.storage.log.state import LogState


class Flight(NamedTuple):
    """An append that has not landed, and when it was asked for."""

    place: Placed
    now_ms: int
    wall_ms: int


class LateLog(PartitionLog):
    """A log whose appends land when its lane says so. Readers see what has landed."""

    lane: Lane

    def __init__(self, state: LogState, loaded: Loaded) -> None:
        super().__init__(state, loaded)
        self.producers = ProducerState()
        self._flights: deque[Flight] = deque()
        self._waiting: list[tuple[int, Landed]] = []
        self.producers.take_over(state.producers)

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._flights[-1].place.next_offset if self._flights else self._state.end_offset

    def _put(self, place: Placed, now_ms: int, wall_ms: int) -> Appended:
        learn(self.producers, place)
        self._flights.append(Flight(place, now_ms, wall_ms))
        self.lane.put(self)
        start = self._state.start_offset
        return Appended(place.base_offset, place.next_offset - 1, place.append_time_ms, start, landed=False)

    def when_landed(self, last_offset: int, done: Landed) -> None:
        if last_offset < self._state.end_offset:
            done(None)
        else:
            self._waiting.append((last_offset, done))

    def land(self) -> None:
        """Write what was appended first of what has not landed. Raises `AppendRefused`."""
        super()._put(*self._flights[0])
        self._flights.popleft()

    def announce(self) -> None:
        """Tell who waits for what has landed."""
        end = self._state.end_offset
        landed = [done for offset, done in self._waiting if offset < end]
        self._waiting = [one for one in self._waiting if one[0] >= end]
        for done in landed:
            done(None)

    def undo(self, refused: AppendRefused) -> list[Landed]:
        """Forget what has not landed; return who waits for it, the last first."""
        self._flights.clear()
        self.producers.take_over(self._state.producers)
        waiting, self._waiting = self._waiting, []
        return [done for _, done in reversed(waiting)]

    def tick(self, now_ms: int, wall_ms: int | None = None) -> None:
        super().tick(now_ms, wall_ms)
        today_ms = now_ms if wall_ms is None else wall_ms
        self._state.producers.expire(before_ms=today_ms - self.config.producer_id_expiration_ms)


class Lane:
    """What the logs of one process have to write, a round at a time."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], later: Callable[[Callable[[], None]], object]
    ) -> None:
        """`call_soon` runs something after what is being done now, `later` when a round is to land."""
        self._call_soon, self._later = call_soon, later
        self._asked: dict[TopicPartition, Callable[[], None]] = {}
        self._gathered: list[LateLog] = []
        self._under_way: list[LateLog] = []
        self._armed = False

    def ask(self, watched: TopicPartition, append: Callable[[], None]) -> None:
        """Have `append` called when what it appends goes with the next round."""
        self._asked[watched] = append
        self._go()

    def put(self, log: LateLog) -> None:
        """Take note of one more append of a log."""
        self._gathered.append(log)
        self._go()

    def _go(self) -> None:
        if not self._armed and not self._under_way:
            self._armed = True
            self._call_soon(self._send)

    def _send(self) -> None:
        self._armed = False
        if self._under_way:
            return
        self._gather()
        if self._under_way:
            self._later(self._landed)

    def _gather(self) -> None:
        asked, self._asked = self._asked, {}
        for append in asked.values():
            append()
        self._under_way, self._gathered = self._gathered, []

    def _landed(self) -> None:
        if not self._under_way:  # it has been settled, or refused, meanwhile
            return
        refused = self._write()
        if refused is not None:
            self.refuse(refused)
        self._go()

    def _write(self) -> AppendRefused | None:
        """Write what is under way, in its order; return why the rest of it could not be."""
        under_way, self._under_way = self._under_way, []
        refused = None
        for place, log in enumerate(under_way):
            try:
                log.land()
            except AppendRefused as error:
                refused = error
                self._under_way = under_way[place:]
                break
        for log in dict.fromkeys(under_way):
            log.announce()
        return refused

    def refuse(self, refused: AppendRefused) -> None:
        """Undo all that has not landed, and tell whoever waits for it."""
        logs = dict.fromkeys((*self._under_way, *self._gathered))
        self._under_way, self._gathered = [], []
        for done in [done for log in logs for done in log.undo(refused)]:
            done(refused)
        if self._asked:
            self._go()

    def settle(self) -> None:
        """Have everything land that is asked for now, or be refused."""
        while self._asked or self._gathered or self._under_way:
            if not self._under_way:
                self._gather()
            refused = self._write()
            if refused is not None:
                self.refuse(refused)

    @property
    def is_busy(self) -> bool:
        """Whether a round is under way."""
        return bool(self._under_way)

    def die(self, *, written: bool) -> None:
        """End with the process: what is under way may be `written` all the same, and nobody hears of it."""
        for log in self._under_way if written else ():
            try:
                log.land()
            except AppendRefused:
                break
        self._under_way, self._gathered, self._asked = [], [], {}


class LateStore(MemoryStore):
    """A store of such logs."""

    log_type = LateLog
    lane: Lane

    def use(self, lane: Lane) -> None:
        """Have every log write by this lane."""
        self.lane = lane
        for log in self.logs.values():
            self.adopt(log)

    def adopt(self, log: PartitionLog) -> PartitionLog:
        """Have a log write by the lane, and return it."""
        assert isinstance(log, LateLog)
        log.lane = self.lane
        return log

    def create_log(self, topic: str, partition: int, topic_id: UUID, config: LogConfig) -> PartitionLog:
        return self.adopt(super().create_log(topic, partition, topic_id, config))

    def close(self) -> None:
        self.lane.settle()
        super().close()
