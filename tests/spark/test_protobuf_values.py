"""Values of Protocol Buffers: columns by the reader's message, whatever version and message wrote them."""

from __future__ import annotations

import base64
import random
from functools import cache

import pytest
from google.protobuf import descriptor_pb2, message_factory

from coterie.spark.options import BadOption
from coterie.spark.source.options import parse
from coterie.spark.values.avro_types import UnusableSchema
from coterie.spark.values.columns import ValueDecoder
from coterie.spark.values.protobuf import BadIndex, CompilerHangs, Protobuf, ProtobufReader, indexed
from coterie.spark.values.registry import Registry, Schema, Schemas
from coterie.spark.values.value_format import ValueFormat

from .small_registry import running_registry
from .test_schema_values import decoded

HEAD = 'syntax = "proto3"; package air; import "google/protobuf/timestamp.proto";'
FIRST = f"{HEAD} message Flight {{ int32 id = 1; string carrier = 2; }}"
SECOND = f"""{HEAD}
message Gate {{ string name = 1; }}
message Flight {{ int64 id = 1; reserved 2; double delay = 3; }}
"""
THIRD = f"""{HEAD}
message Flight {{
  int64 id = 1; string carrier = 2; optional double delay = 3; google.protobuf.Timestamp at = 4;
  enum Kind {{ PLAIN = 0; CARGO = 1; }} Kind kind = 5; repeated string tags = 6;
  map<string, uint32> seats = 7;
  message Crew {{ string captain = 1; message Meal {{ int32 count = 1; }} }} Crew crew = 8; bytes raw = 9;
  uint64 serial = 10; oneof who {{ string name = 11; int32 number = 12; }}
}}
message Gate {{ string name = 1; }}
"""


@cache
def class_of(text, name):
    return message_factory.GetMessageClass(Protobuf(Schema(text, "PROTOBUF")).descriptor(name))


def message_of(text, name, /, **fields):
    return class_of(text, name)(**fields).SerializeToString()


def framed(schema_id, message, index=b"\0"):
    return b"\0" + schema_id.to_bytes(4, "big") + index + message


@pytest.fixture
def registry():
    with running_registry() as running:
        for text in (FIRST, SECOND, THIRD):
            schema_id = running.register("flights-value", text, schemaType="PROTOBUF")
            running.schemas[schema_id]["schema"] = text  # a text as it is, not in JSON
        yield running


def decoder(registry, text=THIRD, message="", folder=None, **more):
    made = ValueDecoder(
        ValueFormat("protobuf", Schema(text, "PROTOBUF"), Registry((registry.url,)), True, message=message)
    )
    made._schemas = Schemas(made.values.registry, folder)
    return made


NOTHING_ELSE = {
    "carrier": "", "delay": None, "at": None, "kind": "PLAIN", "tags": [], "seats": [], "crew": None,
    "raw": b"", "serial": 0, "name": None, "number": None,
}  # fmt: skip


def test_versions_of_a_message_in_one_batch_are_read_by_their_fields_numbers_in_their_order(
    registry, tmp_path
):
    one = framed(100, message_of(FIRST, "air.Flight", id=1, carrier="UA"))
    two = framed(101, message_of(SECOND, "air.Flight", id=2, delay=2.5), b"\x02\x02")
    given = {
        "id": 3,
        "tags": ["a"],
        "seats": {"x": 2**32 - 1},
        "kind": 1,
        "serial": 2**64 - 1,
        "name": "n",
        "raw": b"\xff",
    }
    three = framed(102, message_of(THIRD, "air.Flight", crew={"captain": "c"}, **given))

    found, reasons = decoded(decoder(registry, folder=tmp_path), one, two, three, None, two)

    assert reasons == {}
    assert found[0] == {**NOTHING_ELSE, "id": 1, "carrier": "UA"}
    assert found[1] == found[4] == {**NOTHING_ELSE, "id": 2, "delay": 2.5}
    assert found[2] == {
        **NOTHING_ELSE, **given, "kind": "CARGO", "seats": [("x", 2**32 - 1)], "crew": {"captain": "c"},
    }  # fmt: skip
    assert found[3] is None


def test_a_message_within_a_message_is_found_by_its_index(registry, tmp_path):
    meal = framed(102, b"\x08\x07", b"\x06\x00\x00\x00")  # three indexes: 0, 0, 0
    made = decoder(registry, message="air.Flight.Crew.Meal", folder=tmp_path)

    assert decoded(made, meal) == ([{"count": 7}], {})


