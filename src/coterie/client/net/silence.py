"""What is said while a cluster does not answer: after seconds, then ever more seldom, and when it does."""

import asyncio
import logging
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.client.errors import ClientTimeout
from coterie.client.net.addresses import Address

log = logging.getLogger("coterie.client")

FIRST_WORD_S, REST_S = 5.0, 600.0


def next_word_s(waited_s: float) -> float:
    """Return for how long somebody has waited when that is to be said again: twice as long, in the end."""
    return waited_s + min(waited_s, REST_S)


class Silence:
    """Knows which questions have no answer yet, and says so: of all of them together, where several wait.

    Who gives up, and asks again before long, goes on waiting.
    """

    def __init__(self, servers: Sequence[Address]) -> None:
        self._servers = ",".join(map(str, servers))
        self._since: dict[str, float] = {}
        """Since when each question that somebody asks, or gave up, has no answer."""
        self._asked: Counter[str] = Counter()
        self._given_up: dict[str, tuple[float, float]] = {}
        """When each of those that nobody asks now was given up, and when it would have been told of next."""
        self._next_s, self._said = FIRST_WORD_S, False
        self._trouble, self._refused = "", False
        """What the last try ended with, and whether that was a refusal."""
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def during(self, what: str, *, passing: Container[Code] = ()) -> Iterator[None]:
        """Take it that this is asked until the block ends: ClientTimeout gives up, and so does a refusal that
        is `passing`, with which whoever asks comes again; any other is an answer.
        """
        clock = asyncio.get_running_loop()
        self._forget_given_up(clock.time())
        _, next_s = self._given_up.pop(what, (0.0, FIRST_WORD_S))
        self._next_s = max(self._next_s, next_s)
        self._asked[what] += 1
        self._since.setdefault(what, clock.time())
        self._wait(clock, FIRST_WORD_S)  # who asks again has heard nothing yet
        try:
            yield
        except ClientTimeout:
            self._give_up(what, clock.time())
            raise
        except RefusedBy as error:
            if error.code in passing:
                self.failed(what, error, clock.time())
                self._give_up(what, clock.time())
            else:
                self._answered(what, clock.time())
            raise
        except BaseException:
            self._since.pop(what, None)
            raise
        else:
            self._answered(what, clock.time())
        finally:
            self._asked -= Counter([what])
            if not self._asked and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def failed(self, what: str, error: Exception, now_s: float) -> None:
        """Note why a try came to nothing."""
        self._since.setdefault(what, now_s)
        self._trouble, self._refused = str(error), isinstance(error, RefusedBy)

    def _give_up(self, what: str, now_s: float) -> None:
        self._log_waiting(now_s)
        self._given_up[what] = now_s, self._next_s

    def _answered(self, what: str, now_s: float) -> None:
        since = self._since.pop(what, now_s)
        if self._since:
            if not self._open():  # what was given up is told of when it would have been, others soon
                self._next_s = FIRST_WORD_S
            return
        if self._said:
            log.warning("%s: answers again after %.0f s", self._servers, now_s - since)
        self._over()

    def _forget_given_up(self, now_s: float) -> None:
        """Wait no more for what nobody has asked for long."""
        for what in [one for one, (at_s, _) in self._given_up.items() if now_s - at_s > REST_S]:
            del self._given_up[what]
            if not self._asked[what]:
                self._since.pop(what, None)
        if not self._since:
            self._over()

    def _over(self) -> None:
        self._given_up.clear()
        self._next_s, self._said = FIRST_WORD_S, False
        self._trouble, self._refused = "", False

    def _open(self) -> dict[str, float]:
        """Return since when each question has no answer that somebody asks now."""
        return {what: since for what, since in self._since.items() if self._asked[what]}

    def _wait(self, clock: asyncio.AbstractEventLoop, least_s: float) -> None:
        """Come back when something is to be said."""
        if self._timer is None and (waiting := self._open()):
            at = max(min(waiting.values()) + self._next_s, clock.time() + least_s)
            self._timer = clock.call_at(at, self._say, clock)

    def _say(self, clock: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._log_waiting(clock.time())
        self._wait(clock, 0)

    def _log_waiting(self, now_s: float) -> None:
        """Say who waits if it is time to."""
        waiting = self._open()
        waited_s = now_s - min(waiting.values(), default=now_s)
        if waited_s >= self._next_s:
            self._said, self._next_s = True, next_word_s(waited_s)
            log.warning(
                "%s: %s %s for %.0f s (%s); asked again and again",
                self._servers,
                "nothing comes of" if self._refused else "no answer to",
                ", ".join(sorted(waiting)),
                waited_s,
                self._trouble or "not a word from there",
            )
