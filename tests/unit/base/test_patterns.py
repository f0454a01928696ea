"""Patterns in RE2's language, against RE2/J itself (its answers are in `patterns.jsonl`)."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.patterns import CHARACTERS_MOST, CLASSES_MOST, BadPattern, read_pattern

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "patterns.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
TAKEN_BY_RE2_ONLY = {"{*", "[[:]"}  # docs/decisions/0017-re2.md


@pytest.mark.parametrize(
    "case", [case for case in CASES if "like" in case], ids=lambda case: repr(case["pattern"])
)
def test_what_re2j_takes_is_taken_and_means_the_same(case):
    pattern = read_pattern(case["pattern"])

    assert pattern.matching(case["like"] + case["unlike"]) == case["like"]


@pytest.mark.parametrize("text", [case["pattern"] for case in CASES if "refused" in case], ids=repr)
def test_what_re2j_refuses_is_refused_but_for_the_differences_that_are_written_down(text):
    try:
        read_pattern(text)
    except BadPattern:
        assert text not in TAKEN_BY_RE2_ONLY
    else:
        assert text in TAKEN_BY_RE2_ONLY


@pytest.mark.parametrize(
    ("text", "like", "unlike"),
    [
        (r"\p{Greek}+", "αβγ", "abc"),
        (r"\\C", r"\C", "C"),  # a backslash before a C is not \C
        (r"\Q\C\E.", r"\C!", "C!"),
        ("(" * 60 + "a" + ")" * 60, "a", "b"),
    ],
)
def test_scripts_quotations_and_deep_groups_are_understood(text, like, unlike):
    assert read_pattern(text).matching([unlike, like]) == [like]


@given(st.text(r"ab(){}[]|*+?^$.\-:<>=!#PQE012xpidmsUC", max_size=30))
def test_any_text_is_a_pattern_or_is_refused(text):
    with suppress(BadPattern):
        read_pattern(text).matching(["ab"])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x" * (CHARACTERS_MOST + 1), "characters"),
        (r"\pL" * (CLASSES_MOST + 1), "classes"),
        (r"(?:\pL?){1000}", "too large"),
        ("((x{1000}){1000}){1000}", "repetition"),
        ("a(", "missing \\)"),
    ],
)
def test_a_refused_pattern_is_told_with_the_reason(text, what):
    with pytest.raises(BadPattern, match=what):
        read_pattern(text)


@pytest.mark.parametrize("text", ["(x+x+)+y", "(x*)*y", "(x|x)*y", "((x?){9}){9}y", "(.*x){12}y"])
def test_a_pattern_that_would_take_others_for_ever_takes_no_longer_than_its_text(text):
    """Each of these takes `re` longer than the world has stood."""
    pattern = read_pattern(text)
    begun = time.process_time()

    assert pattern.matching(["x" * 20_000]) == []
    assert time.process_time() - begun < 1


def test_patterns_of_strangers_hold_little_memory():
    """Each of these fills all that RE2 gives it; only what is still in use is kept."""
    program = """
import resource, random
from coterie.base.patterns import read_pattern
rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 if sys.platform != "darwin" else 1024)
import sys
read_pattern("a").matching(["a"])
before = rss()
text = "".join(random.Random(1).choices("ab", k=20_000))
for at in range(40):
    assert read_pattern(f"(?:a|b)*a[ab]{{{300 + at}}}c").matching([text]) == []
print(rss() - before)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert float(ran.stdout) < 8 * 1024  # KiB; 40 of a MiB otherwise


def test_re2_is_loaded_with_the_first_pattern_only():
    """Most brokers are never asked for one, and it takes longer to load than a broker's other libraries."""
    program = "import sys, coterie.broker.main; sys.exit('re2' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
