"""Tables in plain text: columns as wide as what stands in them, two spaces apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.base.plain import plain


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
    return [
        "  ".join(
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in texts
    ]
