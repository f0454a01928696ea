"""That a broker which stands still answers for nothing, loses nothing and goes on; and that the driver finds
the faults that are planted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from landing_driver import violation_of
from standing_driver import StandingDriver

from coterie.base.codes import Code
from coterie.broker.runtime.groups import ShardHost
from coterie.broker.runtime.leadership import ElectedLeaders
from coterie.broker.runtime.shards import HostedShard
from coterie.broker.runtime.topic_shards import ShardsOfTopic
from coterie.broker.runtime.transactions import Ending, TransactionHost
from planting import instead

SEEDS = 60
Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, tuple[Plant, int]] = {}
broken_by = partial(violation_of, drives=StandingDriver)


def fault(seed: int) -> Callable[[Plant], Plant]:
    """Put a fault on the list, with a seed that finds it: the others are tried after it."""

    def listed(plant: Plant) -> Plant:
        FAULTS[plant.__name__.replace("_", "-")] = plant, seed
        return plant

    return listed


# -- who is answered


@fault(0)
def a_shard_that_answers_while_it_is_suspended(patch: pytest.MonkeyPatch) -> None:
    def unavailable(whole: Any) -> Any:
        return lambda self: Code.NONE if self.status == self.SUSPENDED else whole(self)

    instead(patch, HostedShard, "unavailable", unavailable)


@fault(2)
def a_shard_that_decides_while_it_is_drained(patch: pytest.MonkeyPatch) -> None:
    def unavailable(whole: Any) -> Any:
        return lambda self: Code.NONE if self.status == self.DRAINING else whole(self)

    instead(patch, HostedShard, "unavailable", unavailable)


@fault(2)
def a_shard_that_is_loaded_to_the_end_while_it_is_suspended(patch: pytest.MonkeyPatch) -> None:
    def adjust(whole: Any) -> Any:
        def adjusted(self: ShardsOfTopic[Any], host: HostedShard[Any, Any], status: str) -> None:
            if host.status != host.LOADING:
                whole(self, host, status)

        return adjusted

    instead(patch, ShardsOfTopic, "_adjust", adjust)


@fault(0)
def a_shard_that_is_elected_while_the_broker_is_suspended_and_serves(patch: pytest.MonkeyPatch) -> None:
    instead(patch, ShardsOfTopic, "_status_of", lambda _: lambda self, partition: HostedShard.LOADING)


@fault(2)
def a_log_of_an_earlier_term_that_is_gone_on_with(patch: pytest.MonkeyPatch) -> None:
    instead(patch, ShardsOfTopic, "_look_for_log", lambda _: lambda self, host: self.opened(host.partition))


@fault(0)
def offsets_of_a_transaction_that_nobody_answers_for(patch: pytest.MonkeyPatch) -> None:
    """They have waited for their turn, and the shard stands still by then."""

    def execute(whole: Any) -> Any:
        def executed(self: ShardHost, command: Any, verified: Any) -> None:
            if self.is_appending:
                self.calls.pop(command.call)
            whole(self, command, verified)

        return executed

    instead(patch, ShardHost, "execute_in_transaction", execute)


# -- time


@fault(0)
def members_whose_sessions_run_out_while_the_shard_stands_still(patch: pytest.MonkeyPatch) -> None:
    def expire(whole: Any) -> Any:
        def expired(self: ShardHost, key: Any, now_ms: int) -> None:
            before = self.status
            if before in self.HALTED:
                self.status = self.ACTIVE
            whole(self, key, now_ms)
            if before in self.HALTED:
                self.status = before

        return expired

    instead(patch, ShardHost, "expire", expire)


@fault(0)
def deadlines_that_come_meanwhile_and_never_again(patch: pytest.MonkeyPatch) -> None:
    def expire(whole: Any) -> Any:
        def expired(self: ShardHost, key: Any, now_ms: int) -> None:
            if self.status not in self.HALTED:
                whole(self, key, now_ms)

        return expired

    instead(patch, ShardHost, "expire", expire)


@fault(0)
def looks_at_transactions_that_do_not_come_again(patch: pytest.MonkeyPatch) -> None:
    instead(patch, TransactionHost, "go_on", lambda _: HostedShard.go_on)


@fault(163)
def what_a_transaction_was_to_try_again_and_does_not(patch: pytest.MonkeyPatch) -> None:
    """Found by this driver."""

    def expire(whole: Any) -> Any:
        def expired(self: TransactionHost, key: Any, now_ms: int) -> None:
            if self.status == self.ACTIVE:
                whole(self, key, now_ms)

        return expired

    instead(patch, TransactionHost, "expire", expire)


# -- what is held


@fault(10)
def what_is_put_off_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    instead(patch, HostedShard, "put_off", lambda _: lambda self, act: None)


@fault(91)
def markers_that_are_written_while_the_coordinator_stands_still_and_are_not_counted(
    patch: pytest.MonkeyPatch,
) -> None:
    def written(whole: Any) -> Any:
        def marked(self: Ending, watched: Any, code: Code) -> None:
            if self.host.status not in self.host.HALTED:
                whole(self, watched, code)

        return marked

    instead(patch, Ending, "_written", written)


@fault(1)
def a_drain_that_is_over_before_all_has_landed(patch: pytest.MonkeyPatch) -> None:
    instead(patch, HostedShard, "when_settled", lambda _: lambda self, done: done())


@fault(21)
def a_drain_that_is_never_over_where_it_is_given_up(patch: pytest.MonkeyPatch) -> None:
    def fence(whole: Any) -> Any:
        def fenced(self: HostedShard[Any, Any]) -> None:
            self.pending.held.clear()
            for batch in self._in_flight:
                batch.held.clear()
            whole(self)

        return fenced

    instead(patch, HostedShard, "fence", fence)


@fault(0)
def who_waits_and_is_forgotten_when_the_shard_goes_on(patch: pytest.MonkeyPatch) -> None:
    def go_on(whole: Any) -> Any:
        def gone_on(self: HostedShard[Any, Any]) -> None:
            self.calls.clear()
            whole(self)

        return gone_on

    instead(patch, ShardHost, "go_on", go_on)


@fault(4)
def partitions_that_stay_drained_when_they_are_led_anew(patch: pytest.MonkeyPatch) -> None:
    def elect(whole: Any) -> Any:
        def elected(self: ElectedLeaders, name: Any, led: Any) -> None:
            draining = name in self._draining
            whole(self, name, led)
            if draining:
                self._draining.add(name)

        return elected

    instead(patch, ElectedLeaders, "elect", elect)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Show nothing of the refusals, which a broker logs; the driver looks for mistakes all the same."""
    logger = logging.getLogger("coterie")
    before, logger.propagate = logger.propagate, False
    yield
    logger.propagate = before


@pytest.mark.slow
def test_a_broker_that_stands_still_answers_for_nothing_and_goes_on():
    broken = [violation for seed in range(SEEDS) if (violation := broken_by(seed))]

    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    plant, seed = FAULTS[name]
    plant(monkeypatch)

    found = next(filter(None, map(broken_by, (seed, *range(SEEDS)))), None)

    assert found is not None, f"{name} went unnoticed in {SEEDS} seeds"
    assert "tests/property/standing_driver.py" in found
