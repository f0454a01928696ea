"""The examples of docs/assignors.md do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from coterie.assign.registry import KINDS
from coterie.cli.assign.trial import Trial

PAGE = (Path(__file__).resolve().parents[3] / "docs/assignors.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_assignor_of_the_page_runs():
    names: dict[str, object] = {}
    for example in examples("python"):
        exec(compile(example, "docs/assignors.md", "exec"), names)

    assert "given" in names


def test_the_line_of_the_page_is_answered_as_it_shows():
    (line,) = map(json.loads, examples("json"))

    first, second, third = Trial.of(line).play(KINDS[line["assignor"]])

    assert first.loads == {"a": 4}
    assert (second.loads, second.moves, second.withheld) == ({"a": 2, "b": 0}, 2, 2)
    assert (third.loads, third.moves, third.withheld) == ({"a": 2, "b": 2}, 0, 0)


def test_the_page_names_every_assignor():
    for name in KINDS:
        assert f"| `{name}` |" in PAGE
