"""Lists the rows of the catalogue of Kafka's behaviours that no test proves; fails on a gap that is new.

A row of the coordinator is proved by a test that is marked `@pytest.mark.row("JG-12")` and reaches a
decision, step or mark whose reason names it. A row of the client, the assignors, the partitioners or the
placement (sections 4 to 6) is proved by a test whose docstring cites it and which runs a function that names
it. This script holds reasons, functions and citations against docs/behaviours.md, without running a test;
that a test reaches what it cites is enforced where the tests run (tests/row_marks.py, tests/embodied.py).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from catalogue import PAGE, faults_of, listed  # noqa: E402  # where it lies
from embodied import FUNCTIONS, is_embodied, places, rows_in  # noqa: E402  # where it lies

DATA = ROOT / "tests" / "data" / "rows"
ELSEWHERE, GAPS = DATA / "elsewhere.txt", DATA / "gaps.txt"


def excuses(path: Path) -> dict[str, str]:
    """Return what a file of `id<tab>reason` lines says; `CH-*` stands for all rows that begin so."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    return dict(line.split("\t") for line in lines)  # type: ignore[misc]


def expanded(patterns: dict[str, str], rows: dict[str, str]) -> tuple[set[str], list[str]]:
    """Return the rows that the patterns name, and the patterns that name none."""
    found: set[str] = set()
    empty = []
    for pattern in patterns:
        named = {
            row for row in rows if row == pattern or (pattern[-1] == "*" and row.startswith(pattern[:-1]))
        }
        found |= named
        if not named:
            empty.append(pattern)
    return found, empty


def cited() -> dict[str, list[str]]:
    """Return the rows that tests are marked with, and where."""
    found: dict[str, list[str]] = {}
    embodied_rows = {row for row, section in listed().items() if is_embodied(section)}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
                for row in set(rows_in(ast.get_docstring(node) or "")) & embodied_rows:
                    found.setdefault(row, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
            if isinstance(node, ast.Call) and name_of(node.func) == "row":
                for argument in node.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        place = f"{path.relative_to(ROOT)}:{node.lineno}"
                        found.setdefault(argument.value, []).append(place)
    return found


def name_of(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def bound() -> dict[str, list[str]]:
    """Return the rows that reasons are bound to or functions name, and which."""
    from coterie.base.reasons import CHOICE, GROUP, reasons

    found: dict[str, list[str]] = {}
    embodied_rows = {row for row, section in listed().items() if is_embodied(section)}
    for (path, line), rows in places().items():
        for row in rows & embodied_rows:
            found.setdefault(row, []).append(f"{Path(path).name}:{line}")
    for reason in (*reasons(GROUP).values(), *reasons(CHOICE).values()):
        for row in reason.rows:
            found.setdefault(row, []).append(reason.name)
    return found


def problems() -> Iterator[str]:
    """Yield what is wrong, a line each."""
    rows = listed()
    yield from faults_of(PAGE.read_text(encoding="utf-8"))
    elsewhere, unmatched = expanded(excuses(ELSEWHERE), rows)
    gaps, idle = expanded(excuses(GAPS), rows)
    citations, bindings = cited(), bound()
    for pattern in (*unmatched, *idle):
        yield f"{pattern}: excused, but there is no such row"
    for row in sorted(citations.keys() - rows.keys()):
        yield f"{row}: cited at {citations[row][0]}, but there is no such row"
    for row in sorted(bindings.keys() - rows.keys()):
        yield f"{row}: bound to {bindings[row][0]}, but there is no such row"
    for row in rows:
        proved = row in citations and row in bindings
        if proved and row in elsewhere | gaps:
            yield f"{row}: excused, but tested at {citations[row][0]}"
        elif not proved and row not in elsewhere | gaps:
            missing = "no test cites it" if row in bindings else "no reason and no function is bound to it"
            yield f"{row} ({rows[row]}): {missing}"


def summary() -> str:
    """Return the count of rows by what became of them."""
    rows = listed()
    elsewhere, gaps = expanded(excuses(ELSEWHERE), rows)[0], expanded(excuses(GAPS), rows)[0]
    proved = cited().keys() & bound().keys() & rows.keys()
    excused = f"{len(elsewhere)} not ours to show, {len(gaps)} known gaps"
    return f"{len(rows)} rows: {len(proved)} proved, {excused}"


def main() -> int:
    found = list(problems())
    print("\n".join([*found, summary()]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
