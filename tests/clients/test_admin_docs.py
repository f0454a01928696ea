"""Every example of docs/admin.md and docs/placement.md runs; an output that stands there is what comes."""

from __future__ import annotations

import ast
import asyncio
import io
import re
import shlex
import sys
from collections.abc import Iterator
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main

from .brokers import broker

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WRITTEN_ADDRESS = "127.0.0.1:9092"


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each example of a page."""
    for found in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")):
        yield found[1], found[2]


def run_python(text: str, names: dict[str, Any]) -> None:
    """Run a block of Python, which may await, with the names of those before it."""
    code = compile(text, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


def run_console(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run each `$ coterie ...` line; what stands below it is what it says, if anything does."""
    for step in text.removeprefix("$ coterie ").split("\n$ coterie "):
        words, _, expected = step.partition("\n")
        with pytest.raises(SystemExit):
            main(shlex.split(words))
        said, complained = capsys.readouterr()
        if expected:
            assert (said + complained).rstrip() == expected.rstrip(), words
        else:
            assert complained == "", words


def run_page(
    page: str, bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run all examples of a page, in order, as somebody at a terminal and a prompt of Python would."""
    names: dict[str, Any] = {}
    monkeypatch.setenv("COTERIE_BOOTSTRAP", bootstrap)
    for kind, text in blocks(page):
        if kind == "python":
            run_python(text.replace(WRITTEN_ADDRESS, bootstrap), names)
            continue
        if text.startswith("$ printf "):
            printed, _, command = text.removeprefix("$ printf ").partition(" | ")
            lines = printed.strip("'").replace("\\n", "\n")
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
            text = f"$ {command}"
        capsys.readouterr()
        run_console(text, capsys)


def test_placements_are_shown_as_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, text in blocks("placement.md"):
        if kind == "python":
            run_python(text, {})
        else:
            run_console(text, capsys)


def test_the_administrators_page_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker() as running:
        run_page("admin.md", running.bootstrap, capsys, monkeypatch)
