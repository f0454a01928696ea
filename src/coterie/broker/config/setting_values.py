"""The text of a setting to its value, and Apache Kafka's words where the text does not fit.

Brokers' settings and topics' settings go through here; what they mean is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coterie.base.whole import whole_number
from coterie.broker.config.known_settings import Known

Value = bool | int | float | str | list[str] | None

BITS: Final = {"int": 31, "short": 15, "long": 63}


class InvalidValueError(ValueError):
    """A text that is no value of its setting; `str()` is what Apache Kafka's brokers answer."""

    def __init__(self, known: Known, shown: object, problem: str) -> None:
        super().__init__(f"Invalid value {shown} for configuration {known.name}: {problem}")


def read_value(known: Known, text: str) -> Value:
    """Return the value that `text` gives the setting, or raise `InvalidValueError`."""
    value = READERS[known.kind](known, text)
    if known.rule != "-":
        _check(known, value)
    return value


# -- kinds


def read_list(text: str) -> list[str]:
    """Return the items of a list: split at commas, the spaces around them dropped; nothing is no item."""
    stripped = text.strip()
    return [item.strip() for item in stripped.split(",")] if stripped else []


def _whole(known: Known, text: str) -> int:
    number = whole_number(text.strip(), bits=BITS[known.kind])
    if number is None:
        raise InvalidValueError(known, text, f"Not a number of type {known.kind.upper()}")
    return number


def _double(known: Known, text: str) -> float:
    """Return a number as Java reads it: a trailing d or f is taken, an underscore or `inf` is not."""
    stripped = text.strip()
    digits = stripped[:-1] if stripped[-1:] in tuple("dDfF") else stripped
    try:
        if not set(digits) <= set("+-.0123456789eE") and digits.lstrip("+-") not in {"NaN", "Infinity"}:
            raise ValueError
        return float(digits)
    except ValueError:
        raise InvalidValueError(known, text, "Not a number of type DOUBLE") from None


def _boolean(known: Known, text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise InvalidValueError(known, text, "Expected value to be either true or false")
    return word == "true"


def _text(known: Known, text: str) -> str:
    return text.strip()


def _secret(known: Known, text: str) -> str:
    return text


def _items(known: Known, text: str) -> list[str]:
    return read_list(text)


READERS: Final[dict[str, Callable[[Known, str], Value]]] = {
    "int": _whole,
    "short": _whole,
    "long": _whole,
    "double": _double,
    "boolean": _boolean,
    "string": _text,
    "class": _text,
    "list": _items,
    "password": _secret,
}


# -- rules


def _check(known: Known, value: Value) -> None:
    if known.rule == "replicas":
        assert isinstance(value, list)
        check_replicas(known, value)
    elif isinstance(value, list):
        for item in value:
            _check_item(known, item)
    elif isinstance(value, str):
        _check_word(known, value)
    else:
        assert value is not None
        _check_range(known, value)


def _check_item(known: Known, item: str) -> None:
    if not item:
        refusal = InvalidValueError(known, "", "")
        refusal.args = (f"Configuration '{known.name}' values must not be empty.",)
        raise refusal
    _check_word(known, item)


def _check_word(known: Known, word: str) -> None:
    words = known.rule.lstrip("~").split("|")
    folded = known.rule.startswith("~")
    if (word.upper() if folded else word) not in words:
        listed = ", ".join(words)
        case = "(case insensitive) " if folded else ""
        raise InvalidValueError(
            known, word, f"String must be one of{':' if not folded else ''} {case}{listed}"
        )


def _check_range(known: Known, number: float) -> None:
    exempt, _, span = known.rule.rpartition("|")
    least, _, most = span.partition("..")
    low, high = float(least), float(most) if most else float("inf")
    if low <= number <= high or (exempt and number == float(exempt)):
        return
    if exempt:
        raise InvalidValueError(
            known, number, f"Value must be between {least} and {most} or equal to {exempt}"
        )
    if number < low:
        raise InvalidValueError(known, number, f"Value must be at least {least}")
    raise InvalidValueError(known, number, f"Value must be no more than {most}")


def check_replicas(known: Known, items: list[str]) -> None:
    """Raise `InvalidValueError` unless the items are `*` alone or pairs as `0:1` (partition:broker)."""
    if items == ["*"] or all(_is_pair(item) for item in items):
        return
    pairs = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    problem = f"{known.name} must be the literal '*' or a list of replicas in the following format: {pairs}"
    raise InvalidValueError(known, f"[{', '.join(items)}]", problem)


def _is_pair(item: str) -> bool:
    partition, colon, broker = item.partition(":")
    return bool(colon) and item.isascii() and partition.isdigit() and broker.isdigit()


# -- for people

NOUNS: Final = {
    "int": "a whole number",
    "short": "a whole number",
    "long": "a whole number",
    "double": "a number",
    "boolean": "true or false",
    "list": "a list with commas",
}


def wanted(known: Known) -> str:
    """Return what the setting takes, for a sentence: `a whole number of at least 1`."""
    noun = NOUNS.get(known.kind, "a text")
    if known.rule in {"-", "replicas"}:
        return noun
    if ".." not in known.rule:
        words = join_words(known.rule.lstrip("~").split("|"))
        return f"{noun} of {words}" if known.kind == "list" else words
    exempt, _, span = known.rule.rpartition("|")
    least, _, most = span.partition("..")
    limits = f"from {least} to {most}" if most else f"of at least {least}"
    return f"{noun} {limits}" + (f", or {exempt}" if exempt else "")


def join_words(words: list[str]) -> str:
    """Return the words as in a sentence: `a, b or c`."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
