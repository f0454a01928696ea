"""Avro schemas in Arrow: the types that Spark's `from_avro` has for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from coterie.base.errors import CoterieError

AvroSchema: TypeAlias = str | dict[str, Any] | list[Any]
"""A schema as fastavro has parsed it: names are full, and a named type is written out where first met."""
Named: TypeAlias = Mapping[str, dict[str, Any]]
"""The named types of a schema, by their full names."""

PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
MOST_DIGITS = 38


class UnusableSchema(CoterieError):
    """A schema that values cannot be read by: Spark has no type for it, or it is none at all."""


def kind_of(schema: AvroSchema) -> str:
    """Return `record`, `array`, `int` and so on; `union` for a list; the name of a named type for a name."""
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, str):
        return schema
    kind = schema["type"]
    return kind if isinstance(kind, str) else kind_of(kind)


def parts(schema: AvroSchema) -> Iterator[AvroSchema]:
    """Yield a schema and all that it is made of."""
    yield schema
    for one in inner_of(schema):
        yield from parts(one)


def inner_of(schema: AvroSchema) -> list[AvroSchema]:
    """Return the schemas right within a schema."""
    if isinstance(schema, list):
        return schema
    if isinstance(schema, dict):
        kind = kind_of(schema)
        if kind == "record":
            return [one["type"] for one in schema["fields"]]
        if kind in ("array", "map"):
            return [schema["items" if kind == "array" else "values"]]
    return []


def written_out(schema: AvroSchema, named: Named) -> AvroSchema:
    """Return the schema for a name that stands for it, and any other as it is."""
    return named.get(schema, schema) if isinstance(schema, str) else schema


def branches_of(union: list[Any]) -> tuple[list[AvroSchema], bool]:
    """Return the schemas of a union without null, and whether it has null."""
    branches = [one for one in union if kind_of(one) != "null"]
    return branches, len(branches) < len(union)


def arrow_type(schema: AvroSchema, named: Named, within: tuple[str, ...] = ()) -> pa.DataType:
    """Return the Arrow type of a schema's values. Raises UnusableSchema for what contains itself, and for a
    union that Spark's `from_avro` would make a struct of.
    """
    schema = written_out(schema, named)
    kind = kind_of(schema)
    if isinstance(schema, list):
        return union_type(schema, named, within)
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if (kind, logical) in LOGICAL:
        return LOGICAL[kind, logical]  # type: ignore[index]  # None is in no key
    if isinstance(schema, dict) and is_decimal(schema):
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind in PRIMITIVES:
        return PRIMITIVES[kind]
    if not isinstance(schema, dict):
        raise UnusableSchema(f"the schema uses {schema!r}, which it does not say")
    match kind:
        case "record":
            if schema["name"] in within:
                raise UnusableSchema(f"{schema['name']} contains itself: Spark has no type for that")
            inside = (*within, schema["name"])
            return pa.struct([arrow_field(one, named, inside) for one in schema["fields"]])
        case "array":
            return pa.list_(of_many(arrow_type(schema["items"], named, within)))
        case "map":
            return pa.map_(pa.string(), of_many(arrow_type(schema["values"], named, within)))
        case "enum":
            return pa.string()
        case "fixed":
            return pa.binary()
    raise UnusableSchema(f"there is no Avro type {kind!r}")


def of_many(kind: pa.DataType) -> pa.DataType:
    """Return the type of items as it is; raises UnusableSchema where they have what is always null: Arrow
    loses count of that when it casts arrays of them.
    """
    if has_null(kind):
        raise UnusableSchema(
            "an array or a map of what is always null has no column type here: read with a reader's schema"
            " (value.schema) without it"
        )
    return kind


def has_null(kind: pa.DataType) -> bool:
    """Return whether a type has values in it that are always null."""
    return pa.types.is_null(kind) or any(has_null(kind.field(one).type) for one in range(kind.num_fields))


def arrow_field(one: dict[str, Any], named: Named, within: tuple[str, ...]) -> pa.Field:
    """Return the Arrow field of a record's field."""
    return pa.field(one["name"], arrow_type(one["type"], named, within))


def union_type(union: list[Any], named: Named, within: tuple[str, ...]) -> pa.DataType:
    """Return the Arrow type of a union: of one type and null, of int and long, or of float and double."""
    branches, _ = branches_of(union)
    kinds = {kind_of(one) for one in branches}
    if not branches:
        return pa.null()
    if len(branches) == 1:
        return arrow_type(branches[0], named, within)
    if all(isinstance(one, str) for one in branches) and kinds in ({"int", "long"}, {"float", "double"}):
        return pa.int64() if "long" in kinds else pa.float64()
    raise UnusableSchema(
        f"a union of {', '.join(sorted(kinds))} has no column type here: read the value as bytes (without"
        " value.format), or with a reader's schema (value.schema) that has one of them"
    )


def contains_itself(schema: AvroSchema, named: Named, within: tuple[str, ...] = ()) -> bool:
    """Return whether values of a schema may lie in each other without an end."""
    schema = written_out(schema, named)
    if isinstance(schema, dict) and kind_of(schema) == "record":
        if schema["name"] in within:
            return True
        within = (*within, schema["name"])
    return any(contains_itself(one, named, within) for one in inner_of(schema))


def takes_no_bytes(schema: AvroSchema, named: Named, within: tuple[str, ...] = ()) -> bool:
    """Return whether each value of a schema is written in no bytes: null, and records of nothing else."""
    schema = written_out(schema, named)
    if isinstance(schema, list):
        return False
    match kind_of(schema):
        case "null":
            return True
        case "fixed":
            return isinstance(schema, dict) and schema["size"] == 0
        case "record" if isinstance(schema, dict):
            inside = (*within, schema["name"])
            return schema["name"] in within or all(
                takes_no_bytes(one["type"], named, inside) for one in schema["fields"]
            )
    return False


def has_items_without_bytes(schema: AvroSchema, named: Named) -> bool:
    """Return whether an array of a schema may be as long as it says, whatever the bytes of its value are."""
    return any(
        isinstance(one, dict) and kind_of(one) == "array" and takes_no_bytes(one["items"], named)
        for one in parts(schema)
    )


def is_decimal(schema: dict[str, Any]) -> bool:
    """Return whether this is a decimal that Spark can have; others are bytes, as Avro wants it."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    return (
        schema.get("logicalType") == "decimal"
        and kind_of(schema) in ("bytes", "fixed")
        and isinstance(precision, int)
        and isinstance(scale, int)
        and 0 <= scale <= precision <= MOST_DIGITS
        and precision > 0
    )
