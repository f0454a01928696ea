"""Batch reads, compared value by value with what was produced."""

from __future__ import annotations

import time
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaException, Producer
from pyspark.errors import PySparkException

from coterie.base.ids import TopicPartition
from coterie.spark.source.batch import range_of
from coterie.spark.source.offsets import DataLoss
from coterie.spark.source.options import parse

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def read(spark, topic, **options):
    """The rows of a batch read, sorted as produced records are."""
    reader = spark.read.format("coterie").option("kafka.bootstrap.servers", topic.bootstrap)
    if not {"assign", "subscribePattern"} & options.keys():
        reader = reader.option("subscribe", topic.name)
    frame = reader.options(**options).load()
    return sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))


def told(row):
    """A row as it was sent."""
    stamp = row.timestamp.replace(tzinfo=UTC) if row.timestamp.tzinfo is None else row.timestamp
    headers = () if "headers" not in row or row.headers is None else tuple(map(tuple, row.headers))
    return (
        row.partition,
        row.offset,
        blob(row.key),
        blob(row.value),
        round(stamp.timestamp() * 1000),
        tuple((name, blob(value)) for name, value in headers),
    )


def blob(value):
    return None if value is None else bytes(value)


def test_every_value_of_every_compression_arrives_as_it_was_sent(spark, new_topic):
    topic = new_topic(partitions=3)
    for codec in CODECS:
        config = {"compression.type": codec}
        topic.produce([codec.encode() * n for n in range(60)], key=codec.encode(), **config)
        topic.produce([None, b""], key=b"", partition=0, **config)
        headers = (("h", b"1"), ("h", None), ("ünï", b""))
        topic.produce([b"with headers", None], partition=2, headers=headers, **config)
    topic.produce([b"x" * 900_000], partition=1)

    rows = read(spark, topic, includeHeaders="true")

    assert [told(row) for row in rows] == sorted(topic.sent)
    assert {(row.topic, row.timestampType) for row in rows} == {(topic.name, 0)}
    assert {row.headers for row in rows if row.key is not None and row.partition == 0} <= {None}


def test_a_range_of_offsets_is_read_and_nothing_else(spark, new_topic):
    topic = new_topic(partitions=2)
    topic.produce([b"%d" % n for n in range(100)])
    name = topic.name

    rows = read(
        spark,
        topic,
        startingOffsets=f'{{"{name}": {{"0": 10, "1": -2}}}}',
        endingOffsets=f'{{"{name}": {{"0": 20, "1": -1}}}}',
    )

    assert [(row.partition, row.offset) for row in rows] == [
        *((0, offset) for offset in range(10, 20)),
        *((1, offset) for offset in range(50)),
    ]


def test_a_range_of_time_is_read_and_nothing_else(spark, new_topic):
    topic = new_topic()
    now = int(time.time() * 1000)
    for age in range(10, 0, -1):
        topic.produce([b"%d" % age], timestamp=now - age * 60_000)

    rows = read(
        spark,
        topic,
        startingTimestamp=str(now - 7 * 60_000),
        endingOffsetsByTimestamp=f'{{"{topic.name}": {{"0": {now - 3 * 60_000}}}}}',
    )

    assert [bytes(row.value) for row in rows] == [b"7", b"6", b"5", b"4"]


def test_a_starting_time_that_no_record_has_is_refused_or_starts_at_the_end(spark, new_topic):
    topic = new_topic()
    topic.produce([b"old"])
    future = str(int(time.time() * 1000) + 3_600_000)

    with pytest.raises(PySparkException, match="startingOffsetsByTimestampStrategy"):
        read(spark, topic, startingTimestamp=future)
    late = read(spark, topic, startingTimestamp=future, startingOffsetsByTimestampStrategy="latest")

    assert late == []


def test_the_broker_s_timestamps_are_told_from_the_producer_s(spark, new_topic):
    topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
    topic.produce([b"v"])

    (row,) = read(spark, topic)

    assert row.timestampType == 1
    assert abs(row.timestamp.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds() < 60


def test_partitions_are_split_where_that_is_asked_for(spark, new_topic):
    topic = new_topic(partitions=2)
    topic.produce([b"%d" % n for n in range(100)])
    reader = spark.read.format("coterie").option("kafka.bootstrap.servers", topic.bootstrap)
    frame = reader.option("subscribe", topic.name)

    assert frame.load().rdd.getNumPartitions() == 1
    split = frame.option("minPartitions", "5").load()
    assert split.rdd.getNumPartitions() >= 5
    assert sorted(row.offset for row in split.collect()) == sorted(one.offset for one in topic.sent)


def test_a_pattern_and_an_assignment_choose_what_is_read(spark, new_topic):
    topic, other = new_topic(partitions=2), new_topic()
    topic.produce([b"a", b"b"])
    other.produce([b"c"])
    pattern = f"({topic.name}|{other.name})"

    assert len(read(spark, topic, subscribePattern=pattern)) == 3
    (row,) = read(spark, topic, assign=f'{{"{topic.name}": [1]}}')
    assert bytes(row.value) == b"b"


def test_what_a_group_has_read_and_what_it_has_not_are_read_by_its_commits(spark, new_topic, group):
    topic = new_topic(partitions=3)
    topic.produce([b"%d" % number for number in range(30)])
    topic.commit(group, {0: 4, 1: 10})

    before = read(spark, topic, endingOffsets="committed", **{"group.id": group})
    after = read(spark, topic, startingOffsets="committed", **{"group.id": group})

    assert [(row.partition, row.offset) for row in before] == [
        *((0, offset) for offset in range(4)),
        *((1, offset) for offset in range(10)),
    ]
    assert len(before) + len(after) == 30
    assert {(row.partition, row.offset) for row in after} == {
        *((0, offset) for offset in range(4, 10)),
        *((2, offset) for offset in range(10)),
    }


def test_only_the_columns_that_are_named_are_read_in_their_order(spark, new_topic):
    topic = new_topic()
    topic.produce([b"v"], key=b"k", headers=(("h", b"1"),))

    (row,) = read(spark, topic, columns="offset,headers,partition,value")

    assert row.asDict() | {"value": bytes(row.value)} == {
        "offset": 0,
        "headers": [row.headers[0]],
        "partition": 0,
        "value": b"v",
    }
    assert row.__fields__ == ["offset", "headers", "partition", "value"]


def test_a_row_says_where_it_came_from(spark, new_topic):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 4)

    rows = read(spark, topic, includeSource="true", columns="partition,offset")

    assert [tuple(row.source)[:7] for row in rows] == [
        (None, None, None, -1, topic.name, one.partition, one.offset) for one in sorted(topic.sent)
    ]
    assert {(row.source.first, row.source.until, row.source.whole) for row in rows} == {(0, 2, True)}
    assert len({row.source.task for row in rows}) == 1
    assert rows[0].source.task >= 0


