"""Quiet stretches, folded: heartbeats that nothing could come between are not played one by one.

While a group is stable, nothing is done to it and nobody in it is silent, all that happens are heartbeats,
and each says what the one before said. A member that is about to wait for its next heartbeat is taken at once
over all of them that are answered before the quiet may end: its own clocks and its session's deadline at the
broker move, and everything else stays as it is. A property test holds folded runs against unfolded ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.client import member as m
from coterie.coordinator.group.apply import session_key
from coterie.coordinator.group.model import State
from coterie.simulate.agenda import FOREVER, Agenda

if TYPE_CHECKING:
    from coterie.simulate.broker import Station
    from coterie.simulate.variant import Slot
    from coterie.simulate.worker import Worker


class Folding:
    """Knows how long the quiet lasts, and takes members over it."""

    def __init__(
        self, agenda: Agenda, station: Station, slots: Sequence[Slot], *, ends_ms: int, on: bool
    ) -> None:
        self.folded = 0
        """How many heartbeats were not played."""
        self._agenda, self._station, self._slots = agenda, station, slots
        self._ends_ms = ends_ms
        self._on = on
        self._known: tuple[object, int] = (None, 0)
        self._considered: object = None
        self._least_ms = min(slot.kind.settings.heartbeat_interval_ms for slot in slots)

    def quiet_until(self) -> int:
        """Return the first moment at which something may move the group; now, if it moves."""
        agenda = self._agenda
        moving_ms = min(agenda.next_moving_ms(), self._ends_ms)
        if not self._on or moving_ms - agenda.now_ms < self._least_ms:
            return agenda.now_ms  # not worth a look
        version = agenda.moving_count, self._station.stance()
        if self._known[0] != version or self._known[1] <= agenda.now_ms:
            self._known = (version, min(moving_ms, self._first_silence()))
        return self._known[1]

    def _first_silence(self) -> int:
        """Return the time at which the group moves by itself: a session ends without a heartbeat, or it is at
        no rest.
        """
        group = self._station.group()
        if group is None or group.state is not State.STABLE or group.pending_sync:
            return self._agenda.now_ms
        node = self._station.node
        assert node is not None
        arriving: dict[str, int] = {}
        for slot in self._slots:
            worker = slot.worker
            if worker is None or worker.is_paused:
                continue
            if worker.is_calm():
                arriving[worker.member.generation.member_id] = worker.arrives_at
            elif worker.heartbeats_calmly:
                return self._agenda.now_ms  # it will hear that it is no member
        first_ms = FOREVER
        for member_id in (*group.members, *group.pending):
            expires_ms = node.purgatory.at(session_key(group.group_id, member_id))
            if expires_ms is not None and expires_ms <= arriving.get(member_id, FOREVER):
                first_ms = min(first_ms, expires_ms)
        return first_ms

    def consider(self) -> None:
        """Take everybody over the quiet that may just have begun."""
        until_ms = self.quiet_until()
        if until_ms <= self._agenda.now_ms or self._considered == self._known[0]:
            return
        self._considered = self._known[0]
        for slot in self._slots:
            worker = slot.worker
            if worker is not None and worker.heartbeat_at is not None and worker.is_calm():
                at_ms = self._taken_over(worker, worker.heartbeat_at, until_ms)
                if at_ms != worker.heartbeat_at:
                    worker.arm(at_ms, calm=True)

    def fold(self, worker: Worker, heartbeat_at: int) -> int:
        """Take a calm member over its heartbeats in the quiet; return when the next is due."""
        return self._taken_over(worker, heartbeat_at, self.quiet_until())

    def _taken_over(self, worker: Worker, heartbeat_at: int, until_ms: int) -> int:
        round_trip_ms = 2 * worker.delay_ms
        until_ms = min(until_ms, worker.silent_after_ms()) - round_trip_ms
        patience_ms = min(worker.settings.max_poll_interval_ms, worker.settings.session_timeout_ms)
        if heartbeat_at >= until_ms or patience_ms <= heartbeat_span_ms(worker):
            return heartbeat_at
        if heartbeat_at < worker.member.next_heartbeat_ms + worker.late_ms:
            return (
                heartbeat_at  # it wakes for something else: to hang up, where a record has its heartbeat late
            )
        following = play(worker, heartbeat_at)
        period_ms = following - heartbeat_at
        more = (until_ms - 1 - heartbeat_at) // period_ms
        last_ms = heartbeat_at + more * period_ms
        if more:
            if more > 1:  # one whose answer is late stands for all of them
                worker.member.heartbeat_answered(sent(worker, following), Code.NONE, last_ms - 1)
            following = play(worker, last_ms)
        self._move_deadline(worker, last_ms + worker.delay_ms)
        self.folded += 1 + more
        return following

    def _move_deadline(self, worker: Worker, arrived_ms: int) -> None:
        """Have the broker believe that it heard the member then."""
        node, member_id = self._station.node, worker.member.generation.member_id
        assert node is not None
        key = session_key(self._station.group_id, member_id)
        moved = node.purgatory.move(key, arrived_ms + worker.settings.session_timeout_ms)
        assert moved, f"{member_id} has no session"


def heartbeat_span_ms(worker: Worker) -> int:
    """Return a bound on the time between two looks at when the application polled last."""
    return worker.settings.heartbeat_interval_ms + worker.late_ms + 2 * worker.delay_ms + worker.batch_ms


def play(worker: Worker, at_ms: int) -> int:
    """Have the member send a heartbeat and hear that all is well; return when it sends the next."""
    answered_ms = at_ms + 2 * worker.delay_ms
    member = worker.member
    member.heartbeat_answered(sent(worker, at_ms), Code.NONE, answered_ms)
    member.called(worker.polled_ms(answered_ms))
    following = member.next(answered_ms)
    assert isinstance(following, m.Wait), following
    assert following.until_ms is not None
    return following.until_ms + worker.late_ms


def sent(worker: Worker, at_ms: int) -> m.Heartbeat:
    """Have the member send a heartbeat."""
    worker.member.called(worker.polled_ms(at_ms))
    request = worker.member.next(at_ms)
    assert isinstance(request, m.Heartbeat), request
    return request
