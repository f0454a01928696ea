"""Requests bent in one place: odd ids, empty strings, nulls, huge and negative numbers, duplicates, gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any
from uuid import UUID

from coterie.wire.api.entities import (
    build,
)
from coterie.wire.api.layout import FieldPlan, plan_of

__all__ = ["Place", "mutated"]

Place = tuple[Any, ...]  # names of fields and indexes of items, from the outside in

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32, "timedelta_i64": 64}
STRINGS = ("", "nobody", "consumer", "range", "ünïcödé", "a b", ".", "x" * 300)
SHARED_NAMES = ("group_id", "transactional_id", "v3_and_below_transactional_id")
# Apache Kafka counts a member twice that names a protocol twice, and takes it for nobody's (FINDINGS.md).
UNREPEATED = ("protocols",)
PROTOCOLS = ("range", "roundrobin", "sticky")
FIRST_FREE_PRODUCER = 1_000_000
BYTES = (b"", b"\0", b"\xff" * 7)


def mutated(
    request: Any, random: Random, *, known: Sequence[str], spared: Sequence[str], key: str
) -> tuple[str, Any]:
    """Return what was done, and the request with one field changed; fields named in `spared` stay.

    `known` are strings that mean something to the broker: another member's id, another group. Names that
    other seeds would use as well get this seed's `key` in front.
    """
    places = [(place, field) for place, field in places_of(request) if place[-1] not in spared]
    if not places:
        return "", request
    place, field = random.choice(places)
    options = list(instead_of(value_at(request, place), field, known))
    if place[0] in UNREPEATED and place[-1] == "name":
        options = [option for option in options if option not in PROTOCOLS]
    if place[-1] in SHARED_NAMES:  # a made-up id is another text at each broker, and hashes elsewhere
        options = [option for option in options if "~" not in (option or "")]
    value = random.choice(options)
    if place[-1] == "producer_id":  # a small number may be another's id here, and nobody's there
        options = [option for option in options if not 0 <= option < FIRST_FREE_PRODUCER]
        value = random.choice(options)
    if place[-1] in SHARED_NAMES and isinstance(value, str) and value and value not in known:
        value = f"{key}-{value}"
    shown = repr(value)
    return f"with {'.'.join(map(str, place))}={shown[:60]}", replaced(request, place, value)


def places_of(entity: Any, outer: Place = ()) -> Iterator[tuple[Place, FieldPlan]]:
    """Yield every field of an entity and of those inside it."""
    kind: type = type(entity)
    for field in plan_of(kind):
        place = (*outer, field.name)
        yield place, field
        inner = getattr(entity, field.name)
        if field.entity is None or inner is None:
            continue
        for at, item in enumerate(inner if field.is_array else (inner,)):
            yield from places_of(item, (*place, at) if field.is_array else place)


def instead_of(value: Any, field: FieldPlan, known: Sequence[str]) -> Iterator[Any]:
    """Yield values for a field that a client is not likely to send."""
    if field.nullable:
        yield None
    if field.is_array:
        yield from instead_of_array(value or (), repeatable=field.name not in UNREPEATED)
    elif field.kind == "string":
        yield from STRINGS
        yield from known
    elif field.kind in BITS:
        most = 2 ** (BITS[field.kind] - 1) - 1
        yield from (0, -1, -2, 1, most, -most - 1, max(-most, min(most, value + 1)))
    elif field.kind == "bool":
        yield not value
    elif field.kind == "uuid":
        yield from (None, UUID(int=1), UUID(int=2**77 + 5))
    else:
        yield from BYTES


def instead_of_array(items: tuple[Any, ...], *, repeatable: bool) -> Iterator[tuple[Any, ...]]:
    """Yield nothing, duplicates, another order, one item less."""
    yield ()
    if items:
        yield from (items[::-1], items[1:])
    if items and repeatable:
        yield from ((*items, items[0]), (*items, *items[::-1]))


def value_at(entity: Any, place: Place) -> Any:
    """Return what stands at a place."""
    for step in place:
        entity = entity[step] if isinstance(step, int) else getattr(entity, step)
    return entity


def replaced(entity: Any, place: Place, value: Any) -> Any:
    """Return a copy of the entity with another value at a place."""
    if not place:
        return value
    step, rest = place[0], place[1:]
    if isinstance(step, int):
        return (*entity[:step], replaced(entity[step], rest, value), *entity[step + 1 :])
    assert is_dataclass(entity)
    inner = {one.name: getattr(entity, one.name) for one in fields(entity)}
    inner[step] = replaced(inner[step], rest, value)
    assert not isinstance(entity, type)
    return build(type(entity), **inner)
