"""Seeds of the crash points, and that one seed is one story. More: `python -m crashes`, `make interop`."""

from __future__ import annotations

import logging

import pytest

from crashes.life import run
from crashes.planted import FAULTS, first, remembered

SEEDS = range(750)
STRIDE = 125
ONCE_FAILED = (24878, 25371, 41481, 44939, 47548, 48157, 53026, 55085)
KILLS_LEAST, EFFECTS_LEAST = 800, 50_000  # of a stride, or it is no proof


@pytest.fixture(autouse=True)
def _quiet() -> object:
    logging.disable(logging.CRITICAL)  # a disk that refuses is told of all the time
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::STRIDE])
def test_a_broker_that_is_stopped_anywhere_keeps_what_it_promised(first: int):
    outcomes = [run(seed) for seed in range(first, first + STRIDE)]

    failures = [outcome.line for outcome in outcomes if outcome.violation]
    assert not failures, "\n".join(failures)
    assert sum(outcome.kills for outcome in outcomes) >= KILLS_LEAST
    assert sum(outcome.effects for outcome in outcomes) >= EFFECTS_LEAST


def test_one_seed_is_one_story():
    assert run(11) == run(11)
    assert run(11).story != run(12).story


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_has_failed_once_is_well(seed: int):
    assert not run(seed).violation


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_the_seed_that_is_remembered(name: str):
    seed = remembered()[name]

    with FAULTS[name]():
        found = run(seed)

    assert found.violation
    assert not run(seed).violation


@pytest.mark.interop
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_within_its_seeds(name: str):
    found = first(name)

    assert found is not None, f"{name} went unnoticed"
    assert f"python -m crashes --seed {found.seed}" in found.line
