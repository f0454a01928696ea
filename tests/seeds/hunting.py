"""Looks for a seed in which a planted fault is found.

`fault_seeds.json` remembers a seed for each, which is tried first; running this file writes it anew.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import member_faults  # noqa: F401  # puts its faults on the list
from faults import FAULTS
from swarm.scenario import Outcome, run

__all__ = ["FAULTS", "SEEDS", "caught", "first", "hunt"]

SEEDS = 2_000
OURS = "no mistakes of ours"
REMEMBERED = Path(__file__).with_name("fault_seeds.json")


def caught(outcome: Outcome) -> bool:
    """Return whether a check has found something, and not just a patch that does not fit the code.

    Of what production code raises by itself only what its own assertions say counts, a key that is gone, and
    bytes that cannot be read any more: a patch that does not fit raises something else.
    """
    if outcome.rule != OURS:
        return bool(outcome.rule)
    return any(kind in outcome.violation for kind in ("AssertionError", "KeyError", "Corrupt"))


def hunt(name: str) -> Outcome | None:
    """Return what came of a seed that is not well with this fault in place: the remembered, or the first."""
    seed = remembered().get(name)
    if seed is not None:
        with FAULTS[name]():
            outcome = run(seed)
        if outcome.violation:
            return outcome
    return first(name)


def first(name: str) -> Outcome | None:
    """Return what came of the first seed that is not well with this fault in place."""
    with FAULTS[name]():
        return next((outcome for outcome in map(run, range(SEEDS)) if outcome.violation), None)


@cache
def remembered() -> dict[str, int]:
    """Return the seed of each fault that was found before."""
    seeds: dict[str, int] = json.loads(REMEMBERED.read_text("utf-8"))
    return {name: seed for name, seed in seeds.items() if 0 <= seed < SEEDS}


def main() -> None:
    """Hunt all faults, and remember where they were found."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = dict(zip(FAULTS, pool.map(first, FAULTS), strict=True))
    seeds = {name: outcome.seed for name, outcome in sorted(found.items()) if outcome is not None}
    REMEMBERED.write_text(json.dumps(seeds, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
