"""Any request against any state, for some seconds; the generator finds the faults there were, put back."""

from __future__ import annotations

import time

import pytest

from anyrequest.harness import Broken, Trial
from anyrequest.plants import PLANTS

REQUESTS = 40
HELD_MOST_S = 0.05  # of the loop's own time; `harness` says how that is judged on a loaded machine
FOUND_WITHIN_S = 600


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_after_each_of_many_extreme_requests_others_are_served_and_after_a_kill_everything_is_there():
    trial = Trial(7, held_most_s=HELD_MOST_S)

    trial.run(lambda number: number < REQUESTS)

    assert (trial.requests, trial.restarts) == (REQUESTS, 1)


@pytest.mark.interop
@pytest.mark.timeout(FOUND_WITHIN_S + 120)
@pytest.mark.parametrize("plant", PLANTS)
def test_each_fault_that_was_is_found_from_the_grammar_alone(plant: str):
    until = time.monotonic() + FOUND_WITHIN_S

    with pytest.raises(Broken):
        Trial(1, held_most_s=HELD_MOST_S, plant=plant).run(lambda _: time.monotonic() < until)
