"""Faults to plant in the code of a broker's life, each one small thing, as a slip of the hand would.

The lives have to find every one. Each is a context manager, and says in its docstring what has gone wrong.
`planted_seeds.json` remembers a life in which it is found; `python -m cluster.planted` writes it anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import getattr_static
from pathlib import Path
from typing import Any, NamedTuple

from cluster.life import Outcome, run
from coterie.broker.cluster import changes, giving_back, leaders, pretended, terms
from coterie.broker.cluster.changes import Changed, NotChanged, RegisterBroker, TakeOver
from coterie.broker.cluster.giving_back import GivingBack
from coterie.broker.cluster.judging import Judging
from coterie.broker.cluster.lifecycle import BrokerLifecycle, Phase
from coterie.broker.cluster.pretended import PretendedEngine
from coterie.broker.cluster.statements import Counted
from coterie.broker.cluster.terms import LifecycleTerms

SEEDS = 1_000
REMEMBERED = Path(__file__).with_name("planted_seeds.json")


class Fault(NamedTuple):
    """A fault, and in which kind of lives it shows."""

    plant: Callable[[], AbstractContextManager[None]]
    lives: dict[str, bool]


FAULTS: dict[str, Fault] = {}


def fault(**lives: bool) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Put a fault on the list, by its name."""

    def listed(plant: Callable[[], Iterator[None]]) -> None:
        FAULTS[plant.__name__] = Fault(contextmanager(plant), lives)

    return listed


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Put what `make` makes of an attribute in its place."""
    before = getattr_static(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


# -- judging


@fault()
def judges_at_once_after_connecting() -> Iterator[None]:
    """Whoever connects first after an outage finds the others without sessions, and dead."""

    def begin_anew(before: Any) -> Any:
        def begun(self: Judging, now_ms: int) -> None:
            before(self, now_ms)
            self._begun_ms = now_ms - self._terms.session_timeout_ms

        return begun

    with patched(Judging, "begin_anew", begin_anew):
        yield


@fault()
def polls_that_fail_count() -> Iterator[None]:
    """What was seen before an outage is remembered, and the time without an answer counts."""
    with (
        patched(Judging, "_was_broken_off", lambda _: lambda *_: False),
        patched(Judging, "begin_anew", lambda _: lambda *_: None),
    ):
        yield


@fault()
def a_late_answer_counts() -> Iterator[None]:
    """All stood still: who goes on first finds the others' counts as they were."""
    with patched(Judging, "_was_broken_off", lambda _: lambda *_: False):
        yield


@fault()
def one_poll_without_a_session_is_enough() -> Iterator[None]:
    """A broker whose session was cut is dead before it could connect again."""

    def is_dead(before: Any) -> Any:
        def dead(self: Judging, shown: Counted, sent_ms: int, now_ms: int) -> bool:
            long = sent_ms - self._begun_ms >= self._terms.session_timeout_ms
            absent = self._terms.presence and not shown.present
            return before(self, shown, sent_ms, now_ms) or (long and absent)

        return dead

    with patched(Judging, "_is_dead", is_dead):
        yield


@fault()
def polls_without_a_session_may_be_close() -> Iterator[None]:
    """Two polls within moments of each other are two."""
    with patched(LifecycleTerms, "polls_apart_ms", lambda _: -1_000):
        yield


@fault()
def sessions_are_trusted_where_nobody_knows_them() -> Iterator[None]:
    """Behind a pooler everybody is without one."""

    def is_dead(before: Any) -> Any:
        def dead(self: Judging, shown: Counted, sent_ms: int, now_ms: int) -> bool:
            terms, self._terms = self._terms, LifecycleTerms(presence=True)
            found = before(self, shown, sent_ms, now_ms)
            self._terms = terms
            return found

        return dead

    with patched(Judging, "_is_dead", is_dead):
        yield


@fault()
def dead_after_half_a_session() -> Iterator[None]:
    """A broker is taken over before it has suspended itself."""

    def is_dead(before: Any) -> Any:
        def dead(self: Judging, shown: Counted, sent_ms: int, now_ms: int) -> bool:
            if before(self, shown, sent_ms, now_ms):
                return True
            return sent_ms - self._observed[shown.broker_id].since_ms >= 750

        return dead

    with patched(Judging, "_is_dead", is_dead):
        yield


