"""Reading a JSON document field by field, with errors that name the field."""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from coterie.base.errors import CoterieError

BYTES_MAX = 2**15 - 1  # a string's length takes two bytes
SURROGATES = re.compile("[\ud800-\udfff]")
SHOWN = 40  # characters of a wrong value that an error shows


class BadField(CoterieError):
    """A document has something else in a field than it should."""


class Field:
    """One value of a document, and where it stands there."""

    def __init__(self, value: Any, path: str = "") -> None:
        self.value, self.path = value, path

    def refuse(self, expected: str) -> NoReturn:
        """Raise an error that says what was expected here, and what stands here."""
        shown = json.dumps(self.value, ensure_ascii=False)
        shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."
        raise BadField(f"{self.path or 'the line'}: expected {expected}, found {shown}")

    def fields(self) -> dict[str, "Field"]:
        """Return the fields of an object."""
        if not isinstance(self.value, Mapping):
            self.refuse("an object")
        start = f"{self.path}." if self.path else ""
        return {name: Field(value, start + name) for name, value in self.value.items()}

    def __getitem__(self, name: str) -> "Field":
        fields = self.fields()
        if name not in fields:
            raise BadField(f"{self.path + '.' if self.path else ''}{name}: is missing")
        return fields[name]

    def get(self, name: str) -> "Field | None":
        """Return a field of an object, None if it is missing or null."""
        found = self.fields().get(name)
        return None if found is None or found.value is None else found

    def items(self) -> list["Field"]:
        """Return the items of an array."""
        if not isinstance(self.value, list):
            self.refuse("an array")
        return [Field(value, f"{self.path}[{place}]") for place, value in enumerate(self.value)]

    def text(self) -> str:
        """Return a string that can go over the wire."""
        if not isinstance(self.value, str):
            self.refuse("a string")
        if len(self.value.encode("utf-8", "surrogatepass")) > BYTES_MAX or SURROGATES.search(self.value):
            self.refuse(f"a string of at most {BYTES_MAX:,} bytes of UTF-8")
        return self.value

    def number(self, *, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        number = self.value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            self.refuse(f"a whole number from {least} to {most}")
        return number

    def texts(self) -> tuple[str, ...]:
        """Return an array of strings."""
        return tuple(item.text() for item in self.items())

    def texts_by_name(self) -> dict[str, str]:
        """Return an object of strings."""
        return {name: field.text() for name, field in self.fields().items()}
