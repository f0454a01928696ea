"""Values of JSON as Arrow columns, by the reader's JSON Schema, and why some are none.

A value is checked by the schema that it was written with. The reader's says the columns: what it names and
the value does not have is null, what only the value has is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from coterie.client.errors import MissingLibrary
from coterie.spark.values.avro_types import UnusableSchema
from coterie.spark.values.halving import Errors, described
from coterie.spark.values.registry import Schema
from coterie.spark.values.wire import HEADER_BYTES

try:
    import jsonschema_rs
except ImportError as error:
    raise MissingLibrary(
        "value.format=json needs jsonschema-rs, on executors, too: pip install 'coterie[json]'"
    ) from error

JsonSchema: TypeAlias = Mapping[str, Any] | bool
Shape = Callable[[Any], Any]


def of_kind(name: str, kinds: tuple[type, ...], made: Shape) -> Shape:
    """Return a shape that takes values of these kinds alone: what a writer's schema lets be another is none
    in the reader's column, and nothing that Python would make of it.
    """

    def shape(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{described_value(value)} is no {name}, as the reader's schema wants it")
        return made(value)

    return shape


def whole(value: float) -> int:
    """Return a number without a fraction; raises ValueError for one that has one."""
    if value != int(value):
        raise ValueError(f"{value} is no integer, as the reader's schema wants it")
    return int(value)


def described_value(value: Any) -> str:
    """Return the beginning of a value's JSON."""
    return json.dumps(value)[:100]


LIST, OBJECT = (list,), (dict,)
SIMPLE: Mapping[str, tuple[pa.DataType, Shape]] = {
    "string": (pa.string(), of_kind("string", (str,), str)),
    "integer": (pa.int64(), of_kind("integer", (int, float), whole)),
    "number": (pa.float64(), of_kind("number", (int, float), float)),
    "boolean": (pa.bool_(), of_kind("boolean", (bool,), bool)),
}
NOT_FOR_ARROW = (pa.ArrowException, OverflowError, UnicodeError)
"""What Arrow raises for a value: too large a number, half a surrogate pair."""
BASE_URI = "json-schema:///"
"""Where a schema is that has no `$id`: what it refers to by a name is looked for below it."""


class JsonColumn:
    """The column of a schema: its type, and what makes a value of it that Arrow takes."""

    def __init__(self, kind: pa.DataType, shape: Shape) -> None:
        self.type, self.shape = kind, shape

    def of(self, value: Any) -> Any:
        """Return a value as Arrow takes it."""
        return None if value is None else self.shape(value)


AS_TEXT = JsonColumn(pa.string(), lambda value: json.dumps(value, ensure_ascii=False))
"""The column of what may be anything: its JSON."""


class JsonReader:
    """The schema in which values are wanted."""

    def __init__(self, schema: Schema) -> None:
        self.column = Columns(parsed(schema.text), references_of(schema)).of_root()

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values."""
        return self.column.type

    def of(self, writer: Schema) -> JsonValues:
        """Return the decoder of values that a schema wrote; raises UnusableSchema."""
        return JsonValues(writer, self.column)


class JsonValues:
    """Decodes what one writer's schema wrote."""

    def __init__(self, writer: Schema, column: JsonColumn) -> None:
        references = references_of(writer)

        def named(uri: str) -> Any:
            return references[uri.removeprefix(BASE_URI)]

        schema: Any = parsed(writer.text)
        try:
            # Nothing is asked of a network: whatever a schema names is in the registry, beside it.
            self._validator = jsonschema_rs.validator_for(schema, retriever=named)
        except (ValueError, KeyError, jsonschema_rs.ReferencingError) as error:
            raise UnusableSchema(f"no JSON Schema: {described(error)}") from error
        self._column = column

    def decoded(self, framed: Sequence[bytes]) -> tuple[pa.Array, Errors]:
        """Return the values of what has a header, null where one is none, and why."""
        errors: Errors = {}
        values: list[Any] = []
        for place, one in enumerate(framed):
            try:
                values.append(self._value(one[HEADER_BYTES:]))
            except Exception as error:  # noqa: BLE001  whatever a stranger's bytes bring about
                errors[place] = described(error)
                values.append(None)
        try:
            return pa.array(values, self._column.type), errors
        except NOT_FOR_ARROW:
            return self._each_by_itself(values, errors), errors

    def _value(self, payload: bytes) -> Any:
        value = json.loads(payload, parse_constant=no_number)
        if not self._validator.is_valid(value):
            first = next(iter(self._validator.iter_errors(value)))
            where = "/".join(map(str, first.instance_path)) or "the value"
            raise ValueError(f"{where}: {first.message}")
        return self._column.of(value)

    def _each_by_itself(self, values: Sequence[Any], errors: Errors) -> pa.Array:
        """Return values of which some are larger than their type."""
        made = []
        for place, value in enumerate(values):
            try:
                made.append(pa.array([value], self._column.type))
            except NOT_FOR_ARROW as error:
                errors[place] = described(error)
                made.append(pa.nulls(1, self._column.type))
        return pa.concat_arrays(made)


