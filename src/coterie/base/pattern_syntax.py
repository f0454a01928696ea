"""Reads a pattern in RE2's language, as RE2/J does: what it refuses is refused here.

Three things more are refused, and each says so: scripts of Unicode (\\p{Greek}), groups nested too deeply,
and repetitions of repetitions that would need too many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from coterie.base.characters import CATEGORIES, PERL, POSIX, Test, among, any_of, folded, negated, of_category
from coterie.base.patterns import MATCHED, BadPattern, Check, Consume, Fork, Pattern, Program

__all__ = ["read_pattern"]

DEPTH_MOST = 50
REPEATS_MOST = 1_000
ESCAPES = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
OCTAL, HEX = "01234567", "0123456789abcdefABCDEF"
CHARACTER_MOST = 0x10FFFF

# A part of a pattern adds its steps in front of the step that comes after it, and returns where it begins.
Part = Callable[[Program, int], int]


def read_pattern(text: str) -> Pattern:
    """Return the pattern, or raise `BadPattern`."""
    reader = Reader(text)
    part = reader.alternatives(depth=0)
    if not reader.ended:
        raise reader.bad("a ) that closes nothing")
    program = Program()
    return Pattern(program, part(program, MATCHED))


@dataclass(frozen=True, slots=True)
class Flags:
    """How what follows is meant: (?i), (?m), (?s). (?U) tells which way to go first, and all are gone."""

    fold: bool = False
    lines: bool = False
    dot_all: bool = False


SWITCHES = {"i": "fold", "m": "lines", "s": "dot_all", "U": ""}


class Reader:
    """A pattern's text, and how far it is read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags = Flags()
        self._names: set[str] = set()
        self._last_named = text.rfind(":]")

    # -- the text

    @property
    def ended(self) -> bool:
        return self._at >= len(self._text)

    def sees(self, expected: str) -> bool:
        return self._text.startswith(expected, self._at)

    def skips(self, expected: str) -> bool:
        """Return whether this comes next, and go on behind it if so."""
        found = self.sees(expected)
        if found:
            self._at += len(expected)
        return found

    def take(self, what: str) -> str:
        """Return the next character, of what is told when there is none."""
        if self.ended:
            raise self.bad(f"{what} that does not end")
        self._at += 1
        return self._text[self._at - 1]

    def take_until(self, end: str, what: str) -> str:
        """Return what stands before the end, and go on behind it."""
        found = self._text.find(end, self._at)
        if found < 0:
            raise self.bad(f"{what} that does not end")
        taken, self._at = self._text[self._at : found], found + len(end)
        return taken

    def bad(self, what: str) -> BadPattern:
        """Return what to raise: what was met, and where."""
        return BadPattern(f"{what} at character {self._at}")

    # -- structure

    def alternatives(self, *, depth: int) -> Part:
        """Read up to the end of the group."""
        if depth > DEPTH_MOST:
            raise self.bad(f"a group in more than {DEPTH_MOST} others")
        ways = [self._sequence(depth)]
        while self.skips("|"):
            ways.append(self._sequence(depth))
        return ways[0] if len(ways) == 1 else lambda p, after: p.add(Fork(tuple(w(p, after) for w in ways)))

    def _sequence(self, depth: int) -> Part:
        parts: list[Part] = []
        repeated = False
        while not (self.ended or self.sees("|") or self.sees(")")):
            brace = self.sees("{")
            bounds = self._repetition()
            if bounds is None:
                parts += self._parts(depth)
                repeated = brace  # RE2/J takes a brace that stands for itself for one of a repetition
                continue
            if repeated:
                raise self.bad("a repetition of a repetition")
            if not parts:
                raise self.bad("a repetition of nothing")
            repeated = True
            parts[-1] = times(parts[-1], *bounds)
        return in_order(parts)

    def _repetition(self) -> tuple[int, int | None] | None:
        """Return how often what stands before is to be there, None if that is not what comes next."""
        bounds: tuple[int, int | None] | None = None
        if self.skips("*"):
            bounds = 0, None
        elif self.skips("+"):
            bounds = 1, None
        elif self.skips("?"):
            bounds = 0, 1
        elif self.sees("{"):
            bounds = self._counts()
        if bounds is not None:
            self.skips("?")  # lazily: which way to go first
        return bounds

    def _counts(self) -> tuple[int, int | None] | None:
        """Return the bounds in braces; braces around anything else stand for themselves."""
        start = self._at
        self._at += 1
        least = self._number()
        most: int | None = least
        if least is not None and self.skips(","):
            most = None
            if not self.sees("}"):
                most = self._number()
                least = None if most is None else least
        if least is None or not self.skips("}"):
            self._at = start
            return None
        if max(least, most or 0) > REPEATS_MOST or (most is not None and most < least):
            raise self.bad("a repetition that cannot be")
        return least, most

    def _number(self) -> int | None:
        start = self._at
        while not self.ended and self._text[self._at] in "0123456789":
            self._at += 1
        digits = self._text[start : self._at]
        return None if not digits or (len(digits) > 1 and digits[0] == "0") else int(digits[:9])

    # -- parts

    def _parts(self, depth: int) -> Iterator[Part]:
        """Read what stands next; flags are no part, and a quotation is many."""
        match one := self.take("a pattern"):
            case "(":
                yield from self._group(depth)
            case "[":
                yield consume(self._set())
            case ".":
                yield consume((lambda one: True) if self._flags.dot_all else "\n".__ne__)
            case "^" | "$":
                yield check(f"line{one}" if self._flags.lines else one)
            case "\\":
                yield from self._escaped()
            case _:
                yield self._literal(one)

    def _literal(self, one: str) -> Part:
        return consume(self._cased(among((one, one))))

    def _cased(self, test: Test) -> Test:
        return folded(test) if self._flags.fold else test

    def _group(self, depth: int) -> Iterator[Part]:
        flags = self._flags
        if self.skips("?P<") or self.skips("?<"):
            self._name()
        elif self.skips("?") and not self._switches():
            return
        part = self.alternatives(depth=depth + 1)
        if not self.skips(")"):
            raise self.bad("a group that does not end")
        self._flags = flags
        yield part

    def _name(self) -> None:
        name = self.take_until(">", "a group's name")
        if not name or not name.isascii() or not name.replace("_", "a").isalnum() or name in self._names:
            raise self.bad("a group's name that cannot be")
        self._names.add(name)

    def _switches(self) -> bool:
        """Read flags up to : or ); return whether they begin a group."""
        flags, on, seen = self._flags, True, False
        while (one := self.take("flags")) not in ":)":
            if one == "-" and on:
                on = seen = False
            elif one in SWITCHES:
                seen = True
                if SWITCHES[one]:
                    flags = replace(flags, **{SWITCHES[one]: on})
            else:
                raise self.bad("something that RE2 does not know of, such as a look ahead or behind,")
        if not on and not seen:
            raise self.bad("a - that takes nothing off")
        self._flags = flags
        return one == ":"

    def _escaped(self) -> Iterator[Part]:
        match one := self.take("a \\"):
            case "A":
                yield check("^")
            case "z":
                yield check("$")
            case "b" | "B":
                yield check(one)
            case "Q":
                end = self._text.find("\\E", self._at)
                quoted = self._text[self._at :] if end < 0 else self._text[self._at : end]
                self._at += len(quoted) + (2 if end >= 0 else 0)
                yield from map(self._literal, quoted)
            case _:
                self._at -= 1
                test = self._many()
                yield self._literal(self._one()) if test is None else consume(test)

    def _many(self) -> Test | None:
        """Read behind a \\ the name of many characters, None if it is of one."""
        one = self.take("a \\")
        if one in "pP":
            return self._category(wanted=one == "p")
        if one.lower() in PERL:
            test = self._cased(PERL[one.lower()])
            return test if one.islower() else negated(test)
        self._at -= 1
        return None

    def _category(self, *, wanted: bool) -> Test:
        name = self.take("a category")
        if name == "{":
            name = self.take_until("}", "a category")
        if name.startswith("^"):
            name, wanted = name[1:], not wanted
        if name not in CATEGORIES:
            raise self.bad(f"a category {name!r} that is not known (scripts are not)")
        test = self._cased(of_category(name))
        return test if wanted else negated(test)

    def _one(self) -> str:
        """Read behind a \\ one character."""
        one = self.take("a \\")
        if not (one.isascii() and one.isalnum()):
            return one
        if one in ESCAPES:
            return ESCAPES[one]
        if one in OCTAL and (one == "0" or (not self.ended and self._text[self._at] in OCTAL)):
            digits = one
            while len(digits) < 3 and not self.ended and self._text[self._at] in OCTAL:
                digits += self.take("a number")
            return chr(int(digits, 8))
        if one == "x":
            return self._hexadecimal()
        raise self.bad(f"\\{one}, which is nothing that RE2 knows of,")

    def _hexadecimal(self) -> str:
        if self.skips("{"):
            digits = self.take_until("}", "a number")
        else:
            digits = self.take("a number") + self.take("a number")
        if not digits or not set(digits) <= set(HEX):
            raise self.bad("a number that is none")
        number = int(digits, 16)
        if number > CHARACTER_MOST:
            raise self.bad("a character that does not exist")
        return chr(number)

    # -- sets

    def _set(self) -> Test:
        wanted = not self.skips("^")
        tests = [self._element()]
        while not self.skips("]"):
            tests.append(self._element())
        test = any_of(tests)
        return test if wanted else negated(test)

    def _element(self) -> Test:
        """Read one character of a set, a range, or a group."""
        if self.sees("[:") and self._at < self._last_named:
            self._at += 2
            return self._named()
        if self.skips("\\"):
            test = self._many()
            if test is not None:
                return test
            self._at -= 1
        low = high = self._in_set()
        if self.sees("-") and not self.sees("-]"):
            self._at += 1
            high = self._in_set()
            if high < low:
                raise self.bad("a range whose end lies before its start")
        return self._cased(among((low, high)))

    def _named(self) -> Test:
        name = self.take_until(":]", "a group")
        wanted = not name.startswith("^")
        found = POSIX.get(name.removeprefix("^"))
        if found is None:
            raise self.bad(f"a group {name!r} that there is not")
        test = self._cased(found)
        return test if wanted else negated(test)

    def _in_set(self) -> str:
        return self._one() if self.skips("\\") else self.take("a set")


# -- what parts are made of


def consume(test: Test) -> Part:
    """Return the part that is one character."""
    return lambda program, after: program.add(Consume(test, after))


def check(kind: str) -> Part:
    """Return the part that is a place between two characters."""
    return lambda program, after: program.add(Check(kind, after))


def in_order(parts: list[Part]) -> Part:
    """Return the part that is these, one after the other."""

    def build(program: Program, after: int) -> int:
        for part in reversed(parts):
            after = part(program, after)
        return after

    return build


def times(part: Part, least: int, most: int | None) -> Part:
    """Return the part that is so many of another."""

    def build(program: Program, after: int) -> int:
        if most is None:
            begin = forever(part, program, after, once=least > 0)
            return in_order([part] * (least - 1))(program, begin)
        begin = after
        for _ in range(most - least):
            begin = program.add(Fork((part(program, begin), after)))
        return in_order([part] * least)(program, begin)

    return build


def forever(part: Part, program: Program, after: int, *, once: bool) -> int:
    """Add as many of a part as there are; at least one if there has to be `once`."""
    loop = program.loop()
    begin = part(program, loop)
    program.close(loop, begin, after)
    return begin if once else loop
