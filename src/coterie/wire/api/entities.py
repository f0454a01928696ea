"""kio's request and response classes, imported when a version is first used, and the quick way to fill one.

All of kio's schemas take half a second to import; a broker needs a handful.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from struct import error as StructError  # noqa: N812
from types import ModuleType
from typing import Any

from coterie.base.errors import Corrupt
from coterie.wire.api.apis import APIS, Api
from coterie.wire.api.layout import plan_of

SIDES = ("request", "response")


@contextmanager
def _hypothesis_hidden() -> Iterator[None]:
    """Keep kio from importing hypothesis, which it does where it can, for test strategies we do not use.

    It would cost the broker's start a second on a developer's machine and nothing on a user's.
    """
    if "hypothesis" in sys.modules:
        yield
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["hypothesis"]


@cache
def _schema_module(api: str, version: int, side: str) -> ModuleType:
    with _hypothesis_hidden():
        return import_module(f"kio.schema.{api}.v{version}.{side}")


@cache
def entity(api: str, version: int, name: str, side: str = "request") -> type:
    """Return a class of one version of an API by its name, as in `("join_group", 9, "JoinGroupRequest")`."""
    assert side in SIDES, side
    found = getattr(_schema_module(api, version, side), name)
    assert isinstance(found, type)
    return found


@cache
def request_type(api_key: int, version: int) -> type:
    """Return the class of a request, or raise Corrupt where there is no such API or version."""
    api = _api_that_has(api_key, version)
    return entity(api.name, version, f"{api.title}Request", "request")


@cache
def response_type(api_key: int, version: int) -> type:
    """Return the class of a response, or raise Corrupt where there is no such API or version."""
    api = _api_that_has(api_key, version)
    return entity(api.name, version, f"{api.title}Response", "response")


def _api_that_has(api_key: int, version: int) -> Api:
    api = APIS.get(api_key)
    if api is None:
        raise Corrupt(f"api key {api_key}", expected="a known one")
    if not api.serves(version):
        raise Corrupt(f"{api.title} version {version}", expected=f"one of {api.served_from} to {api.most}")
    return api


def kio_reader_of(cls: type) -> Callable[[bytes, int], tuple[Any, int]]:
    """Return kio's native reader: from bytes and where to start, to the entity and its size.

    Only for bytes whose arrays have been checked: see `guards`.
    """
    with _hypothesis_hidden():
        from kio.serial import entity_reader
    reader: Callable[[bytes, int], tuple[Any, int]] = entity_reader(cls)
    return reader


def kio_field_reader_of(cls: type, field: Any, *, tagged: bool) -> Callable[[bytes, int], tuple[Any, int]]:
    """Return kio's native reader of one dataclass field, laid out as in requests of this class."""
    with _hypothesis_hidden():
        from kio.serial._parse import get_field_reader
    reader: Callable[[bytes, int], tuple[Any, int]] = get_field_reader(cls, field, False, tagged)
    return reader


@cache
def read_failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of kio's reader and our checkers at bytes that are no entity, but for KeyError.

    KeyError says that a tagged field is unknown, which is no fault.
    """
    from kio.serial.errors import SerialError

    return SerialError, ValueError, IndexError, OverflowError, StructError


@contextmanager
def reporting_corrupt(cls: type, at: int) -> Iterator[None]:
    """Raise Corrupt, with the class, for what a reader or checker raises at the bytes from `at` on."""
    try:
        yield
    except KeyError as failure:
        raise Corrupt(f"{cls.__name__}: a tag kio cannot place", at=at) from failure
    except read_failures() as failure:
        raise Corrupt(f"{cls.__name__}: {failure}", at=at) from failure


def build(cls: type, **values: Any) -> Any:
    """Return an entity of those values that this version has; the rest get the schema's defaults.

    So one call serves every version of a response. A name that no version knows is our mistake.
    """
    return _builder_of(cls)(**values)


@cache
def _builder_of(cls: type) -> Callable[..., Any]:
    """Compile a function that sets the slots one by one: frozen dataclasses are slow to build otherwise."""
    fields = tuple(plan_of(cls))
    names = {field.name for field in fields}
    scope: dict[str, Any] = {"cls": cls, "new": object.__new__, "names": names, "check": _check_unknown}
    lines = ["    self = new(cls)"]
    arguments = []
    for field in fields:
        scope[f"default_{field.name}"] = field.default
        scope[f"set_{field.name}"] = getattr(cls, field.name).__set__
        arguments.append(f"{field.name}=default_{field.name}, ")
        lines.append(f"    set_{field.name}(self, {field.name})")
    by_name = f"*, {''.join(arguments)}" if arguments else ""  # a few requests have no fields at all
    signature = f"def build({by_name}**unknown):"
    body = [signature, "    if unknown: check(cls, unknown)", *lines, "    return self"]
    exec("\n".join(body), scope)
    builder: Callable[..., Any] = scope["build"]
    return builder


def _check_unknown(cls: type, unknown: dict[str, Any]) -> None:
    for name in unknown:
        assert _is_known_elsewhere(cls, name), f"no version of {cls.__name__} has a field {name}"


@cache
def _is_known_elsewhere(cls: type, name: str) -> bool:
    """Return whether another version of this class has such a field; the nearest versions are asked first."""
    path = cls.__module__.split(".")
    if path[:2] != ["kio", "schema"]:
        return False
    api, version, side = path[2], int(path[3][1:]), path[4]
    others = next(known for known in APIS.values() if known.name == api)
    versions = range(others.served_from, others.most + 1)
    for other in sorted(versions, key=lambda candidate: abs(candidate - version)):
        twin = getattr(_schema_module(api, other, side), cls.__name__, None)
        if twin is not None and any(field.name == name for field in plan_of(twin)):
            return True
    return False
