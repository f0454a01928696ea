"""Seeds of two administrators and their clients. More: `python -m meanwhile` in `tests`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from meanwhile.life import run
from meanwhile.planted import FAULTS, SEEDS

LIVES = range(200)
STOPS_LEAST = 40_000  # of all lives, or it is no proof


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_requests_that_meet_between_their_pieces_leave_what_some_order_of_them_would():
    outcomes = [run(seed) for seed in LIVES]

    failures = [outcome.violation for outcome in outcomes if outcome.violation]
    assert not failures, "\n".join(failures)
    assert sum(outcome.stops for outcome in outcomes) > STOPS_LEAST


def test_one_seed_is_one_life():
    first, again = run(11), run(11)

    assert first.stops == again.stops
    assert len(first.told) == len(again.told)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_the_seed_that_is_remembered(name: str):
    with FAULTS[name]():
        found = run(SEEDS[name])

    assert found.violation
    assert not run(SEEDS[name]).violation
