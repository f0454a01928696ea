"""docs/compatibility.md says what the broker serves now, and what the suites showed last."""

from __future__ import annotations

import pytest
from interop.outcomes import Outcome, kept_outcomes, read_line

import coterie.testing
from interop import compatibility


@pytest.fixture(scope="module")
def served() -> compatibility.Served:
    """What a broker answers to ApiVersions."""
    with coterie.testing.broker() as broker:
        return compatibility.ask(broker.port)


@pytest.mark.slow
def test_the_page_is_current(served: compatibility.Served):
    page = compatibility.page(served, compatibility.kafkas(), kept_outcomes())

    assert compatibility.PAGE.read_text("utf-8") == page, "python -m interop.compatibility writes it anew"


@pytest.mark.slow
def test_what_is_served_is_served_in_kafkas_versions(served: compatibility.Served):
    kafka = compatibility.kafkas().served

    assert {key: kafka.apis.get(key) for key in served.apis} == served.apis
    assert {name: kafka.features.get(name) for name in served.features} == served.features


def test_a_suites_lines_are_counted_and_its_talk_is_not():
    outcome = Outcome("kgo", "coterie", "2026-11-21")

    for line in ("client franz-go 1.22.2\n", "ok TestPing\n", "FAILED TestETL: after 3s\n", "okay so far\n"):
        read_line(outcome, line)

    assert (outcome.clients, outcome.passed, outcome.failed) == (
        ["franz-go 1.22.2"],
        ["TestPing"],
        ["TestETL"],
    )
    assert outcome.whys == {"TestETL": "after 3s"}


def test_what_must_pass_and_did_not_run_has_failed():
    outcome = Outcome("kgo", "coterie", "2026-11-21", passed=["a"], failed=["b", "c"], skipped={"d": "why"})

    outcome.judge({"a", "b", "d", "e"})

    assert (outcome.failed, outcome.known) == (["b", "e"], ["c"])
    assert outcome.whys == {"e": "it did not run"}


def test_a_suite_that_was_not_tried_has_not_failed():
    outcome = Outcome("kgo", "coterie", "2026-11-21", skipped={"kgo": "there is no Go"})

    outcome.judge({"a", "b"})

    assert outcome.failed == []
