"""Prints into docs/lanes.md what a lane does about each error of the database. `--write` writes the page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from coterie.storage.remote.session import SQLSTATES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "lanes.md"
BEGIN, END = "<!-- printed by scripts/sqlstates.py --write -->", "<!-- end of what is printed -->"


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield from ("| SQLSTATE | is | what a lane does |", "|---|---|---|")
    for sqlstate, (verdict, meaning) in SQLSTATES.items():
        named = f"`{sqlstate}{'…' if len(sqlstate) < 5 else ''}`" if sqlstate else "others"
        yield f"| {named} | {meaning} | {verdict.value} |"


def printed(page: str) -> str:
    """Return the page with the table as the source has it now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *table(), "", END + after])


if __name__ == "__main__":
    page = printed(PAGE.read_text(encoding="utf-8"))
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page, end="")