@fault()
def a_count_that_goes_on_is_not_noticed() -> Iterator[None]:
    """Since when a broker shows what it shows counts from the first time that it was seen."""

    def is_dead(before: Any) -> Any:
        def dead(self: Judging, shown: Counted, sent_ms: int, now_ms: int) -> bool:
            seen = self._observed.get(shown.broker_id)
            since = now_ms if seen is None else seen.since_ms
            found = before(self, shown, sent_ms, now_ms)
            self._observed[shown.broker_id].since_ms = since
            return found

        return dead

    with patched(Judging, "_is_dead", is_dead):
        yield


@fault()
def nobody_is_ever_dead() -> Iterator[None]:
    """What a dead broker led stays with it."""
    with patched(Judging, "dead", lambda _: lambda *_: []):
        yield


# -- taking over


@fault()
def a_takeover_does_not_compare() -> Iterator[None]:
    """A takeover that is late fences a broker that goes on."""
    with patched(PretendedEngine, "_beats_on", lambda _: lambda *_: False):
        yield


@fault(wild_clocks=True)
def a_takeover_leaves_the_gate_open() -> Iterator[None]:
    """Whoever was taken over by a clock that is wrong may append."""
    others = tuple(one for one in pretended.FENCES if one is not TakeOver)
    with patched(pretended, "FENCES", lambda _: others):
        yield


@fault()
def a_takeover_chooses_any_replica() -> Iterator[None]:
    """A partition goes to a replica that is dead itself."""
    with patched(leaders, "_ready", lambda _: lambda row, _: next(iter(row.replicas), None)):
        yield


@fault()
def a_takeover_chooses_only_replicas() -> Iterator[None]:
    """A partition without a live replica is led by nobody."""
    with patched(leaders, "_share_out", lambda _: lambda *_: None):
        yield


@fault()
def leader_epochs_stay() -> Iterator[None]:
    """A partition moves in its leader epoch."""

    def moved_to(before: Any) -> Any:
        def moved(row: Any, leader: int | None, *, version: int) -> Any:
            return before(row, leader, version=version)._replace(leader_epoch=row.leader_epoch)

        return moved

    with (
        patched(leaders, "moved_to", moved_to),
        patched(changes, "moved_to", moved_to),
    ):
        yield


# -- one's own clock


@fault()
def whoever_goes_on_serves_before_it_looks_at_the_clock() -> Iterator[None]:
    """What was true when the process was stopped is still believed."""

    def serves(_: Any) -> Any:
        return lambda self, now_ms: self.serves_until_ms > 0

    with patched(BrokerLifecycle, "serves", serves):
        yield


@fault()
def the_answer_counts_and_not_the_sending() -> Iterator[None]:
    """A heartbeat was counted long before its answer was read."""

    def counted(before: Any) -> Any:
        def noted(self: BrokerLifecycle, answer: Any, now_ms: int) -> None:
            self._sent_ms, sent_ms = now_ms, self._sent_ms
            before(self, answer, now_ms)
            self._sent_ms = sent_ms

        return noted

    with patched(BrokerLifecycle, "_counted", counted):
        yield


@fault()
def suspended_after_more_than_the_session() -> Iterator[None]:
    """The others are sooner."""
    with patched(LifecycleTerms, "suspend_after_ms", lambda _: 1_900):
        yield


@fault()
def a_broker_without_its_session_serves_on() -> Iterator[None]:
    """The others see that it has none, and do not wait for its clock."""
    with patched(LifecycleTerms, "disconnected_ms", lambda _: 1_200):
        yield


@fault()
def whoever_was_suspended_stays_so() -> Iterator[None]:
    """The heartbeat that ends it is not noticed."""

    def serve_if_possible(before: Any) -> Any:
        def noted(self: BrokerLifecycle, now_ms: int) -> None:
            if not self._suspended:
                before(self, now_ms)

        return noted

    with patched(BrokerLifecycle, "_serve_if_possible", serve_if_possible):
        yield


@fault()
def a_silent_connection_is_kept_for_long() -> Iterator[None]:
    """Whoever waits for an answer that does not come is dead for the others."""
    with patched(LifecycleTerms, "answer_late_ms", lambda _: 2_000):
        yield


@fault()
def connections_are_tried_again_late() -> Iterator[None]:
    """After an outage, whoever is back first takes the others over."""
    with patched(terms, "RETRY_MS", lambda _: (2_500,)):
        yield


# -- epochs and images


@fault()
def an_epoch_that_is_gone_is_not_noticed() -> Iterator[None]:
    """Heartbeats that are not counted are taken for such as are."""
    with patched(BrokerLifecycle, "_epoch_gone", lambda _: lambda *_: None):
        yield


