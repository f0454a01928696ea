"""What placement works on: brokers in racks, layouts, and chance; and what may be wrong with a request."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy

__all__ = ["Broker", "Chance", "Layout", "Problem", "Replicas", "chance_of", "insist", "shuffle"]

Replicas: TypeAlias = tuple[int, ...]  # broker ids, the leader first
Layout: TypeAlias = list[Replicas]  # of each partition, in order


class Broker(NamedTuple):
    """A registered broker. A fenced one may hold replicas but not lead."""

    broker_id: int
    rack: str | None = None
    fenced: bool = False


class Problem(NamedTuple):
    """Why replicas cannot be placed as asked: Kafka's code and words."""

    code: Code
    text: str


class Chance(Protocol):
    """Where random numbers come from; `random.Random` is one."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to `stop` - 1, each as likely."""
        ...


def insist(problem: Problem | None) -> None:
    """Raise a problem, at a face that raises."""
    if problem is not None:
        raise RefusedBy(*problem)


class _Drawn:
    """Chance out of a function that draws large numbers; where there is no choice it draws none."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw

    def randrange(self, stop: int, /) -> int:
        return self._draw() % stop if stop > 1 else 0


def chance_of(draw: Callable[[], int]) -> Chance:
    """Return chance out of numbers that are far larger than any count of brokers: all are as likely."""
    return _Drawn(draw)


def shuffle(things: list[Any], chance: Chance) -> None:
    """Shuffle in place, in the steps of Java's `Collections.shuffle`."""
    for size in range(len(things), 1, -1):
        other = chance.randrange(size)
        things[size - 1], things[other] = things[other], things[size - 1]


def in_id_order(brokers: Sequence[Broker]) -> list[Broker]:
    """Return the brokers by id, of which none may be there twice."""
    ordered = sorted(brokers, key=lambda broker: broker.broker_id)
    assert len({broker.broker_id for broker in ordered}) == len(ordered)
    return ordered
