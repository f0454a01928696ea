"""Spans of time: ISO 8601 as Java reads it, and units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.settings.durations import iso_duration_ms, ms_of, span_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P1DT2H30M", 95_400_000),
        ("PT15S", 15_000),
        ("PT0.25S", 250),
        ("p2d", 172_800_000),
        ("-PT1M", -60_000),
    ],
)
def test_a_duration_is_written_as_java_reads_it(text: str, ms: int):
    assert iso_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1D", "P1H", "P1M", "P1DT", "PT1.5H", "P" + "9" * 400 + "D"])
def test_what_is_no_duration_is_refused_in_a_sentence(text: str):
    with pytest.raises(ValueError, match=r"is no duration; write|is longer than any time there is"):
        iso_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("45s", 45_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        ("2 d", 172_800_000),
        ("10 Seconds 5ms", 10_005),
    ],
)
def test_a_span_is_written_in_units_and_added_up(text: str, ms: int):
    assert span_ms(text) == ms


@pytest.mark.parametrize("text", ["", "45", "s", "1x", "1h 2", "-1s", "\u0663m", "9" * 5000 + "d", "1..5s"])
def test_a_span_that_is_none_is_none(text: str):
    assert span_ms(text) is None


def test_a_number_without_a_unit_may_count_milliseconds():
    assert (ms_of("500"), ms_of(" 7 "), ms_of("15m")) == (500, 7, 900_000)


@given(st.text())
def test_any_text_is_a_span_or_none(text: str):
    assert ms_of(text) is None or isinstance(ms_of(text), int)
