"""Values of JSON: columns by the reader's schema, checked by the schema that they were written with."""

from __future__ import annotations

import json

import pytest

from coterie.spark.values.avro_types import UnusableSchema
from coterie.spark.values.columns import ValueDecoder
from coterie.spark.values.json_schema import JsonReader, JsonValues
from coterie.spark.values.registry import Registry, Schema, Schemas
from coterie.spark.values.value_format import ValueFormat

from .small_registry import running_registry
from .test_schema_values import decoded

FIRST = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "carrier": {"type": "string"}},
    "required": ["id"],
}
SECOND = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "delay": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "seats": {"type": "object", "additionalProperties": {"type": "integer"}},
        "crew": {"$ref": "#/definitions/crew"},
        "any": {},
    },
    "required": ["id"],
    "definitions": {"crew": {"type": "object", "properties": {"captain": {"type": ["string", "null"]}}}},
}
NOTHING = {"delay": None, "tags": None, "seats": None, "crew": None, "any": None}


@pytest.fixture
def registry():
    with running_registry() as running:
        for schema in (FIRST, SECOND):
            running.register("flights-value", schema, schemaType="JSON")
        yield running


def decoder(registry, folder, reader=SECOND):
    values = ValueFormat("json", Schema(json.dumps(reader), "JSON"), Registry((registry.url,)), True)
    made = ValueDecoder(values)
    made._schemas = Schemas(values.registry, folder)
    return made


def framed(schema_id, value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"\0" + schema_id.to_bytes(4, "big") + text


def test_values_of_two_versions_are_in_the_reader_s_columns(registry, tmp_path):
    full = {
        "id": 2,
        "delay": 3,
        "tags": ["a"],
        "seats": {"x": 1},
        "crew": {"captain": None},
        "any": {"b": [1]},
    }

    found, reasons = decoded(
        decoder(registry, tmp_path), framed(100, {"id": 1, "carrier": "UA"}), framed(101, full), None
    )

    assert reasons == {}
    assert found == [
        {"id": 1, **NOTHING},
        {**full, "delay": 3.0, "seats": [("x", 1)], "any": '{"b": [1]}'},
        None,
    ]


def test_what_is_no_json_or_is_refused_by_its_writer_s_schema_is_a_dead_letter(registry, tmp_path):
    deep, no_number = b"[" * 100_000, b'{"id": 1, "any": NaN}'
    values = [
        b"{",
        b"",
        b"\xff",
        {"id": "one"},
        {"id": -1},
        {},
        [1],
        {"id": 10**30},
        deep,
        no_number,
        {"id": 7},
    ]

    found, reasons = decoded(decoder(registry, tmp_path), *(framed(101, one) for one in values))

    assert found[-1] == {"id": 7, **NOTHING}
    assert sorted(reasons) == list(range(10))
    assert 'id: "one" is not of type "integer"' in reasons[3]
    assert "id: -1 is less than the minimum of 0" in reasons[4]
    assert '"id" is a required property' in reasons[5]
    assert found[:10] == [None] * 10


def test_half_a_surrogate_pair_is_a_dead_letter_and_fails_nothing(registry, tmp_path):
    half = rb'{"id": 1, "tags": ["\ud800"], "any": {"\udfff": 1}}'

    found, reasons = decoded(decoder(registry, tmp_path), framed(101, half), framed(101, {"id": 7}))

    assert found == [None, {"id": 7, **NOTHING}]
    assert "surrogates not allowed" in reasons[0]


@pytest.mark.parametrize(
    "value",
    [
        {"id": "12"},
        {"id": 1.5},
        {"id": True},
        {"crew": {"captain": {"name": "x"}}},
        {"crew": [["captain", "x"]]},
        {"tags": "abc"},
        {"tags": {"a": 1}},
        {"delay": "1"},
        {"seats": [["a", 1]]},
    ],
)
def test_a_value_of_another_type_than_the_reader_s_is_a_dead_letter_and_not_what_python_makes_of_it(
    registry, tmp_path, value
):
    anything = registry.register("flights-value", {}, schemaType="JSON")

    found, reasons = decoded(
        decoder(registry, tmp_path), framed(anything, value), framed(anything, {"id": 7.0})
    )

    assert found == [None, {"id": 7, **NOTHING}]
    assert "as the reader's schema wants it" in reasons[0]


def test_a_schema_may_refer_to_others_of_the_registry(registry, tmp_path):
    registry.register(
        "crew", {"type": "object", "properties": {"captain": {"type": "string"}}}, schemaType="JSON"
    )
    schema = {"type": "object", "properties": {"crew": {"$ref": "crew.json"}}}
    references = [{"name": "crew.json", "subject": "crew", "version": 1}]
    schema_id = registry.register("f-value", schema, schemaType="JSON", references=references)
    reader = Schemas(Registry((registry.url,)), tmp_path).by_id(schema_id, wait_s=0)

    values, errors = (
        JsonReader(reader)
        .of(reader)
        .decoded([framed(schema_id, {"crew": {"captain": one}}) for one in ("c", 1)])
    )

    assert values.to_pylist() == [{"crew": {"captain": "c"}}, None]
    assert "crew/captain" in errors[1]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("[]", "an object, or true or false"),
        ("{", "no JSON"),
        ('{"type": "object", "properties": {"a": {"$ref": "#"}}}', "contains itself"),
        ('{"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}}', "contains itself"),
        ('{"$ref": "other.json"}', "refers to other.json, which is not there"),
    ],
)
def test_a_schema_that_no_column_can_have_is_refused(schema, why):
    with pytest.raises(UnusableSchema, match=why):
        JsonReader(Schema(schema, "JSON"))


def test_a_writer_s_schema_that_is_none_is_a_reason_and_no_request_to_the_network():
    reader = JsonReader(Schema(json.dumps(FIRST), "JSON"))

    for text in ('{"type": 7}', '{"$ref": "https://example.com/flight.json"}'):
        with pytest.raises(UnusableSchema, match="no JSON Schema"):
            JsonValues(Schema(text, "JSON"), reader.column)


def test_a_batch_query_reads_json_in_columns(spark, registry, new_topic):
    topic = new_topic()
    topic.produce([framed(101, {"id": 1, "seats": {"a": 2}}), framed(100, {"id": "x"})])
    given = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, "value.format": "json"}
    given |= {
        "schema.registry.url": registry.url,
        "value.subject": "flights-value",
        "deadLetterColumn": "true",
    }

    rows = spark.read.format("coterie").options(**given).load().selectExpr("value.*", "deadLetter").collect()

    assert (rows[0].id, rows[0].seats, rows[0].deadLetter) == (1, {"a": 2}, None)
    assert (rows[1].id, rows[1].deadLetter.schemaId) == (None, 100)
