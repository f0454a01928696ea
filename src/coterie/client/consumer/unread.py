"""What the log says of partitions that nothing can be read of: why, for how long, and when that is over."""

import logging
from collections.abc import Callable, Iterable, Mapping

from coterie.base.codes import ADVICE, Code
from coterie.base.ids import TopicPartition
from coterie.client.consumer.fetch_state import FetchState
from coterie.client.net.silence import FIRST_WORD_S, next_word_s

log = logging.getLogger("coterie.client")


class Unread:
    """Tells of all such partitions together: after seconds, since leaders may just be moving, then ever more
    seldom, and when all is read again. Where something is left to hand out, nobody misses it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` counts seconds."""
        self._clock = clock
        self._why: dict[TopicPartition, tuple[FetchState, str]] = {}
        """Why nothing can be read of each now."""
        self._since_s: dict[TopicPartition, float] = {}
        """Since when: also of those that were named and are another member's by now, until all is over."""
        self._named: set[TopicPartition] = set()
        self._next_s = FIRST_WORD_S

    def lacks(self, why: Mapping[FetchState, str], *, at_once: bool = False) -> None:
        """Note that nothing can be read of these; `at_once` says that no time will mend it."""
        if not why:
            return
        now_s = self._clock()
        self._why |= {state.at: (state, words) for state, words in why.items()}
        self.forget([at for at, (state, _) in self._why.items() if state.paused or state.waiting])
        for at in self._why:
            self._since_s.setdefault(at, now_s)
        waited_s = {at: now_s - self._since_s[at] for at in self._why}
        new_s = max((one_s for at, one_s in waited_s.items() if at not in self._named), default=-1.0)
        longest_s = max(waited_s.values(), default=0.0)
        if new_s >= (0 if at_once else FIRST_WORD_S) or (self._named and longest_s >= self._next_s):
            self._say(longest_s)

    def reads(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these can be read."""
        if not self._since_s:
            return
        for at in partitions:
            self._why.pop(at, None)
        if self._why:
            return
        if self._named:
            began_s = min(self._since_s[at] for at in self._named)
            log.warning("all is read again, after %.0f s", self._clock() - began_s)
        self._since_s.clear()
        self._named.clear()
        self._next_s = FIRST_WORD_S

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that nobody wants to read these now."""
        for at in partitions:
            self._why.pop(at, None)
            if at not in self._named:
                self._since_s.pop(at, None)

    def _say(self, longest_s: float) -> None:
        by_reason: dict[str, list[str]] = {}
        for at in sorted(self._why):
            by_reason.setdefault(self._why[at][1], []).append(str(at))
        which = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
        so_far = f" for {longest_s:.0f} s" if longest_s >= 1 else ""
        log.warning("nothing is read%s of %s; asked again and again", so_far, which)
        self._named.update(self._why)
        self._next_s = next_word_s(max(longest_s, FIRST_WORD_S))


def refusal(code: Code) -> str:
    """Return a refusal with what it means, but for what is done about it: it is told of with that."""
    advice = ADVICE.get(code, "").partition(";")[0]
    return f"{code.name}: {advice}" if advice else code.name
