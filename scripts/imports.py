"""Draws in docs/architecture.md who imports whom, read from the source.

`--write` writes the drawing; a test says when that is due.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from test_house import imports_of, modules, package_of  # noqa: E402  # where it lies

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- printed by scripts/imports.py --write -->", "<!-- end of what is printed -->"
Arrows = dict[str, set[str]]


def arrows() -> tuple[Arrows, Arrows]:
    """Return the packages that each package imports when it is loaded, and those only inside a function."""
    loaded: Arrows = defaultdict(set)
    later: Arrows = defaultdict(set)
    for path in modules():
        here = package_of(path)
        for module, lazily in imports_of(path):
            other = module.split(".")[1] if module.startswith("coterie.") else ""
            if other and other != here and here != "coterie":
                (later if lazily else loaded)[here].add(other)
    return loaded, {here: others - loaded[here] for here, others in later.items()}


def reached(loaded: Arrows, start: str) -> set[str]:
    """Return the packages that a package imports through others."""
    found: set[str] = set()
    todo = [further for other in loaded.get(start, ()) for further in loaded.get(other, ())]
    while todo:
        package = todo.pop()
        if package not in found:
            found.add(package)
            todo += loaded.get(package, ())
    return found


def drawing() -> list[str]:
    """Return the lines between the two marks of the page."""
    loaded, later = arrows()
    lines = ["```mermaid", "flowchart TD"]
    for here in sorted(loaded):
        lines += [f"    {here} --> {other}" for other in sorted(loaded[here] - reached(loaded, here))]
    lines += [
        "```",
        "",
        "| package | imports when it is loaded | imports inside functions only |",
        "|---|---|---|",
    ]
    for here in sorted({*loaded, *later}):
        named = (", ".join(sorted(part.get(here, ()))) or "–" for part in (loaded, later))
        lines.append(f"| {here} | {' | '.join(named)} |")
    return lines


def drawn(page: str) -> str:
    """Return the page with the drawing as the source has it now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *drawing(), "", END + after])


if __name__ == "__main__":
    page = drawn(PAGE.read_text(encoding="utf-8"))
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page, end="")
