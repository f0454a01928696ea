"""Tables in plain text: columns as wide as what stands in them, two spaces apart.

On a terminal they are no wider than it; in a pipe or a file nothing is cut.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence

from coterie.base.plain import plain

NARROWEST = 10
BETWEEN = 2


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table. Numbers go to the right; what is None is a dash."""
    given = [tuple(row) for row in rows]
    texts = [
        tuple(head),
        *(tuple("-" if cell is None else plain(str(cell)) for cell in row) for row in given),
    ]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    right = [
        bool(given) and all(isinstance(row[column], int | None) for row in given)
        for column in range(len(head))
    ]
    most = terminal_width()
    if most is not None:
        widths = fitted(widths, right, most)
    return [
        "  ".join(
            cell.rjust(width) if to_the_right else cut(cell, width).ljust(width)
            for cell, width, to_the_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in texts
    ]


def terminal_width() -> int | None:
    """Return how many characters fit into a line, None where it is no terminal that is written to."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def fitted(widths: Sequence[int], numbers: Sequence[bool], most: int) -> list[int]:
    """Return widths that fit together: the widest column of texts gives way first, numbers stay whole."""
    room = [*widths]
    while sum(room) + BETWEEN * (len(room) - 1) > most:
        width, column = max((0 if numbers[at] else wide, at) for at, wide in enumerate(room))
        if width <= NARROWEST:
            break
        room[column] -= 1
    return room


def cut(text: str, width: int) -> str:
    """Return a text of so many characters at most: its middle goes, as ids differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
