"""Values of Avro as Arrow columns, in the reader's schema by Avro's rules, and why some are none. Pure.

Two ways, which a property test holds to one outcome. `pyruhvro` decodes a whole batch in the writer's schema,
and Arrow brings it into the reader's, where that takes no more than what `Resolution` knows. `fastavro` does
everything, value by value, some fifty times slower: other schemas, and the values that the first way refused,
which are found by halving.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property, partial
from io import BytesIO
from typing import Any, TypeVar

import pyarrow as pa

from coterie.client.errors import MissingLibrary
from coterie.spark.values.avro_types import (
    LOGICAL,
    MOST_DIGITS,
    PRIMITIVES,
    AvroSchema,
    Named,
    UnusableSchema,
    arrow_type,
    branches_of,
    contains_itself,
    has_items_without_bytes,
    is_decimal,
    kind_of,
    parts,
    written_out,
)
from coterie.spark.values.halving import Errors, described, pieces
from coterie.spark.values.registry import Schema
from coterie.spark.values.resolution import NotSimple, Resolve, resolution
from coterie.spark.values.wire import HEADER_BYTES

try:
    import fastavro
    import pyruhvro
    from fastavro import _read_py
    from fastavro.io.binary_decoder import BinaryDecoder
except ImportError as error:
    raise MissingLibrary(
        "value.format=avro needs fastavro and pyruhvro, on executors, too: pip install 'coterie[avro]'"
    ) from error

# What pyruhvro decodes, and refuses exactly where fastavro does; `int` goes to it as `long`, of which it is
# seen whether it is one (an int that is too large loses its upper half there).
KINDS_IN_BULK = {
    "null",
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "array",
    "map",
    "record",
    "enum",
}
# The five bytes of Confluent's header in Avro: as many as a boolean and a float have, whatever they say. To
# cut them off each value takes about as long as to decode it.
HEADER = ({"name": "zero", "type": "boolean"}, {"name": "id", "type": "float"})
# So few values that were refused together are looked at one by one.
FEW = 16
# An array of nulls is as long as it says, a million in three bytes: at most so many items more than bytes.
MOST_ITEMS_WITHOUT_BYTES = 10_000
EXACT = Context(prec=MOST_DIGITS)
BUFFER = re.compile(r" from <_io.BytesIO object at 0x[0-9a-f]+>")

S = TypeVar("S", bound=AvroSchema)


@dataclass(frozen=True)
class Avro:
    """A schema that is understood, and what values in it are made of."""

    parsed: AvroSchema
    named: Named

    @classmethod
    def of(cls, text: str, references: Iterable[str] = ()) -> Avro:
        """Return the schema of its text; `references` are the texts of what it refers to, first things first.

        Raises UnusableSchema.
        """
        known: dict[str, Any] = {}
        try:
            for one in (*references, text):
                parsed = fastavro.parse_schema(json.loads(one), named_schemas=known)
        except (
            ValueError,
            TypeError,
            KeyError,
            RecursionError,
            fastavro.schema.SchemaParseException,
        ) as error:
            raise UnusableSchema(f"not an Avro schema: {type(error).__name__}: {error}") from error
        return cls(without_marks(parsed), {name: without_marks(one) for name, one in known.items()})

    @cached_property
    def type(self) -> pa.DataType:
        """The Arrow type of its values."""
        return arrow_type(self.parsed, self.named)

    @cached_property
    def bare(self) -> AvroSchema:
        """The schema without logical types: numbers and bytes come as they are, whatever they stand for.
        Named types are written out where first met.
        """
        seen: set[str] = set()

        def made(schema: AvroSchema) -> AvroSchema:
            if isinstance(schema, str):
                if schema in self.named and schema not in seen:
                    return made(self.named[schema])
                return schema
            if isinstance(schema, list):
                return [made(one) for one in schema]
            changed = {key: each for key, each in schema.items() if key != "logicalType"}
            if "name" in changed:
                seen.add(changed["name"])
            kind = changed["type"]
            if kind == "record":
                fields = [{**one, "type": made(one["type"])} for one in changed["fields"]]
                return {**changed, "fields": fields}
            if kind in ("array", "map"):
                inner = "items" if kind == "array" else "values"
                return {**changed, inner: made(changed[inner])}
            return changed if "name" in changed or not isinstance(kind, str) else kind

        return made(self.parsed)

    @cached_property
    def for_fastavro(self) -> Any:
        """The bare schema as fastavro wants it, or it would parse it for each value."""
        return fastavro.parse_schema(self.bare)

    @cached_property
    def in_bulk(self) -> str | None:
        """The schema as pyruhvro wants it, in a record behind the header; None where it does not know it, or
        would make an array as long as it says.
        """
        if has_items_without_bytes(self.bare, self.named):
            return None
        for one in parts(self.bare):
            known = simple_union(one) if isinstance(one, list) else kind_of(one) in KINDS_IN_BULK
            if not known and not (isinstance(one, str) and one in self.named):
                return None
        fields = [*HEADER, {"name": "value", "type": wide(self.bare)}]
        return json.dumps({"type": "record", "name": "coterie_value", "fields": fields})


def without_marks(schema: S) -> S:
    """Return a schema that fastavro has parsed without its own notes in it."""
    if not isinstance(schema, dict):
        return schema
    return {key: one for key, one in schema.items() if not key.startswith("__")}  # type: ignore[return-value]


def simple_union(union: list[Any]) -> bool:
    """Return whether this is a type or null."""
    return len(branches_of(union)[0]) <= 1


def wide(schema: AvroSchema) -> AvroSchema:
    """Return the schema with each int a long."""
    if isinstance(schema, str):
        return "long" if schema == "int" else schema
    if isinstance(schema, list):
        return [wide(one) for one in schema]
    changed = dict(schema)
    if changed["type"] == "record":
        kept = ("name", "type")
        changed["fields"] = [
            {**{key: one[key] for key in kept}, "type": wide(one["type"])} for one in schema["fields"]
        ]
    elif changed["type"] in ("array", "map"):
        inner = "items" if changed["type"] == "array" else "values"
        changed[inner] = wide(changed[inner])
    return changed


class AvroReader:
    """The schema in which values are wanted."""

    def __init__(self, schema: Schema) -> None:
        self.avro = avro_of(schema)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values; raises UnusableSchema."""
        return self.avro.type

    def of(self, writer: Schema) -> AvroValues:
        """Return the decoder of values that a schema wrote; raises UnusableSchema."""
        return AvroValues(avro_of(writer), self.avro)


