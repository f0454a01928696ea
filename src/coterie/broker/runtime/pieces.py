"""Work in pieces: a generator stops often, so that others are heard between, and returns what came of it.

What cannot be cut into pieces is done `Aside`: a generator that yields one is given its result when it goes
on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import islice
from typing import Any, NamedTuple, TypeVar

ITEMS_AT_ONCE = 64  # so many things are seen to between two stops, where each takes microseconds
FEW = ITEMS_AT_ONCE  # a request about so few is answered without a stop

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
C = TypeVar("C")


class Aside(NamedTuple):
    """Work for a thread beside the event loop. It touches nothing of others, and returns its refusals.

    It looks through so many `items` at most: who wants little goes before who wants much.
    """

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    items: int = 1


# Yields nothing, or what it wants to have done aside.
Pieces = Generator[Any, Any, T]


class Scheduler:
    """When that runs which is not to run now."""

    __slots__ = ("call_soon", "work")

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], work: Callable[[Pieces[None]], None]
    ) -> None:
        """`call_soon` runs a function after the requests that are being answered now, `work` does what takes
        long in pieces, between which requests are answered.
        """
        self.call_soon = call_soon
        self.work = work


def at_once(pieces: Pieces[T]) -> T:
    """Return the result of work in pieces, with no other request answered between."""
    result = None
    try:
        while True:
            aside = pieces.send(result)
            result = None if aside is None else aside.work(*aside.arguments)
    except StopIteration as done:
        whole: T = done.value
        return whole


def gathered(items: Iterable[T | None]) -> Pieces[list[T]]:
    """Return items that come one after the other as a list, other requests between. None is left out.

    What leaves things out itself, as a generator with an `if`, may go on for long without a stop.
    """
    found: list[T] = []
    return _taken(items, found, found.extend)


def mapped(pairs: Iterable[tuple[K, T] | None]) -> Pieces[dict[K, T]]:
    """Return keys with what belongs to them, the last where one comes again, as `gathered` does a list."""
    found: dict[K, T] = {}
    return _taken(pairs, found, found.update)


def _taken(items: Iterable[T | None], found: C, take: Callable[[list[T]], None]) -> Pieces[C]:
    rest = iter(items)
    while some := tuple(islice(rest, ITEMS_AT_ONCE)):
        take([one for one in some if one is not None])
        if len(some) == ITEMS_AT_ONCE:
            yield
    return found


def paced(pieces: Pieces[Any], items: int) -> Any:
    """Return the result of a few items at once; of more, the pieces to be done one after the other.

    Of a few, too, pieces are returned where something is to be done aside: they go on from there.
    """
    if items > FEW:
        return pieces
    try:
        aside = next(pieces)
        while aside is None:
            aside = next(pieces)
    except StopIteration as done:
        return done.value
    return _going_on(pieces, aside)


def _going_on(pieces: Pieces[Any], aside: Any) -> Pieces[Any]:
    try:
        while True:
            aside = pieces.send((yield aside))
    except StopIteration as done:
        return done.value
