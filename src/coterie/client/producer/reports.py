"""What the log says of a producer: of records that wait long to be acknowledged, and of those given up."""

import logging
from dataclasses import dataclass
from math import inf

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.base.plain import counted
from coterie.client.net.silence import FIRST_WORD_S, next_word_s

log = logging.getLogger("coterie.client")

# So long losses of one kind are counted before they are told of again.
QUIET_MS = 10_000


class WaitReport:
    """Tells of a partition where nothing is acknowledged, though something waits for it: after seconds, then
    ever more seldom, and when something is again. Of several that wait alike one stands for all.
    """

    def __init__(self, given_up_after_ms: int) -> None:
        self._given_up_after_s = given_up_after_ms / 1000
        self._next_ms = FIRST_WORD_S * 1000
        self._quiet_until_ms = -inf
        """Those that waited beside one that is written to again may be so in a moment, too."""
        self._said: dict[TopicPartition, float] = {}
        """The partitions that were told of, and since when they wait."""

    def due_ms(self, since_ms: float) -> float:
        """Return the time (ms) at which a partition is to be told of that waits since then."""
        return max(since_ms + self._next_ms, self._quiet_until_ms)

    def waits(self, place: TopicPartition, since_ms: float, now_ms: float, why: str) -> None:
        """Tell of a partition."""
        waited_s = (now_ms - since_ms) / 1000
        log.warning(
            "%s: nothing acknowledged for %.0f s (%s); a record is given up after %g s",
            place, waited_s, why, self._given_up_after_s,
        )  # fmt: skip
        self._next_ms = next_word_s(waited_s) * 1000
        self._said.setdefault(place, since_ms)

    def moved(self, place: TopicPartition, now_ms: float, *, written: bool) -> None:
        """Note that something was written to a partition, or that all that waited for it is given up."""
        since_ms = self._said.pop(place, None)
        if since_ms is None:
            return
        if written:
            log.warning("%s: acknowledged again after %.0f s", place, (now_ms - since_ms) / 1000)
        if not self._said:
            self._next_ms = FIRST_WORD_S * 1000
            self._quiet_until_ms = now_ms + self._next_ms


class LossReport:
    """Tells of records that were given up: of the first at once, of more of the kind together.

    What stops one batch stops those behind it, and a line for each would hide what it says.
    """

    def __init__(self) -> None:
        self._by_kind: dict[object, LossesOfKind] = {}
        """By the class of what stopped them and its code, if there is one: there are only so many."""

    def add(self, count: int, place: TopicPartition, error: CoterieError, now_ms: float) -> None:
        """Tell of so many records, or count them."""
        kind = type(error), getattr(error, "code", None)
        losses = self._by_kind.get(kind)
        if losses is not None and now_ms < losses.at_ms + QUIET_MS:
            losses.more, losses.last = losses.more + count, error
            return
        if losses is not None:
            losses.say_rest()
        log.warning("%s for %s not acknowledged: %s", counted(count, "record"), place, error)
        self._by_kind[kind] = LossesOfKind(now_ms, error)

    @property
    def due_ms(self) -> float:
        """When those that were counted are to be told of, infinity where there are none."""
        return min((losses.at_ms + QUIET_MS for losses in self._by_kind.values() if losses.more), default=inf)

    def say_due(self, now_ms: float) -> None:
        """Tell of those that were counted for long enough."""
        for losses in self._by_kind.values():
            if losses.more and now_ms >= losses.at_ms + QUIET_MS:
                losses.say_rest()
                losses.at_ms = now_ms

    def say_rest(self) -> None:
        """Tell of those that were counted."""
        for losses in self._by_kind.values():
            losses.say_rest()


@dataclass(slots=True)
class LossesOfKind:
    """When losses of one kind were told of, and how many there were since."""

    at_ms: float
    last: CoterieError
    more: int = 0

    def say_rest(self) -> None:
        """Tell of those that were counted."""
        if self.more:
            log.warning("%s not acknowledged, the last: %s", counted(self.more, "more record"), self.last)
        self.more = 0