def avro_of(schema: Schema) -> Avro:
    """Return a schema of the registry that is understood; raises UnusableSchema."""
    return Avro.of(schema.text, [text for _, text in schema.references])


class AvroValues:
    """Decodes what one writer's schema wrote, for one reader's schema."""

    def __init__(self, writer: Avro, reader: Avro) -> None:
        self.writer, self.reader = writer, reader
        self._shape = shape_of(reader.parsed, reader.named)
        self._bare_type = bare_type(reader.parsed, reader.named)
        self._unit_type = unit_type(reader.parsed, reader.named)
        self._read: Callable[[BytesIO, Any, Any], Any] = fastavro.schemaless_reader
        self._bounded = has_items_without_bytes(writer.parsed, writer.named)
        if contains_itself(writer.parsed, writer.named):  # without an end: compiled, it runs out of the stack
            self._read = _read_py.schemaless_reader  # and takes the process with it
        if self._bounded:
            self._read = bounded_reader
        self._resolution: Resolve | None = None
        with suppress(NotSimple):
            self._resolution = resolution(writer.bare, writer.named, reader.bare, reader.named)
        self.in_bulk = writer.in_bulk is not None and self._resolution is not None and self._shape is None

    def decoded(self, framed: Sequence[bytes]) -> tuple[pa.Array, Errors]:
        """Return the values of what has a header, null where one is none, and why."""
        errors: Errors = {}
        if not framed:
            return pa.nulls(0, self.reader.type), errors
        one_by_one = partial(self._one_by_one, errors=errors)
        if self._bounded:  # no more than one such value is there as objects of Python
            return pa.concat_arrays([one_by_one([one], place) for place, one in enumerate(framed)]), errors
        if not self.in_bulk:
            return one_by_one(framed, 0), errors
        return pa.concat_arrays(pieces(framed, self._all_at_once, one_by_one, few=FEW)), errors

    def _all_at_once(self, framed: Sequence[bytes]) -> pa.Array:
        assert self._resolution is not None
        found = pyruhvro.deserialize_array(list(framed), self.writer.in_bulk).column("value")
        found.validate(full=True)  # texts are not looked at by pyruhvro
        return self._finished(self._resolution(found))

    def _one_by_one(self, framed: Sequence[bytes], first: int, errors: Errors) -> pa.Array:
        values: list[Any] = []
        for place, one in enumerate(framed, first):
            try:
                value = self._value(one[HEADER_BYTES:])
            except Exception as error:  # noqa: BLE001  whatever a stranger's bytes bring about
                errors[place] = reason_of(error)
                value = None
            values.append(value)
        try:
            return self._finished(pa.array(values, self._bare_type))
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return self._each_by_itself(values, first, errors)

    def _each_by_itself(self, values: Sequence[Any], first: int, errors: Errors) -> pa.Array:
        """Return values of which some are larger than their type."""
        made = []
        for place, value in enumerate(values, first):
            try:
                made.append(self._finished(pa.array([value], self._bare_type)))
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                errors[place] = reason_of(error)
                made.append(pa.nulls(1, self.reader.type))
        return pa.concat_arrays(made)

    def _value(self, payload: bytes) -> Any:
        value = self._read(BytesIO(payload), self.writer.for_fastavro, self.reader.for_fastavro)
        return value if self._shape is None or value is None else self._shape(value)

    def _finished(self, bare: pa.Array) -> pa.Array:
        """Return the values in the types of their logical types; raises ArrowInvalid for those too large."""
        in_units = bare if bare.type == self._unit_type else bare.cast(self._unit_type)
        return in_units if in_units.type == self.reader.type else in_units.cast(self.reader.type)


