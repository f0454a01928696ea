"""Work in pieces: a generator stops often, so that others are heard between, and returns what came of it.

What cannot be cut into pieces is done `Aside`, and what others have to answer is waited for (`Until`): a
generator that yields one of them is given what came of it when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from functools import partial
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


class Until(NamedTuple):
    """An answer to wait for: `ask` is given the function that takes it, once, now or later."""

    ask: Callable[[Callable[[Any], None]], object]


class MustWait(RuntimeError):
    """Work that was to be done at once waits for an answer that has not come."""


# Yields nothing, what it wants to have done aside, or what it waits for.
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
    """Return the result of work in pieces, with no other request answered between.

    Raises `MustWait` if it waits for an answer that has not come when `ask` returns.
    """
    result = None
    try:
        while True:
            wanted = pieces.send(result)
            if not isinstance(wanted, Until):
                result = None if wanted is None else wanted.work(*wanted.arguments)
                continue
            answer = _Answer(wanted)
            if not answer.has_come:
                pieces.close()
                raise MustWait(f"this is to be done at once, and waits for an answer: {wanted.ask}")
            result = answer.value
    except StopIteration as done:
        whole: T = done.value
        return whole


def straight_on(pieces: Pieces[None], result: Any = None) -> None:
    """Do work in pieces with nothing between, but for what happens until an answer comes that it waits for.

    The work is its own root: it lets no exception out.
    """
    try:
        while True:
            wanted = pieces.send(result)
            if not isinstance(wanted, Until):
                result = None if wanted is None else wanted.work(*wanted.arguments)
                continue
            answer = _Answer(wanted)
            if not answer.has_come:
                answer.take_later = partial(straight_on, pieces)
                return
            result = answer.value
    except StopIteration:
        return


class _Answer:
    """What comes of asking: there when `ask` returns, or taken later by who wants it then."""

    def __init__(self, until: Until) -> None:
        self.has_come = False
        self.value: Any = None
        self.take_later: Callable[[Any], None] | None = None
        until.ask(self._take)

    def _take(self, value: Any) -> None:
        if self.take_later is None:
            self.has_come, self.value = True, value
        else:
            self.take_later(value)


def when_all(asks: Sequence[Callable[[Callable[[], None]], None]], done: Callable[[], None]) -> None:
    """Have `done` called once all who are asked have called back."""
    left = len(asks)

    def one() -> None:
        nonlocal left
        left -= 1
        if not left:
            done()

    if not asks:
        done()
    for ask in asks:
        ask(one)


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
