"""Tables in plain text, and partitions as people read them. Columns are as wide as what stands in
them, two spaces apart.

On a terminal they are no wider than it, and one that cannot be so narrow has a line for each cell. In a pipe
or a file nothing is cut.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from coterie.base.plain import plain

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition

NARROWEST = 10
BETWEEN = 2


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], nothing: str = "", *, indent: str = ""
) -> list[str]:
    """Return the lines of a table, or `nothing` where it has no rows. Numbers are aligned to the right; None
    is a dash.
    """
    given = [tuple(row) for row in rows]
    if nothing and not given:
        return [nothing]
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
        widths = fitted(widths, right, most - len(indent))
        if len(indent) + width_of(widths) > most:
            return [f"{indent}{line}" for line in stacked(texts, named=right[0])]
    return [f"{indent}{line}" for line in aligned(texts, widths, right)]


def stacked(texts: Sequence[Sequence[str]], *, named: bool) -> Iterator[str]:
    """Yield the lines of a table that is too wide: of each row the first cell, and below it the others.

    The first cell is `named` by its column where it is a number, which alone would say nothing.
    """
    (head, *names), *rows = texts
    width = max(map(len, names), default=0)
    for first, *cells in rows:
        yield f"{head} {first}" if named else first
        yield from (f"  {name.ljust(width)}  {cell}" for name, cell in zip(names, cells, strict=True))


def width_of(widths: Sequence[int]) -> int:
    """Return the width of a line of columns of these widths."""
    return sum(widths) + BETWEEN * (len(widths) - 1)


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table of texts as wide as they are: the first column to the left, others to the
    right.
    """
    texts = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return aligned(texts, widths, [False, *[True] * (len(widths) - 1)])


def aligned(rows: Iterable[Sequence[str]], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    """Return lines of columns of these widths; a text that is to the left may be cut to fit."""
    return [
        "  ".join(
            cell.rjust(width) if to_the_right else cut(cell, width).ljust(width)
            for cell, width, to_the_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def terminal_width() -> int | None:
    """Return the width of the terminal in characters, None if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def fitted(widths: Sequence[int], numbers: Sequence[bool], most: int) -> list[int]:
    """Return widths that fit together: the widest column of texts gives way first, numbers stay whole."""
    room = [*widths]
    while width_of(room) > most:
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


# -- partitions


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, in order."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers


def partitions_text(numbers: Mapping[str, list[int]]) -> str:
    """Return partitions as people write them: orders 0-2,5 returns 1."""
    return " ".join(f"{topic} {spans(parts)}" for topic, parts in numbers.items())


def spans(numbers: Iterable[int]) -> str:
    """Return ascending numbers with their runs as spans: 0-2,5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
