"""Scenarios with data: the leaders of users' partitions move, and clients write and read them all the same.

A broker that leads no more refuses at once, clients go where they are sent, what was acknowledged is where it
was said, and nobody waits behind a fetch. Each fault that is planted here is found by these seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from faults import patched
from swarm.scenario import Outcome, run

from coterie.broker.api.data import Wanted
from coterie.broker.net.context import Context
from coterie.broker.node import Node
from coterie.broker.runtime.leadership import ElectedLeaders
from coterie.broker.runtime.purgatory import Purgatory
from coterie.storage.log.partition import PartitionLog

SEEDS = range(25)
SEEN_LEAST = 5
MARKS = ("told who leads", "sent to the leader", "served", "hurried", "overlapped", "move", "crash")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clients_write_and_read_wherever_partitions_are_led():
    outcomes = [run(seed, data=True) for seed in SEEDS]

    failures = [outcome.line for outcome in outcomes if outcome.violation]
    assert not failures, "\n".join(failures)
    seen = Counter(mark for outcome in outcomes for mark in outcome.marks)
    assert {mark: seen[mark] for mark in MARKS if seen[mark] < SEEN_LEAST} == {}


def test_a_scenario_with_data_is_one_trace_and_another_than_that_without():
    first, second = run(11, data=True), run(11, data=True)

    assert first.trace_hash == second.trace_hash != run(11).trace_hash


# -- planted faults


def everything_is_led() -> AbstractContextManager[None]:
    """A broker serves whatever log it has, whoever leads."""
    return patched(Node, "_log_if_led", lambda _: lambda self, name: self.store.logs.get(name))


def reads_go_on() -> AbstractContextManager[None]:
    """A fetch that waits is not looked at again, and reads what another leads by now."""
    return patched(Wanted, "look_again", lambda _: lambda self, parts: None)


def elections_wake_nobody() -> AbstractContextManager[None]:
    """Who waits for records goes on waiting at a broker that no longer leads."""
    return patched(Purgatory, "force_watching", lambda _: lambda self, key: None)


def epochs_stay() -> AbstractContextManager[None]:
    """An election does not begin an epoch in the log: who knows the new one is refused for ever."""
    return patched(PartitionLog, "lead", lambda _: lambda self, epoch: None)


def old_news_counts() -> AbstractContextManager[None]:
    """News of an earlier election takes the place of a later one's."""
    return patched(ElectedLeaders, "is_news", lambda _: lambda self, name, epoch: True)


def no_fetch_is_hurried() -> AbstractContextManager[None]:
    """A request waits behind a fetch until that is over."""
    return patched(Context, "hurry", lambda _: lambda self: False)


FAULTS: tuple[Callable[[], AbstractContextManager[None]], ...] = (
    everything_is_led,
    reads_go_on,
    elections_wake_nobody,
    epochs_stay,
    old_news_counts,
    no_fetch_is_hurried,
)


def found(seeds: range) -> Iterator[Outcome]:
    return (outcome for outcome in (run(seed, data=True) for seed in seeds) if outcome.violation)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[], AbstractContextManager[None]]):
    with plant():
        outcome = next(found(SEEDS), None)

    assert outcome is not None, f"{plant.__name__} went unnoticed in {len(SEEDS)} seeds"
    assert "TypeError" not in outcome.violation
    assert outcome.line.endswith(f"python -m swarm --seed {outcome.seed} --data")
