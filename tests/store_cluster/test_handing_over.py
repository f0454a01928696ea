"""A broker that leaves hands over one shard of groups after another: while one stands others are served."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

from bench.failover.filling import make_topics
from bench.failover.probe import Address, ask
from bench.postgres import Server
from bench.store_cluster import StoreCluster

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.cluster.giving_back import HANDED_BYTES
from coterie.client.net import messages
from coterie.storage.postgres.connecting import DatabaseAddress, connect

TOPIC = "flights"
COMMIT, FETCH, FIND = 7, 8, 4
GROUPS = 3
STANDS = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR)
LEADERS_OF_GROUPS = """
SELECT partition_id FROM coterie.partitions WHERE leader = 1 AND topic_id IN (
  SELECT topic_id FROM coterie.topics WHERE name = $1) FOR UPDATE
"""


async def commit(address: Address, group: str, offset: int) -> Code:
    """Return what a commit of nobody's member is answered with."""
    noted = {TopicPartition(TOPIC, 0): OffsetAndMetadata(offset, metadata="much " * 800)}
    wanted = messages.offset_commit(COMMIT, group, noted, generation=-1, member_id="", instance_id=None)
    answer = await ask(address, wanted)
    return Code(answer.topics[0].partitions[0].error_code)


async def committed(address: Address, group: str) -> int | None:
    """Return what a group has committed."""
    answer = await ask(address, messages.offset_fetch(FETCH, group, [TopicPartition(TOPIC, 0)]))
    return messages.read_offset_fetch(answer)[1][TopicPartition(TOPIC, 0)]


async def until_taken(address: Address, group: str, offset: int) -> None:
    """Commit, again as long as clients are to come back."""
    while code := await commit(address, group, offset):
        assert code in STANDS or code is Code.COORDINATOR_NOT_AVAILABLE, code
        await asyncio.sleep(0.01)


async def until_there(address: Address) -> None:
    """Ask for a coordinator until groups have one."""
    while True:
        answer = await ask(address, messages.find_coordinator(FIND, "group"))
        if not answer.coordinators[0].error_code:
            return
        await asyncio.sleep(0.01)


def led_by_first(cluster: StoreCluster) -> list[str]:
    """Return groups that the first broker coordinates, each in a shard of its own."""
    leaders, found = cluster.leaders(OFFSETS_TOPIC), dict[int, str]()
    for name in map("group-{}".format, count()):
        shard = coordinator_partition(name, partition_count=len(leaders))
        if leaders[shard] == 1:
            found.setdefault(shard, name)
        if len(found) == GROUPS:
            return [*found.values()]
    raise AssertionError


async def leave(cluster: StoreCluster, groups: list[str], stop: Callable[[], None]) -> None:
    """Have the first broker leave while nobody can be made the leader of what it leads, and look."""
    leaver, other = (("127.0.0.1", one.port) for one in cluster.brokers.values())
    for group in groups:
        for _ in range(HANDED_BYTES // 4_000 + 1):  # so that no two go together
            await until_taken(leaver, group, 1)
    holder = await connect(DatabaseAddress(cluster.server.url(cluster.database)))
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.fetch(LEADERS_OF_GROUPS, OFFSETS_TOPIC)

        stop()
        standing = ""
        while not standing:
            codes = {group: await commit(leaver, group, 2) for group in groups}
            standing = next((group for group, code in codes.items() if code), "")
        for group in groups:
            code = await commit(leaver, group, 3)
            assert code in STANDS if group == standing else code is Code.NONE
        assert await commit(leaver, standing, 3) in STANDS, "it still stands"

        await transaction.rollback()
    finally:
        holder.terminate()
    for group in groups:
        await until_taken(other, group, 4)
        assert await committed(other, group) == 4


def test_while_one_shard_is_handed_over_the_groups_in_others_are_served(
    server: Server, tmp_path: Path
) -> None:
    with StoreCluster(server, tmp_path, count=2, log_level="debug") as cluster:
        first = cluster[1]
        address = ("127.0.0.1", first.port)
        topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        asyncio.run(make_topics(address, topic))
        asyncio.run(until_there(address))
        groups = led_by_first(cluster)

        asyncio.run(leave(cluster, groups, lambda: first.send(signal.SIGTERM)))

        assert first.wait() == 0
        assert first.log.count(f"to be given away: {OFFSETS_TOPIC}") >= GROUPS
        assert first.log.index("to be given away") < first.log.index("what is decided is written")
