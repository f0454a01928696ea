"""That each request is answered once and no more is acknowledged than lasts, whatever lands and is refused
meanwhile; and that the driver finds the faults that are planted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
from landing_driver import violation_of

from coterie.base.codes import Code
from coterie.broker.api.produce import Landings, WaitingProduce, _glance
from coterie.broker.runtime.groups import ShardHost
from coterie.broker.runtime.markers import MarkerWriter
from coterie.broker.runtime.pieces import paced
from coterie.broker.runtime.shards import HostedShard
from coterie.broker.runtime.topic_shards import ShardsOfTopic
from coterie.broker.runtime.transactions import Ending, TransactionHost
from coterie.coordinator.txn.settings import RETRY_MS

SEEDS = 50
Plant = Callable[[pytest.MonkeyPatch], None]


class Fault(NamedTuple):
    """A fault to plant, and the seed to try first."""

    plant: Plant
    seed: int


FAULTS: dict[str, Fault] = {}


def fault(seed: int) -> Callable[[Plant], Plant]:
    """Put a fault on the list, with a seed that finds it: the others are tried after it."""

    def listed(plant: Plant) -> Plant:
        FAULTS[plant.__name__.replace("_", "-")] = Fault(plant, seed)
        return plant

    return listed


def instead(patch: pytest.MonkeyPatch, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put in place of a function what `make` makes of it."""
    patch.setattr(owner, name, make(getattr(owner, name)))


# -- records


@fault(0)
def records_in_a_transaction_that_are_answered_with_no_answer(patch: pytest.MonkeyPatch) -> None:
    def append(self: WaitingProduce) -> None:
        self.ctx.reply(paced(self._append(), _glance(self.request)[0]))

    patch.setattr(WaitingProduce, "append", append)


@fault(0)
def records_that_are_acknowledged_before_they_land(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Landings, "answer", lambda self, response: response)


@fault(1)
def records_that_are_acknowledged_with_the_first_of_a_request(patch: pytest.MonkeyPatch) -> None:
    def landed(last: Any) -> Any:
        def first(self: Landings, topic: Any, data: Any, refused: Any) -> None:
            self._left = 1
            last(self, topic, data, refused)
            self._answer = None

        return first

    instead(patch, Landings, "_landed", landed)


@fault(0)
def records_that_are_refused_late_and_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Landings, "_corrected", lambda self, response: response)


# -- batches of coordinators


@fault(0)
def a_batch_that_lasts_when_it_is_appended(patch: pytest.MonkeyPatch) -> None:
    def appended(self: HostedShard[Any, Any], _: Any) -> None:
        batch = self._take_pending()
        batch.appended = True
        self._settle(batch)

    patch.setattr(HostedShard, "_appended", appended)


@fault(1)
def a_refusal_that_undoes_what_is_gathered_alone(patch: pytest.MonkeyPatch) -> None:
    def undo(self: HostedShard[Any, Any], code: Code) -> None:
        batches = [*self._in_flight, self.pending]
        self._in_flight.clear()
        self.shard.undo_to(self._mark)
        self._take_pending()
        self._answer_refused(batches, code)

    patch.setattr(HostedShard, "_undo_in_flight", undo)


@fault(2)
def a_refusal_that_answers_the_oldest_batch_alone(patch: pytest.MonkeyPatch) -> None:
    instead(
        patch,
        HostedShard,
        "_answer_refused",
        lambda answer: lambda self, batches, code: answer(self, batches[:1], code),
    )


@fault(0)
def a_refusal_after_which_the_core_is_not_asked_again(patch: pytest.MonkeyPatch) -> None:
    def answer(self: HostedShard[Any, Any], batches: Any, code: Code) -> None:
        for batch in batches:
            self.scheduler.call_soon(partial(self._give_up, batch, code))
            self.pending.held += batch.held
        self._settle_gathered()

    patch.setattr(HostedShard, "_answer_refused", answer)


@fault(9)
def a_refusal_after_which_nobody_who_was_put_off_is_asked_again(patch: pytest.MonkeyPatch) -> None:
    def answer(all_: Any) -> Any:
        def refused(self: HostedShard[Any, Any], batches: Any, code: Code) -> None:
            for batch in batches:
                batch.held.clear()
            all_(self, batches, code)

        return refused

    instead(patch, HostedShard, "_answer_refused", answer)


@fault(2)
def a_refusal_that_gives_up_no_commit_of_the_fast_path(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardHost, "_give_up", lambda *_: None)


