"""What fails when: a seed's schedule, and nothing else of chance."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

__all__ = ["ALONE", "BROKERS", "Failure", "Kind", "schedule"]

BROKERS = (1, 2, 3)
ALL = 0
"""In place of a broker: every one."""
BEGINS_S, ENDS_S = 2.0, 4.0
"""So long nothing fails at the beginning, and at the end."""


class Kind(StrEnum):
    """What happens."""

    KILL = "kill"
    """A broker is killed, and started again after `seconds`."""
    STOP = "stop"
    """A broker is asked to stop, and started again after `seconds`."""
    PAUSE = "pause"
    """A broker's process stands still for `seconds` (SIGSTOP): up to three sessions."""
    CUT = "cut"
    """Connections to the database end."""
    LATE = "late"
    """Connections end, and what was sent on them reaches the database up to `seconds` later."""
    DEAF = "deaf"
    """Requests reach the database, and connections end before the answers."""
    HOLD = "hold"
    """Requests reach the database about `seconds` later, on connections that last, and no new ones are made
    before; others may lead then.
    """
    SLOW = "slow"
    """For `seconds` each request to the database takes some milliseconds more."""
    TERMINATE = "terminate"
    """The database ends all connections (pg_terminate_backend)."""
    RESTART = "restart"
    """The database ends at once and is started again after `seconds`."""
    PROMOTE = "promote"
    """The database's machine is lost, and the synchronous standby takes its place."""


WEIGHTS = {
    Kind.KILL: 5,
    Kind.STOP: 2,
    Kind.PAUSE: 5,
    Kind.CUT: 4,
    Kind.LATE: 5,
    Kind.DEAF: 4,
    Kind.HOLD: 6,
    Kind.SLOW: 2,
    Kind.TERMINATE: 1,
    Kind.RESTART: 1,
}
OF_A_BROKER = (Kind.KILL, Kind.STOP, Kind.PAUSE, Kind.HOLD)
SECONDS = {
    Kind.KILL: (0.0, 2.5),
    Kind.STOP: (0.0, 1.0),
    Kind.PAUSE: (0.8, 4.5),
    Kind.LATE: (0.05, 2.5),
    Kind.HOLD: (1.5, 4.5),
    Kind.SLOW: (1.0, 4.0),
    Kind.RESTART: (0.0, 2.5),
}
ALONE = {Kind.HOLD: 8.0, Kind.LATE: 2.5}
"""For how long a kind happens where nothing else does: others lead long before it is over."""


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    """What happens at a moment of a run."""

    at_s: float
    kind: Kind
    broker: int = ALL
    seconds: float = 0.0
    share: float = 1.0
    """So many of the connections are met."""
    reconnecting: bool = False
    """Whether what is late comes while whoever has sent it connects again, which is slow."""

    def __str__(self) -> str:
        where = f" broker {self.broker}" if self.broker != ALL else ""
        lasting = f" {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.at_s:.2f} {self.kind}{where}{lasting}"


def schedule(seed: int, seconds: float, only: Kind | None = None) -> list[Failure]:
    """Return what happens in a run of so many seconds, in order; the standby is promoted once a minute.

    With `only`, nothing else happens, and each time all is well again before.
    """
    random = Random(seed)
    if only is not None:
        longest = ALONE[only]
        times = [at * (longest + 2.0) + BEGINS_S for at in range(int((seconds - ENDS_S) / (longest + 2.0)))]
        return [Failure(at, only, random.choice(BROKERS), longest, reconnecting=True) for at in times]
    found = []
    at = BEGINS_S
    while (at := at + random.uniform(0.2, 3.0)) < seconds - ENDS_S:
        found.append(_failure(random, at))
    for minute in range(max(1, round(seconds / 60))):
        begins = BEGINS_S + 60 * minute
        ends = min(begins + 50, seconds - ENDS_S)
        if begins < ends:
            found.append(Failure(random.uniform(begins, ends), Kind.PROMOTE))
    return sorted(found)


def _failure(random: Random, at_s: float) -> Failure:
    kind = random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
    shortest, longest = SECONDS.get(kind, (0.0, 0.0))
    broker = random.choice(BROKERS if kind in OF_A_BROKER else (*BROKERS, ALL))
    return Failure(
        at_s,
        kind,
        ALL if kind in (Kind.TERMINATE, Kind.RESTART) else broker,
        random.uniform(shortest, longest),
        random.choice((0.4, 1.0)),
    )
