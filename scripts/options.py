"""Writes `src/coterie/client/options.py` from the settings' classes: what an editor completes.

python scripts/options.py            prints it
python scripts/options.py --write    writes it
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from coterie.base.settings import what_it_takes
from coterie.client.producer.settings import ProducerSettings
from coterie.client.settings import (
    KINDS,
    AdminSettings,
    ClientSettings,
    ConsumerSettings,
    setting_of,
    types_of,
)

PLACE = Path(__file__).resolve().parents[1] / "src" / "coterie" / "client" / "options.py"
HEAD = '''"""The settings of the clients as keyword arguments, for editors, mypy and pyright.

Made by `scripts/options.py --write` from the classes that check them; do not edit. Numbers and truths may be
texts, too, as they stand in files.
"""

import ssl
from collections.abc import Callable, Sequence
from typing import Any, Required, TypedDict

from coterie.assign.model import Assignor
'''
# What a caller may give, where the checked value is narrower.
WIDER = {
    "int": "int | str",
    "bool": "bool | str",
    "bool | None": "bool | str | None",
    "str | tuple[str | Assignor, ...]": "str | Sequence[str | Assignor]",
    "str | tuple[str, ...]": "str | Sequence[str]",
    "tuple[Callable[[list[Any]], list[Any]], ...]": "Sequence[Callable[[list[Any]], list[Any]]]",
}
FACES = (
    ("ClientOptions", "TypedDict, total=False", ClientSettings, "What every client may be told."),
    ("ConsumerOptions", "ClientOptions, total=False", ConsumerSettings, "What a consumer may be told."),
    ("ProducerOptions", "ClientOptions, total=False", ProducerSettings, "What a producer may be told."),
    ("AdminOptions", "ClientOptions, total=False", AdminSettings, "What an administrator may be told."),
)
MODULES = re.compile(r"\b(?:collections\.abc|typing|coterie\.assign\.model)\.")
LINE = 110
ADDRESS = "bootstrap_servers"
# What the consumer's constructor takes by name: the types of its records follow from them.
TYPED = {"key_deserializer", "value_deserializer"}


def lines() -> Iterator[str]:
    """Yield the module's lines."""
    yield HEAD
    common = {one.name for one in fields(ClientSettings)}
    for name, bases, settings, what in FACES:
        yield f"\nclass {name}({bases}):"
        yield f'    """{what}"""\n'
        if settings is ConsumerSettings:  # the others take it as their first argument
            yield f"    {ADDRESS}: Required[str | Sequence[str]]"
        said = sentences(settings)
        for one in fields(settings):
            if one.name in {ADDRESS, *(TYPED if settings is ConsumerSettings else ())} or (
                settings is not ClientSettings and one.name in common
            ):
                continue
            kind = one.type.__name__ if isinstance(one.type, type) else str(one.type)
            kind = MODULES.sub("", kind)
            yield f"    {one.name}: {WIDER.get(kind, kind)}"
            yield from docstring(f"{said[one.name]} {takes(one)}{default_of(one)}.")
        yield ""


def sentences(settings: type[ClientSettings]) -> dict[str, str]:
    """Return what each setting of a class does: the text below it in the source, without line ends."""
    found: dict[str, str] = {}
    for cls in reversed(settings.__mro__[:-1]):
        [node] = ast.parse(inspect.getsource(cls)).body
        assert isinstance(node, ast.ClassDef)
        for one, after in pairwise(node.body):
            match one, after:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found


def takes(one: Field[Any]) -> str:
    """Return a sentence about the values that a setting takes; nothing if they are texts of any kind."""
    kind = types_of(one)[0]
    any_text = kind is str and "rule" not in one.metadata
    return "" if any_text or kind not in KINDS else f"Takes {what_it_takes(setting_of(one, kind))}. "


def docstring(text: str) -> list[str]:
    """Return the lines of a setting's docstring."""
    if len(text) < LINE - 10:
        return [f'    """{text}"""']
    first, *more = textwrap.wrap(f'"""{text}', LINE - 4, break_on_hyphens=False)
    return [f"    {line}" for line in (first, *more, '"""')]


def default_of(one: Field[Any]) -> str:
    """Return the default of a setting, as its docstring has it."""
    default = "" if one.default is MISSING else one.default
    return "No default" if default is None else f"Default: {default!r}"


def text() -> str:
    """Return the module."""
    return "\n".join(lines()).rstrip() + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PLACE.write_text(text(), encoding="utf-8")
    else:
        sys.stdout.write(text())
