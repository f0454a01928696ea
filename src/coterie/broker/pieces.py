"""Work in pieces: a generator stops often, so that others are heard between, and returns what came of it.

What cannot be cut into pieces is done `Aside`: a generator that yields one is given its result when it goes
on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

__all__ = ["ITEMS_AT_ONCE", "Aside", "Pieces", "at_once", "paced"]

ITEMS_AT_ONCE = 64  # so many things are seen to between two stops, where each takes microseconds

T = TypeVar("T")


class Aside(NamedTuple):
    """Work for a thread beside the event loop. It touches nothing of others, and returns its refusals.

    It looks through so many `items` at most: who wants little goes before who wants much.
    """

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    items: int = 1


# Yields nothing, or what it wants to have done aside.
Pieces = Generator[Any, Any, T]


def at_once(pieces: Pieces[T]) -> T:
    """Return what comes of work in pieces, with nobody heard between."""
    result = None
    try:
        while True:
            aside = pieces.send(result)
            result = None if aside is None else aside.work(*aside.arguments)
    except StopIteration as done:
        whole: T = done.value
        return whole


def paced(pieces: Pieces[Any], items: int) -> Any:
    """Return what comes of a few items at once; of more, the pieces to be done one after the other.

    Of a few, too, pieces are returned where something is to be done aside: they go on from there.
    """
    if items > ITEMS_AT_ONCE:
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
