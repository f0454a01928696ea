"""What clients are told by a broker that does not reach its database any more, docs/cluster.md's table."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from bench.failover.probe import Address, ask
from bench.postgres import Server
from bench.store_cluster import StoreCluster

from clients.adapters.confluent import ConfluentAdmin
from coterie.base.codes import Code
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.client import Consumer
from coterie.client.net import messages

TOPIC, GROUP = "suspended", "of-a-suspended-broker"
PLACE = TopicPartition(TOPIC, 0)
COMMIT = 7
WITHIN_S = 60


@contextmanager
def silent(server: Server) -> Iterator[None]:
    """Have all of a server's processes stand still, as if its machine was gone."""
    assert server.process is not None
    try:
        server.process.send_signal(signal.SIGSTOP)  # first, so that it starts no others
        _send(server.children(), signal.SIGSTOP)
        yield
    finally:
        _send(server.children(), signal.SIGCONT)
        server.process.send_signal(signal.SIGCONT)


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)


async def commit(address: Address, offset: int) -> Code:
    """Return what a commit of nobody's member is answered with."""
    noted = {PLACE: OffsetAndMetadata(offset)}
    wanted = messages.offset_commit(COMMIT, GROUP, noted, generation=-1, member_id="", instance_id=None)
    answer = await ask(address, wanted)
    return Code(answer.topics[0].partitions[0].error_code)


def are_suspended(cluster: StoreCluster) -> bool:
    return all("suspended" in broker.log for broker in cluster.brokers.values())


@pytest.mark.interop
def test_a_commit_is_held_until_the_broker_is_suspended_and_then_told_that_others_may_coordinate(
    server: Server, cluster: StoreCluster
) -> None:
    """Clients send again what was told so: it is taken once the database is back."""

    async def committed() -> int | None:
        async with (
            asyncio.timeout(WITHIN_S),
            Consumer(bootstrap_servers=cluster.bootstrap, group_id=GROUP) as consumer,
        ):
            await consumer.commit({PLACE: OffsetAndMetadata(1)})
            address = "127.0.0.1", cluster[cluster.leader_of(OFFSETS_TOPIC, GROUP)].port
            with silent(server):
                held = asyncio.create_task(commit(address, 2))
                await asyncio.to_thread(cluster.until, "all are suspended", lambda: are_suspended(cluster))
                refused = await commit(address, 3)
                again = asyncio.create_task(consumer.commit({PLACE: OffsetAndMetadata(4)}))
                await asyncio.sleep(1)  # in which neither may be answered
                answered = held.done() or again.done()
            assert (refused, answered) == (Code.NOT_COORDINATOR, False)
            assert await held is Code.NONE
            await again
            return (await consumer.committed([PLACE]))[PLACE]

    with ConfluentAdmin(cluster.bootstrap) as admin:
        admin.create(TOPIC)

    assert asyncio.run(committed()) == 4