def test_a_value_of_another_message_is_a_dead_letter(registry, tmp_path):
    gate = framed(101, message_of(SECOND, "air.Gate", name="A1"))
    flight = framed(100, message_of(FIRST, "air.Flight", id=1))

    found, reasons = decoded(decoder(registry, folder=tmp_path), gate, flight, gate)

    assert [one and one["id"] for one in found] == [None, 1, None]
    assert reasons[0] == reasons[2] == "a message air.Gate, and air.Flight is wanted"


def test_one_in_a_hundred_that_is_rubbish_fails_nothing_and_each_is_told_of_once(registry, tmp_path):
    rng = random.Random(3)
    values = [framed(102, message_of(THIRD, "air.Flight", id=one, carrier="UA")) for one in range(2_000)]
    bad = sorted(rng.sample(range(2_000), 20))
    for place in bad:
        values[place] = rng.choice(
            [values[place][:-1], values[place][:5], framed(102, b"\x08"), b"rubbish", b""]
        )

    found, reasons = decoded(decoder(registry, folder=tmp_path), *values)

    assert sorted(reasons) == bad
    assert [place for place, one in enumerate(found) if one is None] == bad
    assert all(found[place]["id"] == place for place in range(2_000) if place not in bad)


def test_groups_within_groups_a_million_deep_are_a_dead_letter_and_no_end_of_the_process(registry, tmp_path):
    deep, good = framed(102, b"\x0b" * 1_000_000), framed(102, message_of(THIRD, "air.Flight", id=1))

    found, reasons = decoded(decoder(registry, folder=tmp_path), deep, good)

    assert (found[0], found[1]["id"]) == (None, 1)
    assert "DecodeError" in reasons[0]


def test_a_text_of_proto2_that_is_no_utf_8_is_a_dead_letter_and_fails_nothing(registry, tmp_path):
    text = 'syntax = "proto2"; message Note { optional string text = 1; }'
    registry.schemas[300] = {"schema": text, "schemaType": "PROTOBUF"}
    values = [framed(300, b"\x0a\x01\xff" if one % 7 == 0 else b"\x0a\x01a") for one in range(50)]

    found, reasons = decoded(decoder(registry, text, folder=tmp_path), *values)

    assert found == [None if one % 7 == 0 else {"text": "a"} for one in range(50)]
    assert {one: "invalid UTF-8" in reason for one, reason in reasons.items()} == dict.fromkeys(
        range(0, 50, 7), True
    )


DURATIONS = """syntax = "proto3"; import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
message Took {
  google.protobuf.Duration all = 1; repeated google.protobuf.Duration each = 2;
  map<string, google.protobuf.Timestamp> at = 3;
}"""


@pytest.mark.parametrize(
    "beyond",
    [
        {"all": {"seconds": 2**44}},
        {"all": {"seconds": -(2**62)}},
        {"each": [{"seconds": 1}, {"seconds": 2**44}]},
        {"at": {"gate": {"seconds": 2**44}}},
    ],
)
def test_a_time_that_64_bits_of_microseconds_do_not_hold_is_a_dead_letter_and_not_the_longest_there_is(
    registry, tmp_path, beyond
):
    schema_id = registry.register("took-value", DURATIONS, schemaType="PROTOBUF")
    registry.schemas[schema_id]["schema"] = DURATIONS
    most = {"all": {"seconds": 315_576_000_000}}
    values = [framed(schema_id, message_of(DURATIONS, "Took", **one)) for one in (most, beyond, {})]

    found, reasons = decoded(decoder(registry, DURATIONS, folder=tmp_path), *values)

    assert found[0]["all"].microseconds == 0
    assert found[2]["all"] is None
    assert list(reasons) == [1]
    assert "that 64 bits of microseconds do not hold" in reasons[1]


def test_a_schema_that_protoc_does_not_end_for_fails_the_task_and_makes_no_dead_letters(
    registry, tmp_path, monkeypatch
):
    made = decoder(registry, folder=tmp_path)
    monkeypatch.setattr("coterie.spark.values.protobuf.COMPILES_WITHIN_S", 0.001)

    with pytest.raises(CompilerHangs, match=r"protoc has not compiled schema 100 within 0\.001 s"):
        decoded(made, framed(100, b""))


