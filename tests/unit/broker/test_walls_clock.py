"""The wall's clock and the one that never jumps: suspended machines, clocks that were set late or wrong."""

from pathlib import Path

import pytest
from rig import Rig

from coterie.base.codes import Code
from coterie.storage.log.partition import PartitionLog
from coterie.wire.api.entities import (
    entity,
)
from coterie.wire.records.batches import Record, build_batch, records_of

PRODUCE, HOUR_MS, YEAR_MS = 0, 3_600_000, 365 * 86_400_000


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "data")


def produce(rig: Rig, topic: str, at_ms: int) -> Code:
    data = entity("produce", 9, "PartitionProduceData")
    topic_type = entity("produce", 9, "TopicProduceData")
    batch = build_batch([Record(0, at_ms, b"k", b"v")])
    partition = data(index=0, records=batch)
    answer = rig.client().ask(
        PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=1_000,
        topic_data=(topic_type(name=topic, partition_data=(partition,)),),
    )
    return Code(answer.responses[0].partition_responses[0].error_code)


def log_of(rig: Rig, topic: str) -> PartitionLog:
    log = rig.node.replica_manager.log_of(topic, 0)
    assert log is not None
    return log


def test_a_machine_that_was_suspended_takes_records_of_today(rig: Rig):
    rig.node.topic_manager.create_topic("t", partitions=1)
    rig.wall_ahead_ms = 8 * HOUR_MS

    assert produce(rig, "t", rig.now_ms + rig.wall_ahead_ms) == Code.NONE
    assert produce(rig, "t", rig.now_ms + rig.wall_ahead_ms + 2 * HOUR_MS) == Code.INVALID_TIMESTAMP


def test_the_log_dates_records_by_the_walls_clock(rig: Rig):
    rig.node.topic_manager.create_topic(
        "t", partitions=1, configs={"message.timestamp.type": "LogAppendTime"}
    )
    rig.wall_ahead_ms = 8 * HOUR_MS

    produce(rig, "t", rig.now_ms)

    [record] = records_of(log_of(rig, "t").read(0, max_bytes=1_000))
    assert record.timestamp == rig.now_ms + rig.wall_ahead_ms


@pytest.mark.parametrize("wrong_ms", [YEAR_MS, -YEAR_MS], ids=["set wrong now", "wrong at the start"])
def test_what_either_clock_takes_for_young_is_not_deleted_for_its_age(rig: Rig, wrong_ms: int):
    rig.node.topic_manager.create_topic("t", partitions=1, configs={"retention.ms": str(HOUR_MS)})
    young_ms = rig.now_ms + min(0, wrong_ms)
    rig.wall_ahead_ms = min(0, wrong_ms)
    assert produce(rig, "t", young_ms) == Code.NONE
    rig.wall_ahead_ms = wrong_ms

    rig.node.cleaner.tick(rig.now_ms)
    assert log_of(rig, "t").start_offset == 0

    rig.wall_ahead_ms = min(0, wrong_ms)
    rig.now_ms += 2 * HOUR_MS
    rig.node.cleaner.tick(rig.now_ms)
    assert log_of(rig, "t").start_offset == 1
