"""The sink: rows become records as they are, and with exactly once a replay writes nothing twice."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from coterie.client.admin.admin import Admin
from coterie.client.net.connection import Connection
from coterie.spark.options import BadOption
from coterie.spark.sink.exactly_once import LedgerExpired, OtherRows, TaskAttempt, note_done, write_once
from coterie.spark.sink.options import parse_sink
from coterie.spark.sink.sink import refuse_columns, write_plainly
from coterie.wire.api.apis import ApiKey

from .test_stream import begin


def options_of(topic, **more):
    given = {"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name, **more}
    return parse_sink(given, streaming=True)


def exactly_once(topic, **more):
    return options_of(topic, semantics="exactly-once", **more)


def batch_of(values):
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})


def held(topic):
    """The records that a reader of committed ones gets, in partition order."""
    consumer = Consumer(
        {
            "bootstrap.servers": topic.bootstrap,
            "group.id": str(uuid.uuid4()),
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([Place(topic.name, number, 0) for number in range(topic.partitions)])
    found, ended = [], set()
    while len(ended) < topic.partitions:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            found.append(message)
    consumer.close()
    return found


def values_of(topic):
    return sorted(message.value().decode() for message in held(topic))


def forget_last_batch(checkpoint):
    """Let Spark forget that its last batch is done, as if it had died before noting that."""
    done = [one for one in (checkpoint / "commits").iterdir() if one.name.isdecimal()]
    newest = max(done, key=lambda one: int(one.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def test_rows_become_records_with_all_that_they_say(new_topic, run):
    topic, other = new_topic(partitions=3), new_topic()
    headers = [{"key": "h", "value": b"1"}]
    rows = pa.RecordBatch.from_pylist(
        [
            {"key": b"k", "value": "v", "topic": topic.name, "partition": 2, "headers": headers},
            {"key": None, "value": None, "topic": other.name, "partition": None, "headers": None},
        ],
        pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.string()),
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        ),
    )
    options = parse_sink({"kafka.bootstrap.servers": topic.bootstrap}, streaming=True)

    wrote = run(write_plainly(options, [rows]))

    assert wrote == 2
    (first,), (second,) = held(topic), held(other)
    assert (first.partition(), first.key(), first.value(), first.headers()) == (2, b"k", b"v", [("h", b"1")])
    assert (second.key(), second.value(), second.headers()) == (None, None, None)


def test_a_batch_that_is_written_again_is_not_there_twice(new_topic, run):
    topic = new_topic(partitions=2)
    options, attempt = exactly_once(topic), TaskAttempt("q", 0, 1)
    batches = [batch_of(["a", "b"]), batch_of(["c"])]

    assert run(write_once(options, batches, attempt)) == 3
    assert run(write_once(options, batches, attempt)) == 0
    run(note_done(options, "q", 0, tasks=2))
    assert run(write_once(options, [batch_of(["d"])], TaskAttempt("q", 1, 1))) == 1
    with pytest.raises(OtherRows, match=r"batch 0 comes after it: .*checkpoint was set back"):
        run(write_once(options, batches, attempt))

    assert values_of(topic) == ["a", "b", "c", "d"]


def test_a_replay_with_other_rows_is_told(new_topic, run):
    topic = new_topic()
    run(write_once(exactly_once(topic), [batch_of(["a", "b"])], TaskAttempt("q", 0, 0)))

    with pytest.raises(OtherRows, match="not deterministic"):
        run(write_once(exactly_once(topic), [batch_of(["b", "a"])], TaskAttempt("q", 0, 0)))


def test_a_replay_with_fewer_tasks_is_told(new_topic, run):
    """The third task has died after it wrote; its rows have come to the others since."""
    topic = new_topic()
    options = exactly_once(topic)
    run(note_done(options, "q", 0, tasks=3))
    run(write_once(options, [batch_of(["c"])], TaskAttempt("q", 1, 2)))
    run(note_done(options, "q", 0, tasks=2))

    with pytest.raises(OtherRows, match="coterie-sink-q-2 have written it"):
        run(note_done(options, "q", 1, tasks=2))
    run(note_done(exactly_once(topic, startLedger="true"), "q", 1, tasks=2))
    run(note_done(options, "q", 2, tasks=2))


def test_a_replay_that_the_group_has_cut_goes_on_where_the_user_says_so(new_topic, run, caplog):
    """The driver died before Spark's commit log, and another member has the partition now."""
    topic = new_topic()
    run(write_once(exactly_once(topic), [batch_of(["a", "b"])], TaskAttempt("q", 0, 0)))

    with pytest.raises(OtherRows, match="needs commitSourceOffsets=true"):
        run(write_once(exactly_once(topic), [], TaskAttempt("q", 0, 0)))
    with caplog.at_level("WARNING", "coterie.spark"):
        assert run(write_once(exactly_once(topic, startLedger="true"), [], TaskAttempt("q", 0, 0))) == 0

    assert "task 0 of batch 0 wrote 2 rows" in caplog.text
    run(note_done(exactly_once(topic, startLedger="true"), "q", 0, tasks=1))
    assert run(write_once(exactly_once(topic), [batch_of(["c"])], TaskAttempt("q", 1, 0))) == 1
    assert values_of(topic) == ["a", "b", "c"]


