"""Dead letters in a topic of their own, in the transaction of the rows that have a value."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from coterie.spark.options import BadOption
from coterie.spark.sink.exactly_once import TaskAttempt, write_once
from coterie.spark.sink.options import parse_sink
from coterie.spark.sink.sink import refuse_columns, write_plainly
from coterie.spark.values.columns import DEAD_LETTER, DEAD_LETTER_TYPE

from .small_registry import running_registry, written
from .test_sink import forget_last_batch, held, values_of

DELAY = {"type": "record", "name": "Delay", "fields": [{"name": "minutes", "type": "int"}]}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def letter(reason, value, schema_id=None):
    return {"reason": reason, "schemaId": schema_id, "value": value}


def batch_of(*rows):
    """A batch of key, value, headers, dead letter."""
    columns = [pa.array(column, kind) for column, kind in zip(
        zip(*rows, strict=True), (pa.binary(), pa.string(), HEADERS, DEAD_LETTER_TYPE), strict=True
    )]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, names=["key", "value", "headers", "deadLetter"])


ROWS = batch_of(
    (b"a", "1", None, None),
    (b"b", None, [{"key": "h", "value": b"x"}], letter("too late", b"\0\0\0\0\1?", 1)),
    (b"c", None, None, None),
    (None, None, None, letter("not in the wire format", b"{}")),
)


def options_of(topic, dead, **more):
    given = {"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name, "deadLetterTopic": dead.name}
    return parse_sink({**given, **more}, streaming=True)


def told(topic):
    return [(one.key(), one.value(), dict(one.headers() or ())) for one in held(topic)]


def test_dead_letters_go_to_their_topic_as_they_came_and_say_why(new_topic, run):
    topic, dead = new_topic(), new_topic()

    run(write_plainly(options_of(topic, dead), [ROWS]))

    assert told(topic) == [(b"a", b"1", {}), (b"c", None, {})]
    assert sorted(told(dead), key=lambda one: one[0] or b"c") == [
        (b"b", b"\0\0\0\0\1?", {"h": b"x", "coterie.reason": b"too late", "coterie.schema.id": b"1"}),
        (None, b"{}", {"coterie.reason": b"not in the wire format"}),
    ]


def test_a_batch_that_is_written_again_has_its_dead_letters_once(new_topic, run):
    topic, dead = new_topic(), new_topic()
    options, attempt = options_of(topic, dead, semantics="exactly-once"), TaskAttempt("q", 0, 1)

    assert run(write_once(options, [ROWS, ROWS], attempt)) == 8
    assert run(write_once(options, [ROWS, ROWS], attempt)) == 0

    assert len(told(topic)) == 4
    assert len(told(dead)) == 4


def test_a_task_of_dead_letters_alone_writes_them(new_topic, run):
    topic, dead = new_topic(), new_topic()

    run(
        write_once(
            options_of(topic, dead, semantics="exactly-once"), [ROWS.slice(3, 1)], TaskAttempt("q", 0, 1)
        )
    )

    assert [value for _, value, _ in told(dead)] == [b"{}"]
    assert told(topic) == []


def test_rows_without_the_column_and_the_column_without_a_topic_are_refused():
    fields = [StructField("value", BinaryType())]
    plain = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
    with pytest.raises(BadOption, match="deadLetterTopic needs the column deadLetter as it was read"):
        refuse_columns(StructType(fields), parse_sink({**plain, "deadLetterTopic": "d"}, streaming=True))
    with pytest.raises(BadOption, match="deadLetterTopic needs the column deadLetter"):
        refuse_columns(
            StructType([*fields, StructField("deadLetter", StringType())]),
            parse_sink({**plain, "deadLetterTopic": "d"}, streaming=True),
        )
    with pytest.raises(BadOption, match=r"no place in a record.*; deadLetterTopic says where to"):
        refuse_columns(
            StructType([*fields, StructField("deadLetter", DEAD_LETTER)]), parse_sink(plain, streaming=True)
        )


def test_what_is_read_and_its_dead_letters_are_one_transaction_though_the_last_batch_is_replayed(
    spark, new_topic, group, tmp_path
):
    source, target, dead = new_topic(partitions=2), new_topic(), new_topic()
    with running_registry() as registry:
        schema_id = registry.register("delays-value", DELAY)
        values = [
            written(schema_id, DELAY, {"minutes": one}) if one % 5 else b"?%d" % one for one in range(20)
        ]

        def copy():
            given = {"kafka.bootstrap.servers": source.bootstrap, "subscribe": source.name, "group.id": group}
            given |= {"startingOffsets": "earliest", "value.format": "avro", "value.subject": "delays-value"}
            given |= {
                "schema.registry.url": registry.url,
                "deadLetterColumn": "true",
                "includeSource": "true",
            }
            frame = spark.readStream.format("coterie").options(**given).load()
            frame = frame.selectExpr("cast(value.minutes as string) as value", "source", "deadLetter")
            writer = frame.writeStream.format("coterie").trigger(availableNow=True)
            writer = writer.option("kafka.bootstrap.servers", target.bootstrap).option("topic", target.name)
            writer = writer.option("deadLetterTopic", dead.name).option("semantics", "exactly-once")
            writer = writer.option("commitSourceOffsets", "true").option(
                "checkpointLocation", str(tmp_path / "c")
            )
            assert writer.start().awaitTermination(200)

        source.produce(values)
        copy()
        forget_last_batch(tmp_path / "c")
        source.produce([b"last"])
        copy()

    assert values_of(target) == sorted(str(one) for one in range(20) if one % 5)
    letters = told(dead)
    assert sorted(value for _, value, _ in letters) == sorted(
        [*(b"?%d" % one for one in range(0, 20, 5)), b"last"]
    )
    assert {headers["coterie.topic"] for _, _, headers in letters} == {source.name.encode()}
    assert source.committed(group) == source.ends()
