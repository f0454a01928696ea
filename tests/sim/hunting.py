"""Looks for the first seed in which a planted fault is found."""

from __future__ import annotations

import member_faults  # noqa: F401  # puts its faults on the list
from faults import FAULTS

from coterie.sim.scenario import Outcome, run

__all__ = ["FAULTS", "SEEDS", "caught", "hunt"]

SEEDS = 2_000
OURS = "no mistakes of ours"


def caught(outcome: Outcome) -> bool:
    """Return whether a check has found something, and not just a patch that does not fit the code.

    Of what production code raises by itself only what its own assertions say counts, a key that is gone, and
    bytes that cannot be read any more: a patch that does not fit raises something else.
    """
    if outcome.rule != OURS:
        return bool(outcome.rule)
    return any(kind in outcome.violation for kind in ("AssertionError", "KeyError", "Corrupt"))


def hunt(name: str) -> Outcome | None:
    """Return what came of the first seed that is not well with this fault in place."""
    with FAULTS[name]():
        return next((outcome for outcome in map(run, range(SEEDS)) if outcome.violation), None)
