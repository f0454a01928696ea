"""How far the images of brokers are: the others', as the engine shows them, and this one's, as it says of
itself; and the changes that a broker has had made on behalf of its clients, until its own image shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coterie.broker.cluster.changes import Change, Changed, CreateTopics, NotChanged, Proposed, Why
from coterie.broker.cluster.statements import Answer, Counted, ProducerIds, Refused

SEEN_WITHIN_MS = 500
"""How long the maker of a topic waits for the other brokers to know of it, once this one does."""
APPLIED_WITHIN_MS = 5_000
LOOK_MS = (5, 10, 20, 40, 80, 160)
"""Where somebody waits for the images of others, the pauses before the looks how far they are."""


class SeenByOthers:
    """The versions that the images of the other brokers have reached, and which somebody waits for."""

    def __init__(self) -> None:
        self.served: dict[int, int] = {}
        """Of each that is not fenced, the version by which it serves what it is to lead; 0 while it loads."""
        self.by_all = 0
        """The version that the images of all of them have reached."""
        self.awaited = 0
        """The highest version that somebody has waited for all to have reached."""
        self._looked = 0  # how often it was looked how far they are

    def take(self, brokers: Iterable[Counted], me: int, version: int) -> None:
        """Take note of what the engine shows, whose metadata are at a version."""
        others = [one for one in brokers if one.broker_id != me]
        self.served = {one.broker_id: max(one.seen, 0) for one in others}
        self.by_all = min([one.reached for one in others], default=version)

    def begin_anew(self) -> None:
        """Take note that the engine may have gone back: versions are numbered from there."""
        self.awaited = self._looked = 0

    def await_all(self, version: int) -> bool:
        """Wait for the images of all to reach a version; return False if that was waited for before."""
        if version <= self.awaited:
            return False
        self.awaited, self._looked = version, 0
        return True

    def look_within_ms(self) -> int | None:
        """Return the pause before the next look, None if there is no hurry: nobody waits, or has for long."""
        if self.by_all >= self.awaited or self._looked == len(LOOK_MS):
            return None
        self._looked += 1
        return LOOK_MS[self._looked - 1]


class SeenHere:
    """The version that this broker goes by, and whether it serves as the leader by it."""

    def __init__(self) -> None:
        self._loads = False  # whether not all is loaded that it is to lead of internal topics
        self._elected = False  # whether it was elected since all was

    def elected(self) -> None:
        """Take note that the image has this broker lead something that has changed."""
        self._elected = True

    def settle(self, *, all_: bool) -> bool:
        """Take note whether all is loaded by the image. Return whether something is that was not."""
        self._loads = not all_
        was_elected = self._elected
        self._elected = was_elected and self._loads
        return was_elected and all_

    def say(self, version: int) -> int:
        """Return the number that a heartbeat is to say, where the image is at a version. What this broker was
        elected to lead by that it does not serve before somebody has looked whether it is loaded.
        """
        return -version if self._loads or self._elected else version


@dataclass(slots=True, eq=False)
class MadeChange:
    """A change that was made, and waits for the own image, or for those of all, to show it."""

    answer: Changed
    answered: Proposed
    by_all: bool
    by_ms: int
    shown: bool = False
    """Whether the own image does."""


class MadeChanges:
    """Each is answered once the own image shows it, and what makes topics once those of all do, or some time
    later. `clock` is monotonic.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._waiting: list[MadeChange] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def waits_for_others(self) -> bool:
        """Whether it matters how far the other brokers' images are."""
        return any(made.shown for made in self._waiting)

    @property
    def awaited(self) -> int:
        """The version that the images of all are to reach, 0 if that is not waited for."""
        return max((made.answer.version for made in self._waiting if made.shown), default=0)

    @property
    def next_ms(self) -> int | None:
        """When one is answered at the latest."""
        return min((made.by_ms for made in self._waiting), default=None)

    def await_seen(self, version: int, done: Callable[[], None]) -> None:
        """Have `done` called once the images of all have reached a version, or some time later."""
        by_ms = self._clock() + APPLIED_WITHIN_MS
        self._waiting.append(MadeChange(Changed(version), lambda _: done(), by_all=True, by_ms=by_ms))

    def taking(
        self, change: Change, answered: Proposed, made: Callable[[int], None]
    ) -> Callable[[Answer | None], None]:
        """Return a function to take the engine's answer to a change. `made` is called with its version if it
        was made; if it was not, or that is not known, whoever has asked is answered at once.
        """

        def take(answer: Answer | None) -> None:
            if isinstance(answer, Refused):
                answered(NotChanged(Why.LOCKED if answer.locked else Why.REFUSED, reason=answer.reason))
                return
            if not isinstance(answer, Changed):
                answered(answer if isinstance(answer, NotChanged) else None)
                return
            by_ms = self._clock() + APPLIED_WITHIN_MS
            self._waiting.append(MadeChange(answer, answered, isinstance(change, CreateTopics), by_ms))
            made(answer.version)

        return take

    def answer(self, *, own: int, all_: int) -> None:
        """Answer for the changes that the own image shows, at its version, and those of all where that is
        waited for: the lowest version among them.
        """
        now_ms = self._clock()
        decided: list[MadeChange] = []
        undecided: list[MadeChange] = []
        for made in self._waiting:
            (decided if _is_decided(made, own, all_, now_ms) else undecided).append(made)
        self._waiting = undecided
        for made in decided:  # whoever is answered may lead to this again
            made.answered(made.answer if own >= made.answer.version else None)

    def give_up(self) -> None:
        """Answer that nothing is known of what was changed."""
        given_up, self._waiting = self._waiting, []
        for made in given_up:
            made.answered(None)


def _is_decided(made: MadeChange, own: int, all_: int, now_ms: int) -> bool:
    if own >= made.answer.version:
        if not made.by_all or all_ >= made.answer.version:
            return True
        if not made.shown:
            made.shown = True
            made.by_ms = now_ms + SEEN_WITHIN_MS
    return made.by_ms <= now_ms


def taking_ids(answered: Callable[[ProducerIds | None], None]) -> Callable[[Answer | None], None]:
    """Return a function to take the engine's answer to `ReserveProducerIds`: None if there are none."""
    return lambda answer: answered(answer if isinstance(answer, ProducerIds) else None)