def test_tasks_that_are_no_more_are_asked_together_and_once_a_run(new_topic, run, monkeypatch):
    topic, asked, call = new_topic(), Counter(), Connection.call
    options = exactly_once(topic)
    run(note_done(options, "q", 0, tasks=3_000, run="first"))

    async def counted(self, api_key, *given, **more):
        asked[api_key] += 1
        return await call(self, api_key, *given, **more)

    monkeypatch.setattr(Connection, "call", counted)

    def asked_by(number, run_id):
        asked.clear()
        run(note_done(options, "q", number, tasks=4, run=run_id))
        return asked[ApiKey.OFFSET_FETCH] + asked[ApiKey.FIND_COORDINATOR]

    assert asked_by(1, "second") == 2 + 2
    assert asked_by(2, "second") == 2
    assert asked_by(3, "third") == 2 + 2


def test_a_transaction_does_not_wait_for_its_rows_to_be_made(new_topic, run):
    """Rows that take longer than kafka.transaction.timeout.ms to be made would be aborted, each time."""
    topic, states = new_topic(), []

    async def look():
        """Ask often enough for a transaction that begins to be seen."""
        async with Admin(bootstrap_servers=topic.bootstrap) as admin:
            for _ in range(40):
                states.append((await admin.describe_transaction("coterie-q-0")).state)

    def slowly():
        yield batch_of(["a"] * 1000)
        yield batch_of(["b"] * 1000)
        asyncio.run(look())

    assert (
        run(write_once(exactly_once(topic, **{"kafka.linger.ms": "0"}), slowly(), TaskAttempt("q", 0, 0)))
        == 2000
    )

    assert set(states) == {"Empty"}
    assert len(values_of(topic)) == 2000


def test_a_ledger_that_is_gone_is_an_error_and_not_a_silent_repeat(new_topic, run):
    topic = new_topic()

    with pytest.raises(LedgerExpired, match="startLedger"):
        run(write_once(exactly_once(topic), [batch_of(["a"])], TaskAttempt("q", 7, 0)))
    run(write_once(exactly_once(topic, startLedger="true"), [batch_of(["a"])], TaskAttempt("q", 7, 0)))

    assert values_of(topic) == ["a"]


@pytest.mark.interop
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_dies_when_each_row_is_there_once(new_topic, run, seed):
    """Tasks are ended at random moments and tried again, often while their twin still writes."""
    topic = new_topic(partitions=2)
    options, chance = exactly_once(topic), random.Random(seed)

    async def life(task, batches):
        """Attempts until one is through, each given up after a while without a word."""
        while True:
            attempt = asyncio.create_task(write_once(options, batches, task))
            if chance.random() < 0.3:
                twin = asyncio.create_task(write_once(options, batches, task))
                await asyncio.gather(attempt, twin, return_exceptions=True)
                if not (attempt.exception() and twin.exception()):
                    return
                continue
            await asyncio.wait([attempt], timeout=chance.random() / 10)
            if not attempt.done():
                attempt.cancel()
                await asyncio.gather(attempt, return_exceptions=True)
            elif not attempt.exception():
                return

    async def scenario():
        for number in range(4):
            tasks = [
                life(
                    TaskAttempt("q", number, task),
                    [batch_of([f"{number}-{task}-{row}" for row in range(50)])],
                )
                for task in range(2)
            ]
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            await note_done(options, "q", number, tasks=2)

    run(scenario())

    assert values_of(topic) == sorted(
        f"{number}-{task}-{row}" for number in range(4) for task in range(2) for row in range(50)
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"semantics": "twice"}, "exactly-once"),
        ({"semantics": "exactly-once", "topic": ""}, "needs ledgerTopic"),
        ({"kafka.transactional.id": "x"}, "semantics=exactly-once"),
        ({"kafka.acks": "some"}, "acks must be"),
        ({"kafka.lingr.ms": "5"}, "did you mean kafka.linger.ms"),
        ({"kafka.bootstrap.servers": ""}, "must be set"),
    ],
)
def test_options_that_can_not_be_meant_are_refused(given, why):
    with pytest.raises(BadOption, match=why):
        parse_sink({"kafka.bootstrap.servers": "b:1", "topic": "t", **given}, streaming=True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([("key", StringType())], "a column value"),
        ([("value", LongType())], "must be string or binary, not bigint"),
        ([("value", BinaryType()), ("extra", StringType())], "column extra has no place"),
    ],
)
def test_rows_that_are_no_records_are_refused(fields, why):
    options = parse_sink({"kafka.bootstrap.servers": "b:1", "topic": "t"}, streaming=True)
    with pytest.raises(BadOption, match=why):
        refuse_columns(StructType([StructField(*one) for one in fields]), options)


@pytest.mark.interop
def test_a_query_copies_a_topic_once_though_its_last_batch_is_replayed(spark, new_topic, group, tmp_path):
    source, target = new_topic(partitions=2), new_topic(partitions=2)
    source.produce([b"%d" % number for number in range(40)])
    checkpoint = tmp_path / "copy"

    def copy():
        records = (
            spark.readStream.format("coterie")
            .option("kafka.bootstrap.servers", source.bootstrap)
            .option("subscribe", source.name)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "20")
            .option("columns", "value")
            .load()
        )
        writer = (
            records.writeStream.format("coterie")
            .option("kafka.bootstrap.servers", target.bootstrap)
            .option("topic", target.name)
            .option("semantics", "exactly-once")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
        )
        assert begin(writer).awaitTermination(100)

    copy()
    forget_last_batch(checkpoint)
    source.produce([b"more"])
    copy()

    assert values_of(target) == sorted([*(str(number) for number in range(40)), "more"])


def test_a_batch_query_writes_a_topic(spark, new_topic):
    topic = new_topic(partitions=2)

    spark.range(20).selectExpr("cast(id as string) as value").write.format("coterie").options(
        **{"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name}
    ).mode("append").save()

    assert values_of(topic) == sorted(map(str, range(20)))
