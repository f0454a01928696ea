"""Regular expressions in RE2's language, as Kafka takes them of clients: matched by RE2 itself.

RE2 needs time linear in the text and bounded memory, so no client's pattern holds a broker up
(docs/decisions/0017-re2.md: where it differs from Kafka's RE2/J, and why these bounds).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coterie.base.errors import CoterieError

if TYPE_CHECKING:
    import re2

CHARACTERS_MOST = 5_000
CLASSES_MOST = 200  # \p and \P: reading one costs RE2 0.1 to 0.2 ms, with Python's lock held
MEMORY_MOST = 1 << 20
"""Bytes that one pattern may hold, its cached states included; Apache Kafka's have no such bound."""

# What is quoted, what is escaped, and how a group with a name begins; all else in a pattern is skipped.
TOKENS = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.|\(\?P?<\w+>", re.DOTALL)


class BadPattern(CoterieError):
    """A text that is no pattern, or one that is not supported; says what is wrong with it."""


class Pattern:
    """A regular expression that texts are held against, whole."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def matching(self, texts: Sequence[str]) -> list[str]:
        """Return the texts that match from the first character to the last, in their order.

        Other threads run while RE2 works.
        """
        return [text for text in texts if self._compiled.fullmatch(text) is not None]


def read_pattern(text: str) -> Pattern:
    """Return the pattern that a text is; raise `BadPattern` if RE2/J would refuse it or it is too large."""
    check(text)
    import re2  # most brokers are never asked for a pattern

    options = re2.Options()
    options.max_mem = MEMORY_MOST
    options.log_errors = False
    options.never_capture = True  # only whether a text matches is asked, which RE2 tells faster
    try:
        return Pattern(re2.compile(text, options))
    except re2.error as error:
        raise BadPattern(reason_of(error)) from None
    finally:
        re2.purge()  # its cache would keep 128 patterns alive, and what each has remembered


def check(text: str) -> None:
    """Refuse what takes RE2 long to read, and what RE2 takes though RE2/J does not."""
    if len(text) > CHARACTERS_MOST:
        raise BadPattern(f"the pattern has more than {CHARACTERS_MOST} characters")
    tokens = TOKENS.findall(text)
    if tokens.count(r"\p") + tokens.count(r"\P") > CLASSES_MOST:
        raise BadPattern(f"the pattern has more than {CLASSES_MOST} classes of Unicode's")
    if r"\C" in tokens:  # one byte of a character: RE2/J has characters only
        raise BadPattern(r"invalid escape sequence: \C")
    names = [token.partition("<")[2] for token in tokens if token.startswith("(")]
    if len(names) != len(set(names)):
        raise BadPattern("duplicate capture group name")


def reason_of(error: re2.error) -> str:
    """Return RE2's own words for what is wrong with a pattern."""
    (reason,) = error.args
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
