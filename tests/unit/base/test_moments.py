"""Moments as people read them."""

from __future__ import annotations

import pytest

from coterie.base.plain import moment_text
from coterie.cli.groups.texts import story_lines


def test_a_moment_is_told_in_utc_to_the_second_or_finer():
    assert moment_text(1_795_409_103_091) == "2026-11-23T04:45:03.091Z"
    assert moment_text(1_795_409_103_091, "seconds") == "2026-11-23T04:45:03Z"


@pytest.mark.parametrize("at_ms", [-(2**63), 2**63 - 1])
def test_a_moment_of_no_calendar_is_told_as_its_number(at_ms: int):
    assert moment_text(at_ms) == f"{at_ms} ms"
    (line,) = story_lines({"kind": "of tomorrow", "at": at_ms})
    assert line.startswith(f"{at_ms} ms  of tomorrow")
