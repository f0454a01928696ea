"""The catalogue of reasons: why something was decided, chosen or moved, each with a sentence for a user.

`reasons.txt` beside this module has them, one a line. A decision of a coordinator carries the name of its
reason as its `why`; what handlers and shells choose by themselves, around a coordinator, is marked, so that a
test can prove that it got there. Nobody listens to marks in production, where one costs a call and a
comparison; none is on a hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from coterie.base.beside import text_beside

GROUP: Final = "group"
TRANSACTION: Final = "transaction"
CHOICE: Final = "choice"
CAUSE: Final = "cause"
INFERRED: Final = "inferred"
UNKNOWN: Final = "unknown"


class Reason(NamedTuple):
    """Why something happened: a name that stays, its kind, and a sentence for a user.

    `rows` are those of docs/behaviours.md that it embodies, or the KIPs that it follows. `inferred` is the
    word that a history, which has only the log, uses for a cause.
    """

    name: str
    kind: str
    section: str
    sentence: str
    rows: tuple[str, ...] = ()
    inferred: str = ""


@cache
def _sections() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return (kind, section, lines of its reasons) of each section of `reasons.txt`."""
    _, *parts = text_beside(__spec__, ".txt").split("\n== ")
    split = (part.splitlines() for part in parts)
    return tuple((*head.split(": "), tuple(filter(None, lines))) for head, *lines in split)  # type: ignore[misc]


def kinds() -> tuple[str, ...]:
    """Return the kinds of reasons that there are."""
    return tuple(dict.fromkeys(kind for kind, *_ in _sections()))


def names(kind: str) -> frozenset[str]:
    """Return the names of the reasons of a kind: all that a start pays for, since sentences are for pages."""
    lines = chain.from_iterable(lines for one, _, lines in _sections() if one == kind)
    return frozenset(line.partition(": ")[0].partition(" -> ")[0] for line in lines)


@cache
def reasons(kind: str) -> Mapping[str, Reason]:
    """Return the reasons of a kind by name, in the order of the catalogue."""
    found = (
        _reason(line, kind, section) for one, section, lines in _sections() if one == kind for line in lines
    )
    return MappingProxyType({reason.name: reason for reason in found})


def _reason(line: str, kind: str, section: str) -> Reason:
    head, rest = line.split(": ", 1)
    name, _, inferred = head.partition(" -> ")
    sentence, _, rows = rest.partition(" [")
    return Reason(name, kind, section, sentence, tuple(rows.rstrip("]").split()), inferred or name)


def inferred(causes: Iterable[str], *, same_topics: bool) -> tuple[str, ...]:
    """Return the causes that a broker recorded in the words of a history, each once.

    Where a group's topics are the `same_topics` as before, it is their partitions that have changed.
    """
    known = reasons(CAUSE)
    words = [known[one].inferred if one in known else UNKNOWN for one in causes]
    if same_topics:
        words = ["partitions-changed" if one == "topics-changed" else one for one in words]
    return tuple(dict.fromkeys(words))


Listener: TypeAlias = Callable[[str, int | None], None]

_listener: Listener | None = None


def mark(name: str, api_key: int | None = None) -> None:
    """Tell whoever listens that a choice was made for this reason, and for which API if that matters."""
    if _listener is not None:
        _listener(name, api_key)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with every mark until the block ends."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
