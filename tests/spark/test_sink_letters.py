"""Dead letters in a topic of their own, in the transaction of the rows that have a value."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given as holds_for
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from coterie.spark.options import BadOption
from coterie.spark.sink.checksum import RowsChecksum, read_note, read_places, written_places
from coterie.spark.sink.exactly_once import OtherRows, TaskAttempt, write_once
from coterie.spark.sink.options import parse_sink
from coterie.spark.sink.sink import refuse_columns, write_plainly
from coterie.spark.values.columns import DEAD_LETTER, DEAD_LETTER_TYPE

from .small_registry import running_registry, written
from .test_sink import forget_last_batch, held, values_of
from .test_stream import begin

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


def test_a_dead_letter_whose_source_is_null_says_only_why_it_is_one(new_topic, run):
    topic, dead = new_topic(), new_topic()
    place = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    known = {"topic": "delays", "partition": 3, "offset": 7}
    rows = batch_of((None, None, None, letter("late", b"a")), (None, None, None, letter("late", b"b")))
    rows = rows.append_column("source", pa.array([None, known], place))

    run(write_plainly(options_of(topic, dead), [rows]))

    found = {value: headers for _, value, headers in told(dead)}
    assert found[b"a"] == {"coterie.reason": b"late"}
    assert found[b"b"]["coterie.offset"] == b"7"


def test_a_batch_that_is_written_again_has_its_dead_letters_once(new_topic, run):
    topic, dead = new_topic(), new_topic()
    options, attempt = options_of(topic, dead, semantics="exactly-once"), TaskAttempt("q", 0, 1)

    assert run(write_once(options, [ROWS, ROWS], attempt)) == 8
    assert run(write_once(options, [ROWS, ROWS], attempt)) == 0

    assert len(told(topic)) == 4
    assert len(told(dead)) == 4


def revived(place, value):
    """The rows with one that was a dead letter, and has a value now."""
    rows = ROWS.to_pylist()
    rows[place] |= {"value": value, "deadLetter": None}
    return pa.RecordBatch.from_pylist(rows, ROWS.schema)


def test_a_dead_letter_whose_schema_is_there_when_its_batch_is_written_again_stays_one_and_fails_nothing(
    new_topic, run
):
    topic, dead = new_topic(), new_topic()
    options, attempt = options_of(topic, dead, semantics="exactly-once"), TaskAttempt("q", 0, 1)
    run(write_once(options, [ROWS, ROWS], attempt))

    assert run(write_once(options, [ROWS, revived(1, "5")], attempt)) == 0
    assert run(write_once(options, [revived(1, "7"), revived(1, "5")], attempt)) == 0

    assert len(told(topic)) == 4
    assert len(told(dead)) == 4


def test_other_rows_beside_dead_letters_are_told_and_so_is_a_value_where_there_was_rubbish(new_topic, run):
    options = options_of(new_topic(), new_topic(), semantics="exactly-once")
    attempt = TaskAttempt("q", 0, 1)
    run(write_once(options, [ROWS, ROWS], attempt))

    for other in (ROWS.slice(1, 4), revived(3, "rubbish"), ROWS.take(pa.array([0, 1, 3, 2]))):
        with pytest.raises(OtherRows, match=r"8 rows \w+, and a replay gave it .*deadLetterTopic"):
            run(write_once(options, [ROWS, other], attempt))


@holds_for(st.sets(st.integers(0, 2**32 - 1), max_size=300))
def test_where_dead_letters_were_is_read_as_it_was_written(places):
    places = np.array(sorted(places), np.int64)

    assert (read_places(written_places(places)) == places).all()
    assert read_note(f"7 rows 1a2b dead {written_places(places)}")[0] == "7 rows 1a2b"
    assert len(read_places("a text of somebody else's")) == 0


def test_a_note_of_more_dead_letters_than_there_is_room_for_does_without_their_places():
    checksum, few = RowsChecksum(), RowsChecksum()
    rng = random.Random(5)
    letters = [letter("unknown", b"a", 7) if rng.random() < 0.1 else None for _ in range(100_000)]
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.nulls(100_000, pa.binary()), "deadLetter": pa.array(letters, DEAD_LETTER_TYPE)}
    )

    checksum.add(batch)
    few.add(batch.slice(0, 300))

    assert checksum.note() == str(checksum)
    assert 0 < len(few.note()) - len(str(few)) < 300
    assert len(read_note(few.note())[1]) == sum(one is not None for one in letters[:300])


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


def test_a_schema_that_is_registered_before_a_batch_is_written_again_lets_the_query_go_on(
    spark, new_topic, tmp_path
):
    source, target, dead = new_topic(), new_topic(), new_topic()
    with running_registry() as registry:
        known = registry.register("delays-value", DELAY)
        later = known + 1

        def copy(registry_url):
            given = {"kafka.bootstrap.servers": source.bootstrap, "subscribe": source.name}
            given |= {"startingOffsets": "earliest", "value.format": "avro", "value.schema": str(known)}
            given |= {"schema.registry.url": registry_url, "deadLetterColumn": "true"}
            frame = spark.readStream.format("coterie").options(**given).load()
            frame = frame.selectExpr("cast(value.minutes as string) as value", "deadLetter")
            writer = frame.writeStream.format("coterie").trigger(availableNow=True)
            writer = writer.option("kafka.bootstrap.servers", target.bootstrap).option("topic", target.name)
            writer = writer.option("deadLetterTopic", dead.name).option("semantics", "exactly-once")
            assert begin(writer.option("checkpointLocation", str(tmp_path / "c"))).awaitTermination(200)

        source.produce([written((known, later)[one % 2], DELAY, {"minutes": one}) for one in range(6)])
        copy(registry.url)
        forget_last_batch(tmp_path / "c")
        assert registry.register("delays-value", DELAY) == later
        source.produce([written(later, DELAY, {"minutes": 7})])
        # By another name, for which nobody remembers what the registry did not have.
        copy(registry.url.replace("127.0.0.1", "localhost"))

    assert values_of(target) == ["0", "2", "4", "7"]
    assert len(told(dead)) == 3


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
            assert begin(writer).awaitTermination(200)

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
