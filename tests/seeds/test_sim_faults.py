"""That the net holds: each planted fault is found, and within the seeds that `make test` runs."""

from __future__ import annotations

import member_faults
import pytest
from hunting import FAULTS, SEEDS, caught, hunt

OF_MEMBERS = [name for name in FAULTS if hasattr(member_faults, name)]


def test_there_are_many_faults_to_find():
    assert len(FAULTS) >= 84
    assert len(OF_MEMBERS) >= 27


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str):
    found = hunt(name)

    assert found is not None, f"{name} went unnoticed in {SEEDS} seeds"
    assert caught(found), f"{name} broke the code, and no check has found it: {found.violation}"
    assert f"python -m swarm --seed {found.seed}" in found.line
