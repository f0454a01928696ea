"""Faults to plant in production code, each of which a state machine of hypothesis has to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

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

FEW = 12
"""So few examples are looked through first: the first tenth of all would be small ones."""

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


class Faults(dict[str, Plant]):
    """Plants by their names: a list of faults that decorates the functions that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self._seeds: dict[str, int] = {}

    def __call__(self, plant: Plant) -> Plant:
        """Put a fault on the list."""
        self[_name_of(plant)] = plant
        return plant

    def from_seed(self, number: int) -> Callable[[Plant], Plant]:
        """Return the decorator for a fault that a few examples of this seed meet, and those of seed 1 do not.

        When the machine has changed they may not: then all examples are looked through, which takes longer.
        """

        def put(plant: Plant) -> Plant:
            self._seeds[_name_of(plant)] = number
            return self(plant)

        return put

    def hunt(
        self,
        name: str,
        machine: type[RuleBasedStateMachine],
        patch: pytest.MonkeyPatch,
        examples: settings = GENERATED,
    ) -> None:
        """Plant a fault and run the machine. Raises what finds it."""
        self[name](patch)
        seeded = seed(self._seeds.get(name, 1))(type(machine.__name__, (machine,), {}))
        # Hypothesis draws constants of all modules of ours that are loaded: other ones in each worker.
        patch.setattr(providers, "_get_local_constants", providers.Constants)
        providers.CONSTANTS_CACHE.cache.clear()
        try:
            run_state_machine_as_test(seeded, settings=settings(examples, max_examples=FEW))
            run_state_machine_as_test(seeded, settings=examples)
        finally:
            providers.CONSTANTS_CACHE.cache.clear()


def _name_of(plant: Plant) -> str:
    return plant.__name__.replace("_", "-")


def instead(patch: pytest.MonkeyPatch, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put in place of a function what `make` makes of it."""
    patch.setattr(owner, name, make(getattr(owner, name)))
