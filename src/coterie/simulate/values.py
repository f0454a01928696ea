"""Values of a scenario's file: tables whose keys are known, spans of time, ranges, shares.

A wrong value is refused with its place and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from coterie.base.errors import CoterieError
from coterie.base.settings import Setting, WrongValue, did_you_mean, read

T = TypeVar("T")
Read = Callable[[Any, str], Any]


class BadScript(CoterieError):
    """A scenario's file that cannot be; `str()` is the sentence for the user, with what to do."""


def bad(where: str, given: Any, wanted: str) -> BadScript:
    """Return the error of a value that cannot be."""
    return BadScript(f"{where} is {given!r}; it takes {wanted}")


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the dotted names that TOML took apart: `a.b = 1` is `{"a.b": 1}` again."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= {f"{key}.{rest}": one for rest, one in flat(value).items()}
        else:
            found[key] = value
    return found


def read_table(given: Any, known: Mapping[str, Read], where: str) -> dict[str, Any]:
    """Return the values that a table gives, each as its key has it read."""
    if not isinstance(given, dict):
        raise bad(where, given, "a table")
    for key in given:
        if key not in known:
            raise BadScript(f"{where or 'the file'} has no key {key}{hint(key, known)}")
    return {key: known[key](value, place(where, key)) for key, value in given.items()}


def place(where: str, key: str) -> str:
    """Return the place of a key of a table, for an error."""
    return f"{where}: {key}" if where else key


def hint(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: `; did you mean lasts?`, or all that there are."""
    return did_you_mean(name, known, likeness=0.5, otherwise=f"; it may have {', '.join(known)}")


def reader(kind: str, rule: str = "-") -> Read:
    """Return the reader of values of a kind of settings; in TOML, texts and numbers differ."""

    def read_one(given: Any, where: str) -> Any:
        try:
            return read(Setting(where, kind, rule), given, typed=True)
        except WrongValue as wrong:
            raise BadScript(str(wrong)) from None

    return read_one


text = reader("name")
flag = reader("boolean")
span = reader("span", "0..")


def number(least: int) -> Read:
    """Return the reader of a whole number of at least so much."""
    return reader("long", f"{least}..")


def span_range(given: Any, where: str) -> tuple[int, int]:
    """Return the shortest and the longest of a span that chance picks from; one span is both."""
    if not isinstance(given, list):
        one = span(given, where)
        return one, one
    if len(given) != 2:
        raise bad(where, given, 'one span, or the shortest and the longest as in ["10s", "30s"]')
    low, high = (span(one, where) for one in given)
    if low > high:
        raise bad(where, given, "the shortest span first")
    return low, high


def share(given: Any, where: str) -> float | int:
    """Return a count, or the part of one that a percentage is."""
    if isinstance(given, str) and re.fullmatch(r"\d+(\.\d+)?%", given):
        part = float(given[:-1]) / 100
        if 0 < part <= 1:
            return part
    elif isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    raise bad(where, given, 'a number of members of at least 1, or a share such as "25%"')


def listed(read: Callable[[Any, str], T]) -> Callable[[Any, str], tuple[T, ...]]:
    """Return the reader of one value or several."""

    def read_all(given: Any, where: str) -> tuple[T, ...]:
        many = given if isinstance(given, list) else [given]
        if not many:
            raise bad(where, given, "at least one")
        return tuple(read(one, where) for one in many)

    return read_all
