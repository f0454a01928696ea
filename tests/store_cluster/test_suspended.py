"""What clients are told by a broker that does not reach its database any more, docs/cluster.md's table.

And what a history says of that time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from bench.failover.probe import Address, ask
from bench.postgres import Server
from bench.store_cluster import StoreCluster
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer

from clients.adapters.confluent import ConfluentAdmin
from clients.soon import soon
from coterie.base.codes import Code
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.client import Consumer
from coterie.client.net import messages
from store_cluster.test_story_and_history import coterie

TOPIC, GROUP = "suspended", "of-a-suspended-broker"
PLACE = TopicPartition(TOPIC, 0)
COMMIT = 7
WITHIN_S = 60
AWAY_TOPIC = "away"
SHORT, LONG = "away-short", "away-long"
AWAY_S, BEFORE_S = 20, 12


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


class PollingMember(threading.Thread):
    """A member that polls and commits all the time."""

    def __init__(self, bootstrap: str, group: str, name: str, session_ms: int) -> None:
        super().__init__(daemon=True)
        self.consumer = ConfluentConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": name,
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": 1_000,
                "auto.commit.interval.ms": 500,
                "partition.assignment.strategy": "range",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self.consumer.subscribe([AWAY_TOPIC])
        self.over = threading.Event()
        self.read = 0

    def run(self) -> None:
        while not self.over.is_set():
            message = self.consumer.poll(0.1)
            self.read += message is not None and message.error() is None
        self.consumer.close()


def produced(bootstrap: str, over: threading.Event) -> None:
    """Have records for every member all the time."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(1_000_000):
        if over.is_set():
            break
        producer.produce(AWAY_TOPIC, b"%d" % number, partition=number % 4)
        producer.poll(0.02)
    producer.flush(10)


@pytest.mark.interop
def test_members_that_lost_their_sessions_in_an_outage_are_not_taken_for_dead(
    server: Server, cluster: StoreCluster
) -> None:
    with ConfluentAdmin(cluster.bootstrap) as admin:
        admin.create(AWAY_TOPIC, partitions=4)
    over = threading.Event()
    writer = threading.Thread(target=produced, args=(cluster.bootstrap, over), daemon=True)
    members = [PollingMember(cluster.bootstrap, SHORT, f"short-{one}", 6_000) for one in range(2)]
    members.append(PollingMember(cluster.bootstrap, LONG, "long", 45_000))
    for one in (writer, *members):
        one.start()
    try:
        soon(lambda: all(one.read for one in members))
        time.sleep(BEFORE_S)
        with silent(server):
            away_ms = time.time() * 1000
            time.sleep(AWAY_S)
        had = [one.read for one in members]
        soon(lambda: all(one.read > before + 100 for one, before in zip(members, had, strict=True)))
        time.sleep(5)
    finally:
        over.set()
        for one in members:
            one.over.set()
        for one in (writer, *members):
            one.join(30)
    history = history_of(SHORT, cluster)
    (lost,) = (one for one in history["generations"] if "cluster-away" in one["causes"])
    (cost,) = (one for one in history["costs"] if one["generation"] == lost["generation"])

    assert lost["evidence"][0].startswith("nobody could write from ")
    assert cost["longest_ms"] >= AWAY_S * 1000
    assert lost["formed_at"] - cost["longest_ms"] == pytest.approx(away_ms, abs=2_000)
    assert not any("session-expired" in one["causes"] for one in history["generations"])
    assert [one["causes"] for one in history_of(LONG, cluster)["generations"]] == [
        ["member-joined"],
        ["member-left"],
    ]


def history_of(group: str, cluster: StoreCluster) -> dict[str, Any]:
    """Return what the command says of a group."""
    database = cluster.server.url(cluster.database)
    found: dict[str, Any] = json.loads(coterie("history", database, "--group", group, "--output", "json"))
    return found
