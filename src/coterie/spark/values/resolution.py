"""Avro's rules of resolution on whole Arrow columns, for the schemas where they are simple. Pure.

From what was decoded in the writer's schema (each int as a long) to the reader's: fields by name or alias,
defaults, promotions. Whatever else the rules know is left to fastavro (`NotSimple`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from coterie.spark.values.avro_types import PRIMITIVES, AvroSchema, Named, branches_of, kind_of, written_out

Resolve = Callable[[pa.Array], pa.Array]

# By the writer's and the reader's type; an int was decoded as a long, and must be an int all the same.
PROMOTIONS: dict[tuple[str, str], tuple[pa.DataType, ...]] = {
    ("int", "int"): (pa.int32(),),
    ("int", "long"): (pa.int32(), pa.int64()),
    ("int", "float"): (pa.int32(), pa.float32()),
    ("int", "double"): (pa.int32(), pa.float64()),
    ("long", "float"): (pa.float32(),),
    ("long", "double"): (pa.float64(),),
    ("float", "double"): (pa.float64(),),
    ("string", "bytes"): (pa.binary(),),
}


class NotSimple(Exception):
    """The schemas differ by more than is known here."""


def resolution(writer: AvroSchema, writers: Named, reader: AvroSchema, readers: Named) -> Resolve:
    """Return a function from a decoded column to one in the reader's schema; raises NotSimple."""
    return Resolution(writers, readers).of(writer, reader)


class Resolution:
    """Makes the function, of schemas whose named types are these."""

    def __init__(self, writers: Named, readers: Named) -> None:
        self.writers, self.readers = writers, readers

    def of(self, writer: AvroSchema, reader: AvroSchema) -> Resolve:
        """Return the function for a schema and its counterpart."""
        writer, may_be_null = one_branch(writer)
        reader, takes_null = one_branch(reader)
        if may_be_null and not takes_null:
            raise NotSimple
        writer, reader = written_out(writer, self.writers), written_out(reader, self.readers)
        kinds = kind_of(writer), kind_of(reader)
        if kinds in PROMOTIONS:
            return partial(cast_through, PROMOTIONS[kinds])
        if kinds[0] != kinds[1]:
            raise NotSimple
        if not (isinstance(writer, dict) and isinstance(reader, dict)) or kinds[0] in PRIMITIVES:
            return unchanged
        match kinds[0]:
            case "record" if same_name(writer, reader):
                return self._of_record(writer, reader)
            case "enum" if same_name(writer, reader) and {*writer["symbols"]} <= {*reader["symbols"]}:
                return unchanged
            case "array":
                return partial(of_items, self.of(writer["items"], reader["items"]))
            case "map" if (inner := self.of(writer["values"], reader["values"])) is not unchanged:
                if not isinstance(inner, partial) or inner.func is not cast_through:
                    raise NotSimple
                return partial(of_map_values, inner)
            case "map":
                return unchanged
        raise NotSimple

    def _of_record(self, writer: dict[str, Any], reader: dict[str, Any]) -> Resolve:
        written = {one["name"]: (place, one["type"]) for place, one in enumerate(writer["fields"])}
        made: list[tuple[str, int, Resolve]] = []
        for one in reader["fields"]:
            known = [name for name in (one["name"], *one.get("aliases", ())) if name in written]
            if len(known) > 1:
                raise NotSimple
            if known:
                place, kind = written[known[0]]
                made.append((one["name"], place, self.of(kind, one["type"])))
            else:
                made.append((one["name"], -1, self._default(one)))
        return partial(of_record, tuple(made))

    def _default(self, one: dict[str, Any]) -> Resolve:
        """Return a function that makes a column of a field's default, as long as the one that it is given."""
        if "default" not in one:
            raise NotSimple
        schema = one["type"]
        first = written_out(schema[0], self.readers) if isinstance(schema, list) else schema
        branch, _ = one_branch(schema)
        kind = kind_of(written_out(branch, self.readers))
        if kind not in PRIMITIVES or kind in ("bytes", "null") or kind_of(first) not in (kind, "null"):
            raise NotSimple
        default = pa.scalar(one["default"], PRIMITIVES[kind])
        return lambda column: pa.repeat(default, len(column))


def one_branch(schema: AvroSchema) -> tuple[AvroSchema, bool]:
    """Return the type that a union has beside null, and whether it has null; what is no union as it is."""
    if not isinstance(schema, list):
        return schema, False
    branches, has_null = branches_of(schema)
    if len(branches) != 1:
        raise NotSimple
    return branches[0], has_null


def same_name(writer: dict[str, Any], reader: dict[str, Any]) -> bool:
    """Return whether two named types have one name, whatever their namespaces."""
    own, other = (one["name"].rpartition(".")[2] for one in (writer, reader))
    return bool(own == other)


def unchanged(column: pa.Array) -> pa.Array:
    """Return the column."""
    return column


def cast_through(types: tuple[pa.DataType, ...], column: pa.Array) -> pa.Array:
    """Return the column cast to one type after the other: integers have to fit, floats come as near as they
    can.
    """
    for kind in types:
        column = column.cast(kind, safe=not pa.types.is_floating(kind))
    return column


def of_items(inner: Resolve, column: pa.ListArray) -> pa.ListArray:
    """Return arrays with their items resolved."""
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(column.offsets, inner(column.values), mask=mask)


def of_map_values(inner: partial[pa.Array], column: pa.MapArray) -> pa.MapArray:
    """Return maps with their values cast."""
    for kind in inner.args[0]:
        safe = not pa.types.is_floating(kind)
        column = column.cast(pa.map_(pa.string(), kind), safe=safe)
    return column


def of_record(fields: tuple[tuple[str, int, Resolve], ...], column: pa.StructArray) -> pa.StructArray:
    """Return records with these fields: the name of each, the place it comes from, and how."""
    mask = column.is_null() if column.null_count else None
    there = [column.field(place) for place in range(column.type.num_fields)]
    made = [resolve(there[place] if place >= 0 else column) for _, place, resolve in fields]
    if not made:
        return pa.array([{}] * len(column), pa.struct([]), mask=None)
    return pa.StructArray.from_arrays(made, names=[name for name, *_ in fields], mask=mask)
