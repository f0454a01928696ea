"""The kit of settings: values, refusals with the name that was meant, tables."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.settings import (
    KINDS,
    Setting,
    WrongValue,
    did_you_mean,
    join_words,
    nearest,
    read,
    settings_of,
    what_it_takes,
)

NAMES = ("linger.ms", "batch.size", "acks")
TIMES = Setting("times", "int", "-1|1..9")


def problem_of(setting: Setting, value: object, *, typed: bool = False) -> tuple[str, str]:
    with pytest.raises(WrongValue) as wrong:
        read(setting, value, typed=typed)
    return wrong.value.problem.what, wrong.value.problem.wanted


def test_a_slip_of_the_pen_finds_the_name_that_was_meant():
    assert nearest("linger.m", NAMES) == "linger.ms"
    assert nearest("bach.size", iter(NAMES)) == "batch.size"
    assert nearest("maxoffsets", ["minPartitions", "maxOffsets"]) == "maxOffsets"


def test_nothing_is_meant_by_a_name_unlike_all_others_unless_any_will_do():
    assert nearest("retries", NAMES) is None
    assert nearest("retries", NAMES, likeness=0.0) in NAMES
    assert nearest("retries", ()) is None


def test_a_sentence_ends_with_the_name_that_was_meant_or_with_what_else_there_is_to_say():
    assert did_you_mean("LINGER.M", NAMES) == "; did you mean linger.ms?"
    assert did_you_mean("retries", NAMES) == ""
    assert did_you_mean("retries", NAMES, otherwise="; see the docs") == "; see the docs"


@pytest.mark.parametrize("given", [1, "1", " 1 ", "+1"])
def test_a_number_may_be_a_text_but_where_texts_and_numbers_are_told_apart(given: object):
    assert read(TIMES, given) == 1
    if isinstance(given, str):
        assert problem_of(TIMES, given, typed=True) == ("kind", "a whole number")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (0, ("least", "at least 1")),
        ("10", ("most", "at most 9")),
        (1 << 31, ("bits", "at most 2147483647")),
        (-1 << 40, ("bits", "at least -2147483648")),
        ("x", ("kind", "a whole number")),
        (True, ("kind", "a whole number")),
        (None, ("kind", "a whole number")),
        (1.5, ("kind", "a whole number")),
    ],
)
def test_a_refusal_says_what_the_value_lacks_and_all_that_the_setting_takes(
    given: object, problem: tuple[str, str]
):
    assert problem_of(TIMES, given) == problem
    with pytest.raises(WrongValue, match=r"^times is .*; it takes a whole number from 1 to 9, or -1$"):
        read(TIMES, given)


def test_a_number_beside_the_range_is_taken():
    assert read(TIMES, "-1") == -1


def test_a_boolean_is_true_or_false_in_any_case_and_no_number():
    setting = Setting("on", "boolean")

    assert [read(setting, one) for one in ("TRUE", " false ", True)] == [True, False, True]
    assert problem_of(setting, 1) == problem_of(setting, "true", typed=True) == ("kind", "true or false")


def test_words_are_as_they_are_written_or_in_any_case():
    assert read(Setting("level", "string", "low|high"), " low ") == "low"
    assert problem_of(Setting("level", "string", "low|high"), "LOW") == ("word", "one of 'low', 'high'")
    assert read(Setting("level", "string", "~low|HIGH"), "Low") == "low"
    assert problem_of(Setting("levels", "list", "low|high"), "low,") == ("word", "one of 'low', 'high'")


def test_spans_of_time_have_units_and_times_may_be_milliseconds():
    assert read(Setting("lasts", "span", "0.."), "1h30m") == read(Setting("lasts", "time"), "90 minutes")
    assert read(Setting("lasts", "time"), "500") == read(Setting("lasts", "span"), 500) == 500
    assert problem_of(Setting("lasts", "span"), "500")[0] == "kind"


def test_what_is_far_too_long_is_shown_by_its_beginning():
    with pytest.raises(WrongValue) as wrong:
        read(TIMES, "9" * 5000)

    assert len(str(wrong.value)) < 300


@given(st.sampled_from(sorted(KINDS)), st.text() | st.integers() | st.booleans() | st.none())
def test_whatever_is_given_is_a_value_of_its_kind_or_refused(kind: str, value: object):
    with suppress(WrongValue):
        assert isinstance(read(Setting("one", kind), value), KINDS[kind].type)


def test_a_table_tells_no_default_from_an_empty_one():
    table = settings_of([["a", "int", "0..", "null"], ["b", "list", "-", '""', "What it does.", "more"]])

    assert table == {
        "a": Setting("a", "int", "0..", None),
        "b": Setting("b", "list", "-", "", "What it does."),
    }


def test_words_are_joined_as_in_a_sentence():
    assert join_words(["a"]) == "a"
    assert join_words(["a", "b", "c"]) == "a, b or c"


def test_a_sentence_has_all_that_a_setting_takes():
    assert what_it_takes(Setting("a", "string", "https|")) == "https or ''"
    assert what_it_takes(Setting("a", "int", "1..")) == "a whole number of at least 1"
    assert what_it_takes(Setting("a", "list", "x|y")) == "a list with commas of x or y"
