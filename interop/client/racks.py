"""Three Apache Kafka nodes, a rack each, and what consumers and tasks make of that (KIP-392, KIP-881)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from struct import Struct
from typing import Any

from bench import kafka
from bench.brokers import Kafka, free_port

from coterie.base.ids import TopicPartition
from coterie.client import Admin, Consumer, Producer
from coterie.client.net.plain_socket import BlockingConnection
from coterie.spark.source import tasks
from coterie.spark.source.offsets import Range
from coterie.spark.source.options import parse

__all__ = ["RACK_CHECKS", "three_racks"]

RACKS = {1: "a", 2: "b", 3: "c"}
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
EVERYWHERE, EACH = "everywhere", "on-each"
RECORDS, RECORD_BYTES = 2_000, 1_000
WITHIN_S = 30.0
TRIES = 300
FROM_RACK = 0.95
"""At least such a part of the bytes comes from the rack."""

BYTES_RECEIVED = Struct("=128xQ")
"""Of Linux's tcp_info, as far as its tcpi_bytes_received."""

Addresses = Mapping[str, str]
"""Where the node of each rack is."""


class RackedKafka(Kafka):
    """A node in a rack; the first is the controller, too."""

    def __init__(self, directory: Path, *, node_id: int, controller_port: int) -> None:
        super().__init__(directory)
        self.node_id, self.controller_port = node_id, controller_port

    def prepare(self) -> None:
        super(Kafka, self).prepare()
        self.properties = kafka.format_storage(
            self.directory,
            port=self.port,
            controller_port=self.controller_port,
            settings={**self.settings, **self._place()},
        )

    def _place(self) -> dict[str, str]:
        place = {
            "node.id": str(self.node_id),
            "broker.rack": RACKS[self.node_id],
            "replica.selector.class": SELECTOR,
            "offsets.topic.num.partitions": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
        }
        if self.node_id == 1:
            return place
        return {**place, "process.roles": "broker", "listeners": f"PLAINTEXT://{self.address}"}


@contextmanager
def three_racks(directory: Path) -> Iterator[Addresses]:
    """Yield where the nodes are, of a cluster that has topics with records."""
    controller_port = free_port()
    with ExitStack() as stack:
        nodes = {
            rack: RackedKafka(directory / rack, node_id=number, controller_port=controller_port)
            for number, rack in RACKS.items()
        }
        for node in nodes.values():
            stack.enter_context(node)
        addresses = {rack: node.address for rack, node in nodes.items()}
        asyncio.run(filled(addresses))
        yield addresses


async def filled(addresses: Addresses) -> None:
    """Create a topic that each rack has, led from the first, and one with a partition in two; write."""
    async with Admin(addresses["a"]) as admin:
        for _ in range(TRIES):  # until the controller knows all
            if len((await admin.describe_cluster()).brokers) == len(RACKS):
                break
            await asyncio.sleep(WITHIN_S / TRIES)
        await admin.create_topic(EVERYWHERE, layout=[[1, 2, 3]])
        await admin.create_topic(EACH, layout=[[2], [1]])
    async with Producer(addresses["a"]) as producer:
        for number in range(RECORDS):
            await producer.send(EVERYWHERE, value_of(number))


def value_of(number: int) -> bytes:
    """Return the value of a record."""
    return b"%d" % number + b" " * RECORD_BYTES


async def read_from(addresses: Addresses, rack: str | None, *, source: str) -> None:
    """Read all, in this rack or in none, and expect that the last fetches went to the node of `source`."""
    settings: dict[str, Any] = {"bootstrap_servers": addresses["a"], "auto_offset_reset": "earliest"}
    async with Consumer(**settings, client_rack=rack or "") as consumer:
        consumer.assign([(EVERYWHERE, 0)])
        got: list[Any] = []
        async with asyncio.timeout(WITHIN_S):
            # The leader's first answer names the near replica, and may be all that there is.
            while len(got) < RECORDS or source != fetched_from(consumer):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    got += [record.value for record in records]
            await consumer.seek_to_beginning()
            again = 0
            while again < RECORDS:
                again += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
        assert got == [*map(value_of, range(RECORDS))], f"{len(got)} records came"
        assert fetched_from(consumer) == source, f"{fetched_from(consumer)} was asked, not {source}"


def fetched_from(consumer: Consumer) -> str:
    """Return the broker that the one partition is fetched from now."""
    (state,) = consumer._fetcher.states.values()
    return str(state.source)


async def shared(addresses: Addresses) -> None:
    """Expect that the leader of a group gives each member what is in its rack."""
    settings: dict[str, Any] = {
        "bootstrap_servers": addresses["a"],
        "group_id": "racks",
        "partition_assignment_strategy": "range",
        "heartbeat_interval_ms": 200,
    }
    async with (
        Consumer(EACH, **settings, client_rack="a") as one,
        Consumer(EACH, **settings, client_rack="b") as two,
        asyncio.timeout(WITHIN_S),
    ):
        near = frozenset({TopicPartition(EACH, 1)}), frozenset({TopicPartition(EACH, 0)})
        while (one.assignment(), two.assignment()) != near:
            await asyncio.gather(one.getmany(timeout_ms=100), two.getmany(timeout_ms=100))


async def read_by_task(addresses: Addresses, rack: str, *, source: str) -> None:
    """Read all as a Spark task does, and expect that nearly all bytes came by the link to the node of
    `source`: of all that the kernel has received on the connections, headers and metadata as well.
    """
    options = {"kafka.bootstrap.servers": addresses["a"], "subscribe": EVERYWHERE, "kafka.client.rack": rack}
    settings = tasks.FetchSettings.of(parse(options, streaming=False))
    task = tasks.TaskPartition([Range(EVERYWHERE, 0, 0, RECORDS)], {}, settings)
    for connection in tasks.idle_connections.values():
        connection.close()
    tasks.idle_connections.clear()
    batches = await asyncio.to_thread(lambda: list(tasks.read_task(task)))
    got = [row["value"] for batch in batches for row in batch.to_pylist()]
    assert got == [*map(value_of, range(RECORDS))], f"{len(got)} records came"
    links = {str(at): received(one) for (at, _), one in tasks.idle_connections.items()}
    share = links[source] / sum(links.values())
    assert share >= FROM_RACK, f"{share:.2f} of the bytes came from {source}: {links}"


def received(connection: BlockingConnection) -> int:
    """Return how many bytes the kernel has received on a connection (Linux)."""
    info = connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED.size)
    (count,) = BYTES_RECEIVED.unpack(info)
    return int(count)


RACK_CHECKS: Mapping[str, Callable[[Addresses], Awaitable[None]]] = {
    "rack-of-the-follower": lambda at: read_from(at, "b", source=at["b"]),
    "rack-of-the-leader": lambda at: read_from(at, "a", source=at["a"]),
    "no-rack": lambda at: read_from(at, None, source=at["a"]),
    "racks-in-a-group": shared,
    "task-in-the-rack-of-a-follower": lambda at: read_by_task(at, "b", source=at["b"]),
    "task-in-the-rack-of-another": lambda at: read_by_task(at, "c", source=at["c"]),
    "task-in-the-rack-of-the-leader": lambda at: read_by_task(at, "a", source=at["a"]),
    "task-in-no-rack": lambda at: read_by_task(at, "", source=at["a"]),
}
