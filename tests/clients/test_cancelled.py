"""Every await cancelled, of some lives; `clients.cancelling` says what is drawn, and lives more by name."""

from __future__ import annotations

import pytest

from .cancelling import live

# So many seeds of each are lived in some seconds.
SEEDS = {
    "member": 12,
    "pair": 3,
    "producer": 4,
    "transactions": 4,
    "seek": 3,
    "copy": 3,
    "admin": 4,
    "loop": 3,
    "script": 6,
}


@pytest.mark.parametrize("life", SEEDS)
def test_whatever_is_cut_off_nothing_hangs_or_is_lost_and_nobody_stays(life: str, bootstrap: str) -> None:
    for seed in range(SEEDS[life]):
        live(life, seed, bootstrap)
