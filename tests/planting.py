"""Faults to plant in production code, each of which a state machine of hypothesis has to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, settings

GENERATED = settings(
    max_examples=1_000,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
"""So a machine looks for a fault: always through the same examples, and no further than to the first."""

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


class Faults(dict[str, Plant]):
    """Plants by their names: a list of faults that decorates the functions that it takes."""

    def __call__(self, plant: Plant) -> Plant:
        """Put a fault on the list."""
        self[plant.__name__.replace("_", "-")] = plant
        return plant


def instead(patch: pytest.MonkeyPatch, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put in place of a function what `make` makes of it."""
    patch.setattr(owner, name, make(getattr(owner, name)))