@fault()
def whoever_registers_serves_by_the_image_it_has() -> Iterator[None]:
    """It leads what others lead since it was fenced."""

    def serve_if_possible(before: Any) -> Any:
        def noted(self: BrokerLifecycle, now_ms: int) -> None:
            image = self.image
            if self.broker_epoch and not self._whole:
                self.image = _Newer(image, self.broker_epoch)  # type: ignore[assignment]
            before(self, now_ms)
            self.image = image

        return noted

    with patched(BrokerLifecycle, "_serve_if_possible", serve_if_possible):
        yield


class _Newer:
    def __init__(self, image: Any, version: int) -> None:
        self.image, self.version = image, version

    def __getattr__(self, name: str) -> Any:
        return getattr(self.image, name)


@fault()
def a_registration_takes_any_place() -> Iterator[None]:
    """One that is late takes the place of the next of the same process, which then takes it for another's."""

    def rows(before: Any) -> Any:
        def made(self: RegisterBroker, image: Any, new_partition_id: int) -> Any:
            there = image.brokers.get(self.broker_id)
            replaces = 0 if there is None else there.broker_epoch
            return before(self._replace(replaces=replaces), image, new_partition_id)

        return made

    with patched(RegisterBroker, "rows", rows):
        yield


@fault()
def ones_own_registration_is_taken_for_anothers() -> Iterator[None]:
    """That it was not answered, and has happened, is not seen."""

    def is_anothers(_: Any) -> Any:
        return lambda change, refused: refused.broker_epoch > change.replaces

    with patched(RegisterBroker, "is_anothers", is_anothers):
        yield


@fault()
def two_processes_of_an_id_fence_each_other_for_ever() -> Iterator[None]:
    """Whoever finds a later registration of its id registers anew."""

    with patched(RegisterBroker, "is_anothers", lambda _: lambda *_: False):
        yield


@fault()
def whoever_registers_leaves_what_nobody_leads() -> Iterator[None]:
    """Only what it has led itself comes to it."""

    def after_registration(_: Any) -> Any:
        def rows(image: Any, broker_id: int, *, version: int) -> Any:
            mine = leaders.led_by(image, broker_id)
            return [leaders.moved_to(row, broker_id, version=version) for row in mine]

        return rows

    with patched(changes, "after_registration", after_registration):
        yield


@fault(falls_back=True)
def another_history_is_not_noticed() -> Iterator[None]:
    """The engine has gone back to an older state, and the image has not."""
    with patched(BrokerLifecycle, "_read_all_anew", lambda _: lambda _: None):
        yield


@fault(falls_back=True)
def whoever_reads_all_anew_serves_meanwhile() -> Iterator[None]:
    """By an image that is of no state of the engine any more."""

    def until(before: Any) -> Any:
        def serving(self: BrokerLifecycle) -> int:
            whole, suspended, self._whole, self._suspended = self._whole, self._suspended, False, False
            at_ms = before.fget(self)
            self._whole, self._suspended = whole, suspended
            return at_ms if self.broker_epoch and self.image.version else 0

        return property(serving)

    with patched(BrokerLifecycle, "serves_until_ms", until):
        yield


@fault()
def a_delta_lacks_the_first_version() -> Iterator[None]:
    """Whatever has changed right after the image stays as it was."""

    def lacking(self: PretendedEngine, above: int, before: Any) -> Any:
        whole = before(self, above)
        kept = {
            name: [row for row in getattr(whole, name) if not above or row.version > above + 1]
            for name in ("brokers", "topics", "partitions", "settings")
        }
        return type(whole)(above=whole.above, version=whole.version, level=whole.level, **kept)

    with patched(PretendedEngine, "_delta", lambda before: lambda self, above: lacking(self, above, before)):
        yield


@fault()
def nobody_reads_what_has_changed() -> Iterator[None]:
    """That there is a later version is heard and forgotten."""

    def look(before: Any) -> Any:
        def looked(self: BrokerLifecycle, now_ms: int) -> None:
            self._newest = max(self.image.version, self.broker_epoch)
            before(self, now_ms)

        return looked

    with patched(BrokerLifecycle, "_look_at_metadata", look):
        yield


# -- leaving, and giving back


@fault()
def whoever_leaves_serves_on() -> Iterator[None]:
    """It has given away what it leads, and answers as if it had not."""

    def until(before: Any) -> Any:
        def serving(self: BrokerLifecycle) -> int:
            drained, self._drained = self._drained, False
            at_ms = before.fget(self)
            self._drained = drained
            return at_ms

        return property(serving)

    with patched(BrokerLifecycle, "serves_until_ms", until):
        yield


