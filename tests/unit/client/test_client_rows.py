"""Every row of the catalogue's section on the client is cited by a test here, or said to be another's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from trees import tree_of

HERE = Path(__file__).parent
LAST = {"CP": 11, "CL": 6, "CJ": 8, "HT": 5, "CB": 15, "CA": 7, "CC": 8, "CV": 6}
ROWS = [f"{family}-{number}" for family, last in LAST.items() for number in range(1, last + 1)]
ELSEWHERE = {
    "CP-6": "manual assignment has no member: the consumer's",
    "CC-6": "callbacks of commits that nobody waits for: the consumer's",
}


def cited() -> set[str]:
    """Return the rows that docstrings of the client's tests name."""
    places = [*HERE.glob("test_*.py"), HERE.parents[1] / "clients" / "test_membership.py"]
    found: set[str] = set()
    for path in places:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found |= set(re.findall(r"\b[A-Z]{2}-\d+\b", ast.get_docstring(node) or ""))
    return found


CITED = cited()


@pytest.mark.parametrize("row", ROWS)
def test_the_row_is_cited_by_a_test(row: str) -> None:
    assert (row in CITED) != (row in ELSEWHERE)
