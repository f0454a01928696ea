"""Valid requests, responses and records by seed: what the fuzzer starts from."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from coterie.wire.api.entities import build
from coterie.wire.api.layout import FieldPlan, plan_of
from coterie.wire.records.batches import Record, build_batch

__all__ = ["a_batch", "an_entity"]

BITS = {
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "uint16": 15,
    "timedelta_i32": 32,
    "timedelta_i64": 64,
}
TEXTS = ("", "a", "group", "consumer", "漢字é", "x" * 130)


def an_entity(cls: type, random: Random) -> Any:
    """Return an entity of a class with drawn values."""
    return build(cls, **{field.name: a_value(field, random) for field in plan_of(cls)})


def a_value(field: FieldPlan, random: Random) -> Any:
    """Return a value for a field."""
    if field.nullable and random.random() < 0.3 and (field.tag is None or field.default is None):
        return None
    if field.is_array:
        return tuple(an_item(field, random) for _ in range(random.choice((0, 1, 1, 2, 3))))
    return an_item(field, random)


def an_item(field: FieldPlan, random: Random) -> Any:
    """Return a value for a field that is no array, or for an item of one."""
    kind = field.kind
    if field.entity is not None:
        return an_entity(field.entity, random)
    if kind in BITS:
        return random.choice((0, 1, 2 if kind.startswith("u") else -1, random.getrandbits(BITS[kind] - 1)))
    if kind == "string":
        return random.choice(TEXTS)
    if kind == "records":
        return a_batch(random)
    if kind == "bytes":
        return random.randbytes(random.choice((0, 1, 20)))
    if kind == "uuid":
        return UUID(int=random.getrandbits(128) | 1)
    if kind == "float64":
        return random.random()
    return random.randrange(2) if kind in ("bool", "error_code") else random.getrandbits(31)


def a_batch(random: Random, *, codec: str | None = None) -> bytes:
    """Return a record batch of any kind."""
    base = random.choice((0, 5, 2**40))
    records = [
        Record(
            offset=base + place,
            timestamp=random.getrandbits(41),
            key=random.choice((None, b"", b"key")),
            value=random.choice((None, b"value", random.randbytes(30), b"z" * 400)),
            headers=random.choice(((), (("h", b"1"),), (("h", None), ("é", b"")))),
        )
        for place in range(random.randint(1, 5))
    ]
    return build_batch(
        records,
        base_offset=base,
        codec=codec or random.choice(("none", "gzip", "snappy", "lz4", "zstd")),
        producer_id=random.choice((-1, 7)),
        base_sequence=random.choice((-1, 3)),
        transactional=random.random() < 0.2,
    )
