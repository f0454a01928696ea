"""Tables that run, as Markdown: who answers what in which state, and what each handler says that it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[..., Any]
Row: TypeAlias = Mapping[type, Handler]


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
    return [f"- **{name}**: {told_of(handler)}" for name, handler in handlers.items()]


def name_of(handler: Handler) -> str:
    return handler.__name__.replace("_", " ")


def told_of(handler: Handler) -> str:
    """Return what a handler's docstring says, on one line."""
    return " ".join((handler.__doc__ or "").split())
