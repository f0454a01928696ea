"""Java's properties files, which hold the settings of Apache Kafka's brokers."""

from __future__ import annotations

from collections.abc import Iterator

SPACES = " \t\f"
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(ValueError):
    """A line that Java does not read either; `str()` names it."""


def read_properties(text: str) -> dict[str, str]:
    """Return the settings of a properties file; of a name that stands twice the last counts."""
    return dict(_entry(number, line) for number, line in _logical_lines(text))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each entry with its first line's number: comments left out, continued lines joined."""
    natural = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    lines = iter(enumerate(natural, start=1))
    for number, raw in lines:
        line = raw.lstrip(SPACES)
        if line in {"", "\\"} or line[0] in "#!":  # Java: a lone backslash continues an empty line
            continue
        while _is_continued(line):
            line = line[:-1] + next(lines, (0, ""))[1].lstrip(SPACES)
        yield number, line


def _is_continued(line: str) -> bool:
    """Return whether the line ends in a backslash that no backslash escapes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(number: int, line: str) -> tuple[str, str]:
    end = _key_end(line)
    rest = line[end:].lstrip(SPACES)
    if rest[:1] in {"=", ":"}:
        rest = rest[1:].lstrip(SPACES)
    return _unescape(number, line[:end]), _unescape(number, rest)


def _key_end(line: str) -> int:
    """Return the index at which the key ends: the first `=`, `:` or space that no backslash escapes."""
    escaped = False
    for at, sign in enumerate(line):
        if not escaped and (sign in "=:" or sign in SPACES):
            return at
        escaped = sign == "\\" and not escaped
    return len(line)


def _unescape(number: int, text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    signs = iter(text)
    for sign in signs:
        if sign != "\\":
            out.append(sign)
            continue
        after = next(signs, "")
        out.append(_unicode(number, signs) if after == "u" else ESCAPES.get(after, after))
    return _joined_surrogates(number, "".join(out))


def _unicode(number: int, signs: Iterator[str]) -> str:
    digits = "".join(next(signs, "") for _ in range(4))
    if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
        raise PropertiesError(f"line {number}: \\u{digits} is not four hexadecimal digits after \\u")
    return chr(int(digits, 16))


def _joined_surrogates(number: int, text: str) -> str:
    """Return the text with Java's pairs of UTF-16 halves as the characters they stand for."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise PropertiesError(f"line {number}: half of a UTF-16 pair stands alone") from None
