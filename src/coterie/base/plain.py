"""Texts for people: names that do nothing but to be read, since they come from anybody; counts and
moments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

NAMED = 3


def plain(text: str) -> str:
    """Return a text in which whatever is not printable is escaped: line ends, terminal controls, marks that
    turn the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def plain_json(text: str) -> str:
    """Return a JSON text of one line that means the same, with the same characters escaped as JSON does."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(one: str) -> str:
    """Return a character as JSON writes it: beyond the first 65,536 as two surrogates."""
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_of(names: Sequence[object]) -> str:
    """Return the first three of some names, and dots where there are more."""
    return ", ".join(map(str, names[:NAMED])) + (", ..." if len(names) > NAMED else "")


def most_often(times: Mapping[str, int]) -> str:
    """Return the words that came most often, each with its number of times, and `most often` before them if
    there are others.
    """
    most = max(times.values(), default=0)
    words = [f"{word} ({number:,})" for word, number in times.items() if number == most]
    return ("most often " if len(words) < len(times) else "") + ", ".join(words)


def moment(at_ms: int) -> datetime | None:
    """Return the time in UTC, None where no calendar has it."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def moment_text(at_ms: int, timespec: str = "milliseconds") -> str:
    """Return the time in UTC, as 2026-11-22T12:11:29.932Z; the bare number where no calendar has it."""
    at = moment(at_ms)
    return f"{at_ms} ms" if at is None else at.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
