"""`coterie simulate`: one variant of a scenario, lived through from its start to its end.

One seed, one outcome: what chance picks is drawn from sources that each belong to one part, and what falls on
one millisecond comes in an order that only names make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from coterie.base.ids import TopicPartition
from coterie.simulate.agenda import START_MS, Agenda, Queue
from coterie.simulate.broker import Station
from coterie.simulate.folding import Folding
from coterie.simulate.ownership import Ownership
from coterie.simulate.scenario import Kind, Variant
from coterie.simulate.timetable import Act, chance, timetable
from coterie.simulate.worker import Worker
from coterie.story.model import Move, Rebalance

GROUP = "simulated"
DIRECTOR = 0


@dataclass(slots=True)
class Slot:
    """A place in the group; processes come and go on it."""

    number: int
    name: str
    kind: Kind
    random: Random
    worker: Worker | None = None

    @property
    def running(self) -> bool:
        """Whether a process runs."""
        return self.worker is not None and self.worker.running


class Ended(NamedTuple):
    """A member that gave up, when, and why."""

    at_ms: int
    name: str
    why: str


class Outcome(NamedTuple):
    """What came of a variant. Times count from the start of the world (`START_MS`)."""

    variant: Variant
    names: tuple[str, ...]
    acts: tuple[Act, ...]
    story: tuple[Move | Rebalance, ...]
    ownership: Ownership
    ended: tuple[Ended, ...]
    played: int
    """How many events there were, and of how many heartbeats only the outcome counted."""
    folded: int


def simulate(variant: Variant, *, fold: bool = True) -> Outcome:
    """Live through a variant; unfolded, every single heartbeat is played, and the outcome is the same."""
    course = Course(variant, fold=fold)
    course.run()
    return Outcome(
        variant,
        tuple(slot.name for slot in course.slots),
        tuple(course.acts),
        tuple(course.station.story),
        course.ownership,
        tuple(course.ended),
        course.agenda.played,
        course.folding.folded,
    )


class Course:
    """The world of one variant: time, a broker, and the processes of one group."""

    def __init__(self, variant: Variant, *, fold: bool, acts: Sequence[Act] | None = None) -> None:
        self.variant = variant
        self.topics = variant.topics
        self.there: Mapping[str, int] = variant.topics
        """How many partitions each topic has now."""
        self.acts = timetable(variant) if acts is None else acts
        self.agenda = Agenda()
        self.station = Station(
            self.agenda, group_id=GROUP, settings=variant.broker, random=chance(variant, "ids")
        )
        self.ownership = Ownership(
            TopicPartition(topic, number)
            for topic, count in variant.topics.items()
            for number in range(count)
        )
        self.slots = self._slots()
        self.ends_ms = START_MS + variant.lasts_ms
        self.folding = Folding(self.agenda, self.station, self.slots, ends_ms=self.ends_ms, on=fold)
        self.ended: list[Ended] = []

    def _slots(self) -> list[Slot]:
        kinds = [kind for kind in self.variant.kinds for _ in range(kind.count)]
        count = max([len(kinds), *(one.to for one in self.variant.scales)])
        width = len(str(count))
        kinds += [self.variant.kinds[0]] * (count - len(kinds))
        return [
            Slot(number, f"m{number + 1:0{width}}", kind, chance(self.variant, "member", number))
            for number, kind in enumerate(kinds)
        ]

    def run(self) -> None:
        """Live through all of it."""
        self.station.start()
        for act in self.acts:
            self.agenda.at(START_MS + act.at_ms, DIRECTOR, self._perform, act)
        while (queue := self.agenda.step(self.ends_ms)) is not None:
            if queue is not Queue.CALM:
                self.folding.consider()
        self.ownership.close(self.ends_ms)

    # -- what is done

    def _perform(self, act: Act) -> None:
        if not act.member:
            self._switch_broker(on=act.what == "start")
            return
        slot = self.slots[act.member - 1]
        if act.kind is not None:
            slot.kind = act.kind
        if act.what == "start":
            self._start(slot)
        elif slot.running:
            assert slot.worker is not None
            DONE[act.what](slot.worker, act.takes_ms)

    def _switch_broker(self, *, on: bool) -> None:
        if on and self.station.node is None:
            self.station.start()
        elif not on and self.station.node is not None:
            self.station.stop()

    def _start(self, slot: Slot) -> None:
        if not slot.running:
            slot.worker = Worker(self, slot)
            slot.worker.start()

    # -- what the processes ask

    def topics_of(self, slot: Slot) -> Iterable[str]:
        """Return the topics that a process subscribes to."""
        return self.topics

    def delay_ms(self, slot: Slot) -> int:
        """Return the milliseconds that a message takes between a new process and the broker, each way."""
        return slot.random.randint(*self.variant.delay_ms)

    def gave_up(self, slot: Slot, why: str) -> None:
        """Note that a member has failed for good."""
        self.ended.append(Ended(self.agenda.now_ms, slot.name, why))


DONE = {
    "stop": lambda worker, takes_ms: worker.stop(),
    "kill": lambda worker, takes_ms: worker.kill(),
    "pause": lambda worker, takes_ms: worker.pause(takes_ms),
    "stall": lambda worker, takes_ms: worker.stall(takes_ms),
}
