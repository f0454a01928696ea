"""Values of Avro: whole batches at once come to what fastavro makes of each by itself, whatever the bytes."""

from __future__ import annotations

import json
from io import BytesIO

import fastavro
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.spark.values.avro import Avro, AvroValues
from examples import drawn

NAMES = ("a", "b", "c", "d")
LEAVES = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(max_size=4),
    "bytes": st.binary(max_size=4),
}
DEFAULTS = {
    "boolean": True,
    "int": 3,
    "long": 2**40,
    "float": 0.5,
    "double": 0.25,
    "string": "x",
    "bytes": "y",
}
WIDER = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
DATES = {"int": "date", "long": "timestamp-millis"}


@st.composite
def types(draw, number, depth=2):
    """A schema; names of its named types begin with a number that nothing else has."""
    kind = draw(st.sampled_from([*LEAVES, "dated", "null or", "array", "map", "enum", "record"]))
    if kind in LEAVES:
        return kind
    if kind == "dated":
        base = draw(st.sampled_from(sorted(DATES)))
        return {"type": base, "logicalType": DATES[base]}
    if kind == "enum" or depth == 0:
        return {"type": "enum", "name": f"E{next(number)}", "symbols": ["A", "B", "C"]}
    if kind == "record":
        return draw(records(number, depth - 1))
    inner = draw(types(number, depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}
    if kind == "map":
        return {"type": "map", "values": inner}
    return inner if isinstance(inner, list) else draw(st.permutations(["null", inner]))


@st.composite
def records(draw, number, depth=2):
    """A record's schema."""
    name = f"R{next(number)}"
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": one, "type": draw(types(number, depth))} for one in names],
    }


def values(schema):
    """Values of a schema."""
    if isinstance(schema, list):
        return st.one_of(values(one) for one in schema)
    if schema == "null":
        return st.none()
    if isinstance(schema, str):
        return LEAVES[schema]
    match schema["type"]:
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "array":
            return st.lists(values(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=2), values(schema["values"]), max_size=2)
        case "record":
            return st.fixed_dictionaries({one["name"]: values(one["type"]) for one in schema["fields"]})
        case kind:
            return LEAVES[kind]


def evolved(draw, schema):
    """What a reader may have of a schema: wider, with fields more, fewer, and by other names."""
    if isinstance(schema, list):
        return [one if one == "null" else evolved(draw, one) for one in schema]
    if isinstance(schema, str):
        wider = draw(st.sampled_from(WIDER.get(schema, (schema,))))
        return draw(st.sampled_from([wider, wider, ["null", wider]])) if wider != "null" else wider
    match schema["type"]:
        case "array":
            return {**schema, "items": evolved(draw, schema["items"])}
        case "map":
            return {**schema, "values": evolved(draw, schema["values"])}
        case "enum":
            return {
                **schema,
                "symbols": draw(st.sampled_from([["A", "B", "C"], ["C", "B", "A", "D"], ["A"]])),
            }
        case "record":
            fields = [evolved_field(draw, one) for one in schema["fields"] if draw(st.integers(0, 4))]
            for name in draw(st.lists(st.sampled_from(("x", "y")), unique=True)):
                kind = draw(st.sampled_from(sorted(DEFAULTS)))
                default = {"default": DEFAULTS[kind]} if draw(st.integers(0, 9)) else {}
                fields.append({"name": name, "type": kind, **default})
            return {**schema, "fields": draw(st.permutations(fields))}
    return schema


def evolved_field(draw, field):
    made = {**field, "type": evolved(draw, field["type"])}
    if draw(st.integers(0, 5)) == 0:
        made = {**made, "name": f"new_{field['name']}", "aliases": [field["name"]]}
    return made


def bent(draw, payload):
    """The bytes of a value as they are, cut off, with one changed, or others altogether."""
    how = draw(st.integers(0, 9))
    if how == 0:
        return payload[: draw(st.integers(0, len(payload)))]
    if how == 1 and payload:
        at = draw(st.integers(0, len(payload) - 1))
        return payload[:at] + draw(st.binary(min_size=1, max_size=1)) + payload[at + 1 :]
    if how == 2:
        return draw(st.binary(max_size=8))
    return payload


def plain(value):
    """A value of Arrow's with which another compares equal: of what a map has twice the last counts."""
    match value:
        case dict():
            return {key: plain(one) for key, one in value.items()}
        case [*items] if items and all(isinstance(one, tuple) for one in items):
            return {key: plain(one) for key, one in items}
        case list():
            return [plain(one) for one in value]
    return repr(value)


@given(st.data())
@settings(max_examples=drawn(250), deadline=None)
def test_a_batch_decoded_at_once_is_what_each_value_is_by_itself(data):
    writer = data.draw(records(iter(range(1_000))))
    reader = evolved(data.draw, writer)
    parsed = fastavro.parse_schema(json.loads(json.dumps(writer)))
    payloads = []
    for value in data.draw(st.lists(values(writer), min_size=1, max_size=6)):
        written = BytesIO()
        fastavro.schemaless_writer(written, parsed, value)
        payloads.append(b"\0\0\0\0\7" + bent(data.draw, written.getvalue()))
    at_once = AvroValues(Avro.of(json.dumps(writer)), Avro.of(json.dumps(reader)))
    by_themselves = AvroValues(at_once.writer, at_once.reader)
    by_themselves.in_bulk = False

    found, errors = at_once.decoded(payloads)
    wanted, reasons = by_themselves.decoded(payloads)

    assert found.type == wanted.type == at_once.reader.type
    assert errors == reasons
    numbers = at_once._bare_type  # of days that Python has no date for
    assert plain(found.cast(numbers).to_pylist()) == plain(wanted.cast(numbers).to_pylist())
    assert len(found) == len(payloads)
