"""What a cluster holds before a broker of it goes: a shard with many offsets, or many partitions."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

from bench.failover.probe import Address, Asking, ask
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.client.net import messages

CREATE_TOPICS, COMMIT, FIND = (19, 4), 7, 4
MANY, WIDE = "many", "wide"
OFFSETS, OFFSETS_A_GROUP = 1_200_000, 1_000
PARTITIONS, PARTITIONS_A_TOPIC = 10_000, 1_000
TIMEOUT_MS = 60_000


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