class TooManyItems(ValueError):
    """A value of some bytes whose arrays have items that take none, more than anybody means."""


class BoundedDecoder(BinaryDecoder):
    """Reads Avro's bytes, and no array that is longer than they can say."""

    def __init__(self, payload: BytesIO) -> None:
        super().__init__(payload)  # type: ignore[no-untyped-call]
        self._most = payload.getbuffer().nbytes + MOST_ITEMS_WITHOUT_BYTES
        self._items = 0

    def iter_array(self) -> Iterator[None]:
        """Yield for each item; raises TooManyItems."""
        for _ in super().iter_array():  # type: ignore[no-untyped-call]
            self._items += 1
            if self._items > self._most:
                raise TooManyItems(
                    f"arrays of items that take no bytes have {MOST_ITEMS_WITHOUT_BYTES:,} together at most"
                )
            yield


def bounded_reader(payload: BytesIO, writer: Any, reader: Any) -> Any:
    """Return a value as fastavro's `schemaless_reader` does, unless it has more items than it may."""
    named: dict[str, dict[str, Any]] = {"writer": {}, "reader": {}}
    writer = fastavro.parse_schema(writer, named["writer"])
    reader = fastavro.parse_schema(reader, named["reader"])
    return _read_py.read_data(  # type: ignore[no-untyped-call]
        BoundedDecoder(payload), writer, named, reader, {}
    )


def reason_of(error: BaseException) -> str:
    """Return the reason that a value is none, in one line."""
    return BUFFER.sub("", described(error))


def bare_type(schema: AvroSchema, named: Named) -> pa.DataType:
    """Return the Arrow type of a schema's values before their logical types, but for decimals."""
    return mapped_type(schema, named, lambda kind, logical, usual: PRIMITIVES.get(kind, usual))


def unit_type(schema: AvroSchema, named: Named) -> pa.DataType:
    """Return the Arrow type of a schema's values with times in the unit in which they were written."""

    def unit(kind: str, logical: str | None, usual: pa.DataType) -> pa.DataType:
        if (kind, logical) in LOGICAL and logical is not None and logical.endswith("-millis"):
            return pa.timestamp("ms", usual.tz)
        return usual

    return mapped_type(schema, named, unit)


def mapped_type(
    schema: AvroSchema, named: Named, change: Callable[[str, str | None, pa.DataType], pa.DataType]
) -> pa.DataType:
    """Return the Arrow type of a schema with the types of its leaves changed, decimals excepted."""
    schema = written_out(schema, named)
    usual = arrow_type(schema, named)
    if isinstance(schema, list):
        branches, _ = branches_of(schema)
        return mapped_type(branches[0], named, change) if len(branches) == 1 else usual
    if isinstance(schema, str):
        return change(schema, None, usual)
    match kind_of(schema):
        case "record":
            fields = [
                pa.field(one["name"], mapped_type(one["type"], named, change)) for one in schema["fields"]
            ]
            return pa.struct(fields)
        case "array":
            return pa.list_(mapped_type(schema["items"], named, change))
        case "map":
            return pa.map_(pa.string(), mapped_type(schema["values"], named, change))
        case kind:
            return usual if is_decimal(schema) else change(kind, schema.get("logicalType"), usual)


Shape = Callable[[Any], Any]


def shape_of(schema: AvroSchema, named: Named) -> Shape | None:
    """Return a function that makes of a value one that Arrow takes: decimals of bytes; None: it takes all."""
    schema = written_out(schema, named)
    if isinstance(schema, str):
        return None
    if isinstance(schema, list):
        branches, _ = branches_of(schema)
        return shape_of(branches[0], named) if len(branches) == 1 else None
    if is_decimal(schema):
        return partial(decimal_of, most=10 ** schema["precision"], scale=schema.get("scale", 0))
    match kind_of(schema):
        case "record":
            return record_shape({one["name"]: shape_of(one["type"], named) for one in schema["fields"]})
        case "array" if (item := shape_of(schema["items"], named)) is not None:
            return lambda values: [None if one is None else item(one) for one in values]
        case "map" if (each := shape_of(schema["values"], named)) is not None:
            return lambda values: {key: None if one is None else each(one) for key, one in values.items()}
    return None


def decimal_of(value: bytes, *, most: int, scale: int) -> Decimal:
    """Return the decimal of its digits; raises ValueError for one that is larger than its type, before a
    million digits are made of what a stranger has sent.
    """
    digits = int.from_bytes(value, "big", signed=True)
    if not -most < digits < most:
        raise ValueError(f"a decimal of {len(value)} bytes has more digits than its type")
    return Decimal(digits).scaleb(-scale, EXACT)


def record_shape(fields: Mapping[str, Shape | None]) -> Shape | None:
    """Return the shape of a record, whose fields have these."""
    shaped = {name: shape for name, shape in fields.items() if shape is not None}
    if not shaped:
        return None

    def made(value: dict[str, Any]) -> dict[str, Any]:
        changed = {name: shape(value[name]) for name, shape in shaped.items() if value[name] is not None}
        return {**value, **changed}

    return made
