"""DescribeLogDirs, as Apache Kafka 4.3.1 answers it: what is where, and how much room is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.wire.records.batches import Record, build_batch
from unit.broker.admin_rig import NOW_MS, Rig, part

DESCRIBE = 35
VERSIONS = range(1, 6)
EVERYTHING = {"alpha": {0: 0}, "orders": {0: 0, 1: 79}}


@pytest.fixture
def rig() -> Rig:
    """Two topics; one partition has a batch of 79 bytes."""
    rig = Rig()
    rig.node.topic_manager.create_topic("orders", partitions=2)
    rig.node.topic_manager.create_topic("alpha", partitions=1)
    batch = build_batch([Record(0, NOW_MS, b"k", b"v" * 10)])
    rig.node.replica_manager.append("orders", 1, batch, now_ms=NOW_MS)
    return rig


def asked(version: int, *topics: tuple[str, tuple[int, ...]]) -> tuple[Any, ...]:
    return tuple(
        part(DESCRIBE, version, "DescribableLogDirTopic", topic=name, partitions=partitions)
        for name, partitions in topics
    )


def sizes(result: Any) -> dict[str, dict[int, int]]:
    return {t.name: {one.partition_index: one.partition_size for one in t.partitions} for t in result.topics}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_tells_the_size_of_each_partition(rig, version):
    answer = rig.ask(DESCRIBE, version, topics=None)

    (result,) = answer.results
    assert getattr(answer, "error_code", 0) == result.error_code == Code.NONE
    assert result.log_dir == str(Path("data").absolute())
    assert sizes(result) == EVERYTHING
    assert {(p.offset_lag, p.is_future_key) for t in result.topics for p in t.partitions} == {(0, False)}


@pytest.mark.parametrize("version", VERSIONS)
def test_newer_versions_tell_the_room_on_the_disk(rig, version):
    rig.disk.faults.capacity = 1 << 20
    used = sum(len(one.data) for one in rig.disk._files.values())

    (result,) = rig.ask(DESCRIBE, version, topics=()).results

    told = [getattr(result, field, None) for field in ("total_bytes", "usable_bytes", "is_cordoned")]
    wanted = [1 << 20, (1 << 20) - used, False]
    assert told == [
        value if version >= since else None for value, since in zip(wanted, (4, 4, 5), strict=True)
    ]


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        ((), {}),
        ((("orders", (1,)),), {"orders": {1: 79}}),
        ((("orders", ()),), {}),
        ((("nowhere", (0,)),), {}),
        ((("orders", (7, 1)), ("alpha", (-1,))), {"orders": {1: 79}}),
        ((("orders", (1, 1)), ("orders", (0, 1))), {"orders": {0: 0, 1: 79}}),
    ],
)
def test_what_is_asked_for_and_is_there_is_told_once(rig, topics, told):
    """Kafka has no error for what is not there, and leaves it out."""
    (result,) = rig.ask(DESCRIBE, 5, topics=asked(5, *topics)).results

    assert (result.error_code, sizes(result)) == (Code.NONE, told)


def test_a_disk_that_fails_is_told_as_such(rig):
    rig.disk.faults.refuse = {"read"}

    (result,) = rig.ask(DESCRIBE, 5, topics=None).results

    assert (result.error_code, result.topics) == (Code.KAFKA_STORAGE_ERROR, ())
    assert (result.total_bytes, result.usable_bytes) == (-1, -1)
