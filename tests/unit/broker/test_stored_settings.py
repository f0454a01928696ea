"""Settings of topics from the wire to the disk and back: what is taken can be lived with at every start."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from admin_rig import Rig, part

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.settings import Setting
from coterie.base.settings.topic import TOPIC
from coterie.broker.config.topic_settings import refusal_of
from coterie.broker.topics.registry import FILE_NAME
from coterie.wire.records.batches import Record, build_batch

CREATE, ALTER, INCREMENTAL, DESCRIBE = 19, 33, 44, 32
BITS = {"int": 31, "short": 15, "long": 63}


def odd_values(known: Setting) -> list[str]:
    """Return texts at and beyond every edge of a setting."""
    if known.kind in BITS:
        most = 1 << BITS[known.kind]
        numbers = {0, 1, -1, -2, 10, 13, 14, 2**31 - 1, 2**31, most - 1, most, -most, -most - 1}
        return [*map(str, sorted(numbers)), "+7", " 7 ", "07", "1e3", "x", ""]
    if known.kind == "double":
        return ["0", "1", "-0.0", ".5f", "1d", "1.1", "NaN", "Infinity", "1e-400", "x", ""]
    if known.kind == "boolean":
        return ["true", "TRUE", " false ", "1", ""]
    return ["", "*", "0:1,1:1", "a", *known.rule.lstrip("~").split("|"), known.rule.replace("|", " , ")]


def create(rig: Rig, name: str, value: str) -> int:
    setting = part(CREATE, 7, "CreatableTopicConfig", name=name, value=value)
    topic = part(
        CREATE, 7, "CreatableTopic", name="t", num_partitions=1, replication_factor=1, configs=(setting,)
    )
    return int(rig.ask(CREATE, 7, topics=(topic,)).topics[0].error_code)


def alter(rig: Rig, name: str, value: str) -> int:
    rig.node.topic_manager.create_topic("t", partitions=1)
    setting = part(ALTER, 2, "AlterableConfig", name=name, value=value)
    resource = part(ALTER, 2, "AlterConfigsResource", resource_type=2, resource_name="t", configs=(setting,))
    return int(rig.ask(ALTER, 2, resources=(resource,)).responses[0].error_code)


def alter_incrementally(rig: Rig, name: str, value: str) -> int:
    if rig.topics.get("t") is None:
        rig.node.topic_manager.create_topic("t", partitions=1)
    setting = part(INCREMENTAL, 1, "AlterableConfig", name=name, value=value, config_operation=0)
    resource = part(
        INCREMENTAL, 1, "AlterConfigsResource", resource_type=2, resource_name="t", configs=(setting,)
    )
    return int(rig.ask(INCREMENTAL, 1, resources=(resource,)).responses[0].error_code)


WAYS = (create, alter, alter_incrementally)


@pytest.mark.parametrize("name", TOPIC)
def test_every_value_that_is_taken_for_a_setting_makes_a_log_and_every_other_leaves_no_trace(name: str):
    for value in odd_values(TOPIC[name]):
        rig = Rig()
        taken = create(rig, name, value) == Code.NONE

        assert taken == (refusal_of({name: value}) is None), value
        rig.crash()
        assert (rig.topics.get("t") is not None) == taken, value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "value"),
    [("retention.bytes", str(-(2**63))), ("internal.segment.bytes", "10"), ("internal.segment.bytes", "-5")],
)
def test_what_kafka_takes_is_taken_each_way_in_and_the_broker_starts_again(
    way: Callable[[Rig, str, str], int], name: str, value: str
):
    rig = Rig()

    assert way(rig, name, value) == Code.NONE

    rig.crash()
    topic = rig.topics.get("t")
    assert topic is not None
    assert topic.configs == {name: value}
    assert TopicPartition("t", 0) in rig.store.logs


def stored(rig: Rig, **configs: str) -> None:
    """Write settings of topic t to the disk as no request could, and start again."""
    where = f"data/{FILE_NAME}"
    document = json.loads(rig.disk.load(where))
    (topic,) = document["topics"]
    topic["configs"] = {name.replace("_", "."): value for name, value in configs.items()}
    rig.disk.save(where, json.dumps(document).encode())
    rig.crash()


@pytest.mark.parametrize(
    "unreadable", [{"retention_ms": "a week"}, {"retention_ms": "-7"}, {"shelf_life": "1"}]
)
def test_a_stored_setting_that_cannot_be_read_is_told_of_and_costs_no_record_and_no_start(
    unreadable: dict[str, str], caplog: pytest.LogCaptureFixture
):
    rig = Rig()
    rig.node.topic_manager.create_topic("t", partitions=1)
    old = build_batch([Record(0, 1, b"k", b"v")])
    rig.node.replica_manager.append("t", 0, old, now_ms=1)
    with caplog.at_level(logging.ERROR):
        stored(rig, max_message_bytes="70", **unreadable)

    (told,) = [record.getMessage() for record in caplog.records]
    log = rig.store.logs[TopicPartition("t", 0)]
    assert "topic t has settings that cannot be read" in told
    assert next(iter(unreadable)).replace("_", ".") in told
    assert (log.start_offset, log.end_offset, log.config.max_message_bytes) == (0, 1, 70)
    rig.node.topic_manager.add_partitions("t", 2)  # the topic goes on

    resource = part(DESCRIBE, 4, "DescribeConfigsResource", resource_type=2, resource_name="t")
    assert rig.ask(DESCRIBE, 4, resources=(resource,)).results[0].error_code == Code.NONE
    if "shelf_life" not in unreadable:
        assert alter_incrementally(rig, "retention.ms", "1000") == Code.NONE
        assert rig.store.logs[TopicPartition("t", 1)].config.retention_ms == 1000
