"""Prints docs/errors.md: the tree of Coterie's exceptions and what to do about each, read from the source.

`--write` writes the page; a test says when that is due. Nothing is imported but the codes and the advice:
classes and their docstrings are found by parsing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "coterie"
PAGE = ROOT / "docs" / "errors.md"
TOP = "CoterieError"

INTRODUCTION = """# Errors

Printed by `scripts/errors.py --write`; do not edit. Everything that Coterie raises on purpose is a
`CoterieError`, and its message says what happened and what to do. Our own mistakes are `AssertionError`s:
please report them.
"""
CODES_INTRODUCTION = """## Kafka's codes

`RefusedBy.code` is the code, its name in small letters the `slug`. What has no entry is a matter between
clients and brokers.
"""


class Found(NamedTuple):
    """An exception's class: where it is, what it is a kind of, and what it says of itself."""

    name: str
    module: str
    base: str
    words: str


def classes() -> list[Found]:
    """Return all exceptions below the root; two modules may have classes of one name."""
    there = [each for path in sorted(SOURCE.rglob("*.py")) for each in classes_in(path)]
    kinds = {TOP}
    while True:
        found = [each for each in there if each.base in kinds]
        more = kinds | {each.name for each in found}
        if more == kinds:
            return found
        kinds = more


def classes_in(path: Path) -> Iterator[Found]:
    """Yield the classes of one module that have a base."""
    module = ".".join(("coterie", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.bases:
            words = " ".join((ast.get_docstring(node) or "").split())
            yield Found(node.name, module, ast.unparse(node.bases[0]), words)


def tree(found: list[Found], name: str = TOP, indent: str = "") -> Iterator[str]:
    """Yield the lines of the tree below a class."""
    below = sorted(each.name for each in found if each.base == name)
    for number, each in enumerate(dict.fromkeys(below)):
        last = number == len(set(below)) - 1
        yield f"{indent}{'└── ' if last else '├── '}{each}"
        yield from tree(found, each, indent + ("    " if last else "│   "))


def page() -> str:
    """Return the page."""
    sys.path.insert(0, str(ROOT / "src"))
    from coterie.base.codes import ADVICE

    found = classes()
    parts = [INTRODUCTION, "```text", TOP, *tree(found), "```", ""]
    for each in sorted(found):
        parts += [f"## {each.name}", "", f"`{each.module}.{each.name}`", "", plain(each.words), ""]
    parts += [CODES_INTRODUCTION, "| code | name | what to do |", "|---:|---|---|"]
    parts += [f"| {int(code)} | `{code.name}` | {advice} |" for code, advice in sorted(ADVICE.items())]
    return "\n".join(parts) + "\n"


def plain(words: str) -> str:
    """Return a docstring as Markdown text, broken into lines."""
    lines, line = [], ""
    for word in re.split(r"\s+", words):
        if len(line) + len(word) > 118:
            lines.append(line.rstrip())
            line = ""
        line += word + " "
    return "\n".join([*lines, line.rstrip()])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
