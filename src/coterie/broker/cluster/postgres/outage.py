"""What is said of a database that is not reached, or lacks what a broker needs: why, for how long by now, and
when that is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from coterie.storage.postgres.advice import passing_reason, what_is_lacking, what_to_put_right
from coterie.storage.postgres.connecting import DatabaseAddress

log = logging.getLogger("coterie.broker")

AGAIN_AFTER_S, REST_S = 10.0, 600.0


class Outage:
    """Is told of each try to connect, and of what was found there. Says why one fails, each reason once, and
    then ever more seldom for how long they have: whoever looks at the log of a broker that stands still finds
    there what it waits for.
    """

    def __init__(self, address: DatabaseAddress, clock: Callable[[], float]) -> None:
        """`clock` counts seconds."""
        where = f"the database {address} "
        self._away = _Spell(where + "is not reached{now}: {reason}", where + "is reached again", clock)
        self._useless = _Spell(where + "is reached, but{now} {reason}", where + "can be used again", clock)

    @property
    def reason(self) -> str:
        """Why the last try failed, "" if it did not."""
        return self._away.reason

    @property
    def lacks(self) -> str:
        """What the database was found to lack, "" if nothing."""
        return self._useless.reason

    def tried(self, error: BaseException | None) -> None:
        """Note how a try has ended: with an error, or with a connection."""
        if error is None:
            self._away.end()
        else:
            self._away.go_on(what_to_put_right(error, was_there=True) or passing_reason(error))

    def looked(self, error: BaseException | None) -> None:
        """Note what came of the look that a membership begins with, over a connection that was there."""
        if error is None:
            self._useless.end()
        elif lacking := what_is_lacking(error):
            self._useless.go_on(lacking)


class _Spell:
    """A while in which something goes on that is told of."""

    def __init__(self, line: str, over: str, clock: Callable[[], float]) -> None:
        """`line` has places for for how long it is `{now}`, and for the `{reason}`."""
        self.reason = ""
        """That of the last time, "" where it is over."""
        self._line = line
        self._over = over
        self._clock = clock
        self._since_s: float | None = None
        self._said: set[str] = set()
        self._again_s = AGAIN_AFTER_S

    def go_on(self, reason: str) -> None:
        """Note that it begins, or goes on, for a reason."""
        if self._since_s is None:
            self._since_s = self._clock()
        so_far_s = self._clock() - self._since_s
        self.reason = reason
        if reason not in self._said:
            self._said.add(reason)
            log.warning("%s", self._line.format(now="", reason=reason))
        elif so_far_s >= self._again_s:
            log.warning("%s", self._line.format(now=f" for {so_far_s:.0f} s now", reason=reason))
            self._again_s = so_far_s + min(so_far_s, REST_S)

    def end(self) -> None:
        """Note that it is over, or has not begun."""
        if self._since_s is not None:
            log.info("%s, after %.0f s", self._over, self._clock() - self._since_s)
        self._since_s, self._again_s, self.reason = None, AGAIN_AFTER_S, ""
        self._said.clear()
