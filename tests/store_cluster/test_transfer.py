"""A broker's directory that becomes a cluster's, and one again: docs/cluster.md's commands, and clients."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.brokers import Coterie, Kafka
from bench.postgres import Server
from bench.store_cluster import StoreCluster

from clients.adapters import Membership, Message
from clients.adapters.confluent import Confluent, ConfluentAdmin
from clients.adapters.writers import ConfluentWriter
from clients.test_transactions import read
from processes.several import Several

pytestmark = pytest.mark.interop  # brokers start three times

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
COMMANDS = re.compile(r"<!-- tests/store_cluster/test_transfer.py runs these -->\n\n```\ncoterie (.*?)\n```")
CLIENT = Confluent()
KAFKAS_OWN = ("__cluster_metadata-0", "meta.properties", "bootstrap.checkpoint")
TOPIC, GROUP = "flights", f"group-{uuid.uuid4()}"


def run(words: str, url: str, folder: Path) -> None:
    """Run a command of the page in a folder."""
    given = words.replace("postgresql://localhost/coterie", url).split()
    subprocess.run([sys.executable, "-m", "coterie", *given], cwd=folder, check=True)


def produce(bootstrap: str, *values: str) -> None:
    CLIENT.produce(
        bootstrap,
        [Message(topic=TOPIC, partition=0, value=value.encode()) for value in values],
        idempotent=True,
    )


def go_on(bootstrap: str, count: int) -> list[tuple[int, bytes | None]]:
    """Return what a group reads next, and commit it."""
    with CLIENT.member(bootstrap, Membership(topics=(TOPIC,), group=GROUP)) as member:
        found = [(one.offset, one.value) for one in member.take(count)]
        member.commit()
    return found


@contextmanager
def alone(directory: Path) -> Iterator[str]:
    """Yield the address of a broker that has a directory to itself."""
    broker = Coterie(directory)
    broker.start()
    try:
        yield broker.address
    finally:
        broker.stop()


def committed_records(bootstrap: str) -> list[bytes]:
    return read(bootstrap, TOPIC, partitions=1, isolation="read_committed")


def test_groups_and_records_go_on_from_a_directory_and_in_one(server: Server, tmp_path: Path) -> None:
    bring_in, write_out = COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    database = server.new_database()
    with alone(tmp_path / "kafka-data") as address:
        with ConfluentAdmin(address) as admin:
            admin.create(TOPIC, partitions=1)
        produce(address, "a", "b", "c")
        assert go_on(address, 3) == [(0, b"a"), (1, b"b"), (2, b"c")]
        produce(address, "d")
        unfinished = ConfluentWriter(address, "writer")
        unfinished.begin()
        unfinished.write((TOPIC, 0), b"never")  # its transaction is open when the broker stops

    run(bring_in, server.url(database), tmp_path)
    with StoreCluster(server, tmp_path, database=database) as cluster:
        cluster.start()
        first = go_on(cluster.bootstrap, 1)
        with ConfluentWriter(cluster.bootstrap, "writer") as writer:  # whose start aborts what was open
            writer.begin()
            writer.write((TOPIC, 0), b"e")
            writer.commit()
        produce(cluster.bootstrap, "f")
        values = committed_records(cluster.bootstrap)
    run(write_out, server.url(database), tmp_path)

    with alone(tmp_path / "coterie-data") as address:
        again = committed_records(address)
        last = go_on(address, 2)

    assert first == [(3, b"d")]
    assert values == again == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert [value for _, value in last] == [b"e", b"f"]


def test_what_several_processes_have_kept_goes_on_over_a_database(server: Server, tmp_path: Path) -> None:
    bring_in, _ = COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    database = server.new_database()
    groups = [f"group-{uuid.uuid4()}" for _ in range(6)]
    with Several(tmp_path / "kafka-data", 2) as brokers:
        with ConfluentAdmin(brokers.bootstrap) as admin:
            admin.create(TOPIC, partitions=4)
        assert {*brokers.leaders(TOPIC)} == {1, 2}
        sent = [Message(topic=TOPIC, partition=n % 4, value=str(n).encode()) for n in range(40)]
        CLIENT.produce(brokers.bootstrap, sent, idempotent=True)
        for group in groups:
            with CLIENT.member(brokers.bootstrap, Membership(topics=(TOPIC,), group=group)) as member:
                assert len(member.take(40)) == 40
                member.commit()
        unfinished = ConfluentWriter(brokers.bootstrap, "writer")
        unfinished.begin()
        for partition in range(4):
            unfinished.write((TOPIC, partition), b"never")

    run(bring_in, server.url(database), tmp_path)
    with StoreCluster(server, tmp_path, database=database) as cluster:
        cluster.start()
        with ConfluentWriter(cluster.bootstrap, "writer") as writer:  # whose start aborts what was open
            writer.begin()
            for partition in range(4):
                writer.write((TOPIC, partition), b"new")
            writer.commit()
        next_ones = []
        for group in groups:
            with CLIENT.member(cluster.bootstrap, Membership(topics=(TOPIC,), group=group)) as member:
                next_ones.append([(one.partition, one.value) for one in member.take(4)])
        values = read(cluster.bootstrap, TOPIC, partitions=4, isolation="read_committed")

    for found in next_ones:
        assert sorted(found) == [(partition, b"new") for partition in range(4)]
    assert sorted(values) == sorted([*(str(n).encode() for n in range(40)), *[b"new"] * 4])


def test_apache_kafka_serves_what_is_written_out_of_topics_that_it_knows(
    server: Server, tmp_path: Path
) -> None:
    bring_in, write_out = COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    database = server.new_database()
    kafka = Kafka(tmp_path / "kafka")
    kafka.prepare()
    its_data = kafka.directory / "log"
    kafka.start()
    try:
        with ConfluentAdmin(kafka.address) as admin:
            admin.create(TOPIC, partitions=1)
        produce(kafka.address, "a", "b")
        assert go_on(kafka.address, 2) == [(0, b"a"), (1, b"b")]
    finally:
        kafka.stop()

    shutil.copytree(its_data, tmp_path / "kafka-data")
    run(bring_in, server.url(database), tmp_path)
    with StoreCluster(server, tmp_path, database=database) as cluster:
        cluster.start()
        produce(cluster.bootstrap, "c", "d")
        first = go_on(cluster.bootstrap, 2)
    run(write_out, server.url(database), tmp_path)
    for name in KAFKAS_OWN:
        own = its_data / name
        (shutil.copytree if own.is_dir() else shutil.copy)(own, tmp_path / "coterie-data" / name)
    its_data.rename(tmp_path / "before")
    (tmp_path / "coterie-data").rename(its_data)

    kafka.start()
    try:
        produce(kafka.address, "e")
        values = committed_records(kafka.address)
        # It cannot commit: librdkafka takes the commit of an older leader epoch for an older commit.
        with CLIENT.member(kafka.address, Membership(topics=(TOPIC,), group=GROUP)) as member:
            last = [(one.offset, one.value) for one in member.take(1)]
    finally:
        kafka.stop()
    assert first == [(2, b"c"), (3, b"d")]
    assert last == [(4, b"e")]
    assert values == [b"a", b"b", b"c", b"d", b"e"]
