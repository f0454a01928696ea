"""That the net holds: each planted fault is found, and within the seeds that `make test` runs."""

from __future__ import annotations

import pytest
from faults import FAULTS

from coterie.sim.scenario import run

SEEDS = 2_000


def test_there_are_many_faults_to_find():
    assert len(FAULTS) >= 50


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str):
    with FAULTS[name]():
        found = next((outcome for outcome in map(run, range(SEEDS)) if outcome.violation), None)

    assert found is not None, f"{name} went unnoticed in {SEEDS} seeds"
    assert f"python -m coterie.sim --seed {found.seed}" in found.line
