"""Which functions embody rows of the catalogue: those whose text names them, in a docstring or a comment.

For the rows of the client, the assignors, the partitioners and the placement, which make no decisions with a
reason: a test that cites such a row has to run a function that says it embodies it.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import coterie

__all__ = ["is_embodied", "places", "rows_in", "running"]

Place = tuple[str, int]
"""A function: its file, and its first line with its decorators."""
SOURCE = Path(coterie.__file__).parent
PACKAGES = ("assign", "broker/placement", "client", "wire", "base")
SECTIONS = re.compile(r"[456]\.\d")
ROW = re.compile(r"\b([A-Z]{2}|[456]\.\d(?:\.\d)?)-(\d+)(?: to (?:\1-)?(\d+))?\b")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_embodied(section: str) -> bool:
    """Return whether rows of the section are shown by code that names them."""
    return SECTIONS.match(section) is not None


def rows_in(text: str) -> Iterator[str]:
    """Yield the rows that a text names: CJ-8, 4.4-3, CS-1 to CS-4, CS-1 to 4."""
    for family, first, last in ROW.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{family}-{number}"


@cache
def places() -> Mapping[Place, frozenset[str]]:
    """Return the rows that each function embodies: those that it names, or its class, or its module."""
    found: dict[Place, frozenset[str]] = {}
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            around = frozenset(rows_in(ast.get_docstring(tree) or ""))
            found.update(_places_in(tree, str(path), text.splitlines(), around))
    return found


def _places_in(
    node: ast.AST, path: str, lines: list[str], around: frozenset[str]
) -> Iterator[tuple[Place, frozenset[str]]]:
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.ClassDef):
            outer = around | frozenset(rows_in(ast.get_docstring(one) or ""))
            yield from _places_in(one, path, lines, outer)
        elif isinstance(one, FUNCTIONS):
            first = min([one.lineno, *(each.lineno for each in one.decorator_list)])
            text = "\n".join(lines[first - 1 : one.end_lineno])
            yield (path, first), around | frozenset(rows_in(text))
            yield from _places_in(one, path, lines, around)


@contextmanager
def running(rows: set[str]) -> Iterator[set[str]]:
    """Take from the set each row that a function embodies which runs meanwhile, until none is left."""
    embody = places()

    def called(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        there = embody.get((code.co_filename, code.co_firstlineno))
        if there:
            rows.difference_update(there)
            if not rows:
                sys.settrace(None)

    before = sys.gettrace(), threading.gettrace()
    sys.settrace(called)
    threading.settrace(called)
    try:
        yield rows
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])  # type: ignore[arg-type]  # None is what it was
