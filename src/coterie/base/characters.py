"""Sets of characters as RE2 names them: by range, by group, by category, and without regard to case."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

__all__ = [
    "CATEGORIES",
    "PERL",
    "POSIX",
    "WORD",
    "Test",
    "among",
    "any_of",
    "folded",
    "negated",
    "of_category",
]

Test = Callable[[str], bool]

MINORS = {"C": "cfos", "L": "lmotu", "M": "cen", "N": "dlo", "P": "cdefios", "S": "ckmo", "Z": "lps"}
CATEGORIES = {"Any", *MINORS, *(major + minor for major, minors in MINORS.items() for minor in minors)}
# Letters of which there are more than a small, a capital and a title one; the first is what they fold to.
LETTERS = (
    "kK\u212a sS\u017f \u03bc\u00b5\u039c \u00e5\u00c5\u212b \u03b9\u0345\u0399\u1fbe "
    "\u03b2\u0392\u03d0 \u03b5\u0395\u03f5 \u03b8\u0398\u03d1\u03f4 \u03ba\u039a\u03f0 "
    "\u03c0\u03a0\u03d6 \u03c1\u03a1\u03f1 \u03c3\u03a3\u03c2 \u03c6\u03a6\u03d5 "
    "\u03c9\u03a9\u2126 \u0432\u0412\u1c80 \u0434\u0414\u1c81 \u043e\u041e\u1c82 "
    "\u0441\u0421\u1c83 \u0442\u0422\u1c84\u1c85 \u044a\u042a\u1c86 \u0463\u0462\u1c87 "
    "\ua64b\u1c88\ua64a \u1e61\u1e60\u1e9b \u00df\u1e9e"
)
MORE = {letters[0]: letters for letters in LETTERS.split()}


def among(*ranges: tuple[str, str]) -> Test:
    """Return whether a character lies in one of the ranges, both ends included."""
    if len(ranges) == 1:
        ((low, high),) = ranges
        return low.__eq__ if low == high else lambda one: low <= one <= high
    return lambda one: any(low <= one <= high for low, high in ranges)


def any_of(tests: Iterable[Test]) -> Test:
    """Return whether a character passes any of the tests."""
    each = tuple(tests)
    return lambda one: any(test(one) for test in each)


def negated(test: Test) -> Test:
    """Return whether a character does not pass a test."""
    return lambda one: not test(one)


def folded(test: Test) -> Test:
    """Return whether a character, or the same in another case, passes a test."""
    return lambda one: any(test(other) for other in variants(one))


def fold_of(one: str) -> str:
    """Return the one character that stands for all cases of this; a sharp s is not two of them."""
    return next((fold for fold in (one.casefold(), one.lower()) if len(fold) == 1), one)


def variants(one: str) -> set[str]:
    """Return a character in every case."""
    fold = fold_of(one)
    more = MORE.get(fold)
    cases = more or (one, fold, fold.lower(), fold.upper(), fold.title())
    return {each for each in cases if len(each) == 1}


def of_category(name: str) -> Test:
    """Return whether a character is of a general category of Unicode's, such as L or Lu."""
    if name == "Any":
        return lambda one: True
    if name == "C":  # what is not assigned is no character
        return lambda one: (found := unicodedata.category(one)).startswith("C") and found != "Cn"
    return lambda one: unicodedata.category(one).startswith(name)


DIGIT = among(("0", "9"))
UPPER, LOWER = among(("A", "Z")), among(("a", "z"))
WORD = among(("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
PERL = {"d": DIGIT, "s": among(("\t", "\n"), ("\f", "\r"), (" ", " ")), "w": WORD}
POSIX = {
    "alnum": any_of((DIGIT, UPPER, LOWER)),
    "alpha": any_of((UPPER, LOWER)),
    "ascii": among(("\0", "\x7f")),
    "blank": among(("\t", "\t"), (" ", " ")),
    "cntrl": among(("\0", "\x1f"), ("\x7f", "\x7f")),
    "digit": DIGIT,
    "graph": among(("!", "~")),
    "lower": LOWER,
    "print": among((" ", "~")),
    "punct": among(("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": among(("\t", "\r"), (" ", " ")),
    "upper": UPPER,
    "word": WORD,
    "xdigit": among(("0", "9"), ("A", "F"), ("a", "f")),
}
