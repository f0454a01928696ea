"""The catalogue of reasons, and the pages that are printed from it or have to agree with it."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.base.reasons import CAUSE, CHOICE, GROUP, INFERRED, TRANSACTION, inferred, kinds, names, reasons
from trees import tree_of

ROOT = Path(__file__).resolve().parents[3]
HISTORY = ROOT / "src" / "coterie" / "history"
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "reasons.py"))


def words_of_a_history() -> set[str]:
    return {one.inferred for one in reasons(CAUSE).values()} | reasons(INFERRED).keys()


def test_every_reason_has_a_name_that_can_be_looked_for_and_a_sentence():
    assert set(kinds()) == {GROUP, TRANSACTION, CHOICE, CAUSE, INFERRED}
    for kind in kinds():
        assert names(kind) == reasons(kind).keys()
        for name, reason in reasons(kind).items():
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name), name
            assert (reason.name, reason.kind) == (name, kind)
            assert reason.section
            assert re.fullmatch(r"[A-Z].*[^ ]\.", reason.sentence), name


def test_a_reason_is_read_whole():
    reason = reasons(GROUP)["held-by-initial-delay"]

    assert reason.section == "Rebalances"
    assert reason.sentence == "All members have joined; the wait for more goes on."
    assert reason.rows == ("ID-5", "ID-7", "LG-10")
    assert reasons(CAUSE)["evicted"].inferred == "member-left"


def test_the_page_of_marks_is_what_the_catalogue_says():
    page = (ROOT / "docs" / "marks.md").read_text(encoding="utf-8")

    assert page == SCRIPT["marks"](), "run scripts/reasons.py --write"


def test_the_page_of_the_story_has_the_causes_of_the_catalogue():
    page = (ROOT / "docs" / "story.md").read_text(encoding="utf-8")

    assert page == SCRIPT["story"](page), "run scripts/reasons.py --write"


def test_the_page_of_the_history_says_how_each_of_its_causes_is_known():
    page = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    table = page.partition("| cause | known by |")[2].partition("\n\n")[0]
    rows = (line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))

    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == words_of_a_history()


def test_a_broker_and_a_history_have_one_word_for_one_cause():
    """What a history says is a cause that the broker tells, too, or one that only a history tells apart."""
    assert words_of_a_history() <= {*reasons(CAUSE), *reasons(INFERRED)}
    assert not reasons(CAUSE).keys() & reasons(INFERRED).keys()


def test_a_history_infers_no_cause_that_is_not_in_the_catalogue():
    found = {name for path in HISTORY.rglob("*.py") for name in causes_named(tree_of(path))}

    assert {"member-joined", "partitions-changed", "unknown"} <= found <= words_of_a_history()


def causes_named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="Cause"), args=[ast.Constant(value=str(name)), *_]):
                yield name


@pytest.mark.parametrize(
    ("causes", "words"),
    [
        (["member-joined", "evicted", "member-left"], ("member-joined", "member-left")),
        (["sync-timed-out", "rebalance-timed-out"], ("session-expired", "poll-interval-exceeded")),
        (["group-too-large", "of-a-later-broker"], ("unknown",)),
        (["topics-changed"], ("topics-changed",)),
    ],
)
def test_what_a_broker_recorded_is_said_in_the_words_of_a_history(causes, words):
    assert inferred(causes, same_topics=False) == words


def test_topics_that_changed_and_are_the_same_have_other_partitions():
    assert inferred(["topics-changed", "member-left"], same_topics=True) == (
        "partitions-changed",
        "member-left",
    )