class Columns:
    """Makes columns of a schema, which may refer to parts of itself and to others by their names."""

    def __init__(self, root: JsonSchema, references: Mapping[str, JsonSchema]) -> None:
        self._root, self._references = root, references

    def of_root(self) -> JsonColumn:
        """Return the column of the schema; raises UnusableSchema for what contains itself."""
        return self.of(self._root, self._root, ())

    def of(self, schema: JsonSchema, document: JsonSchema, within: tuple[str, ...]) -> JsonColumn:
        """Return the column of a part of a document, which was reached by these references."""
        if not isinstance(schema, Mapping):
            return AS_TEXT
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]), document, within)
        for word in ("oneOf", "anyOf"):
            if word in schema:
                others = [one for one in schema[word] if one != {"type": "null"}]
                return self.of(others[0], document, within) if len(others) == 1 else AS_TEXT
        kinds = schema.get("type", "object" if "properties" in schema else [])
        kinds = [kinds] if isinstance(kinds, str) else [one for one in kinds if one != "null"]
        if len(kinds) != 1:
            return AS_TEXT
        if kinds[0] in SIMPLE:
            return JsonColumn(*SIMPLE[kinds[0]])
        return self._of_many(kinds[0], schema, document, within)

    def _of_many(
        self, kind: str, schema: Mapping[str, Any], document: JsonSchema, within: tuple[str, ...]
    ) -> JsonColumn:
        """Return the column of an array or object."""
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            item = self.of(schema["items"], document, within)
            items = of_kind("array", LIST, lambda values: [item.of(one) for one in values])
            return JsonColumn(pa.list_(item.type), items)
        if kind == "object" and schema.get("properties"):
            each = {name: self.of(one, document, within) for name, one in schema["properties"].items()}
            fields = pa.struct([pa.field(name, one.type) for name, one in each.items()])

            def struct(value: Any) -> dict[str, Any]:
                return {name: one.of(value.get(name)) for name, one in each.items()}

            return JsonColumn(fields, of_kind("object", OBJECT, struct))
        if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
            inner = self.of(schema["additionalProperties"], document, within)
            entries = of_kind(
                "object", OBJECT, lambda value: [(name, inner.of(one)) for name, one in value.items()]
            )
            return JsonColumn(pa.map_(pa.string(), inner.type), entries)
        return AS_TEXT

    def _referred(self, reference: str, document: JsonSchema, within: tuple[str, ...]) -> JsonColumn:
        name, _, path = reference.partition("#")
        key = f"{name or id(document)}#{path}"
        if key in within:
            raise UnusableSchema(f"{reference} contains itself: Spark has no type for that")
        target: Any = document if not name else self._references.get(name)
        try:
            found = target
            for part in path.split("/")[1:]:
                found = found[part.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError, IndexError):
            found = None
        if found is None:
            raise UnusableSchema(f"the schema refers to {reference}, which is not there")
        return self.of(found, target, (*within, key))


def no_number(word: str) -> None:
    """Raise ValueError for what Python takes for a number, and JSON does not have."""
    raise ValueError(f"{word} is no JSON")


def parsed(text: str) -> JsonSchema:
    """Return a schema of its text; raises UnusableSchema."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise UnusableSchema(f"no JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise UnusableSchema("a JSON Schema is an object, or true or false")
    return schema


def references_of(schema: Schema) -> dict[str, JsonSchema]:
    """Return the schemas that a schema refers to, by their names; raises UnusableSchema."""
    return {name: parsed(text) for name, text in schema.references}
