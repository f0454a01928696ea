"""Fixtures of the log tests: `rig` runs a test on both kinds of store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rig import Rig


@pytest.fixture(params=["files", "memory"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Yield a store on a disk of its own, closed again after the test."""
    made = Rig(request.param, tmp_path)
    yield made
    made.store.abandon()
