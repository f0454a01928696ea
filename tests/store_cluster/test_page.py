"""The operator's page, docs/cluster.md: what it says is done."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bench.brokers import free_port
from bench.postgres import Server

from clients.adapters.confluent import Confluent, ConfluentAdmin
from clients.adapters.model import Membership, Message

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
COMMANDS = re.compile(r"<!-- tests/store_cluster/test_page.py runs these -->\n\n```\n(.*?)```", re.DOTALL)
PORTS = ("9092", "9093", "9094")


@contextmanager
def running(command: str) -> Iterator[str]:
    """Yield the first line that a command prints; it is ended afterwards."""
    program, *words = shlex.split(command)
    assert program == "coterie"
    # Which would have each process compile all of its modules.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(
        [sys.executable, "-m", "coterie", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.kill()


@pytest.fixture
def commands(server: Server) -> list[str]:
    """The page's commands, with ports that are free and an address that leads to the test's server."""
    match = COMMANDS.search(PAGE.read_text(encoding="utf-8"))
    assert match is not None
    text = match[1]
    assert text.count("postgresql://localhost/coterie") == len(PORTS)
    server.sql("postgres", "CREATE DATABASE coterie")
    for port in PORTS:
        text = text.replace(port, str(free_port()))
    return text.replace("postgresql://localhost/coterie", server.url("coterie")).splitlines()


def test_three_commands_make_three_brokers_that_share_topics_and_groups(commands: list[str]) -> None:
    client = Confluent()

    with ExitStack() as brokers:
        ready = [brokers.enter_context(running(command)) for command in commands]
        addresses = [line.split()[1] for line in ready]
        first, second, third = addresses
        with ConfluentAdmin(first) as admin:
            admin.create("flights", partitions=6)
        with ConfluentAdmin(third) as admin:
            assert admin.partition_count("flights") == 6
            leaders = {
                one.leader for one in admin.inner.list_topics("flights").topics["flights"].partitions.values()
            }
        sent = [Message(topic="flights", partition=n % 6, value=str(n).encode()) for n in range(60)]
        client.produce(second, sent)
        with client.member(third, Membership(topics=("flights",), group="passengers")) as member:
            values = {one.value for one in member.take(60)}
            member.commit()
        with client.member(first, Membership(topics=("flights",), group="passengers")) as member:
            committed = [member.committed(("flights", partition)) for partition in range(6)]

    assert [line.split()[0] for line in ready] == ["ready"] * 3
    assert leaders == {1, 2, 3}
    assert values == {one.value for one in sent}
    assert committed == [10] * 6
