"""How an entity lies on the wire, read off kio's dataclasses once: what compilers of codecs work from."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

ENTITY = "entity"

# The struct letter of each kind that has one size.
FIXED_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "uuid": "16s",
}

ZERO_VALUES: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": datetime.fromtimestamp(0, UTC),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPlan:
    """One field: its kind is a kafka type or ENTITY; `nullable` speaks of the array where it is one."""

    name: str
    kind: str
    entity: type | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityPlan:
    """One entity: its plain fields in wire order, its tagged ones in tag order."""

    cls: type
    flexible: bool
    plain: tuple[FieldPlan, ...]
    tagged: tuple[FieldPlan, ...]

    def __iter__(self) -> Iterator[FieldPlan]:
        yield from self.plain
        yield from self.tagged


@cache
def plan_of(cls: type) -> EntityPlan:
    """Return the layout of this class's entities."""
    assert is_dataclass(cls), cls
    planned = [_plan_field(field) for field in fields(cls)]
    return EntityPlan(
        cls=cls,
        flexible=cls.__flexible__,  # type: ignore[attr-defined]
        plain=tuple(field for field in planned if field.tag is None),
        tagged=tuple(sorted((field for field in planned if field.tag is not None), key=_tag)),
    )


class FunctionSource:
    """Collects the lines of a function that is compiled from a plan, and the names that it finds."""

    def __init__(self, **scope: Any) -> None:
        self.lines: list[str] = []
        self.scope = scope
        self._indent = 1

    def line(self, text: str) -> None:
        """Add a line at the present depth."""
        self.lines.append("    " * self._indent + text)

    def settle(self) -> None:
        """Add the line that what waits makes, if anything does."""

    def block(self, head: str, compose: Callable[[], None]) -> None:
        """Add a line that ends in a colon, and what is to be indented under it; what waits stays outside."""
        self.settle()
        self.line(head)
        self._indent += 1
        before = len(self.lines)
        compose()
        self.settle()
        if len(self.lines) == before:
            self.line("pass")
        self._indent -= 1

    def compiled(self, signature: str) -> Any:
        """Return the function with this name and these parameters."""
        exec(self.text(signature), self.scope)
        return self.scope[signature.partition("(")[0]]

    def text(self, signature: str) -> str:
        """Return the source of that function."""
        return "\n".join([f"def {signature}:", *self.lines])


def _tag(field: FieldPlan) -> int:
    assert field.tag is not None
    return field.tag


def _plan_field(field: Field[Any]) -> FieldPlan:
    shape, nullable = _without_none(field.type)
    is_array = get_origin(shape) is tuple
    item, _ = _without_none(get_args(shape)[0]) if is_array else (shape, False)
    entity: type | None = item if isinstance(item, type) and is_dataclass(item) else None
    kind = field.metadata["kafka_type"] if entity is None else ENTITY
    return FieldPlan(
        name=field.name,
        kind=kind,
        entity=entity,
        is_array=is_array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        default=_default(field, kind=kind, entity=entity, is_array=is_array, nullable=nullable),
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return the type without its `| None`, and whether it had one."""
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    (inner,) = (part for part in get_args(annotation) if part is not NoneType)
    return inner, True


def _default(field: Field[Any], *, kind: str, entity: type | None, is_array: bool, nullable: bool) -> Any:
    """Return the schema's default, else Kafka's zero value for the type."""
    if field.default is not MISSING:
        return field.default
    if nullable:
        return None
    if is_array:
        return ()
    if entity is not None:
        return entity(**{inner.name: inner.default for inner in plan_of(entity)})
    if kind == "error_code":
        return field.type(0)  # type: ignore[operator]
    return ZERO_VALUES.get(kind, 0)
