"""The catalogue of Kafka's behaviours, docs/behaviours.md, as tests and scripts read it: a row is a table's
line that begins with an anchor, and the anchor is the row's id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "behaviours.md"
# The sections that specify coordinator, client and assignors: each of their rows is proved or excused.
SPECIFYING = re.compile(r"(0\.[45]|[1-6]\.\d+(\.\d+)?|9\.5)$")
HEADING = re.compile(r"#{2,4} (\d+(?:\.\d+)*)")
ANCHOR = re.compile(r'\| <a id="([^"]+)"></a>([^|]*)')
OWN_ID = re.compile(r"[A-Z]{1,2}-\d+$")


def lines_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, section, line) of each line of a table that is not its heading."""
    section, depth = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        heading = HEADING.match(line)
        if heading:
            section = heading[1]
        depth = depth + 1 if line.startswith("|") else 0
        if depth > 2:
            yield number, section, line


def rows_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield (id, section) of each row that specifies something."""
    for _, section, line in lines_of(text):
        anchor = ANCHOR.match(line)
        if anchor and SPECIFYING.match(section):
            yield anchor[1], section


def faults_of(text: str) -> Iterator[str]:
    """Yield a sentence for each row without an anchor, with another row's, or with one that is not its id."""
    anchors: set[str] = set()
    for number, section, line in lines_of(text):
        anchor = ANCHOR.match(line)
        if anchor is None:
            yield f"{PAGE.name}:{number}: a row without an anchor"
            continue
        name, cell = anchor[1], anchor[2].strip()
        if name in anchors:
            yield f"{PAGE.name}:{number}: {name} is another row's anchor, too"
        if name != cell if OWN_ID.match(cell) else not name.startswith(f"{section}-"):
            yield f"{PAGE.name}:{number}: the row {cell!r} of section {section} has the anchor {name}"
        anchors.add(name)


def anchors_of(text: str) -> frozenset[str]:
    """Return the ids of all rows, those that specify nothing included."""
    return frozenset(anchor[1] for _, _, line in lines_of(text) if (anchor := ANCHOR.match(line)))


@cache
def listed() -> dict[str, str]:
    """Return the section of each row that specifies something, by the row's id."""
    return dict(rows_of(PAGE.read_text(encoding="utf-8")))
