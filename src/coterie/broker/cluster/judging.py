"""Which of the other brokers are dead, by counting: what the engine shows of them, and one's own clock. Pure.

A broker is dead that has shown the same (epoch, count of heartbeats) for the session timeout, which is in
three polls at least; or that holds no session and has shown the same in two polls. No clock is compared with
another, and the engine's has no say. Time counts only while one's own polls are answered soon: whatever kept
an answer from us may have kept the others' heartbeats from the engine. So nobody is dead within one session
timeout of connecting, of a poll that was late, or of a stretch without polls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.broker.cluster.statements import Counted, HeartbeatAnswer

if TYPE_CHECKING:
    from coterie.broker.cluster.terms import LifecycleTerms


@dataclass(slots=True)
class Observed:
    """One other broker: the pair that it shows, and since when."""

    broker_epoch: int
    beats: int
    since_ms: int
    absent_since_ms: int | None = None
    """When the first of the latest polls was answered that showed the pair and no session."""


class Judging:
    """The memory of one's own polls. Times are milliseconds of one monotonic clock."""

    def __init__(self, terms: LifecycleTerms) -> None:
        self._terms = terms
        self._observed: dict[int, Observed] = {}
        self._begun_ms = 0
        self._answered_ms: int | None = None

    def begin_anew(self, now_ms: int) -> None:
        """Forget what was seen: the polls begin now, or have not gone on as they should."""
        self._observed.clear()
        self._begun_ms = now_ms
        self._answered_ms = None

    def dead(self, answer: HeartbeatAnswer, me: int, sent_ms: int, now_ms: int) -> list[Counted]:
        """Return the brokers that are dead by this answer to a poll sent at `sent_ms`."""
        if self._was_broken_off(sent_ms, now_ms):
            self.begin_anew(now_ms)
        self._answered_ms = now_ms
        shown = {one.broker_id: one for one in answer.brokers if one.broker_id != me}
        for broker_id in [one for one in self._observed if one not in shown]:
            del self._observed[broker_id]
        return [one for one in shown.values() if self._is_dead(one, sent_ms, now_ms)]

    def next_ms(self, sent_ms: int) -> int | None:
        """When a poll may find somebody dead for which the one sent at `sent_ms` was too early; it may be due
        already. Who only holds no session is given until the next in its turn: it may be about to have one.
        """
        session_ms = self._terms.session_timeout_ms
        times = (max(one.since_ms, self._begun_ms) + session_ms for one in self._observed.values())
        return min((at_ms for at_ms in times if at_ms > sent_ms), default=None)

    def _was_broken_off(self, sent_ms: int, now_ms: int) -> bool:
        late = now_ms - sent_ms > self._terms.answer_late_ms
        before = self._answered_ms
        return late or (before is not None and sent_ms - before > self._terms.answer_late_ms)

    def _is_dead(self, shown: Counted, sent_ms: int, now_ms: int) -> bool:
        """Return whether a broker is, once the answer is noted. A span that ends with this poll is counted to
        its sending, and one begins when the first poll was answered: so each is at least as long in the
        engine.
        """
        seen = self._observed.get(shown.broker_id)
        if seen is None or (seen.broker_epoch, seen.beats) != (shown.broker_epoch, shown.beats):
            seen = Observed(shown.broker_epoch, shown.beats, now_ms)
            self._observed[shown.broker_id] = seen
            if not shown.present:
                seen.absent_since_ms = now_ms
            return False
        absent_since_ms = seen.absent_since_ms
        if shown.present:
            seen.absent_since_ms = None
        elif absent_since_ms is None:
            seen.absent_since_ms = now_ms
        terms = self._terms
        if sent_ms - self._begun_ms < terms.session_timeout_ms:
            return False
        if sent_ms - seen.since_ms >= terms.session_timeout_ms:
            return True
        apart = absent_since_ms is not None and sent_ms - absent_since_ms >= terms.polls_apart_ms
        return terms.presence and not shown.present and apart
