"""Schemas that kio does not have, declared as Kafka declares its own and made into kio's form by version.

So one codec serves requests and the records of internal topics alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cache, partial
from operator import attrgetter
from struct import Struct
from typing import Any, TypeVar
from uuid import UUID

from coterie.base.errors import Corrupt

T = TypeVar("T")
VERSION = Struct(">h")
NEVER_FLEXIBLE = 2**15

PYTHON_TYPES: dict[str, Any] = {
    "string": str,
    "bytes": bytes,
    "int8": int,
    "int16": int,
    "int32": int,
    "int64": int,
    "uuid": UUID | None,
}
FOREVER = 2**15 - 1
REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema, in the versions from `since` to `until`.

    `kind` is a kafka type, or the schema of the items of an array; `array` makes an array of a kafka type.
    """

    name: str
    kind: "str | Declared"
    default: Any = REQUIRED
    since: int = 0
    until: int = FOREVER
    nullable: bool = False
    tag: int | None = None
    array: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """One schema: versions 0 to `most`, from `flexible_from` on with compact lengths and tagged fields.

    A schema is equal to itself only: hashing all of its fields took 20 us a record.
    """

    name: str
    most: int
    flexible_from: int
    fields: tuple[Field, ...]

    def at(self, version: int) -> type:
        """Return the class of one version, in the form of kio's."""
        assert 0 <= version <= self.most
        return _class_of(self, version)


def read_version(data: bytes) -> int:
    """Return the number that a record begins with: a key's type, or a value's version."""
    if len(data) < VERSION.size:
        raise Corrupt("record", at=0, expected="a type or version")
    version: int = VERSION.unpack_from(data)[0]
    return version


def shared(kind: Any, found: Any) -> dict[str, Any]:
    """Return the values by name that an entity's version and a named tuple have in common."""
    return {name: getattr(found, name) for name in _names_in_both(tuple(kind._fields), found.__class__)}


def built(kind: Callable[..., T], found: Any) -> T:
    """Return a named tuple of what an entity's version has; the rest is as by default."""
    made: T = _builder_of(kind, found.__class__)(found)
    return made


def each_built(kind: Callable[..., T], found: Sequence[Any]) -> tuple[T, ...]:
    """Return the same of several entities of one version."""
    if not found:
        return ()
    build = _builder_of(kind, found[0].__class__)
    return tuple([build(one) for one in found])


@cache
def _builder_of(kind: Any, entity: type) -> Callable[[Any], Any]:
    names = _names_in_both(tuple(kind._fields), entity)
    values = attrgetter(*names)
    if names == kind._fields:
        make = partial(tuple.__new__, kind)
        return lambda found: make(values(found))
    return lambda found: kind(**dict(zip(names, values(found), strict=True)))


@cache
def _names_in_both(wanted: tuple[str, ...], entity: type) -> tuple[str, ...]:
    return tuple(name for name in wanted if hasattr(entity, name))


@cache
def _class_of(schema: Declared, version: int) -> type:
    described = [_describe(each, version) for each in schema.fields if each.since <= version <= each.until]
    return make_dataclass(
        f"{schema.name}V{version}",
        described,
        namespace={
            "__flexible__": version >= schema.flexible_from,
            "__version__": version,
            "__doc__": f"{schema.name}, version {version}.",
        },
        frozen=True,
        slots=True,
        kw_only=True,
    )


def _describe(each: Field, version: int) -> tuple[str, Any, Any]:
    """Return a field as make_dataclass wants it, with kio's metadata."""
    metadata: dict[str, Any] = {} if each.tag is None else {"tag": each.tag}
    if isinstance(each.kind, Declared):
        annotation: Any = tuple[each.kind.at(version), ...]  # type: ignore[misc]
    else:
        annotation = PYTHON_TYPES[each.kind]
        metadata["kafka_type"] = each.kind
        if each.array:
            annotation = tuple[annotation, ...]
    if each.nullable:
        annotation |= None
    defaults = {} if each.default is REQUIRED else {"default": each.default}
    return each.name, annotation, field(metadata=metadata, **defaults)
