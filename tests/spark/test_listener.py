"""What the listener makes of Spark's progress, and what it warns of."""

from __future__ import annotations

import logging
import time
import uuid

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

from coterie.base.ids import TopicPartition
from coterie.spark.listener import GroupListener
from coterie.spark.progress import lag_of
from coterie.spark.source.offsets import GroupDocument, Range, Rebalance, Report

from .test_stream import PATIENCE_S, begin

QUERY, RUN = uuid.uuid4(), uuid.uuid4()
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STATE = {"operatorName": "dedupe", "numRowsTotal": 1, "numRowsUpdated": 1, "allUpdatesTimeMs": 0,
         "numRowsRemoved": 0, "allRemovalsTimeMs": 0, "commitTimeMs": 0, "memoryUsedBytes": 0,
         "numRowsDroppedByWatermark": 0, "numShufflePartitions": 1, "numStateStoreInstances": 1,
         "customMetrics": {}}  # fmt: skip


def ms_ago(seconds):
    return int((time.time() - seconds) * 1000)


def document(*, generation=1, partitions=(0, 1), instance=None):
    owned = tuple(TopicPartition("t", number) for number in partitions)
    return GroupDocument(
        group="g",
        member="m-1",
        instance=instance,
        generation=generation,
        plan=3,
        ranges=tuple(Range(*one, 0, 5) for one in owned),
        owned=owned,
        lag=dict.fromkeys(owned, 7),
        rebalance=Rebalance("2026-11-21T21:00:00.000+00:00", "group is already rebalancing"),
    ).to_json()


def event(*offsets, latest=None, stateful=False):
    source = {"description": "coterie", "startOffset": None, "latestOffset": latest, "numInputRows": 5,
              "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0, "metrics": {}}  # fmt: skip
    progress = {
        "id": str(QUERY),
        "runId": str(RUN),
        "name": "delays",
        "timestamp": "2026-11-21T21:00:01.000Z",
        "batchId": 4,
        "batchDuration": 10,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [STATE] if stateful else [],
        "sources": [source | {"endOffset": one} for one in offsets],
        "sink": {"description": "s", "numOutputRows": 5, "metrics": {}},
        "numInputRows": 5,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "observedMetrics": {},
    }
    return QueryProgressEvent.fromJson({"progress": progress})


def test_progress_of_a_member_is_kept_until_the_query_ends():
    told = []
    listener = GroupListener(on_progress=told.append)

    listener.onQueryProgress(event(document()))

    (one,) = listener.latest[QUERY]
    assert told == [one]
    assert (one.group, one.generation, one.lag, one.batch) == ("g", 1, 14, 4)
    assert one.owned == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert "m-1 owns t-0, t-1, lag 14" in str(one)
    assert "group is already rebalancing" in str(one)
    listener.onQueryTerminated(QueryTerminatedEvent(QUERY, uuid.uuid4(), None, None))
    assert not listener.latest


def test_a_query_without_a_group_is_kept_in_the_same_words():
    told = []
    listener = GroupListener(on_progress=told.append, on_rebalance=told.append)
    report = Report({T0: 9, T1: 7, TopicPartition("u", 0): 5}, {T0: ms_ago(60)}).to_json()

    listener.onQueryProgress(event({"t": {"0": 5, "1": 7}, "gone": {"0": 3}}, latest=report))

    (one,) = listener.latest[QUERY]
    assert told == [one]
    assert (one.group, one.generation, one.lag, one.left) == ("", -1, 4, {T0: 4, T1: 0})
    assert one.owned == {T0, T1}
    assert one.lag_seconds == pytest.approx(60, abs=30)
    assert "query delays reads t-0, t-1, lag 4, at most 6" in str(one)
    listener.onQueryTerminated(QueryTerminatedEvent(QUERY, uuid.uuid4(), None, None))
    assert not listener.latest


def test_a_member_has_the_times_of_what_it_left():
    listener = GroupListener()
    report = Report({T0: 9, T1: 9}, {T0: ms_ago(60), T1: ms_ago(600)}).to_json()

    listener.onQueryProgress(event(document(), latest=report))

    (one,) = listener.latest[QUERY]
    assert one.lag_seconds == pytest.approx(600, abs=30)
    assert "lag 14, at most 6" in str(one)


@pytest.mark.parametrize(
    ("left", "oldest", "seconds"),
    [
        ({T0: 3}, {T0: 40_000}, 60.0),
        ({T0: 3, T1: 1}, {T0: 40_000, T1: 30_000}, 70.0),
        ({T0: 3, T1: 0}, {T0: 40_000, T1: 30_000}, 60.0),
        ({T0: 3, T1: 1}, {T0: 40_000}, 60.0),
        ({T0: 3}, {T0: 100_001}, 0.0),
        ({T0: 3}, {}, None),
        ({T0: 0}, {T0: 1}, 0.0),
        ({}, {}, 0.0),
    ],
)
def test_the_lag_in_time_is_never_negative_0_at_the_end_and_none_where_nobody_knows(left, oldest, seconds):
    assert lag_of(left, oldest, 100.0) == (sum(left.values()), seconds)


@pytest.mark.parametrize("latest", [None, '{"t":{"0":9}}', "9", "not json", '{"oldest unread":5}'])
@pytest.mark.parametrize("offset", ['{"t":{"0":5}}', "5", "not json", None])
def test_other_sources_are_overlooked(offset, latest):
    listener = GroupListener()

    listener.onQueryProgress(event(offset, latest=latest))

    assert not listener.latest


def test_a_new_generation_is_a_rebalance():
    told = []
    listener = GroupListener(on_rebalance=told.append)

    for generation in (1, 1, 2):
        listener.onQueryProgress(event(document(generation=generation)))

    assert [one.generation for one in told] == [2]


def test_a_query_that_keeps_state_is_refused_once_with_the_way_out_and_what_was_told_of_it_goes_on(caplog):
    told = []
    listener = GroupListener(on_progress=told.append)

    with caplog.at_level(logging.WARNING, "coterie.spark"):
        for _ in range(2):
            listener.onQueryProgress(event(document(), stateful=True))

    (refusal,) = caplog.messages
    assert refusal.startswith("query delays is refused: this query keeps state")
    assert "group.instance.id" in refusal
    assert "leave group.id out" in refusal
    assert len(told) == 2


def test_a_static_member_is_warned_only_when_a_partition_moves_without_its_state(caplog):
    listener = GroupListener()

    with caplog.at_level(logging.WARNING, "coterie.spark"):
        listener.onQueryProgress(event(document(instance="me"), stateful=True))
        assert not caplog.messages
        listener.onQueryProgress(event(document(instance="me", generation=2, partitions=(0,)), stateful=True))

    assert caplog.messages == ["query delays keeps state, and t-1 moved without it"]


def counted(rows):
    return rows.groupBy("partition").count()


def each_once(rows):
    return rows.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["value"])