@fault()
def whoever_leaves_gives_to_whoever_leaves() -> Iterator[None]:
    """A partition goes to a broker that is leaving, too, or was never there."""

    def after_departure(before: Any) -> Any:
        def rows(image: Any, gone: int, *, version: int) -> Any:
            found = before(image, gone, version=version)
            return [row._replace(leader=row.replicas[-1]) for row in found]

        return rows

    with patched(changes, "after_departure", after_departure):
        yield


@fault()
def whoever_leaves_does_not_ask_again() -> Iterator[None]:
    """A departure that was not answered is taken for one under way."""

    def unanswered(before: Any) -> Any:
        def noted(self: BrokerLifecycle, asked: Any, now_ms: int) -> Any:
            return [] if self._phase is Phase.LEAVING else before(self, asked, now_ms)

        return noted

    with patched(BrokerLifecycle, "unanswered", unanswered):
        yield


@fault()
def whoever_leaves_does_not_offer_again() -> Iterator[None]:
    """What was not taken of it nobody leads, and it goes on waiting."""
    with patched(GivingBack, "_offered_in_vain", lambda _: lambda *_: []):
        yield


@fault()
def whoever_hands_over_never_ends() -> Iterator[None]:
    """That all is handed over is not noticed."""
    with patched(BrokerLifecycle, "handed_over", lambda _: lambda *_: []):
        yield


@fault()
def whoever_hands_over_gives_to_whoever_leaves() -> Iterator[None]:
    """It offers to brokers that take nothing any more, or have gone."""

    def chosen(_: Any) -> Any:
        return lambda image, moving, gone: [max({*image.brokers} - {gone}, default=None) for _ in moving]

    with patched(giving_back, "next_leaders", chosen):
        yield


@fault()
def what_is_offered_is_led_on() -> Iterator[None]:
    """A leader decides where another leads by now."""
    with patched(GivingBack, "leads", lambda _: lambda self, row: row.leader == self._broker_id):
        yield


@fault()
def an_offer_without_an_answer_is_forgotten() -> Iterator[None]:
    """It happens later."""

    def answered(before: Any) -> Any:
        def noted(self: GivingBack, offer: Any, answer: Changed | NotChanged | None) -> None:
            before(self, offer, answer)
            if answer is None:
                for key in offer.partitions:
                    self._offered.pop(key, None)

        return noted

    with patched(GivingBack, "answered", answered):
        yield


@fault()
def an_offer_without_an_answer_waits_for_ever() -> Iterator[None]:
    """Nobody leads what was offered and not taken."""

    def answered(before: Any) -> Any:
        def noted(self: GivingBack, offer: Any, answer: Changed | NotChanged | None) -> None:
            if answer is not None:
                before(self, offer, answer)

        return noted

    with patched(GivingBack, "answered", answered):
        yield


@fault(falls_back=True)
def an_offer_that_the_engine_has_lost_waits_for_ever() -> Iterator[None]:
    """Nobody leads what was given away in a state of the engine that is no more."""

    with patched(GivingBack, "forget_answers", lambda _: lambda _: None):
        yield


@fault()
def nothing_is_given_back() -> Iterator[None]:
    """A broker that was away leads nothing."""
    with patched(GivingBack, "due", lambda _: lambda *_: []):
        yield


# -- hunting


def hunt(name: str) -> Outcome | None:
    """Return what came of a life that is not well with this fault: the remembered one, or the first."""
    seed = remembered().get(name)
    if seed is not None:
        with FAULTS[name].plant():
            outcome = run(seed, **FAULTS[name].lives)
        if outcome.violation:
            return outcome
    return first(name)


def first(name: str) -> Outcome | None:
    """Return what came of the first life that is not well with this fault."""
    with FAULTS[name].plant():
        outcomes = (run(seed, **FAULTS[name].lives) for seed in range(SEEDS))
        return next((outcome for outcome in outcomes if outcome.violation), None)


def remembered() -> dict[str, int]:
    """Return the seed of each fault that was found before."""
    if not REMEMBERED.is_file():
        return {}
    seeds: dict[str, int] = json.loads(REMEMBERED.read_text("utf-8"))
    return seeds


def main() -> int:
    """Hunt the faults that are named, or all, and remember where they were found."""
    seeds = remembered()
    for name in sys.argv[1:] or FAULTS:
        found = first(name)
        print(
            f"{name}: {'nothing' if found is None else f'{found.seed} {found.violation[:110]}'}", flush=True
        )
        seeds.pop(name, None)
        if found is not None:
            seeds[name] = found.seed
    REMEMBERED.write_text(json.dumps(dict(sorted(seeds.items())), indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
