"""Brokers on machines of their own, docs/cluster.md's command: each machine is an address of the loopback
network, where a client finds the brokers by what they advertise.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench.brokers import free_port
from bench.postgres import Server
from confluent_kafka import Producer

from clients.adapters.confluent import Confluent, ConfluentAdmin
from clients.adapters.model import Membership

from .test_page import PAGE, running

COMMAND = re.compile(r"<!-- tests/store_cluster/test_machines.py runs this -->\n\n```\n(.*?)\n```", re.DOTALL)
MACHINES = {1: "127.0.0.2", 2: "127.0.0.3", 3: "127.0.0.4"}
ANYWHERE = "0.0.0.0"  # as the page says
NETWORK = Path("/proc/sys/net/ipv4/conf/lo")  # only Linux answers at all addresses of the loopback network
pytestmark = pytest.mark.skipif(not NETWORK.exists(), reason="the loopback network has one address here")


def machines(server: Server, database: str, listened: dict[int, str], ports: dict[int, int]) -> Iterator[str]:
    """Yield the page's command as each machine runs it, with addresses and a database that are there."""
    match = COMMAND.search(PAGE.read_text(encoding="utf-8"))
    assert match is not None
    for number, machine in MACHINES.items():
        text = match[1]
        for there, here in (
            ("postgresql://db/coterie", server.url(database)),
            ("node.id=1", f"node.id={number}"),
            ("0.0.0.0:9092", f"{listened[number]}:{ports[number]}"),
            ("kafka-1:9092", f"{machine}:{ports[number]}"),
        ):
            assert text.count(there) == 1
            text = text.replace(there, here)
        yield text


def port_of_all() -> int:
    """Return a port that is free at the address of every machine."""
    while True:
        port = free_port()
        try:
            for machine in MACHINES.values():
                socket.create_server((machine, port)).close()
        except OSError:
            continue
        return port


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(False, id="at all of a machine's addresses"),
        pytest.param(True, id="at its own", marks=pytest.mark.interop),
    ],
)
def test_brokers_that_listen_where_machines_do_are_found_where_they_say(server: Server, *, own: bool) -> None:
    if own:
        listened, ports = MACHINES, dict.fromkeys(MACHINES, port_of_all())
    else:
        listened, ports = dict.fromkeys(MACHINES, ANYWHERE), {number: free_port() for number in MACHINES}
    client, database = Confluent(), server.new_database()
    first = f"{MACHINES[1]}:{ports[1]}"

    with ExitStack() as brokers:
        commands = machines(server, database, listened, ports)
        ready = [brokers.enter_context(running(command)) for command in commands]
        with ConfluentAdmin(first) as admin:
            admin.create("flights", partitions=6)
            found = admin.inner.list_topics("flights")
        addresses = {one.id: (one.host, one.port) for one in found.brokers.values()}
        leaders = {one.leader for one in found.topics["flights"].partitions.values()}
        in_a_transaction(first, "flights", partitions=6)
        with client.member(first, Membership(topics=("flights",), group="passengers")) as member:
            values = sorted(int(one.value or b"") for one in member.take(60))
            member.commit()
            committed = [member.committed(("flights", partition)) or 0 for partition in range(6)]
            ends = [member.bounds(("flights", partition))[1] for partition in range(6)]

    assert [line.split()[0] for line in ready] == ["ready"] * 3
    assert addresses == {number: (machine, ports[number]) for number, machine in MACHINES.items()}
    assert leaders == {*MACHINES}
    assert values == [*range(60)]
    assert min(committed) >= 10
    assert ends == [11] * 6  # behind the transaction's marker, which its coordinator has sent to each leader


def in_a_transaction(bootstrap: str, topic: str, *, partitions: int) -> None:
    """Produce sixty records in one transaction, which one broker ends at all others."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tower", "log_level": 3})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(60):
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    producer.commit_transaction(30)
