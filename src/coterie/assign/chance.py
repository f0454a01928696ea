"""Chance as an argument: what is pure draws from what it is given, and who calls it holds the seed."""

from collections.abc import Callable
from typing import Any, Protocol


class Chance(Protocol):
    """Where random numbers come from; `random.Random` is one."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to `stop` - 1, each as likely."""
        ...


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
