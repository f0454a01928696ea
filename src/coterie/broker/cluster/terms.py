"""The times that a broker's life goes by. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.broker.config.settings import SettingError

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings

HEARTBEAT_INTERVAL, SESSION_TIMEOUT = "broker.heartbeat.interval.ms", "broker.session.timeout.ms"
HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS = 300, 1_500
RETRY_MS = (5, 20, 100, 300)
HAND_OVER_WITHIN_MS = 5_000
"""How long a broker that leaves hands over what groups and transactions are in, one partition after another;
the rest goes with all else.
"""
DRAIN_WITHIN_MS = 10_000
"""How long it waits after that until what was decided has landed, before it gives all away: a database that
is merely slow writes it meanwhile.
"""
LEAVE_WITHIN_MS = HAND_OVER_WITHIN_MS + DRAIN_WITHIN_MS + 5_000
"""How long it takes at most, the change by which others lead with it: that waits for a lock which somebody
may keep. Whoever asks a process to stop does not wait forever, and the others find it dead.
"""
AWAY_WITHIN_MS = 3_000
"""How long it waits at least for an engine that answers no heartbeat (`LifecycleTerms.away_within_ms`).
Nothing lands there meanwhile, and what it leads the others take over once they reach it.
"""
UNWRITTEN = (
    f"what was decided could not all be written within {DRAIN_WITHIN_MS // 1_000} s; what was not was"
    " acknowledged to nobody, and others lead now"
)
UNREACHED = (
    "the database answered no heartbeat for %d s: the others take over what this broker led once they reach"
    " it, if they do not lead it already; what was not written was acknowledged to nobody"
)
UNGIVEN = (
    "the database answered, and still what this broker led could not be given away within"
    f" {LEAVE_WITHIN_MS // 1_000} s: the others take it over, if they do not lead it already; what was not"
    " written was acknowledged to nobody"
)
SILENT = (
    "the database has answered no heartbeat that was sent in the last %.1f s: it is slow or away, or this"
    " broker's machine is busy"
)
UNCONNECTED = "the connection for heartbeats to the database is gone"
READS_ANEW = "what is known here of the metadata is not to be relied on, and is read anew"
ANNOUNCE_AFTER_MS = 100
"""How long a broker that hands nothing over drains before others are asked to give it nothing more: to ask
takes a change, and the one by which others lead would wait for it.
"""
SAY_SO_MS = 500
"""How long a broker that has left says so to those who come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleTerms:
    """`broker.heartbeat.interval.ms`, `broker.session.timeout.ms`, and what follows from them.

    A broker that is taken over has suspended itself before, if no clock runs faster than another by a
    quarter: it counts to four fifths of the session from the *sending* of a heartbeat, the others count to
    the whole from an *answer* that showed it.
    """

    heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    presence: bool = True
    """Whether the engine says who holds a session: behind a pooler it does not."""

    def __post_init__(self) -> None:
        assert 2 * self.heartbeat_interval_ms < self.session_timeout_ms, "or nobody is ever found dead"

    @property
    def suspend_after_ms(self) -> int:
        """How long a broker serves after the sending of its last heartbeat that was answered."""
        return self.session_timeout_ms * 4 // 5

    def why_suspended(self, silent_ms: int) -> str:
        """Return why a broker is suspended, so long after it sent the last heartbeat that was answered."""
        return SILENT % (silent_ms / 1_000) if silent_ms >= self.suspend_after_ms else UNCONNECTED

    @property
    def answer_late_ms(self) -> int:
        """How long a heartbeat is waited for before its connection is given up; and how far two polls may be
        apart that are of one stretch. It is half a session, so no stretch of a session has less than three.
        """
        return self.session_timeout_ms // 2

    @property
    def away_within_ms(self) -> int:
        """How long a broker that leaves waits for an engine that answers no heartbeat. In a session one that
        is slow has answered once, however far heartbeats are apart.
        """
        return max(AWAY_WITHIN_MS, self.session_timeout_ms)

    @property
    def polls_apart_ms(self) -> int:
        """How far two polls that show no session have to be apart, to count as two."""
        return self.heartbeat_interval_ms * 4 // 5

    @property
    def disconnected_ms(self) -> int:
        """How long a broker serves after its session has ended. It is less than two polls of the others are
        apart: they may take over after those.
        """
        return self.heartbeat_interval_ms // 2 if self.presence else self.suspend_after_ms


class Retries:
    """When something may be tried again: later each time, until it works."""

    def __init__(self) -> None:
        self.at_ms = 0
        self._failed = 0

    def failed(self, now_ms: int) -> None:
        self.at_ms = now_ms + RETRY_MS[min(self._failed, len(RETRY_MS) - 1)]
        self._failed += 1

    def worked(self) -> None:
        self._failed = 0


def terms_of(settings: BrokerSettings) -> LifecycleTerms:
    """Return the terms that were set, and those by default, which are shorter than Kafka's. Raises
    `SettingError` where nobody would ever be found dead.
    """
    interval_ms = int(settings.given.get(HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL_MS))
    session_ms = int(settings.given.get(SESSION_TIMEOUT, SESSION_TIMEOUT_MS))
    if interval_ms < 1 or 2 * interval_ms >= session_ms:
        raise SettingError(
            f"{SESSION_TIMEOUT} is {session_ms} and {HEARTBEAT_INTERVAL} {interval_ms};"
            " a session has to be longer than two intervals of at least 1 ms"
        )
    return LifecycleTerms(
        heartbeat_interval_ms=interval_ms,
        session_timeout_ms=session_ms,
        presence=settings.coterie_presence_enable,
    )
