"""Values with a schema of a registry: columns in the reader's schema, and what becomes of all others."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.spark.options import BadOption
from coterie.spark.source.options import parse
from coterie.spark.values.avro import Avro, AvroReader, AvroValues
from coterie.spark.values.avro_types import UnusableSchema
from coterie.spark.values.columns import BadValue, ValueDecoder, reasons_of
from coterie.spark.values.registry import (
    Registry,
    RegistryAway,
    RegistryRefused,
    Schema,
    Schemas,
    UnknownSchema,
)
from coterie.spark.values.unknown_ids import (
    A_SECOND,
    AT_ONCE,
    BELIEVED_S,
    SLOTS,
    QuestionAllowance,
    UnknownIds,
)
from coterie.spark.values.value_format import ValueFormat
from coterie.spark.values.wire import NO_ID, headers_of

from .small_registry import USER, running_registry, written
from .test_stream import begin

FIRST = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "id", "type": "int"}, {"name": "carrier", "type": "string"}],
}


def evolved(*more, without=(), renamed=None):
    """A later version of the first schema."""
    fields = [one for one in FIRST["fields"] if one["name"] not in without]
    if renamed:
        fields = [renamed if one["name"] in renamed["aliases"] else one for one in fields]
    return {**FIRST, "fields": [*fields, *more]}


DELAY = {"name": "delay", "type": ["null", "double"], "default": None}
AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0}
WIDE_ID = {"name": "id", "type": "long", "aliases": ["id"]}
AIRLINE = {"name": "airline", "type": "string", "aliases": ["carrier"]}
VERSIONS = [
    FIRST,
    evolved(DELAY),
    evolved(DELAY, AT),
    {**evolved(DELAY, AT), "fields": [{"name": "id", "type": "long"}, *evolved(DELAY, AT)["fields"][1:]]},
    {**FIRST, "fields": [{"name": "id", "type": "long"}, AIRLINE, DELAY, AT]},
]
VALUES = [
    {"id": 1, "carrier": "UA"},
    {"id": 2, "carrier": "AA", "delay": 2.5},
    {"id": 3, "carrier": "DL", "delay": None, "at": 1_700_000_000_123},
    {"id": 2**40, "carrier": "B6", "delay": 0.5, "at": 5},
    {"id": 5, "airline": "WN", "delay": None, "at": 6},
]
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
INCOMPATIBLE = {"type": "record", "name": "Flight", "fields": [{"name": "id", "type": "string"}]}


def moment(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


WANTED = [
    {"id": 1, "airline": "UA", "delay": None, "at": moment(0)},
    {"id": 2, "airline": "AA", "delay": 2.5, "at": moment(0)},
    {"id": 3, "airline": "DL", "delay": None, "at": moment(1_700_000_000_123)},
    {"id": 2**40, "airline": "B6", "delay": 0.5, "at": moment(5)},
    {"id": 5, "airline": "WN", "delay": None, "at": moment(6)},
]


@pytest.fixture
def registry():
    with running_registry() as running:
        yield running


@pytest.fixture
def five(registry):
    """The ids of five versions of one schema, registered in their order."""
    return [registry.register("flights-value", schema) for schema in VERSIONS]


def decoder(registry, reader, *, dead_letters=True, check="", folder=None):
    made = ValueDecoder(
        ValueFormat("avro", Schema(json.dumps(reader)), Registry((registry.url,)), dead_letters, check)
    )
    made._schemas = Schemas(made.values.registry, folder)
    return made


class Clock:
    """A time that stands until it is moved."""

    def __init__(self):
        self.now_s = 1_000.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def decoder_at(clock, registry, folder):
    """A decoder to which it is as late as the clock says."""
    made = decoder(registry, VERSIONS[-1], folder=folder)
    made._schemas._unknown = UnknownIds(folder, clock)
    return made


def batch_of(*values):
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(values, pa.binary()),
            pa.array(["flights"] * count),
            pa.array([7] * count, pa.int32()),
            pa.array(range(40, 40 + count), pa.int64()),
        ],
        names=["value", "topic", "partition", "offset"],
    )


def decoded(made, *values, wait_s=0.0):
    """The values, and the reasons of those that are none by their places."""
    batch = made.decoded(batch_of(*values), wait_s=wait_s)
    letters = batch.column("deadLetter").to_pylist()
    reasons = {place: one["reason"] for place, one in enumerate(letters) if one is not None}
    return batch.column("value").to_pylist(), reasons


# Schemas


def test_five_versions_of_a_schema_in_one_batch_are_read_by_avro_s_rules_in_their_order(
    registry, five, tmp_path
):
    rng = random.Random(7)
    chosen = [rng.randrange(5) for _ in range(500)]
    values = [written(five[one], VERSIONS[one], VALUES[one]) for one in chosen]

    found, reasons = decoded(decoder(registry, VERSIONS[-1], folder=tmp_path), *values)

    assert reasons == {}
    assert found == [WANTED[one] for one in chosen]
    assert len(registry.asked) == 5


def test_what_a_schema_wrote_that_the_readers_cannot_be_resolved_with_is_a_dead_letter(
    registry, five, tmp_path
):
    other = registry.register("flights-value", INCOMPATIBLE)
    good, bad = written(five[0], FIRST, VALUES[0]), written(other, INCOMPATIBLE, {"id": "one"})
    made = decoder(registry, VERSIONS[-1], folder=tmp_path)

    found, reasons = decoded(made, good, bad, good)

    assert found == [WANTED[0], None, WANTED[0]]
    assert list(reasons) == [1]
    assert "SchemaResolutionError" in reasons[1]
    letter = made.decoded(batch_of(bad), wait_s=0).column("deadLetter")[0].as_py()
    assert (letter["schemaId"], letter["value"]) == (other, bad)


def test_one_in_a_hundred_that_is_rubbish_fails_nothing_and_each_is_told_of_once(registry, five, tmp_path):
    rng = random.Random(11)
    good = [written(five[one], VERSIONS[one], VALUES[one]) for one in range(5)]
    values = [good[rng.randrange(5)] for _ in range(3_000)]
    bad = sorted(rng.sample(range(3_000), 30))
    for place in bad:
        header = values[place][:5]
        values[place] = rng.choice([b"", b"{}", header, header + b"\x02\xff\xff", b"\1" + values[place][1:]])

    found, reasons = decoded(decoder(registry, VERSIONS[-1], folder=tmp_path), *values)

    assert sorted(reasons) == bad
    assert [place for place, one in enumerate(found) if one is None] == bad


def test_an_id_that_the_registry_does_not_have_is_a_dead_letter_until_it_is_asked_again_and_has_it(
    registry, five, tmp_path
):
    clock = Clock()
    made, other = (decoder_at(clock, registry, tmp_path) for _ in range(2))
    value = written(105, FIRST, VALUES[0])

    assert "Schema not found" in decoded(made, value)[1][0]
    registry.register("flights-value", FIRST)
    clock.now_s += BELIEVED_S - 1
    assert decoded(made, value)[0] == [None]
    assert "Schema not found" in decoded(other, value)[1][0]
    assert len(registry.asked) == 1
    clock.now_s += 2
    assert decoded(made, value) == ([WANTED[0]], {})


def test_what_was_said_of_an_id_says_nothing_of_another_in_its_place_nor_of_times_to_come(tmp_path):
    clock = Clock()
    ids, others = (UnknownIds(tmp_path, clock) for _ in range(2))

    ids.add(7, "nothing")
    assert others.said_of(7) == "nothing"
    assert others.said_of(7 + SLOTS) is None
    others.add(7 + SLOTS, "nor this")
    assert (ids.said_of(7), UnknownIds(tmp_path, clock).said_of(7)) == ("nothing", None)
    clock.now_s -= 60  # the clock was set back
    assert ids.said_of(7) is None
    assert len(list(tmp_path.iterdir())) == 1


def test_rubbish_with_an_id_of_its_own_in_each_record_asks_the_registry_so_often_a_second(
    registry, five, tmp_path
):
    clock = Clock()
    made = decoder_at(clock, registry, tmp_path)
    made._schemas._questions = QuestionAllowance(clock, clock.sleep)
    values = [b"\0" + one.to_bytes(4, "big") + b"x" for one in range(10_000, 10_000 + AT_ONCE + 100)]

    found, reasons = decoded(made, *values, written(five[0], FIRST, VALUES[0]))

    assert found[-1] == WANTED[0]
    assert len(reasons) == AT_ONCE + 100
    assert clock.now_s - 1_000 == pytest.approx(101 / A_SECOND, abs=0.1)
    assert len(list(tmp_path.glob("unknown-*"))) <= SLOTS


def test_a_schema_that_nobody_understands_is_looked_at_once(registry, five, tmp_path):
    other = registry.register("flights-value", {"type": "recrod"})
    made = decoder(registry, VERSIONS[-1], folder=tmp_path)
    value = written(five[0], FIRST, VALUES[0])

    first = decoded(made, b"\0" + other.to_bytes(4, "big"), value)
    assert first == decoded(made, b"\0" + other.to_bytes(4, "big"), value)
    assert "not an Avro schema" in first[1][0]
    assert len(registry.asked) == 2


def test_a_decimal_of_38_digits_keeps_them_all_and_a_larger_one_is_a_dead_letter(registry, tmp_path):
    digits = 10**38 - 1
    money = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    schema = {"type": "record", "name": "Sum", "fields": [{"name": "paid", "type": money}]}
    schema_id = registry.register("sums-value", schema)
    bare = {**schema, "fields": [{"name": "paid", "type": "bytes"}]}
    there = [digits.to_bytes(17, "big"), (-digits).to_bytes(20, "big", signed=True), b"\x7f" * 1_000_000]
    values = [written(schema_id, bare, {"paid": one}) for one in there]

    found, reasons = decoded(decoder(registry, schema, folder=tmp_path), *values)

    assert [str(one["paid"]) for one in found[:2]] == [f"{'9' * 36}.99", f"-{'9' * 36}.99"]
    assert found[2] is None
    assert "more digits than its type" in reasons[2]


def test_a_value_a_million_deep_in_itself_is_a_dead_letter_and_no_end_of_the_process():
    following = {"name": "next", "type": ["null", "Node"]}
    schema = {"type": "record", "name": "Node", "fields": [{"name": "number", "type": "int"}, following]}
    code = f"""if True:
        import json
        from coterie.spark.values.avro import AvroReader
        from coterie.spark.values.registry import Schema
        node = {schema!r}
        reader = AvroReader(Schema(json.dumps({{**node, "fields": node["fields"][:1]}})))
        head = b"\\0" * 5
        found, errors = reader.of(Schema(json.dumps(node))).decoded(
            [head + b"\\2\\2" * deep + b"\\2\\0" for deep in (1_000_000, 5)]
        )
        print(found.to_pylist(), errors)
    """

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "[None, {'number': 1}] {0: 'RecursionError" in done.stdout


EMPTY = {"type": "record", "name": "Nothing", "fields": []}
TWICE = {
    **EMPTY,
    "name": "Twice",
    "fields": [{"name": "one", "type": EMPTY}, {"name": "two", "type": "null"}],
}


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        ("null", False),
        (EMPTY, False),
        (EMPTY, True),
        (TWICE, False),
        ({"type": "fixed", "name": "None", "size": 0}, True),
    ],
)
def test_an_array_of_items_without_bytes_is_no_longer_than_somebody_means(registry, tmp_path, items, wanted):
    many = {"name": "many", "type": {"type": "array", "items": items}}
    schema = {"type": "record", "name": "R", "fields": [many, {"name": "number", "type": "int"}]}
    schema_id = registry.register("r-value", schema)
    reader = schema if wanted else {**schema, "fields": schema["fields"][1:]}
    head = b"\0" + schema_id.to_bytes(4, "big")
    some, endless = head + b"\6\0\2", head + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x3f\0\2"

    found, reasons = decoded(decoder(registry, reader, folder=tmp_path), some, endless, some)

    assert [one and one["number"] for one in found] == [1, None, 1]
    assert [len(one["many"]) for one in (found[0], found[2]) if wanted] == [3, 3] * wanted
    assert reasons == {1: "TooManyItems: arrays of items that take no bytes have 10,000 together at most"}


def test_a_null_stays_null_and_is_no_dead_letter(registry, five, tmp_path):
    made = decoder(registry, VERSIONS[-1], folder=tmp_path)

    assert decoded(made, None, written(five[0], FIRST, VALUES[0]), None) == ([None, WANTED[0], None], {})
    assert decoded(made, None) == ([None], {})
    assert decoded(made) == ([], {})


@given(
    st.lists(
        st.none() | st.binary(max_size=7) | st.binary(max_size=7).map(lambda end: b"\0" + end), max_size=9
    ),
    st.integers(0, 3),
)
def test_the_ids_before_values_are_those_that_one_reads_of_each(values, first):
    ids, strange = headers_of(pa.array(values, pa.binary()).slice(first))

    for one, found, is_strange in zip(values[first:], ids.tolist(), strange.tolist(), strict=True):
        framed = one is not None and len(one) >= 5 and one[0] == 0 and one[1] < 128
        assert found == (int.from_bytes(one[1:5], "big") if framed else NO_ID)
        assert is_strange == (one is not None and not framed)


def test_a_part_of_a_batch_is_decoded_as_what_it_is(registry, five, tmp_path):
    made = decoder(registry, VERSIONS[-1], folder=tmp_path)
    values = [written(five[one], VERSIONS[one], VALUES[one]) for one in range(5)]

    part = batch_of(b"x", *values, None).slice(2, 3)

    assert made.decoded(part, wait_s=0).column("value").to_pylist() == WANTED[1:4]


def test_without_the_column_a_value_that_is_none_is_an_error_that_says_where(registry, five, tmp_path):
    made = decoder(registry, VERSIONS[-1], dead_letters=False, folder=tmp_path)
    good = written(five[0], FIRST, VALUES[0])

    assert made.decoded(batch_of(good), wait_s=0).schema.names == ["value", "topic", "partition", "offset"]
    with pytest.raises(
        BadValue, match=r"flights-7: the value at offset 41 is none: not in the wire format.*7b 7d"
    ):
        made.decoded(batch_of(good, b"{}"), wait_s=0)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (MONEY, Decimal("-1.50"), Decimal("-1.50")),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        ({"type": "array", "items": ["null", "string"]}, ["a", None], ["a", None]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        ("bytes", b"\xff", b"\xff"),
        (["int", "long"], 2**40, 2**40),
        ({"type": "string", "logicalType": "uuid"}, "8" * 8, "8" * 8),
    ],
)  # fmt: skip
def test_types_are_those_of_spark_s_own_from_avro(kind, value, found):
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    avro = Avro.of(json.dumps(schema))

    values, errors = AvroValues(avro, avro).decoded([written(1, schema, {"a": value})])

    assert (values.to_pylist(), errors) == ([{"a": found}], {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not an Avro schema"),
        ('{"type": "recrod", "name": "R"}', "not an Avro schema"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}',
            "contains itself",
        ),
        ('["int", "string"]', "a union of int, string has no column type"),
        ('{"type": "array", "items": "null"}', "an array or a map of what is always null has no column type"),
        (
            json.dumps({"type": "map", "values": {**FIRST, "fields": [{"name": "n", "type": "null"}]}}),
            "an array or a map of what is always null",
        ),
    ],
)
def test_a_schema_that_no_column_can_have_is_refused(text, why):
    with pytest.raises(UnusableSchema, match=why):
        _ = Avro.of(text).type


def test_a_schema_may_refer_to_others_of_the_registry(registry, tmp_path):
    registry.register(
        "carrier", {"type": "record", "name": "Carrier", "fields": [{"name": "code", "type": "string"}]}
    )
    schema = {"type": "record", "name": "R", "fields": [{"name": "c", "type": "Carrier"}]}
    whole = {**schema, "fields": [{"name": "c", "type": json.loads(registry.schemas[100]["schema"])}]}
    schema_id = registry.register(
        "r-value", schema, references=[{"name": "Carrier", "subject": "carrier", "version": 1}]
    )
    reader = Schemas(Registry((registry.url,)), tmp_path).latest("r-value")
    made = decoder(registry, whole, folder=tmp_path)
    made.reader = AvroReader(reader)

    assert decoded(made, written(schema_id, whole, {"c": {"code": "UA"}})) == ([{"c": {"code": "UA"}}], {})


# The registry


def test_what_is_kept_goes_on_while_the_registry_is_away_in_other_processes_too(registry, five, tmp_path):
    value = written(five[0], FIRST, VALUES[0])
    first = decoder(registry, VERSIONS[-1], folder=tmp_path)
    assert decoded(first, value)[0] == [WANTED[0]]

    registry.away = True

    assert decoded(first, value)[0] == [WANTED[0]]
    assert decoded(decoder(registry, VERSIONS[-1], folder=tmp_path), value)[0] == [WANTED[0]]
    with pytest.raises(
        RegistryAway, match=rf"schema {five[1]} is not kept here, and no schema registry answers"
    ):
        decoded(first, written(five[1], VERSIONS[1], VALUES[1]))


def test_the_latest_schema_of_the_last_time_is_taken_while_the_registry_is_away(registry, five, tmp_path):
    there = Registry((registry.url,))
    assert Schemas(there, tmp_path).latest("flights-value").id == five[-1]
    registry.away = True

    assert Schemas(there, tmp_path).latest("flights-value").id == five[-1]
    with pytest.raises(OSError, match="no schema registry answers"):
        Schemas(there, tmp_path).latest("others-value")


def test_what_is_not_what_was_kept_is_asked_for_again(registry, five, tmp_path):
    (tmp_path / f"{five[0]}.json").write_text('{"schema": 1}')

    assert json.loads(Schemas(Registry((registry.url,)), tmp_path).by_id(five[0], wait_s=0).text) == FIRST


def test_a_registry_that_wants_a_user_is_shown_one_and_says_so_where_it_is_not(registry, five, tmp_path):
    registry.closed = True

    assert Schemas(Registry((registry.url,), USER), tmp_path).by_id(five[0], wait_s=0)
    with pytest.raises(
        RegistryRefused, match=r"401: Unauthorized; set schema\.registry\.basic\.auth\.user\.info"
    ):
        Schemas(Registry((registry.url,)), tmp_path / "other").by_id(five[1], wait_s=0)


@pytest.mark.parametrize("said", [{}, {"error_code": 404, "message": "HTTP 404 Not Found"}])
def test_a_404_that_is_not_the_registry_s_word_makes_no_dead_letter(registry, five, tmp_path, said):
    registry.before = said

    with pytest.raises(RegistryAway, match="it answered 404"):
        decoded(decoder(registry, VERSIONS[-1], folder=tmp_path), b"\0" + five[0].to_bytes(4, "big") + b"\2")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (" , ", "must begin with"),
        ("http://a,file:/b", "one file alone"),
        ("http://name:word@a:8081", "must have no name and password"),
    ],
)
def test_addresses_of_a_registry_that_cannot_be_are_refused(url, why):
    with pytest.raises(BadOption, match=why):
        parse(
            {
                "kafka.bootstrap.servers": "b:1",
                "subscribe": "t",
                "value.format": "avro",
                "schema.registry.url": url,
            },
            streaming=True,
        )


def test_the_next_of_several_servers_is_asked(registry, five, tmp_path):
    assert Schemas(Registry(("http://127.0.0.1:1", registry.url)), tmp_path).by_id(five[0], wait_s=0)


def test_an_id_that_one_of_several_servers_does_not_have_yet_is_asked_of_the_others(registry, five, tmp_path):
    with running_registry() as behind:
        both = Schemas(Registry((behind.url, registry.url)), tmp_path)

        assert json.loads(both.by_id(five[0], wait_s=0).text) == FIRST
        assert both.latest("flights-value").id == five[-1]
        with pytest.raises(UnknownSchema, match="Schema not found"):
            both.by_id(77, wait_s=0)
        registry.away = True
        with pytest.raises(UnknownSchema, match="Schema not found"):
            both.by_id(78, wait_s=0)


def test_an_answer_that_is_cut_off_is_asked_for_again_and_no_registry_s_page_is(registry, five, tmp_path):
    whole, cut = registry.answer, []

    def answer(path, authorization):
        status, said = whole(path, authorization)
        cut.append(path)
        return status, json.dumps(said)[:20] if len(cut) <= 1 else said

    registry.answer = answer
    schemas = Schemas(Registry((registry.url,)), tmp_path)

    assert json.loads(schemas.by_id(five[0], wait_s=30).text) == FIRST
    assert len(cut) == 2
    registry.answer = lambda path, authorization: (200, '{"schema": ')
    with pytest.raises(
        RegistryAway, match=r"schema 101 is not kept here.*ends after 11 bytes, in the middle"
    ):
        schemas.by_id(five[1], wait_s=0)
    registry.answer = lambda path, authorization: (200, "<html>")
    with pytest.raises(RegistryRefused, match="no JSON object: is a schema registry there"):
        schemas.by_id(five[1], wait_s=0)


def test_a_registry_that_was_made_anew_is_noticed_by_who_has_kept_the_schemas_of_the_old_one(
    registry, five, tmp_path, caplog
):
    def kept():
        return Schemas(Registry((registry.url,)), tmp_path)

    for one in five[:2]:
        kept().by_id(one, wait_s=0)
    registry.schemas[five[0]], registry.schemas[five[1]] = (
        registry.schemas[one] for one in (five[1], five[0])
    )

    assert json.loads(kept().by_id(five[0], wait_s=0).text) == VERSIONS[1]

    assert "has the registry been made anew?" in caplog.text
    assert str(tmp_path) in caplog.text
    assert [one.name for one in tmp_path.glob("*.json")] == [f"{five[0]}.json"]


def test_a_schema_that_is_kept_and_was_deleted_still_reads_what_it_wrote(registry, five, tmp_path):
    Schemas(Registry((registry.url,)), tmp_path).by_id(five[0], wait_s=0)
    del registry.schemas[five[0]]

    assert json.loads(Schemas(Registry((registry.url,)), tmp_path).by_id(five[0], wait_s=0).text) == FIRST


def test_who_has_kept_schemas_asks_a_registry_that_is_away_once_and_not_for_each(registry, five, tmp_path):
    for one in five:
        Schemas(Registry((registry.url,)), tmp_path).by_id(one, wait_s=0)
    registry.away, registry.asked = True, []

    again = Schemas(Registry((registry.url,)), tmp_path)
    for one in five:
        again.by_id(one, wait_s=0)

    assert len(registry.asked) == 1


def test_a_file_has_schemas_as_a_server_has(tmp_path):
    file = tmp_path / "schemas.json"
    versions = [{"id": 1, "schema": FIRST}, {"id": 2, "schema": json.dumps(VERSIONS[1])}]
    file.write_text(json.dumps({"subjects": {"flights-value": versions}}))
    schemas = Schemas(Registry((f"file:{file}",)))

    assert schemas.latest("flights-value").id == 2
    assert schemas.latest("flights-value", "1").id == 1
    assert json.loads(schemas.by_id(1, wait_s=0).text) == FIRST
    with pytest.raises(UnknownSchema, match="has nothing at /schemas/ids/3"):
        schemas.by_id(3, wait_s=0)
    file.write_text("[]")
    with pytest.raises(RegistryRefused, match="is no file like"):
        schemas.by_id(2, wait_s=0)


# A user's check


def every_delay_is_small(values):
    """Refuse delays of more than two, with a reason; and what has none."""
    delays = values.field("delay").to_pylist()
    return [None if one is None else "too late" if one > 2 else one > 0 for one in delays]


def nothing(values):
    return []


def test_what_a_check_refuses_is_a_dead_letter_with_its_reason(registry, five, tmp_path):
    made = decoder(registry, VERSIONS[-1], check=f"{__name__}:every_delay_is_small", folder=tmp_path)
    late, well = (written(five[1], VERSIONS[1], {**VALUES[1], "delay": one}) for one in (2.5, 1.0))
    early = written(five[1], VERSIONS[1], {**VALUES[1], "delay": -1.0})

    found, reasons = decoded(made, late, well, None, b"?", early)

    assert [one and one["delay"] for one in found] == [None, 1.0, None, None, None]
    assert (reasons[0], reasons[4]) == ("too late", f"refused by {__name__}:every_delay_is_small")
    assert sorted(reasons) == [0, 3, 4]


def test_a_check_that_answers_for_others_is_told_so(registry, five, tmp_path):
    made = decoder(registry, VERSIONS[-1], check=f"{__name__}:nothing", folder=tmp_path)

    with pytest.raises(
        BadValue, match=r"test_schema_values:nothing was given 1 values, and answers for 0: it must return"
    ):
        decoded(made, written(five[0], FIRST, VALUES[0]))


@pytest.mark.parametrize(
    "verdict",
    [
        np.array([True, False]),
        [np.True_, np.False_],
        np.array([None, "refused by a:check"], object),
        pd.Series([True, False]),
        pa.chunked_array([[True], [False]]),
        (one for one in (True, False)),
    ],
)
def test_a_check_may_answer_as_numpy_pandas_and_arrow_do(verdict):
    assert reasons_of(verdict, 2, "a:check") == {1: "refused by a:check"}


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (True, "a:check returns a bool: it must return a list or an array with one entry for each value"),
        ("no", "a:check returns a str: it must"),
        (np.bool_(True), "a:check returns a bool_?: it must"),
        (np.array([1, 0]), "a:check says 1 of a value, a int: it must"),
    ],
)
def test_a_check_that_says_something_else_is_told_what_to_return(verdict, why):
    with pytest.raises(BadValue, match=why):
        reasons_of(verdict, 2, "a:check")


# Options

LEAST = {"kafka.bootstrap.servers": "b:1", "subscribe": "flights", "value.format": "avro"}


def options(registry, **more):
    given = {**LEAST, "schema.registry.url": registry.url}
    given |= {name.replace("__", "."): value for name, value in more.items()}
    return parse(given, streaming=True)


def test_the_reader_s_schema_is_the_latest_of_the_topic_one_of_an_id_or_of_a_file(registry, five, tmp_path):
    file = tmp_path / "flight.avsc"
    file.write_text(json.dumps(FIRST))

    assert options(registry).values.reader.id == five[-1]
    assert options(registry, value__schema=str(five[1])).values.reader.id == five[1]
    assert json.loads(options(registry, value__schema=str(file)).values.reader.text) == FIRST
    registry.register("other", FIRST)
    assert options(registry, value__subject="other").values.reader.id == 105


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"value__schema": "77"}, r"value\.schema: .*Schema not found"),
        ({"value__schema": "/no/such.avsc"}, r"value\.schema is /no/such\.avsc: .*No such file"),
        ({"value__subject": "nobody's"}, "Schema not found"),
        ({"subscribe": "a,b"}, r"needs value\.subject where not exactly one topic"),
        ({"value__check": "json:nobody"}, r"value\.check: 'json:nobody' is not there"),
        ({"schema__registry__url": "registry:8081"}, "must begin with http://"),
        ({"value__format": "xml"}, r"value\.format must be .*avro"),
    ],
)
def test_options_that_lead_to_no_schema_say_why(registry, five, given, why):
    with pytest.raises(BadOption, match=why):
        options(registry, **given)


def test_options_of_values_without_a_format_are_refused():
    plain = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    registry = "schema.registry."
    names = ("value.schema", "deadLetterColumn", "value.message", f"{registry}url")
    kept = (f"{registry}basic.auth.user.info", f"{registry}bearer.auth.token", f"{registry}ssl.ca.location")
    for name in (*names, *kept):
        with pytest.raises(BadOption, match=f"option {name} needs value.format"):
            parse({**plain, name: "true"}, streaming=True)
    with pytest.raises(BadOption, match="columns has deadLetter: set deadLetterColumn=true"):
        parse({**plain, "columns": "key,deadLetter"}, streaming=True)
    with pytest.raises(BadOption, match=r"schema\.registry\.url must be set"):
        parse({**plain, "value.format": "avro"}, streaming=True)


def test_another_schema_than_the_checkpoint_s_is_refused_unless_that_is_allowed(registry, five):
    now, before = options(registry), options(registry, value__schema=str(five[0]))

    now.refuse_other_schema(now.schema_mark)
    now.refuse_other_schema("")
    with pytest.raises(BadOption, match=rf"Set value\.schema to {five[0]}, and the query goes on as it was"):
        now.refuse_other_schema(before.schema_mark)
    options(registry, allowSchemaChange="true").refuse_other_schema(before.schema_mark)


# Whole queries


def query_options(topic, registry, **more):
    given = {
        "kafka.bootstrap.servers": topic.bootstrap,
        "subscribe": topic.name,
        "startingOffsets": "earliest",
    }
    given |= {"value.format": "avro", "schema.registry.url": registry.url, "value.subject": "flights-value"}
    return {**given, **{name.replace("__", "."): value for name, value in more.items()}}


@pytest.fixture
def written_topic(new_topic, five):
    """A topic with a value of each version, one that is null, and one that is none."""
    topic = new_topic(partitions=2)
    topic.produce([written(five[one], VERSIONS[one], VALUES[one]) for one in range(5)], partition=0)
    topic.produce([None, b"rubbish"], partition=1)
    return topic


def test_a_batch_query_has_values_in_columns_and_dead_letters_beside_them(spark, registry, written_topic):
    given = query_options(written_topic, registry, deadLetterColumn="true")
    frame = spark.read.format("coterie").options(**given).load()

    rows = frame.selectExpr("value.*", "deadLetter.reason", "partition", "offset").collect()

    rows.sort(key=lambda row: (row.partition, row.offset))
    assert [(row.id, row.airline, row.delay) for row in rows if row.partition == 0] == [
        (one["id"], one["airline"], one["delay"]) for one in WANTED
    ]
    assert [row.reason is None for row in rows] == [True] * 6 + [False]


def test_a_batch_query_without_the_column_fails_by_what_is_none_and_reads_no_values_it_does_not_want(
    spark, registry, written_topic
):
    given = query_options(written_topic, registry)

    with pytest.raises(Exception, match=r"BadValue.*the value at offset 1 is none: not in the wire format"):
        spark.read.format("coterie").options(**given).load().collect()
    places = spark.read.format("coterie").options(**given, columns="offset").load()
    assert places.count() == 7


def test_a_member_s_schema_is_kept_in_its_checkpoint(spark, registry, five, new_topic, group, tmp_path):
    topic = new_topic()
    topic.produce([written(five[0], FIRST, VALUES[0])])

    def run(**more):
        given = {**query_options(topic, registry, **more), "group.id": group}
        frame = spark.readStream.format("coterie").options(**given).load()
        writer = frame.selectExpr("value.id").writeStream.format("parquet").trigger(availableNow=True)
        begin(
            writer.option("checkpointLocation", str(tmp_path / "c")), str(tmp_path / "rows")
        ).awaitTermination()
        return sorted(row.id for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    assert run() == [1]
    registry.register(
        "flights-value", {**VERSIONS[-1], "fields": [*VERSIONS[-1]["fields"], {**DELAY, "name": "new"}]}
    )
    topic.produce([written(five[1], VERSIONS[1], VALUES[1])])

    with pytest.raises(Exception, match=rf"Set value\.schema to {five[-1]}, and the query goes on as it was"):
        run()
    assert run(value__schema=str(five[-1])) == [1, 2]
    topic.produce([written(five[2], VERSIONS[2], VALUES[2])])
    assert run(allowSchemaChange="true") == [1, 2, 3]