@pytest.fixture
def pushing(spark):
    """Filters are pushed down, for one test."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


@pytest.mark.interop
def test_filters_are_taken_over_and_what_they_leave_out_is_not_fetched(spark, new_topic, pushing):
    topic = new_topic(partitions=4)
    now = int(time.time()) * 1000
    for number in range(10):
        topic.produce([b"v"] * 4, timestamp=now + 1_000 * number)
    frame = (
        spark.read.format("coterie")
        .option("kafka.bootstrap.servers", topic.bootstrap)
        .option("subscribe", topic.name)
        .option("pushdown", "true")
        .load()
    )

    def places(condition):
        return {(row.partition, row.offset) for row in frame.where(condition).collect()}

    assert places("partition = 2 and offset >= 3 and offset < 6") == {(2, 3), (2, 4), (2, 5)}
    assert places("partition in (1, 3) and offset = 9") == {(1, 9), (3, 9)}
    assert places(f"topic = '{topic.name}' and offset <= 0") == {(number, 0) for number in range(4)}
    assert places("topic = 'another'") == set()
    late = places(f"timestamp >= timestamp_millis({now + 8_000})")
    assert late == {(number, offset) for number in range(4) for offset in (8, 9)}
    assert places(f"timestamp > timestamp_millis({now + 20_000})") == set()
    planned = frame.where("partition = 2 and offset >= 3")._jdf.queryExecution().executedPlan().toString()
    assert " Filter " not in planned, planned


def test_an_empty_topic_gives_no_rows(spark, new_topic):
    assert read(spark, new_topic()) == []


def test_an_empty_pattern_gives_no_rows(spark, new_topic):
    assert read(spark, new_topic(), subscribePattern="no-such-topic-.*") == []


def test_a_topic_that_is_not_there_is_an_error_that_names_it(spark, new_topic):
    topic = new_topic()
    with pytest.raises(PySparkException, match="nowhere"):
        read(spark, topic, subscribe="nowhere")


def test_an_unknown_option_is_an_error_that_names_the_nearest(spark, new_topic):
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        read(spark, new_topic(), startingOffset="earliest")


def test_read_committed_hides_what_was_aborted_and_ends_where_a_transaction_is_under_way(spark, new_topic):
    topic = new_topic()
    producer = Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": f"tx-{topic.name}"})
    try:
        producer.init_transactions(4)
    except KafkaException as error:
        pytest.skip(f"the broker has no transactions: {error}")
    for number, end in enumerate(["commit_transaction", "abort_transaction", "commit_transaction"]):
        producer.begin_transaction()
        producer.produce(topic.name, b"%d" % number)
        producer.flush(10)
        getattr(producer, end)(10)

    every = read(spark, topic)
    committed = read(spark, topic, **{"kafka.isolation.level": "read_committed"})

    assert [bytes(row.value) for row in every] == [b"0", b"1", b"2"]
    assert [bytes(row.value) for row in committed] == [b"0", b"2"]

    producer.begin_transaction()
    producer.produce(topic.name, b"under way")
    producer.flush(10)
    topic.produce([b"after it"])

    assert read(spark, topic, **{"kafka.isolation.level": "read_committed"}) == committed
    producer.abort_transaction(10)


@pytest.mark.parametrize(("isolation", "lost"), [("read_uncommitted", True), ("read_committed", False)])
def test_a_start_past_the_end_is_a_loss_and_not_an_empty_result(isolation, lost):
    """A group may have committed it in a topic that was made anew; or behind an open transaction."""
    given = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", "kafka.isolation.level": isolation}
    at = TopicPartition("t", 0)
    with pytest.raises(DataLoss, match="there are 0 to 9") if lost else nullcontext():
        assert range_of(at, 10, 9, (0, 9), parse(given, streaming=False)).size == 0
    careless = parse({**given, "failOnDataLoss": "false"}, streaming=False)
    assert range_of(at, 10, 9, (0, 9), careless).size == 0
    assert range_of(at, 9, 9, (0, 9), parse(given, streaming=False)).size == 0
