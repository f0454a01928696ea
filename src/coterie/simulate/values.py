"""Values of a scenario's file: tables whose keys are known, spans of time, ranges, shares.

Whatever is wrong is said with the place where it stands and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from coterie.base.errors import CoterieError
from coterie.base.settings import nearest

T = TypeVar("T")
Read = Callable[[Any, str], Any]

UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
SPAN_WANTED = 'a span of time such as "45s", "1h30m" or 500 (milliseconds)'


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
            raise BadScript(f"{where or 'the file'} has no key {key}; {hint(key, known)}")
    return {key: known[key](value, place(where, key)) for key, value in given.items()}


def place(where: str, key: str) -> str:
    """Return how an error names a key of a table."""
    return f"{where}: {key}" if where else key


def hint(name: str, known: Mapping[str, Any] | list[str]) -> str:
    """Return what to write instead of a name that nobody knows."""
    near = nearest(name, known, likeness=0.5)
    return f"did you mean {near}?" if near else f"it may have {', '.join(known)}"


def text(given: Any, where: str) -> str:
    """Return a text that is not empty."""
    if not isinstance(given, str) or not given.strip():
        raise bad(where, given, "a text")
    return given


def flag(given: Any, where: str) -> bool:
    """Return true or false."""
    if not isinstance(given, bool):
        raise bad(where, given, "true or false")
    return given


def number(least: int) -> Read:
    """Return what reads a whole number of at least so much."""

    def read(given: Any, where: str) -> int:
        if not isinstance(given, int) or isinstance(given, bool) or given < least:
            raise bad(where, given, f"a whole number of at least {least}")
        return given

    return read


def choice(*names: str) -> Read:
    """Return what reads one of some names."""

    def read(given: Any, where: str) -> str:
        if given not in names:
            raise bad(where, given, f"one of {', '.join(names)}")
        return str(given)

    return read


def span(given: Any, where: str) -> int:
    """Return a span of time in milliseconds."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if isinstance(given, str) and given.strip():
        parts = SPAN.findall(given)
        if "".join(SPAN.sub("", given.strip()).split()) == "" and parts:
            return round(sum(float(count) * UNITS[unit] for count, unit in parts))
    raise bad(where, given, SPAN_WANTED)


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
    """Return what reads one value or several."""

    def read_all(given: Any, where: str) -> tuple[T, ...]:
        many = given if isinstance(given, list) else [given]
        if not many:
            raise bad(where, given, "at least one")
        return tuple(read(one, where) for one in many)

    return read_all
