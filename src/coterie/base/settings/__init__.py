"""A setting by its name, kind, rule and default; its value read from a text or as it is; the refusal. Pure.

Settings of brokers, topics, clients, Spark's options and scenarios are all read here. Each face has its own
words around a refusal, and its own likeness for names; nothing else differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coterie.base.beside import text_beside
from coterie.base.settings.durations import ms_of, span_ms
from coterie.base.whole import whole_number

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

Value = bool | int | float | str | list[str] | None
SHOWN_MOST: Final = 200  # characters of a wrong value
DEFAULTS: Final = {"null": None, '""': ""}  # in tables
REPLICAS: Final = r"\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*|"


class Setting(NamedTuple):
    """One setting, and what it takes.

    `kind` is one of `KINDS`. `rule` is a range (`1..`, `0..9`), a range and a number beside it (`-1|1..9`),
    words (`a|b`; `~a|b` in any case), `replicas` for a list of `partition:broker` or `*`, or `-`.
    """

    name: str
    kind: str
    rule: str = "-"
    default: str | None = None
    about: str = ""
    """What it does, in a sentence; nothing where it has no effect."""

    @property
    def folded(self) -> bool:
        """Whether its words may be in any case."""
        return self.rule.startswith("~")

    @property
    def words(self) -> list[str]:
        """The words that it takes, if its rule is words."""
        return self.rule.lstrip("~").split("|")


class ValueProblem(NamedTuple):
    """What is wrong with a value, or with the part of it that is wrong."""

    what: str  # kind, bits, least, most, word, replicas
    part: Value
    wanted: str  # as `a whole number`, `at least 1`


class WrongValue(ValueError):
    """A value that its setting does not take; `str()` is the sentence, with all that the setting takes."""

    def __init__(self, setting: Setting, given: object, problem: ValueProblem) -> None:
        super().__init__(f"{setting.name} is {shown(given)}; it takes {what_it_takes(setting)}")
        self.setting, self.given, self.problem = setting, given, problem


class ValueKind(NamedTuple):
    """A kind of values: its noun, its type in Python, how a text is read (None: it is no such value)."""

    noun: str
    type: type
    of_text: Callable[[str], Value]
    bits: int = 0


def read(setting: Setting, given: object, *, typed: bool = False) -> Any:
    """Return the value of a setting, given as a text or as a value of its kind. Raises `WrongValue`.

    With `typed`, a text is no number and no boolean: TOML and JSON tell them apart.
    """
    kind = KINDS[setting.kind]
    value: Any = None
    if isinstance(given, str):
        value = None if typed and setting.kind in NUMBERS_AND_BOOLEANS else kind.of_text(given)
    elif isinstance(given, kind.type) and isinstance(given, bool) == (kind.type is bool):
        value = given  # True is a number to Python; nobody means it so
    if setting.folded and isinstance(value, str):
        value = next((word for word in setting.words if word.lower() == value.lower()), value)
    problem = ValueProblem("kind", None, kind.noun) if value is None else _problem(setting, value, kind.bits)
    if problem is not None:
        raise WrongValue(setting, given, problem)
    return value


# -- kinds


def read_list(text: str) -> list[str]:
    """Return the items of a list: split at commas, the spaces around them dropped; nothing is no item."""
    stripped = text.strip()
    return [item.strip() for item in stripped.split(",")] if stripped else []


def _whole(text: str) -> int | None:
    return whole_number(text.strip())


def _double(text: str) -> float | None:
    """Return a number as Java reads it: a trailing d or f is taken, an underscore or `inf` is not."""
    stripped = text.strip()
    digits = stripped[:-1] if stripped[-1:] in tuple("dDfF") else stripped
    if not set(digits) <= set("+-.0123456789eE") and digits.lstrip("+-") not in {"NaN", "Infinity"}:
        return None
    try:
        return float(digits)
    except ValueError:
        return None


def _boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.strip().lower())


KINDS: Final[Mapping[str, ValueKind]] = {
    "int": ValueKind("a whole number", int, _whole, bits=31),
    "short": ValueKind("a whole number", int, _whole, bits=15),
    "long": ValueKind("a whole number", int, _whole, bits=63),
    "double": ValueKind("a number", float, _double),
    "boolean": ValueKind("true or false", bool, _boolean),
    "string": ValueKind("a text", str, str.strip),
    "class": ValueKind("a text", str, str.strip),
    "text": ValueKind("a text", str, str),
    "password": ValueKind("a text", str, str),
    "name": ValueKind("a text", str, lambda text: text if text.strip() else None),
    "list": ValueKind("a list with commas", list, read_list),
    "span": ValueKind('a span of time such as "45s", "1h30m" or 500 (milliseconds)', int, span_ms, bits=63),
    "time": ValueKind("a time like 500ms or 15m", int, ms_of, bits=63),
}
NUMBERS_AND_BOOLEANS: Final = ("int", "short", "long", "double", "boolean")


# -- rules


class Bounds(NamedTuple):
    """The numbers that a rule allows, as it writes them; nothing where it does not say."""

    least: str
    most: str
    beside: str
    """One more, outside of the range."""


def bounds_of(rule: str) -> Bounds:
    """Return the bounds of a rule that is a range, or `-`."""
    beside, _, span = rule.rpartition("|")
    least, _, most = span.partition("..")
    return Bounds(least.strip("-") and least, most, beside)


def _problem(setting: Setting, value: Value, bits: int) -> ValueProblem | None:
    if setting.rule == "replicas":
        assert isinstance(value, list)
        fits = re.fullmatch(REPLICAS, ",".join(value))
        return None if fits else ValueProblem("replicas", value, KINDS["list"].noun)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _out_of_bits(value, bits) or _out_of_range(value, bounds_of(setting.rule))
    if setting.rule == "-":
        return None
    words = [value] if isinstance(value, str) else value
    assert isinstance(words, list)
    odd = (word for word in words if word not in setting.words)
    wanted = f"one of {', '.join(map(repr, setting.words))}"
    return next((ValueProblem("word", word, wanted) for word in odd), None)


def _out_of_bits(number: float, bits: int) -> ValueProblem | None:
    if not bits or -(1 << bits) <= number < 1 << bits:
        return None
    return ValueProblem(
        "bits", number, f"at least {-(1 << bits)}" if number < 0 else f"at most {(1 << bits) - 1}"
    )


def _out_of_range(number: float, bounds: Bounds) -> ValueProblem | None:
    if bounds.beside and number == float(bounds.beside):
        return None
    if bounds.least and number < float(bounds.least):
        return ValueProblem("least", number, f"at least {bounds.least}")
    if bounds.most and not number <= float(bounds.most):  # nor what is no number
        return ValueProblem("most", number, f"at most {bounds.most}")
    return None


# -- for people


def what_it_takes(setting: Setting) -> str:
    """Return the values of a setting, for a sentence: `a whole number of at least 1`."""
    noun = KINDS[setting.kind].noun
    if setting.rule in {"-", "replicas"} or setting.kind in ("span", "time"):
        return noun
    if ".." not in setting.rule:
        words = join_words([word or "''" for word in setting.words])
        return f"{noun} of {words}" if setting.kind == "list" else words
    least, most, beside = bounds_of(setting.rule)
    limits = f"from {least} to {most}" if most else f"of at least {least}"
    return f"{noun} {limits}" + (f", or {beside}" if beside else "")


def join_words(words: list[str]) -> str:
    """Return the words as in a sentence: `a, b or c`."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shown(given: object) -> str:
    """Return a wrong value as an error has it: of what is far too long, only the beginning."""
    if isinstance(given, str) and len(given) > SHOWN_MOST:
        return f"{given[:SHOWN_MOST]!r}..."
    return repr(given)


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name most like this one, in whatever case; None if none is so much like it (0: any, 1:
    the same).
    """
    import difflib  # only on the way to an error: start-up is short

    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], *, likeness: float = 0.6, otherwise: str = "") -> str:
    """Return the end of a sentence about an unknown name: `; did you mean linger.ms?`, or `otherwise`."""
    near = nearest(name, known, likeness=likeness)
    return f"; did you mean {near}?" if near else otherwise


# -- tables


def rows_beside(spec: ModuleSpec | None) -> list[list[str]]:
    """Return the rows of the table beside a module: words with tabs between; # begins a comment line."""
    lines = text_beside(spec, ".tsv").splitlines()
    return [line.split("\t") for line in lines if line[0] != "#"]


def settings_of(rows: Iterable[list[str]]) -> dict[str, Setting]:
    """Return the settings of rows that begin with name, kind, rule and default, and may have a sentence."""
    return {
        name: Setting(name, kind, rule, DEFAULTS.get(default, default), *about[:1])
        for name, kind, rule, default, *about in rows
    }