def test_a_descriptor_that_names_what_is_not_there_is_refused():
    file = descriptor_pb2.FileDescriptorProto(name="air.proto", syntax="proto3")
    file.message_type.add(name="Flight").field.add(name="crew", number=1, type=11, label=1, type_name=".Crew")

    with pytest.raises(UnusableSchema, match="couldn't resolve name"):
        ProtobufReader(Schema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF"), "")


@pytest.mark.parametrize("payload", [b"", b"\x02", b"\x01", b"\xff\xff\xff\xff\xff\x01", b"\x80" * 9])
def test_an_index_that_is_none_is_refused(payload):
    with pytest.raises(BadIndex):
        indexed(payload)


def test_an_index_of_no_message_is_a_dead_letter(registry, tmp_path):
    found, reasons = decoded(decoder(registry, folder=tmp_path), framed(100, b"", b"\x02\x08"))

    assert (found, reasons) == ([None], {0: "message 4 of 1 in the schema"})


def test_a_schema_may_import_others_of_the_registry(registry, tmp_path):
    other = registry.register("crew", "", schemaType="PROTOBUF")
    registry.schemas[other]["schema"] = 'syntax = "proto3"; message Crew { string captain = 1; }'
    text = 'syntax = "proto3"; import "people/crew.proto"; message Flight { Crew crew = 1; }'
    references = [{"name": "people/crew.proto", "subject": "crew", "version": 1}]
    schema_id = registry.register("f-value", "", schemaType="PROTOBUF", references=references)
    registry.schemas[schema_id]["schema"] = text
    reader = Schemas(Registry((registry.url,)), tmp_path).latest("f-value")

    made = ProtobufReader(reader, "")

    assert made.of(reader).decoded([framed(schema_id, b"\x0a\x03\x0a\x01c")])[0].to_pylist() == [
        {"crew": {"captain": "c"}}
    ]


def test_a_schema_may_be_its_descriptor_in_base64_as_clients_register_it():
    file = descriptor_pb2.FileDescriptorProto()
    class_of(THIRD, "air.Flight").DESCRIPTOR.file.CopyToProto(file)
    schema = Schema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")

    made = ProtobufReader(schema, "")

    value = framed(7, message_of(THIRD, "air.Flight", id=3, at={"seconds": 1}))
    found = made.of(schema).decoded([value])[0].to_pylist()
    assert (found[0]["id"], found[0]["at"].timestamp()) == (3, 1)


@pytest.mark.parametrize(
    ("text", "message", "why"),
    [
        ("message {", "", "protoc refuses the schema: .*coterie_value.proto:1"),
        ('syntax = "proto3"; message N { N next = 1; }', "", "N contains itself"),
        (FIRST, "air.Plane", "has no message air.Plane; it has air.Flight"),
    ],
)
def test_a_schema_that_no_column_can_have_is_refused(text, message, why):
    with pytest.raises(UnusableSchema, match=why):
        ProtobufReader(Schema(text, "PROTOBUF"), message)


def test_a_reference_out_of_the_folder_is_refused():
    with pytest.raises(UnusableSchema, match="no name of a file"):
        Protobuf(Schema(FIRST, "PROTOBUF", (("../../etc/cron.d/x.proto", "x"),)))


def test_options_name_the_message_and_the_kind_of_schema_must_be_that_of_the_format(registry):
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "flights", "schema.registry.url": registry.url}

    found = parse({**given, "value.format": "protobuf", "value.message": "air.Gate"}, streaming=True).values
    assert (found.message, found.reader.id) == ("air.Gate", 102)
    with pytest.raises(BadOption, match=r"value\.format is avro, and the schema is one of PROTOBUF"):
        parse({**given, "value.format": "avro"}, streaming=True)
    with pytest.raises(BadOption, match=r"value\.message is for value\.format=protobuf"):
        parse({**given, "value.format": "avro", "value.message": "a.B"}, streaming=True)


def test_a_batch_query_reads_messages_in_columns(spark, registry, new_topic):
    topic = new_topic()
    topic.produce(
        [framed(102, message_of(THIRD, "air.Flight", id=5, seats={"a": 1}, serial=2**64 - 1)), b"?"]
    )
    given = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, "value.format": "protobuf"}
    given |= {
        "schema.registry.url": registry.url,
        "value.subject": "flights-value",
        "deadLetterColumn": "true",
    }

    rows = (
        spark.read.format("coterie")
        .options(**given)
        .load()
        .selectExpr("value.*", "deadLetter.reason")
        .collect()
    )

    assert (rows[0].id, rows[0].seats, rows[0].serial) == (5, {"a": 1}, 2**64 - 1)
    assert rows[1].id is None
    assert "not in the wire format" in rows[1].reason
