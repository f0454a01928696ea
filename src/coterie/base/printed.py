"""Tables that run, and reasons, as Markdown: who answers what in which state, what a handler does, why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias

from coterie.base.reasons import Reason, reasons

Handler: TypeAlias = Callable[..., Any]
Row: TypeAlias = Mapping[type, Handler]
# A row of the catalogue of Kafka's behaviours: JG-12, or 1.3.1-2 where it has no id of its own.
BEHAVIOUR = re.compile(r"\b(?:[A-Z]{1,2}|\d\.\d+(?:\.\d+)?)-\d+\b")


def table(columns: Iterable[tuple[str, Row]], kinds: Iterable[type]) -> list[str]:
    """Return a table's lines: a column for each state, a row for each kind of command."""
    names, rows = zip(*columns, strict=True)
    return [
        f"| | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
        *(f"| **{kind.__name__}** | {' | '.join(name_of(row[kind]) for row in rows)} |" for kind in kinds),
    ]


def legend(rows: Iterable[Row], kinds: Iterable[type]) -> list[str]:
    """Return a line for each handler of a table."""
    rows = tuple(rows)
    handlers = {name_of(row[kind]): row[kind] for kind in kinds for row in rows}
    return [f"- **{name}**: {described(handler)}" for name, handler in handlers.items()]


def name_of(handler: Handler) -> str:
    return handler.__name__.replace("_", " ")


def described(handler: Handler) -> str:
    """Return a handler's docstring as one line, the rows that it names as links."""
    return linked(" ".join((handler.__doc__ or "").split()))


def linked(text: str) -> str:
    """Return the text of a page in docs/ with each row of the catalogue that it names as a link to it."""
    return BEHAVIOUR.sub(r"[\g<0>](behaviours.md#\g<0>)", text)


def listed(kind: str) -> list[str]:
    """Return the lines of a page about the reasons of a kind: under each section's heading its reasons."""
    lines = []
    for section, those in groupby(reasons(kind).values(), attrgetter("section")):
        lines += [f"### {section}", "", *map(line_of, those), ""]
    return lines


def line_of(reason: Reason) -> str:
    rows = f" ({linked(', '.join(reason.rows))})" if reason.rows else ""
    return f"- **{reason.name}**: {reason.sentence}{rows}"
