"""Text that does nothing but to be read: names come from anybody, and go to terminals and logs."""

from __future__ import annotations


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
