"""That the net holds: each planted fault is found, and within the seeds that `make test` runs."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import member_faults
import pytest
from hunting import FAULTS, SEEDS, caught, hunt
from swarm.scenario import Outcome

OF_MEMBERS = [name for name in FAULTS if hasattr(member_faults, name)]


@pytest.fixture(scope="module")
def hunted(request: pytest.FixtureRequest) -> Mapping[str, Outcome | None]:
    """Return what became of each fault that this run asks for."""
    asked = [item.callspec.params["name"] for item in request.session.items if hasattr(item, "callspec")
             and item.originalname == "test_a_planted_fault_is_found"]  # fmt: skip
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return dict(zip(asked, pool.map(hunt, asked), strict=True))


def test_there_are_many_faults_to_find():
    assert len(FAULTS) >= 78
    assert len(OF_MEMBERS) >= 27


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, hunted: Mapping[str, Outcome | None]):
    found = hunted[name]

    assert found is not None, f"{name} went unnoticed in {SEEDS} seeds"
    assert caught(found), f"{name} broke the code, and no check has found it: {found.violation}"
    assert f"python -m swarm --seed {found.seed}" in found.line
