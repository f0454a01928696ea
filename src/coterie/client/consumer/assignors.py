"""Assignors by name: those that come with Coterie, and those that other packages bring.

A package brings one through an entry point of the group `coterie.assignors`: its name is what goes over the
wire, its object is called without arguments and returns a `coterie.assign.model.Assignor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points

from coterie.assign.model import Assignor, RebalanceProtocol
from coterie.assign.registry import JAVA_CLASSES, KINDS
from coterie.base.errors import CoterieError
from coterie.base.settings import did_you_mean

GROUP = "coterie.assignors"
PARTS = ("name", "protocols", "user_data", "assign", "on_assignment")


class UnknownAssignor(CoterieError):
    """No assignor has this name."""

    def __init__(self, name: str) -> None:
        known = assignor_names()
        hint = did_you_mean(repr(name), map(repr, known), otherwise=".")
        super().__init__(
            f"there is no assignor {name!r}; there are {', '.join(known)}{hint}"
            f" A package brings its own through an entry point of the group {GROUP}"
        )


class UnusableAssignor(CoterieError):
    """What an entry point or a setting holds is no assignor. docs/assignors.md shows what one has to have."""


def assignor_names() -> list[str]:
    """Return the names of all assignors that are installed."""
    return sorted({*KINDS, *(point.name for point in entry_points(group=GROUP))})


def assignors_of(strategy: Iterable[str | Assignor]) -> tuple[Assignor, ...]:
    """Return one member's assignors: new ones of these names, and those objects. Raises as the next."""
    return tuple(assignor_factory(one)() if isinstance(one, str) else _usable(one) for one in strategy)


def assignor_factory(name: str) -> Callable[[], Assignor]:
    """Return the factory of assignors of this name. Raises UnknownAssignor or UnusableAssignor."""
    plain = JAVA_CLASSES.get(name, name)
    if plain in KINDS:
        return KINDS[plain]
    for point in entry_points(group=GROUP):
        if point.name == plain:
            return _loaded(point)
    raise UnknownAssignor(name)


def _usable(given: Assignor) -> Assignor:
    """Return an assignor object of the application's own, or raise UnusableAssignor."""
    lacking = [name for name in PARTS if not hasattr(given, name)]
    if isinstance(given, type) or lacking:
        lack = "is a class: make an object of it" if isinstance(given, type) else f"has no {lacking[0]}"
        raise UnusableAssignor(f"partition_assignment_strategy: {given!r} is no assignor, it {lack}")
    return given


def _loaded(point: EntryPoint) -> Callable[[], Assignor]:
    """Return the factory that an entry point names, tried once."""
    try:
        make: Callable[[], Assignor] = point.load()
        assignor = make()
        usable = assignor.name == point.name and all(
            isinstance(protocol, RebalanceProtocol) for protocol in assignor.protocols
        )
    except (ImportError, AttributeError, TypeError) as failure:
        raise UnusableAssignor(f"assignor {point.name}: {point.value} cannot be used: {failure}") from failure
    if not usable or not assignor.protocols:
        raise UnusableAssignor(
            f"assignor {point.name}: {point.value} makes something else than an assignor of that name"
            " with its rebalance protocols"
        )
    return make
