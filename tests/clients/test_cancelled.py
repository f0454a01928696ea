"""Every await cancelled, of some lives; `clients.cancelling` says what is drawn, and lives more by name."""

from __future__ import annotations

import pytest

from .cancelling import live

# So many seeds of each are lived in some seconds. Loops that end are lived by name only: what an application
# leaves open on one is for the garbage collector, whose warnings are errors here.
SEEDS = {"member": 14, "producer": 5, "transactions": 5, "admin": 4, "script": 8}


@pytest.mark.parametrize("life", SEEDS)
def test_whatever_is_cut_off_nothing_hangs_or_is_lost_and_nobody_stays(life: str, bootstrap: str) -> None:
    for seed in range(SEEDS[life]):
        live(life, seed, bootstrap)
