"""docs/errors.md, the tree of exceptions and the advice about codes agree, and each says what to do."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from coterie.base.codes import ADVICE, ADVICE_BESIDE_REASON, Code
from coterie.base.errors import RefusedBy

ROOT = Path(__file__).resolve().parents[3]
ERRORS = runpy.run_path(str(ROOT / "scripts" / "errors.py"))


def test_the_page_is_what_the_source_says():
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")

    assert page == ERRORS["page"](), "run scripts/errors.py --write"


def test_every_exception_is_below_the_root_and_says_something():
    found = ERRORS["classes"]()

    assert {"Corrupt", "Disconnected", "AuthenticationFailed", "WrongSetting"} <= {one.name for one in found}
    for one in found:
        assert len(one.words.split()) >= 5, one


@pytest.mark.parametrize("code", ADVICE, ids=lambda code: code.name)
def test_a_refusal_ends_with_what_to_do(code):
    error = RefusedBy(code, "Fetch of t-0")

    assert str(error) == f"{code.name}: Fetch of t-0; {ADVICE[code]}"
    assert error.slug == code.name.lower().replace("_", "-")


def test_a_code_without_advice_is_just_named():
    assert str(RefusedBy(Code.STALE_BROKER_EPOCH)) == "STALE_BROKER_EPOCH"


def test_advice_is_a_clause_that_follows_a_semicolon():
    for advice in (*ADVICE.values(), *ADVICE_BESIDE_REASON.values()):
        assert advice[0].islower(), advice
        assert not advice.endswith("."), advice