def flights_of(spark, topic, group, options):
    """A stream that is a member of the group."""
    reader = spark.readStream.format("coterie").options(**options).option("subscribe", topic.name)
    reader = reader.option("kafka.bootstrap.servers", topic.bootstrap).option("startingOffsets", "earliest")
    return reader.option("group.id", group).load()


def started(rows, folder, name="delays"):
    """Return a query that writes rows which keep state nowhere."""
    writer = rows.writeStream.format("noop").queryName(name).outputMode("update")
    return begin(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True))


@pytest.mark.parametrize("keeps_state", [counted, pytest.param(each_once, marks=pytest.mark.interop)])
def test_a_real_query_that_keeps_state_fails_with_the_way_out_and_commits_nothing(
    new_topic, spark, group, tmp_path, patient_session, caplog, keeps_state
):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 10)
    listener = GroupListener()
    rows = keeps_state(flights_of(spark, topic, group, patient_session))

    spark.streams.addListener(listener)
    try:
        with caplog.at_level(logging.WARNING, "coterie.spark"):
            query = started(rows, tmp_path / "checkpoint")
            with pytest.raises(StreamingQueryException, match="this query keeps state, and is a dynamic"):
                query.awaitTermination(PATIENCE_S)
    finally:
        spark.streams.removeListener(listener)

    (refusal,) = [one for one in caplog.messages if group in one]
    assert refusal.startswith("query delays is refused: this query keeps state, and is a dynamic member")
    assert "make it a static member (group.instance.id), or leave group.id out" in refusal
    assert topic.committed(group) == {0: 0, 1: 0}  # where it began


@pytest.mark.parametrize("more", [{"allowState": "true"}, {"group.instance.id": "me"}], ids=str)
def test_state_that_is_asked_for_by_name_or_stays_with_a_static_member_is_let_be(
    new_topic, spark, group, tmp_path, patient_session, caplog, more
):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 10)
    listener = GroupListener()
    rows = counted(flights_of(spark, topic, group, patient_session | more))

    spark.streams.addListener(listener)
    try:
        with caplog.at_level(logging.WARNING, "coterie.spark"):
            assert started(rows, tmp_path / "checkpoint").awaitTermination(PATIENCE_S)
    finally:
        spark.streams.removeListener(listener)

    assert not [one for one in caplog.messages if group in one]
    assert topic.committed(group) == topic.ends()
