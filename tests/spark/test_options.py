"""The options: those of Spark's own Kafka source, and a group."""

from __future__ import annotations

import pytest

from coterie.base.ids import TopicPartition
from coterie.client.addresses import Address
from coterie.spark.options import EARLIEST, IDLE, KAFKA, KAFKA_IDLE, LATEST, OWN, BadOption, Bound, parse

LEAST = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}


def parsed(streaming=True, **options):
    return parse(
        {**LEAST, **{name.replace("__", "."): value for name, value in options.items()}}, streaming=streaming
    )


def refused(streaming=True, without=(), **options):
    given = {**LEAST, **{name.replace("__", "."): value for name, value in options.items()}}
    with pytest.raises(BadOption) as caught:
        parse({name: value for name, value in given.items() if name not in without}, streaming=streaming)
    return str(caught.value)


def test_names_are_understood_in_lower_case_as_spark_hands_them_over():
    options = parse(
        {"kafka.bootstrap.servers": "a:1, [::1]:2", "subscribepattern": "f.*", "maxoffsetspertrigger": "7"},
        streaming=True,
    )

    assert options.bootstrap == (Address("a", 1), Address("::1", 2))
    assert options.selection.matches("flights")
    assert not options.selection.matches("xf")
    assert options.max_offsets_per_trigger == 7


def test_what_is_not_set_is_as_in_spark_s_source():
    stream, batch = parsed(), parsed(streaming=False)

    assert (stream.starting, batch.starting, batch.ending) == (Bound(LATEST), Bound(EARLIEST), Bound(LATEST))
    assert stream.fail_on_data_loss
    assert not stream.headers
    assert stream.member is None


def test_an_unknown_name_is_refused_with_the_nearest():
    assert "did you mean startingOffsets?" in refused(startingOfsets="earliest")
    assert "did you mean kafka.session.timeout.ms?" in refused(kafka__session__timeout="6000")


def test_what_spark_refuses_is_refused_with_the_reason():
    assert "startingOffsets" in refused(kafka__auto__offset__reset="earliest")
    assert "column functions" in refused(kafka__value__deserializer="x")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"assign": '{"t":[0]}'}, "subscribe"),
        ({"subscribe": " , "}, "names no topic"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingOffsets": "{"}, "JSON"),
        ({"startingOffsets": '{"t": 5}'}, "must be like"),
        ({"startingTimestamp": "yesterday"}, "milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"kafka.isolation.level": "dirty"}, "read_committed"),
        ({"kafka.security.protocol": "SSL"}, "PLAINTEXT"),
        ({"group.instance.id": "me"}, "group.id"),
        ({"group.id": "g", "group.instance.id": "ü"}, "letters"),
        ({"group.id": "g", "kafka.group.id": "h"}, "differ"),
        ({"group.id": "g", "partition.assignment.strategy": "cooperative-sticky"}, "roundrobin and sticky"),
        ({"group.id": "g", "kafka.heartbeat.interval.ms": "45000"}, "less than"),
        ({"endingOffsets": "latest"}, "not valid in streaming"),
        ({"path": "/data"}, "no path"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_is_refused(options, part):
    assert part in refused(**options)


def test_batch_queries_have_their_own_rules():
    assert "can not be latest" in refused(streaming=False, startingOffsets="latest")
    assert "can not be earliest" in refused(streaming=False, endingOffsets='{"t":{"0":-2}}')
    assert "not valid in batch" in refused(streaming=False, maxOffsetsPerTrigger="1")
    assert "bootstrap.servers" in refused(without=("kafka.bootstrap.servers",))


def test_a_timestamp_for_all_beats_timestamps_each_which_beat_offsets():
    each = {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "startingOffsets": "earliest"}

    assert parsed(**each).starting == Bound(None, {TopicPartition("t", 0): 5}, timestamps=True)
    assert parsed(**each, startingTimestamp="9").starting == Bound(9, timestamps=True)


def test_a_group_makes_a_member_with_kafka_s_settings():
    member = parsed(
        group__id="g",
        kafka__group__instance__id="me",
        kafka__session__timeout__ms="6000",
        kafka__max__poll__interval__ms="9000",
        partition__assignment__strategy="org.apache.kafka.clients.consumer.RoundRobinAssignor, range",
    ).member

    assert (member.group_id, member.instance_id) == ("g", "me")
    assert (member.session_timeout_ms, member.heartbeat_interval_ms) == (6000, 2000)
    assert member.max_poll_interval_ms == 9000
    assert member.assignors == ("roundrobin", "range")


def test_settings_without_effect_are_noted():
    assert parsed(groupIdPrefix="x", kafka__max__poll__records="5").idle == (
        "groupIdPrefix",
        "kafka.max.poll.records",
    )


def test_every_option_stands_in_the_documentation():
    with open("docs/spark.md", encoding="utf-8") as file:
        page = file.read()

    named = (*OWN, *IDLE, *(f"kafka.{name}" for name in (*KAFKA, *KAFKA_IDLE)))
    assert [name for name in named if f"`{name}`" not in page] == []
