"""Marks: names for choices that no decision of a core carries, so that a test can prove that it reached one.

A core's `Decision` has its `why`; what the shells around it refuse or choose by themselves has a mark. Nobody
listens to them in production, where one costs a call and a comparison; none is on a hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from coterie.base.printed import linked


class Why(NamedTuple):
    """What a slug stands for: the rows of the catalogue of Kafka's behaviours, and a sentence for a user."""

    rows: tuple[str, ...]
    meaning: str


def why(rows: str, meaning: str) -> Why:
    """Return a `Why` whose rows are given in one string."""
    return Why(tuple(rows.split()), meaning)


def listed(sections: Mapping[str, Mapping[str, Why]]) -> list[str]:
    """Return a page's lines: under each heading its slugs, what they mean, and their rows."""
    lines = []
    for heading, whys in sections.items():
        lines += [f"### {heading}", "", *(line_of(slug, why) for slug, why in whys.items()), ""]
    return lines


def line_of(slug: str, why: Why) -> str:
    rows = f" ({linked(', '.join(why.rows))})" if why.rows else ""
    return f"- **{slug}**: {why.meaning}{rows}"


Listener: TypeAlias = Callable[[str, int | None], None]

_listener: Listener | None = None


def mark(slug: str, api_key: int | None = None) -> None:
    """Tell whoever listens that this place was reached, and in the service of which API if that matters."""
    if _listener is not None:
        _listener(slug, api_key)


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """Have `listener` hear every mark until the block ends."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
