"""What is said of a database that is not reached: why, for how long by now, and when it is again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from coterie.storage.postgres.advice import passing_reason, what_to_put_right
from coterie.storage.postgres.connecting import DatabaseAddress

log = logging.getLogger("coterie.broker")

AGAIN_AFTER_S, REST_S = 10.0, 600.0


class Outage:
    """Is told of each try to connect. Says why one fails, each reason once, and then ever more seldom for how
    long they have: whoever looks at the log of a broker that stands still finds there what it waits for.
    """

    def __init__(self, address: DatabaseAddress, clock: Callable[[], float]) -> None:
        """`clock` counts seconds."""
        self.reason = ""
        """Why the last try failed, "" if it did not."""
        self._address = address
        self._clock = clock
        self._since_s: float | None = None
        self._said: set[str] = set()
        self._again_s = AGAIN_AFTER_S

    def tried(self, error: BaseException | None) -> None:
        """Note how a try has ended: with an error, or with a connection."""
        if error is None:
            self._over()
            return
        if self._since_s is None:
            self._since_s = self._clock()
        away_s = self._clock() - self._since_s
        reason = self.reason = what_to_put_right(error, was_there=True) or passing_reason(error)
        if reason not in self._said:
            self._said.add(reason)
            log.warning("the database %s is not reached: %s", self._address, reason)
        elif away_s >= self._again_s:
            log.warning("the database %s is not reached for %.0f s now: %s", self._address, away_s, reason)
            self._again_s = away_s + min(away_s, REST_S)

    def _over(self) -> None:
        if self._since_s is not None:
            away_s = self._clock() - self._since_s
            log.info("the database %s is reached again, after %.0f s", self._address, away_s)
        self._since_s, self._again_s, self.reason = None, AGAIN_AFTER_S, ""
        self._said.clear()
