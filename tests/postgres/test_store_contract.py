"""What every log promises, of rows in PostgreSQL: the tests that files and memory pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.remote.tail import TAIL_BYTES
from unit.storage import test_store_contract as contract

from .rigs.log_in_postgres import RigInPostgres

pytestmark = pytest.mark.interop

globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


@pytest.fixture(params=[TAIL_BYTES, 0], ids=["in-memory", "recalled"])
def rig(request: pytest.FixtureRequest, address: DatabaseAddress, tmp_path: Path) -> Iterator[RigInPostgres]:
    """Yield a store in a database of its own."""
    made = RigInPostgres(address, tmp_path, tail_bytes=request.param)
    yield made
    made.store.abandon()
