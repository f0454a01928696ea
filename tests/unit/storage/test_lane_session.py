"""What a database's errors mean to a lane, and that the page says the same."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from coterie.storage.remote.session import SQLSTATES, Verdict, verdict_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("sqlstate", "verdict"),
    [
        ("08006", Verdict.REOPEN),
        ("57P01", Verdict.REOPEN),
        ("57P03", Verdict.REOPEN),
        ("25006", Verdict.REOPEN),
        ("57014", Verdict.REOPEN),
        ("40003", Verdict.REOPEN),
        ("01000", Verdict.REOPEN),
        ("40001", Verdict.RESEND),
        ("40P01", Verdict.RESEND),
        ("53100", Verdict.REFUSE),
        ("54000", Verdict.REFUSE),
        ("22021", Verdict.REFUSE),
        ("57000", Verdict.REFUSE),
        ("25001", Verdict.REFUSE),
        ("23502", Verdict.REFUSE),
        ("23505", Verdict.CONFLICT),
        ("", Verdict.REFUSE),
    ],
)
def test_the_longest_beginning_of_a_sqlstate_decides(sqlstate: str, verdict: Verdict):
    assert verdict_of(sqlstate) is verdict


def test_every_verdict_is_that_of_some_sqlstate():
    assert {verdict for verdict, _ in SQLSTATES.values()} == set(Verdict)


def test_the_page_of_lanes_has_the_table_of_sqlstates():
    page = (ROOT / "docs" / "lanes.md").read_text(encoding="utf-8")
    script = runpy.run_path(str(ROOT / "scripts" / "sqlstates.py"))

    assert page == script["printed"](page), "run scripts/sqlstates.py --write"
