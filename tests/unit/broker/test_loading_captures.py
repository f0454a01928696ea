"""What Apache Kafka 4.3.1 wrote for five real groups is loaded whole, and outlives us."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.coordinator.group.shard import Shard
from coterie.wire.api.entities import (
    build,
    entity,
)
from coterie.wire.payloads.consumer_offsets import (
    OffsetCommitKey,
    UnknownKey,
    read_key,
    read_offset_value,
)
from coterie.wire.records.batches import records_of, scan
from unit.broker.rig import Rig

CAPTURES = Path(__file__).resolve().parents[4] / "shared" / "captures" / "kafka-4.3.1"
PARTITIONS = {"billing": 9, "shipping": 8, "audit": 5, "storm": 35, "nextgen": 3}
CLASSIC = ("billing", "shipping", "audit", "storm")
WEEK_MS = 7 * 86_400_000
JOIN, FETCH, DELETE, OFFSET_DELETE = 11, 9, 42, 47

pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory of nothing but the captured segments."""
    for log in CAPTURES.glob("__consumer_offsets-*"):
        shutil.copytree(log, tmp_path / log.name, copy_function=shutil.copyfile)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path


@pytest.fixture
def rig(directory: Path) -> Iterator[Rig]:
    rig = Rig(directory)
    yield rig
    rig.close()


def shard_of(rig: Rig, group: str) -> Shard:
    host = rig.node.coordinator.host_of(group)
    assert host.partition == PARTITIONS[group]
    assert host.unavailable() is Code.NONE
    return host.shard


def captured(group: str) -> bytes:
    return (CAPTURES / f"{OFFSETS_TOPIC}-{PARTITIONS[group]}" / f"{0:020}.log").read_bytes()


def committed(group: str) -> dict[tuple[str, int], int]:
    """Return the last committed offset of each partition, read record by record."""
    last: dict[tuple[str, int], int] = {}
    segment = captured(group)
    for at, header in scan(segment):
        for record in () if header.control else records_of(segment, at):
            key = read_key(record.key or b"")
            if isinstance(key, OffsetCommitKey) and record.value is not None:
                assert key.group == group
                last[key.topic, key.partition] = read_offset_value(record.value).offset
    return last


def unknown(segment: bytes) -> Counter[bytes]:
    """Return the keys of records of unknown kinds."""
    found: Counter[bytes] = Counter()
    for at, header in scan(segment):
        for record in () if header.control else records_of(segment, at):
            if isinstance(read_key(record.key or b""), UnknownKey):
                found[record.key or b""] += 1
    return found


@pytest.mark.parametrize("group", CLASSIC)
def test_a_classic_group_is_in_the_generation_that_the_truth_tells(rig: Rig, group: str):
    """LO-2: all of their members closed at the end, so that they are empty."""
    truth = json.loads((CAPTURES / "truth" / "causes.json").read_text())["rebalances"][group]

    loaded = shard_of(rig, group).groups[group]

    assert loaded.generation == max(map(int, truth))
    assert loaded.protocol_type == "consumer"
    assert str(loaded.state) == "Empty"


@pytest.mark.parametrize("group", PARTITIONS)
def test_every_offset_is_there(rig: Rig, group: str):
    """The topic `orders` is not: nobody asks whether it is."""
    expected = committed(group)

    answer = rig.client().ask(FETCH, 7, group_id=group, topics=None, require_stable=True)

    found = {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}
    assert found == expected
    assert len(found) >= 12
    assert rig.node.topics.get("orders") is None


def test_a_topic_of_which_few_partitions_are_there_gets_the_others(rig: Rig):
    topic = rig.node.topics.get(OFFSETS_TOPIC)

    assert topic is not None
    assert topic.partitions == 50


def test_the_records_of_a_newer_protocol_are_passed_over_and_kept(rig: Rig, directory: Path):
    """LO-7: in the log as in a compacted one; what they are about is not ours to end."""
    written = unknown(captured("nextgen"))
    shard = shard_of(rig, "nextgen")

    assert sum(shard.skipped.values()) == sum(written.values()) > 0
    assert set(shard.skipped) <= {3, 4, 5, 6, 7, 8, 16}
    assert set(shard.foreign) == {"nextgen"}
    log = rig.store.logs[TopicPartition(OFFSETS_TOPIC, PARTITIONS["nextgen"])]
    assert set(unknown(log.read(0, max_bytes=1 << 30))) == set(written)


def test_nothing_is_expired_or_deleted_because_its_topics_are_missing(rig: Rig):
    before = {group: committed(group) for group in PARTITIONS}
    ends = {p: rig.store.logs[TopicPartition(OFFSETS_TOPIC, p)].end_offset for p in PARTITIONS.values()}

    rig.pass_ms(3 * 600_000)  # three rounds of cleaning; the retention is a week

    for group, offsets in before.items():
        table = shard_of(rig, group).offsets[group]
        assert {(t, p): one.offset for t, row in table.items() for p, one in row.items()} == offsets
    assert ends == {p: rig.store.logs[TopicPartition(OFFSETS_TOPIC, p)].end_offset for p in ends}


def test_a_group_of_another_kind_does_not_even_expire(rig: Rig):
    """Whether its members live is not known here, so its offsets stay whatever time passes."""
    rig.now_ms = 1_795_254_470_000 + 2 * WEEK_MS  # the captures are of late 2026
    rig.pass_ms(600_000)

    assert shard_of(rig, "billing").groups == {}
    assert "nextgen" in shard_of(rig, "nextgen").groups
    assert len(shard_of(rig, "nextgen").offsets["nextgen"]["orders"]) == 12


def test_a_consumer_group_is_not_deleted_and_gives_way_to_who_joins_it_as_a_classic_one(rig: Rig):
    client = rig.client()
    committed_there = dict(shard_of(rig, "nextgen").offsets["nextgen"]["orders"])
    protocol = build(entity("join_group", 5, "JoinGroupRequestProtocol"), name="range", metadata=b"m")

    deleted = client.ask(DELETE, 2, groups_names=("nextgen",))
    joined = client.ask(
        JOIN,
        5,
        group_id="nextgen",
        session_timeout=10_000,
        rebalance_timeout=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )

    assert deleted.results[0].error_code == Code.NON_EMPTY_GROUP
    assert joined.error_code == Code.MEMBER_ID_REQUIRED
    assert shard_of(rig, "nextgen").offsets["nextgen"]["orders"] == committed_there


def test_the_groups_are_there_again_after_a_restart(directory: Path):
    Rig(directory).close()

    again = Rig(directory)

    for group in PARTITIONS:
        assert sum(map(len, shard_of(again, group).offsets[group].values())) == len(committed(group))
    again.close()
