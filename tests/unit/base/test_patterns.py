"""Patterns in RE2's language, against RE2/J itself (its answers are in `patterns.jsonl`) and against `re`."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.characters import fold_of, variants
from coterie.base.pattern_syntax import DEPTH_MOST, read_pattern
from coterie.base.patterns import LOOKS_AT_ONCE, STEPS_MOST, BadPattern

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "patterns.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]


@pytest.mark.parametrize(
    "case", [case for case in CASES if "like" in case], ids=lambda case: repr(case["pattern"])
)
def test_what_re2j_takes_is_taken_and_means_the_same(case):
    pattern = read_pattern(case["pattern"])

    assert [text for text in case["like"] + case["unlike"] if pattern.matches(text)] == case["like"]


@pytest.mark.parametrize("text", [case["pattern"] for case in CASES if "refused" in case], ids=repr)
def test_what_re2j_refuses_is_refused(text):
    with pytest.raises(BadPattern):
        read_pattern(text)


atoms = st.sampled_from(
    ["a", "b", "[ab]", "[^a]", ".", r"\w", r"\W", r"\b", r"\B", "^", r"\d", "(?i:A)", "()"]
)
counts = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}", "*?"])
alike = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda both: "(?:" + "|".join(both) + ")"),
        st.tuples(inner, counts).map(lambda both: f"(?:{both[0]}){both[1]}"),
    ),
    max_leaves=8,
)


@given(text=alike, names=st.lists(st.text("abA1 _\n", min_size=1, max_size=6), max_size=10))
def test_a_pattern_in_both_languages_means_the_same_in_both(text, names):
    """But for the empty text, of which `re` says that it has no place that is no boundary."""
    pattern, other = read_pattern(text), re.compile(text, re.ASCII)

    assert [name for name in names if pattern.matches(name)] == [n for n in names if other.fullmatch(n)]


@given(st.text(r"ab(){}[]|*+?^$.\-:<>=!#PQE012xpidmsU", max_size=30))
def test_any_text_is_a_pattern_or_is_refused(text):
    with suppress(BadPattern):
        read_pattern(text).matches("ab")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (r"\p{Greek}", "scripts"),
        ("(" * (DEPTH_MOST + 1) + ")" * (DEPTH_MOST + 1), "others"),
        ("((x{1000}){1000}){1000}", "steps"),
        ("a|" * STEPS_MOST, "steps"),
    ],
)
def test_what_only_re2j_would_take_is_refused_with_the_reason(text, what):
    with pytest.raises(BadPattern, match=what):
        read_pattern(text)


def test_as_deep_as_is_allowed_is_read():
    assert read_pattern("(" * DEPTH_MOST + "a" + ")*" * DEPTH_MOST).matches("a" * 9)


@pytest.mark.parametrize("text", ["(x+x+)+y", "(x*)*y", "(x|x)*y", "((x?){9}){9}y", "(.*x){12}y"])
def test_a_pattern_that_would_take_others_for_ever_takes_no_longer_than_its_text(text):
    """Each of these takes `re` longer than the world has stood."""
    looking = read_pattern(text).look("x" * 20_000)

    assert sum(1 for _ in looking) < 200


def test_others_have_their_turn_while_a_text_is_looked_at():
    looking = read_pattern("(?:(?:a?){50}){20}").look("a" * 100)

    assert sum(1 for _ in looking) > 100 * 50 * 20 / LOOKS_AT_ONCE / 4


def test_what_is_remembered_is_bounded_and_its_loss_is_not_noticed(monkeypatch: pytest.MonkeyPatch):
    text = "abba" * 30
    pattern = read_pattern("(?:a|b)*a.{20}")
    monkeypatch.setattr("coterie.base.patterns.REMEMBERED_MOST", 40)

    found = [pattern.matches(text[:at]) for at in range(len(text))]

    assert found == [at > 20 and text[at - 21] == "a" for at in range(len(text))]
    assert len(pattern._states) <= 40


def test_a_letter_is_the_same_in_every_case():
    """RE2/J has tables of Unicode's simple folding; `variants` knows all that a letter folds with."""
    alike: dict[str, set[str]] = {}
    for one in map(chr, range(0x1_E944)):
        alike.setdefault(fold_of(one), set()).add(one)

    assert all(variants(one) == letters for letters in alike.values() if len(letters) > 1 for one in letters)