@fault(25)
def what_stands_alone_and_sets_nothing_apart(patch: pytest.MonkeyPatch) -> None:
    def alone(self: ShardHost, act: Callable[[], None]) -> None:
        self._append_gathered()
        if self.records.count:
            self.scheduler.call_soon(lambda: self._alone(act))
        else:
            act()
        self._let_go()

    patch.setattr(ShardHost, "_alone", alone)


@fault(6)
def a_fence_that_forgets_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    def fence(whole: Any) -> Any:
        def fenced(self: HostedShard[Any, Any]) -> None:
            self._in_flight.clear()
            whole(self)

        return fenced

    instead(patch, HostedShard, "fence", fence)


@fault(6)
def a_fence_after_which_a_landing_still_counts(patch: pytest.MonkeyPatch) -> None:
    def fence(whole: Any) -> Any:
        def fenced(self: HostedShard[Any, Any]) -> None:
            in_flight = [*self._in_flight]
            whole(self)
            self._in_flight.extend(in_flight)

        return fenced

    instead(patch, HostedShard, "fence", fence)


# -- loading


@fault(9)
def a_loading_that_does_not_wait_for_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardsOfTopic, "_load", ShardsOfTopic._load_soon)


@fault(14)
def a_loading_that_a_refusal_prevents(patch: pytest.MonkeyPatch) -> None:
    """What it waits for never lasts, and it waits on."""

    def load(self: ShardsOfTopic[Any], host: HostedShard[Any, Any]) -> None:
        log = host.log
        if log.high_watermark == log.end_offset:
            self._load_soon(host)
        else:
            log.when_landed(log.end_offset - 1, lambda refused: refused or self._load_soon(host))

    patch.setattr(ShardsOfTopic, "_load", load)


# -- markers


@fault(1)
def a_marker_that_counts_before_it_lands(patch: pytest.MonkeyPatch) -> None:
    def write(whole: Any) -> Any:
        def written(self: MarkerWriter, watched: Any, end: Any, deliver: Any) -> None:
            left = [deliver]

            def once(code: Code) -> None:
                if left:
                    left.pop()(code)

            whole(self, watched, end, once)
            once(Code.NONE)

        return written

    instead(patch, MarkerWriter, "write", write)


@fault(1)
def a_marker_whose_late_refusal_nobody_hears_of(patch: pytest.MonkeyPatch) -> None:
    def write(whole: Any) -> Any:
        def written(self: MarkerWriter, watched: Any, end: Any, deliver: Any) -> None:
            at_once = True

            def unless_late(code: Code) -> None:
                if at_once or code == Code.NONE:
                    deliver(code)

            whole(self, watched, end, unless_late)
            at_once = False

        return written

    instead(patch, MarkerWriter, "write", write)


@fault(1)
def a_marker_that_is_refused_and_not_tried_again(patch: pytest.MonkeyPatch) -> None:
    def written(whole: Any) -> Any:
        def marked(self: Ending, watched: Any, code: Code) -> None:
            if code != Code.NOT_LEADER_OR_FOLLOWER:
                whole(self, watched, code)

        return marked

    instead(patch, Ending, "_written", written)


@fault(29)
def a_marker_of_a_coordinator_that_is_no_more_that_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    """Its timer is that by which the one after it tries."""

    def written(whole: Any) -> Any:
        def marked(self: Ending, watched: Any, code: Code) -> None:
            if code == Code.NOT_LEADER_OR_FOLLOWER and self.host.status != TransactionHost.ACTIVE:
                timer = self.host.timer(("marker", self.markers.transactional_id, watched))
                at_ms = self.host.clock.now_ms() + RETRY_MS
                self.host.purgatory.arm(timer, at_ms, lambda *_: self._write_one(watched))
            else:
                whole(self, watched, code)

        return marked

    instead(patch, Ending, "_written", written)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Show nothing of the refusals, which a broker logs; the driver looks for mistakes all the same."""
    logger = logging.getLogger("coterie")
    before, logger.propagate = logger.propagate, False
    yield
    logger.propagate = before


@pytest.mark.slow
def test_each_request_is_answered_once_and_what_is_answered_lasts():
    broken = [violation for seed in range(SEEDS) if (violation := violation_of(seed))]

    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    plant, seed = FAULTS[name]
    plant(monkeypatch)

    found = next(filter(None, map(violation_of, (seed, *range(SEEDS)))), None)

    assert found is not None, f"{name} went unnoticed in {SEEDS} seeds"
    assert "tests/property/landing_driver.py" in found
