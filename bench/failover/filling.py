"""What a cluster holds before a broker of it goes: a shard of many offsets, many partitions, many groups."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

from bench.failover.probe import TOPIC, Address, Asking, ask
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.client.net import messages
from coterie.storage.postgres.connecting import DatabaseAddress, connect
from coterie.storage.postgres.copying import CHUNK_COLUMNS
from coterie.storage.remote.chunk import CHUNK_BYTES
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    group_metadata_record,
    offset_commit_record,
)
from coterie.wire.records.batches import HEADER_SIZE, Record, build_batch

CREATE_TOPICS, COMMIT, FIND = (19, 4), 7, 4
MANY, WIDE = "many", "wide"
OFFSETS, OFFSETS_A_GROUP = 1_200_000, 1_000
PARTITIONS, PARTITIONS_A_TOPIC = 10_000, 1_000
TIMEOUT_MS = 60_000
GROUPS, MEMBERS, OFFSETS_OF_EACH = 50_000, 2, 10
GROUPS_A_BATCH = 20
STAYS_MS = 1_800_000  # whose session is so long is a member for as long as anybody measures
ENDS = """
SELECT number, partition_id, leader_epoch, coalesce((
  SELECT max(last_offset) + 1 FROM coterie.chunks_keep AS chunk
  WHERE chunk.partition_id = partition.partition_id), 0)
FROM coterie.partitions AS partition JOIN coterie.topics USING (topic_id) WHERE name = $1 ORDER BY number
"""


async def make_topics(address: Address, *topics: dict[str, Any]) -> None:
    """Make topics. Raises `AssertionError` where one is refused."""
    answer = await ask(address, messages.request(*CREATE_TOPICS, topics=topics, timeout=TIMEOUT_MS))
    assert not any(one.error_code for one in answer.topics), answer


async def fill_offsets(address: Address, like: str, shards: int) -> None:
    """Commit many offsets to the shard of a group, for other groups that are in it."""
    await make_topics(address, {"name": MANY, "num_partitions": OFFSETS_A_GROUP, "replication_factor": 1})
    shard = coordinator_partition(like, partition_count=shards)
    names = (f"filling-{number}" for number in count())
    groups = (name for name in names if coordinator_partition(name, partition_count=shards) == shard)
    offsets = {TopicPartition(MANY, number): 1 for number in range(OFFSETS_A_GROUP)}
    found = (await ask(address, messages.find_coordinator(FIND, like))).coordinators[0]
    coordinator = Asking((found.host, found.port))
    for group in islice(groups, OFFSETS // OFFSETS_A_GROUP):
        commit = messages.offset_commit(COMMIT, group, offsets, generation=-1, member_id="", instance_id=None)
        answer = await coordinator.ask(commit)
        assert not any(one.error_code for topic in answer.topics for one in topic.partitions), answer
    coordinator.close()


async def fill_partitions(address: Address, broker_id: int) -> None:
    """Make many partitions that a broker leads."""
    placed = [{"partition_index": number, "broker_ids": [broker_id]} for number in range(PARTITIONS_A_TOPIC)]
    for number in range(PARTITIONS // PARTITIONS_A_TOPIC):
        topic = {
            "name": f"{WIDE}-{number}",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": placed,
        }
        await make_topics(address, topic)


async def fill_groups(url: str) -> None:
    """Write many groups, with members and offsets, behind what the logs hold. No broker runs meanwhile."""
    connection = await connect(DatabaseAddress(url))
    try:
        ends = await connection.fetch(ENDS, OFFSETS_TOPIC)
        names: dict[int, list[str]] = defaultdict(list)
        for number in range(GROUPS):
            name = f"filling-{number}"
            names[coordinator_partition(name, partition_count=len(ends))].append(name)
        for number, partition_id, epoch, end in ends:
            rows = _rows(names[number], partition_id, epoch, end)
            await connection.copy_records_to_table(
                "chunks_keep", schema_name="coterie", columns=CHUNK_COLUMNS, records=rows
            )
    finally:
        await connection.close()


def _rows(names: list[str], partition_id: int, epoch: int, end: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows of a partition with these groups, as many batches each as a row holds."""
    now_ms = time.time_ns() // 1_000_000
    batches: list[bytes] = []
    first, size = end, 0
    for at in range(0, len(names), GROUPS_A_BATCH):
        pairs = [pair for name in names[at : at + GROUPS_A_BATCH] for pair in _records(name, now_ms)]
        records = [Record(end + place, now_ms, *pair) for place, pair in enumerate(pairs)]
        batches.append(build_batch(records, base_offset=end, leader_epoch=epoch))
        end, size = end + len(records), size + len(batches[-1])
        if size >= CHUNK_BYTES or at + GROUPS_A_BATCH >= len(names):
            heads = b"".join(batch[:HEADER_SIZE] for batch in batches)
            yield partition_id, first, end - 1, epoch, now_ms, len(batches), size, heads, b"".join(batches)
            batches, first, size = [], end, 0


def _records(group: str, now_ms: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the key and value of each record of a group: its members, and what it has committed."""
    members = tuple(
        MemberMetadata(f"{group}-member-{one}", "filling", "/127.0.0.1", STAYS_MS, b"", b"", None, STAYS_MS)
        for one in range(MEMBERS)
    )
    value = GroupMetadataValue("consumer", 1, "range", members[0].member_id, now_ms, members)
    yield group_metadata_record(GroupMetadataKey(group), value)
    for partition in range(OFFSETS_OF_EACH):
        yield offset_commit_record(
            OffsetCommitKey(group, TOPIC, partition), OffsetCommitValue(1, -1, "", now_ms)
        )
