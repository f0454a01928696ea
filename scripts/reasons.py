"""Prints what pages say of the catalogue of reasons: docs/marks.md, and the table of causes in docs/story.md.

`--write` writes both; a test says when that is due. docs/states.md and docs/transactions.md list the reasons
of decisions, and are printed with the tables that run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from coterie.base.printed import listed
from coterie.base.reasons import CAUSE, CHOICE, INFERRED, UNKNOWN, Reason, reasons

DOCS = Path(__file__).resolve().parent.parent / "docs"
MARKS, STORY = DOCS / "marks.md", DOCS / "story.md"
BEGIN, END = "<!-- printed by scripts/reasons.py --write -->", "<!-- end of what is printed -->"


def marks() -> str:
    """Return docs/marks.md."""
    lines = [
        "# Marks: choices that no decision carries",
        "",
        "Printed by `scripts/reasons.py --write`; a test compares the two. What the cores decide is in",
        "[states.md](states.md). A test that cites a row in brackets has to reach one of its marks.",
        "",
        *listed(CHOICE),
    ]
    return "\n".join(lines)


def causes() -> Iterator[str]:
    """Yield the lines of the table of causes: the broker's, and those that only a history tells apart."""
    yield from ("| why | what happened | in a history of the log |", "|---|---|---|")
    for reason in reasons(CAUSE).values():
        yield f"| `{reason.name}` | {reason.sentence} | {of_history(reason)} |"
    for reason in reasons(INFERRED).values():
        yield f"| – | {reason.sentence} | `{reason.name}` |"


def of_history(reason: Reason) -> str:
    if reason.inferred == UNKNOWN != reason.name:
        return "not known"
    return "the same" if reason.inferred == reason.name else f"`{reason.inferred}`"


def story(page: str) -> str:
    """Return docs/story.md with the table as the catalogue has it now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *causes(), "", END + after])


if __name__ == "__main__":
    printed = {MARKS: marks(), STORY: story(STORY.read_text(encoding="utf-8"))}
    for path, text in printed.items():
        if sys.argv[1:] == ["--write"]:
            path.write_text(text, encoding="utf-8")
        else:
            print(text, end="")
