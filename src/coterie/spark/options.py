"""Options of a source or sink: which there are, from a table; their values; what is refused and why. Pure.

Spark hands options over with lower-cased names; errors have them as users write them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.settings import (
    Setting,
    WrongValue,
    did_you_mean,
    read,
    rows_beside,
    settings_of,
    shown,
    what_it_takes,
)

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


class BadOption(CoterieError):
    """An option that is unknown, missing or wrong; the message says what to write instead."""


class Fate(NamedTuple):
    """What becomes of an option: `stream`, `client`, `idle`, `misleading`, `refused` or nothing; and why."""

    what: str = ""
    why: str = ""


class OptionTable(NamedTuple):
    """The options that there are, by lower-cased name, and what becomes of them."""

    known: Mapping[str, Setting]
    fates: Mapping[str, Fate]

    @classmethod
    def of(cls, spec: ModuleSpec | None, more: Iterable[str] = ()) -> OptionTable:
        """Return the table that lies beside a module, with more options that may be any text."""
        rows = rows_beside(spec)
        found = {name: Setting(name, "text") for name in more} | settings_of(rows)
        fates = {row[0].lower(): Fate(*row[5:]) for row in rows}
        refused = {name for name, fate in fates.items() if fate.what == "refused"}
        return cls({name.lower(): one for name, one in found.items() if name.lower() not in refused}, fates)

    def named(self, *whats: str) -> list[str]:
        """Return the options of which one of these becomes, as users write them."""
        return [one.name for name, one in self.known.items() if self.fate(name).what in whats]

    def fate(self, name: str) -> Fate:
        """Return the fate of an option by its lower-cased name."""
        return self.fates.get(name, Fate())


class Options:
    """The options of one query."""

    def __init__(self, table: OptionTable, given: Mapping[str, str]) -> None:
        self.table, self.texts = table, {name.lower(): text for name, text in given.items()}

    def refuse_unknown(self) -> None:
        """Raise BadOption for a name that is refused or not known, with the nearest that is."""
        for name in (one for one in self.texts if one not in self.table.known):
            if self.table.fate(name).what == "refused":
                raise BadOption(f"option {name} is not supported: {self.table.fate(name).why}")
            written = [setting.name for setting in self.table.known.values()]
            raise BadOption(f"unknown option {name}{did_you_mean(name, written)}")

    def leave_out(self, *names: str) -> None:
        """Drop options that Spark adds by itself."""
        for name in names:
            self.texts.pop(name.lower(), None)

    def text(self, name: str) -> str | None:
        """Return an option as it is written, or None."""
        return self.texts.get(name.lower())

    def required(self, name: str) -> str:
        """Return an option, which must be set."""
        text = self.text(name)
        if not text:
            raise BadOption(f"option {name} must be set")
        return text

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option, of its default if it is not set; None if it has none."""
        setting = self.table.known[name.lower()]
        text = self.text(name)
        if text == "" and setting.kind == "text" and self.table.fate(name.lower()).what == "client":
            return setting.default or ""  # without a host's name to look for, an empty text is a value
        if text is None or (setting.folded and not text):
            text = setting.default
        try:
            return None if text is None else read(setting, text)
        except WrongValue as wrong:
            takes = what_it_takes(setting)
            raise BadOption(f"option {setting.name} must be {takes}, not {shown(wrong.given)}") from None

    def without_effect(self, *whats: str) -> tuple[str, ...]:
        """Return the options that are set and of which one of these becomes, sorted."""
        return tuple(sorted(name for name in self.table.named(*whats) if name.lower() in self.texts))

    def warnings(self) -> Iterator[str]:
        """Yield a warning of each option without effect of which one may believe that it has one."""
        for name in self.table.named("misleading"):
            setting, text = self.table.known[name.lower()], (self.text(name) or "").strip()
            if text and text.lower() != setting.default:
                yield f"option {name.lower()}={text} has no effect: {self.table.fate(name.lower()).why}"
